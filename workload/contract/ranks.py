"""Steps of all ranks of a run: the files that the ranks write, and their summary in run.json. Standard library only.

A rank is one of the processes that train together, each on a device of its own. Rank 0 writes the bundle. Every rank
writes its own times into the bundle's folder `ranks/N`, so that they are kept if a process is killed.
"""

import csv
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

from workload.contract.fields import Number, Numbers, Share, Text, Texts
from workload.contract.text import percent

# Option of a rank: the folder in which it leaves its error for the process that started it.
NOTES_FLAG = "--rank-notes"
# Folder in a bundle with a folder for each rank. Rank 0 has its steps in the bundle's own steps.csv.
FOLDER = "ranks"
STEPS, COLLECTIVES_FILE = "steps.csv", "collectives.csv"
COLLECTIVE_COLUMNS = ("step", "hidden_s", "exposed_s")
# File of a run on several machines, in FOLDER: the host of each rank, and its clock; names as in `Ranks`.
HOSTS_FILE = "hosts.csv"
CLOCK_COLUMNS = ("clock_start_s", "clock_end_s", "clock_error_s")
HOST_COLUMNS = ("rank", "host", *CLOCK_COLUMNS)
# Clocks that differ by more than this were not set by NTP.
MOST_CLOCK_S = 1.0
# Least number of steps for quartiles.
LEAST_STEPS = 5
# A smaller difference is not worth a search for its cause, even if it is certain.
LEAST_SLOWER = 0.05
MEASURED = "measured"
TOO_FEW = f"fewer than {LEAST_STEPS} measured steps were completed by all ranks"
UNKNOWN = (
    "the script does not use DistributedDataParallel: the time that its ranks wait for each other is unknown, and which"
    " rank is the slowest"
)


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Processes that trained together. Lists have a value for each rank, in order; times are medians of the steps.

    `steps`: measured steps of each rank; `images`: of all ranks in the steps that every rank completed.
    `images_per_s`: of all ranks. `own_s`: step and wait for data without `exposed_s`. `exposed_s`: time after the last
    gradient was ready: the wait for collectives, and the division and DDP's copies of the last bucket; `hidden_s`: time
    of collectives before that.
    `slower_by`: how much longer than the others the rank with the longest `own_s` takes, as a share of their time;
    `spread`: interquartile range of this share. `slowest`: that rank, if it is slower by more than the spread, else
    None. `why`: why there is no comparison.
    With several machines: `hosts`, of each rank; `clock_start_s` and `clock_end_s`: by how much its clock was ahead of
    the clock that was furthest behind, at the beginning and at the end of the run, wrong by at most `clock_error_s`.
    """

    number: Number = None
    backend: Text = None
    steps: Numbers = None
    images: Number = None
    images_per_s: Number = None
    own_s: Numbers = None
    data_s: Numbers = None
    hidden_s: Numbers = None
    exposed_s: Numbers = None
    slowest: Number = None
    slower_by: Share = None
    spread: Share = None
    why: Text = None
    hosts: Texts = None
    clock_start_s: Numbers = None
    clock_end_s: Numbers = None
    clock_error_s: Numbers = None


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """A measured step of a rank, in seconds; names as in `Ranks`. `own_s`: whole step if `exposed_s` is unknown."""

    own_s: float
    data_s: float
    hidden_s: float | None
    exposed_s: float | None
    images: int


def is_reported_by_parent(words: Sequence[str]) -> bool:
    """Whether the process with this command line is a rank whose error is printed by the process that started it."""
    return "RANK" in os.environ and NOTES_FLAG in words


def own_folder(bundle: Path, rank: int) -> Path:
    """Folder of a rank's files in a bundle; creates it."""
    folder = bundle / FOLDER / str(rank)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def backend_of(device: str | None) -> str:
    """Library that does the collectives of ranks on this kind of device."""
    return "nccl" if device == "cuda" else "gloo"


