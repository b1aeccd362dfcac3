"""Steps of all ranks of a run: the files that the ranks write, and their summary in run.json. Standard library only.

A rank is one of the processes that train together, each on a device of its own. Rank 0 writes the bundle. Every rank
writes its own times into the bundle's folder `ranks/N`, so that they are kept if a process is killed.
"""

import csv
import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any, NamedTuple

from workload.contract.fields import Number, Numbers, Rate, Share, Text, Texts
from workload.contract.text import percent, si

# Option of a rank: the folder in which it leaves its error for the process that started it.
NOTES_FLAG = "--rank-notes"
# Folder in a bundle with a folder for each rank. Rank 0 has its steps in the bundle's own steps.csv.
FOLDER = "ranks"
STEPS, COLLECTIVES_FILE = "steps.csv", "collectives.csv"
# A step has a row for each kind of collective, and a last one for all kinds, without which a kill has cut it off.
COLLECTIVE_COLUMNS = ("step", "kind", "number", "bytes", "own_s", "hidden_s", "exposed_s")
ALL_KINDS = "all"
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
    "the script was not seen to begin a collective in its measured steps: the time that its ranks wait for each other"
    " is unknown, and which rank is the slowest"
)


class Collective(StrEnum):
    """Kind of a collective: an operation of torch.distributed with other ranks."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    BROADCAST = "broadcast"
    ALL_TO_ALL = "all_to_all"
    POINT_TO_POINT = "point_to_point"
    BARRIER = "barrier"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"


@dataclass(frozen=True, kw_only=True)
class LinkRate:
    """How fast the ranks exchange a tensor of `bytes` by one `kind` of collective while nothing else runs.

    `bytes_per_s`: `bytes` over the time of the collective, median; `p5`, `p95`: percentiles of the `samples`. `ranks`:
    the two ranks of the slowest link, which has this rate; None for a collective of all ranks.
    """

    kind: Text = None
    bytes: Number = None
    bytes_per_s: Rate = None
    p5: Rate = None
    p95: Rate = None
    samples: Number = None
    ranks: Numbers = None


@dataclass(frozen=True, kw_only=True)
class KindRecord:
    """Collectives of one kind in a step. Lists have a value for each rank; all values are medians of the steps.

    `bytes`: of the larger of input and output. `own_s`: time in which one was under way, with waits for slower ranks;
    `exposed_s`: the part in which the rank did nothing else.
    """

    number: Numbers = None
    bytes: Numbers = None
    own_s: Numbers = None
    exposed_s: Numbers = None


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Processes that trained together. Lists have a value for each rank, in order; times are medians of the steps.

    `steps`: measured steps of each rank; `images`: of all ranks in the steps that every rank completed.
    `images_per_s`: of all ranks. `own_s`: step and wait for data without `exposed_s`. `exposed_s`: waits for
    collectives; for those of DistributedDataParallel the time after the last gradient was ready, with the division and
    copies of the last bucket. `hidden_s`: time of collectives beside other work. `kinds`: by kind of collective.
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
    kinds: Mapping[str, KindRecord] | None = None
    slowest: Number = None
    slower_by: Share = None
    spread: Share = None
    why: Text = None
    hosts: Texts = None
    clock_start_s: Numbers = None
    clock_end_s: Numbers = None
    clock_error_s: Numbers = None


class KindStep(NamedTuple):
    """Collectives of one kind in one step of a rank; names as in `KindRecord`."""

    number: float = 0.0
    bytes: float = 0.0
    own_s: float = 0.0
    exposed_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """A measured step of a rank, in seconds; names as in `Ranks`. `own_s`: whole step if `exposed_s` is unknown."""

    own_s: float
    data_s: float
    hidden_s: float | None
    exposed_s: float | None
    images: int
    kinds: Mapping[str, KindStep] = field(default_factory=dict)


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


def summarized(
    ranks: Sequence[Mapping[int, RankStep]], measured_s: float | None = None, *, least: int = LEAST_STEPS
) -> Ranks:
    """Summary of the measured steps of all ranks. `ranks`: for each rank, its steps by their number.

    `least`: least number of common steps, at least 2. No rank is the slowest with fewer than `LEAST_STEPS`.
    """
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
    if len(common) < least:
        return known
    if any(steps[number].exposed_s is None for steps in ranks for number in common):
        data_s = [median(steps[number].data_s for number in common) for steps in ranks]
        return replace(known, data_s=data_s, why=UNKNOWN)
    compared = _compared(known, [[steps[number] for number in common] for steps in ranks])
    return compared if len(common) >= LEAST_STEPS else replace(compared, slowest=None, why=TOO_FEW)


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
        kinds=_by_kind(ranks),
        why=None,
        slowest=slowest if slower_by > max(spread, LEAST_SLOWER) else None,
        slower_by=max(0.0, slower_by),
        spread=spread,
    )


def _by_kind(ranks: Sequence[Sequence[RankStep]]) -> dict[str, KindRecord] | None:
    none = KindStep()
    seen = {kind for steps in ranks for step in steps for kind in step.kinds}
    figures = {
        kind: [
            [median(column) for column in zip(*(step.kinds.get(kind, none) for step in steps), strict=True)]
            for steps in ranks
        ]
        for kind in Collective
        if kind in seen
    }
    return {
        kind.value: KindRecord(**dict(zip(KindStep._fields, zip(*rows, strict=True), strict=True)))
        for kind, rows in figures.items()
    } or None


def _steps_of(folder: Path, place: Path) -> dict[int, RankStep]:
    """Measured steps of a rank by their numbers. A step whose rows are incomplete, after a kill, is left out.

    Their `exposed_s` is None if none of them has a collective: the ranks then wait in a way that is not seen.
    """
    collectives: dict[str, dict[str, dict[str, str]]] = defaultdict(dict)
    for row in complete_rows(place / COLLECTIVES_FILE):
        collectives[row["step"]][row["kind"]] = row
    steps = complete_rows(folder / STEPS if place.name == "0" else place / STEPS)
    found = {}
    for row in steps:
        kinds = collectives.get(row.get("step", ""), {})
        every = kinds.pop(ALL_KINDS, None)
        if every is None or row["phase"] != MEASURED:
            continue
        data_s, exposed_s = float(row["data_s"]), float(every["exposed_s"])
        found[int(row["step"])] = RankStep(
            own_s=max(0.0, float(row["step_s"]) + data_s - exposed_s),
            data_s=data_s,
            hidden_s=float(every["hidden_s"]),
            exposed_s=exposed_s,
            images=int(row["images"]),
            kinds={
                kind: KindStep(*(float(of_kind[name]) for name in KindStep._fields)) for kind, of_kind in kinds.items()
            },
        )
    if any(step.kinds for step in found.values()):
        return found
    return {number: replace(step, hidden_s=None, exposed_s=None) for number, step in found.items()}


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


@dataclass(frozen=True, kw_only=True)
class Communication:
    """Kind of collective that the ranks wait for longest. `bytes`: of one rank in a step.

    `link_share`: rate of these collectives over the measured rate of the link; None if that was not measured.
    """

    kind: Collective
    bytes: float
    link_share: float | None = None

    @property
    def text(self) -> str:
        """`all-reduces: 44.7 MB per step, at 82 % of the link's measured rate`."""
        plural = PLURALS.get(self.kind, f"{self.kind.replace('_', '-')}s")
        share = "" if self.link_share is None else f", at {percent(self.link_share)} of the link's measured rate"
        return f"{plural}: {si(self.bytes, 'B')} per step{share}" if self.bytes else plural


PLURALS = {Collective.POINT_TO_POINT: "sends and receives", Collective.ALL_TO_ALL: "all-to-all exchanges"}


def communication(ranks: Ranks, links: Sequence[LinkRate] | None = None) -> Communication | None:
    """Kind of collective with the longest exposed time; None if there is none.

    As in `waits`, the rank with the shortest wait is the one that waits for no slower rank.
    """
    least_s = {kind: min(found.exposed_s or (0.0,)) for kind, found in (ranks.kinds or {}).items()}
    longest = max(least_s, key=least_s.__getitem__, default=None)
    if longest is None or least_s[longest] <= 0:
        return None
    assert ranks.kinds is not None
    figures, kind = ranks.kinds[longest], Collective(longest)
    rows = zip(figures.own_s or (), figures.bytes or (), figures.number or (), strict=True)
    own_s, moved, number = min(rows)
    link = _link(kind, moved / number if number else 0.0, links or ())
    share = None
    if link and own_s > 0 and moved > 0:
        size = len(figures.own_s or ())
        unit = _sent(Collective(str(link.kind)), size) * (link.bytes_per_s or math.inf)
        share = _sent(kind, size) * moved / own_s / unit
    return Communication(kind=kind, bytes=moved, link_share=share)


def _link(kind: Collective, message: float, links: Sequence[LinkRate]) -> LinkRate | None:
    """Measured rate to compare a collective with: that of the size nearest to the bytes of one `message`."""
    like = Collective.POINT_TO_POINT if kind is Collective.POINT_TO_POINT else Collective.ALL_REDUCE
    known = [link for link in links if link.kind == like and link.bytes and link.bytes_per_s]
    return min(known, key=lambda link: abs(math.log((link.bytes or 1.0) / max(message, 1.0))), default=None)


def _sent(kind: Collective, ranks: int) -> float:
    """Bytes that each rank has to send at least for each byte of a collective.

    As the bus bandwidth of https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    """
    match kind:
        case Collective.ALL_REDUCE:
            return 2 * (ranks - 1) / ranks
        case Collective.BROADCAST | Collective.REDUCE | Collective.POINT_TO_POINT | Collective.BARRIER:
            return 1.0
        case _:
            return (ranks - 1) / ranks


def is_alone_slow(ranks: Ranks) -> bool:
    """Whether one rank is slower than the others, and these are even."""
    if ranks.slowest is None or not ranks.own_s:
        return False
    others = [own_s for rank, own_s in enumerate(ranks.own_s) if rank != ranks.slowest]
    return max(others) <= (1 + LEAST_SLOWER) * min(others)


def limit_sentence(
    shares: Mapping[str, float],
    slowest: str | None = None,
    *,
    longest: Communication | None = None,
    host: str | None = None,
    is_alone: bool = False,
) -> str:
    """Sentence on what limits scaling; "" if the shares are unknown.

    `shares`: result of `waits`, or medians of such results. `slowest`: rank that is slower than the others, on `host`;
    `is_alone`: the other ranks are even. `longest`: result of `communication`.
    """
    if not shares:
        return ""
    largest = largest_wait(shares)
    if largest is None:
        least = percent(LEAST_SLOWER)
        return f"no wait limits scaling: for collectives, slower devices and data, each is below {least} of the step"
    rank = f"rank {slowest}{f' on {host}' if host else ''}{' alone' if is_alone else ''}"
    limits, reason = {
        IN_COLLECTIVES: (
            "collectives limit",
            f"for them, longest for {longest.text}" if longest else "for them after its last gradient",
        ),
        UNEVEN: ("uneven devices limit" if slowest is None else f"{rank} limits", "for a slower one, on average"),
        INPUT: ("the input limits", "for data"),
    }[largest]
    return f"{limits} scaling: a device waits {percent(shares[largest])} of the step {reason}"