def summary(folder: Path, *, device: str | None, measured_s: float | None) -> Ranks | None:
    """Summary of the files that the ranks of the bundle `folder` have written so far; None for a run of one device.

    `measured_s`: wall time of rank 0's measured steps, if known.
    """
    places = sorted(
        (path for path in (folder / FOLDER).glob("[0-9]*") if path.is_dir()), key=lambda path: int(path.name)
    )
    if not places:
        return None
    known = summarized([_steps_of(folder, place) for place in places], measured_s)
    return replace(known, backend=backend_of(device), **_hosts(folder))


def _hosts(folder: Path) -> dict[str, Any]:
    """Fields of `Ranks` that name the hosts and compare their clocks, or the hosts alone if a clock is unknown.

    The file compares each clock with that of the process that started the ranks.
    """
    rows = complete_rows(folder / FOLDER / HOSTS_FILE)
    hosts = {"hosts": [row["host"] for row in rows]} if rows else {}
    start_s, end_s, error_s = ([float(row[name]) for row in rows] for name in CLOCK_COLUMNS)
    if not rows or not all(map(math.isfinite, (*start_s, *end_s, *error_s))):
        return {**hosts}
    ahead = ([each - min(clocks_s) for each in clocks_s] for clocks_s in (start_s, end_s))
    return {**hosts, **dict(zip(CLOCK_COLUMNS, (*ahead, [each + max(error_s) for each in error_s]), strict=True))}


def clock_notes(ranks: Ranks | None) -> list[str]:
    """Note if the clocks of the machines differ so much that times of day in their files cannot be compared."""
    if ranks is None or not ranks.hosts or not ranks.clock_end_s:
        return []
    ahead_s = max(ranks.clock_end_s)
    if ahead_s <= MOST_CLOCK_S:
        return []
    ahead, behind = (ranks.hosts[list(ranks.clock_end_s).index(each)] for each in (ahead_s, min(ranks.clock_end_s)))
    text = (
        f"the clock of {ahead} is {ahead_s:,.1f} s ahead of that of {behind}: times of day in the logs of these"
        " machines cannot be compared; no figure of the run depends on them"
    )
    return [text]


def summarized(ranks: Sequence[Mapping[int, RankStep]], measured_s: float | None = None) -> Ranks:
    """Summary of the measured steps of all ranks. `ranks`: for each rank, its steps by their number."""
    common = sorted(set(ranks[0]).intersection(*ranks[1:]))
    images = sum(steps[number].images for steps in ranks for number in common)
    # The wall time of an interrupted run may include a step that not every rank has completed.
    is_whole = bool(common) and len(common) == len(ranks[0])
    known = Ranks(
        number=len(ranks),
        steps=[len(steps) for steps in ranks],
        images=images,
        images_per_s=images / measured_s if measured_s and is_whole else None,
        why=TOO_FEW,
    )
    if len(common) < LEAST_STEPS:
        return known
    if any(steps[number].exposed_s is None for steps in ranks for number in common):
        data_s = [median(steps[number].data_s for number in common) for steps in ranks]
        return replace(known, data_s=data_s, why=UNKNOWN)
    return _compared(known, [[steps[number] for number in common] for steps in ranks])


def _compared(known: Ranks, ranks: Sequence[Sequence[RankStep]]) -> Ranks:
    own_s = [median(step.own_s for step in steps) for steps in ranks]
    slowest = max(range(len(ranks)), key=own_s.__getitem__)
    others = [steps for rank, steps in enumerate(ranks) if rank != slowest]
    # Ranks are compared within each step, so that work which slows all ranks alike does not count.
    shares = [
        step.own_s / usual - 1
        for step, *beside in zip(ranks[slowest], *others, strict=True)
        if (usual := median(other.own_s for other in beside)) > 0
    ]
    low, _, high = quantiles(shares, n=4, method="inclusive")
    slower_by, spread = median(shares), high - low
    return replace(
        known,
        own_s=own_s,
        data_s=[median(step.data_s for step in steps) for steps in ranks],
        hidden_s=[median(step.hidden_s or 0.0 for step in steps) for steps in ranks],
        exposed_s=[median(step.exposed_s or 0.0 for step in steps) for steps in ranks],
        why=None,
        slowest=slowest if slower_by > max(spread, LEAST_SLOWER) else None,
        slower_by=max(0.0, slower_by),
        spread=spread,
    )


def _steps_of(folder: Path, place: Path) -> dict[int, RankStep]:
    """Measured steps of a rank by number, without a step that was cut off by a kill."""
    collectives = {row["step"]: row for row in complete_rows(place / COLLECTIVES_FILE)}
    steps = complete_rows(folder / STEPS if place.name == "0" else place / STEPS)
    found = {}
    for row in steps:
        beside = collectives.get(row.get("step", ""))
        if beside is None or row["phase"] != MEASURED:
            continue
        data_s = float(row["data_s"])
        hidden_s, exposed_s = (float(text) if (text := beside[name]) else None for name in ("hidden_s", "exposed_s"))
        found[int(row["step"])] = RankStep(
            own_s=max(0.0, float(row["step_s"]) + data_s - (exposed_s or 0.0)),
            data_s=data_s,
            hidden_s=hidden_s,
            exposed_s=exposed_s,
            images=int(row["images"]),
        )
    return found


def complete_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file without a half-written last one; none if the file is absent."""
    with suppress(FileNotFoundError), path.open(newline="", encoding="utf-8") as lines:
        complete = (line for line in lines if line.endswith("\n"))
        return [row for row in csv.DictReader(complete) if None not in row.values()]
    return []


# --- what limits scaling

IN_COLLECTIVES, UNEVEN, INPUT = "collectives", "uneven ranks", "input"


def waits(ranks: Ranks) -> dict[str, float]:
    """Shares of a step in which the ranks wait for collectives, for slower ranks and for data; empty if unknown.

    The rank with the shortest wait after its last gradient waits for no other rank, so its wait is the time of the
    collectives themselves. The other ranks wait longer by the time that they wait for slower ranks.
    """
    if not (ranks.own_s and ranks.exposed_s and ranks.data_s):
        return {}
    step_s = fmean(ranks.own_s) + fmean(ranks.exposed_s)
    least_s = min(ranks.exposed_s)
    waits_s = {IN_COLLECTIVES: least_s, UNEVEN: fmean(ranks.exposed_s) - least_s, INPUT: fmean(ranks.data_s)}
    return {name: wait_s / step_s for name, wait_s in waits_s.items()} if step_s > 0 else {}


def largest_wait(shares: Mapping[str, float]) -> str | None:
    """Name of the largest share of `waits`; None if all are too small to limit scaling."""
    largest = max(shares, key=shares.__getitem__, default=None)
    return largest if largest is not None and shares[largest] >= LEAST_SLOWER else None


def limit_sentence(shares: Mapping[str, float], slowest: str | None = None) -> str:
    """Sentence on what limits scaling; "" if the shares are unknown. `slowest`: rank that is slower than the others.

    `shares`: result of `waits`, or medians of such results.
    """
    if not shares:
        return ""
    largest = largest_wait(shares)
    if largest is None:
        least = percent(LEAST_SLOWER)
        return f"no wait limits scaling: for collectives, slower devices and data, each is below {least} of the step"
    slow = "uneven devices limit" if slowest is None else f"rank {slowest} limits"
    limits, reason = {
        IN_COLLECTIVES: ("collectives limit", "for them after its last gradient"),
        UNEVEN: (slow, "for a slower one, on average"),
        INPUT: ("the input limits", "for data"),
    }[largest]
    return f"{limits} scaling: a device waits {percent(shares[largest])} of the step {reason}"
