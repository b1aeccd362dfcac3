"""Where the time of runs went, and what it cost, by part of a run: steps, imports, boot and so on; its energy. Pure.

And what the user's own amount of work takes at the measured rate: an epoch, a number of samples, the whole script.
Standard library only. The launcher and the analysis use it alike, so that their figures agree.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple, Self

from workload.contract.fields import instant
from workload.contract.record import Record
from workload.contract.record_sections import LONGEST_UPDATE_S, Energy
from workload.contract.script_words import arguments_of, number_of, script_words
from workload.contract.text import counted, duration, percent, plain, seconds, span
from workload.contract.trainer import Start

# Part of a run -> its name in texts. Columns and JSON have the part's seconds as `steps_s` and its share as
# `steps_share`.
STEPS, IMPORTS, CEILINGS, UPLOAD, OUTSIDE = "steps", "imports", "ceilings", "upload", "outside"
PARTS: Mapping[str, str] = {
    STEPS: "steps",
    "gaps": "pauses between steps",
    IMPORTS: "imports",
    "prepare": "set-up",
    "script": "set-up of the script",
    "environment": "environment",
    CEILINGS: "ceilings",
    "cooling": "cooling down",
    "warmup": "warm-up",
    "finish": "finish",
    "other": "other phases",
    "profile": "profile",
    "boot": "boot",
    "image": "image",
    UPLOAD: "upload",
    OUTSIDE: "launcher and exit",
}
# Parts that a run.json can tell: the upload follows after it was closed.
RUN_PARTS = tuple(part for part in PARTS if part != UPLOAD)
# Phase of `timing.phases` -> part; a phase that is not listed is its own part, or `other`.
PART_OF_PHASE = {
    "start": IMPORTS,
    "setup": "prepare",
    "settle": "cooling",
    "measured": STEPS,
    "ceilings_again": CEILINGS,
}
# Phases of a rented machine's boot; `image_pulled` is the next one (`launcher.protocol.records.LaunchPhase`).
BOOT_PHASES = ("booted", "driver_ready", "docker_ready")
# A text leaves out the parts with smaller shares: nobody acts on them.
LEAST_SHARE = 0.01
# Durations from here on are shown in minutes or hours.
SECONDS_UP_TO_S = 1000
USD_DECIMALS = 4
SOURCES = {
    "nvml counter": "NVML counter",
    "nvml power": "power sampled by NVML",
    "rapl": "RAPL, all CPUs of the machine",
}
# A text leaves out errors up to this: the counters themselves are not more exact.
SMALL_ERROR = 0.01
SECONDS_PER_H = 3600


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Time of `runs` runs whose time is known: seconds by part (keys of `PARTS`); `usd`: cost, None if unknown."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    usd: float | None = None
    runs: int = 0

    @classmethod
    def of(cls, record: Record, whole_s: float | None = None) -> Self:
        """Time of one run; empty if its run.json has no phases, as for imported runs.

        `whole_s`: seconds from the start of the run's process or container to its end, if the launcher measured them.
        A run on a rented machine is charged with a part of the machine's time: its whole time is `cost.billed_s`.
        """
        parts = _in_trainer(record)
        if not parts:
            return cls()
        parts["profile"] = record.profile.elapsed_s or 0.0
        usd, cost = None, record.cost
        began, ended = (instant(cost.billed_from), instant(cost.billed_to)) if cost else (None, None)
        if cost and began and ended:
            usd, whole_s = cost.usd, cost.billed_s
            phases = (record.environment.cloud and record.environment.cloud.phases) or {}
            # The boot counts for the first run of a machine: later runs are charged from the end of the run before.
            times = {name: min(max(at, began), ended) for name, text in phases.items() if (at := instant(text))}
            ready = max((times[name] for name in BOOT_PHASES if name in times), default=began)
            parts["boot"] = (ready - began).total_seconds()
            parts["image"] = (times.get("image_pulled", ready) - ready).total_seconds()
        # A fork waits for its start server, which imports PyTorch for the first run of a block.
        rest = IMPORTS if record.environment.start == Start.FORKED else OUTSIDE
        parts[rest] += max(0.0, (whole_s or 0.0) - sum(parts.values()))
        return cls(seconds={part: value for part, value in parts.items() if value > 0}, usd=usd, runs=1)

    @classmethod
    def total(cls, many: Iterable[Self]) -> Self:
        """Sum; the cost is unknown if the cost of any run is unknown."""
        known = [one for one in many if one.seconds]
        costs = [one.usd for one in known if one.usd is not None]
        parts = {part: sum(one.seconds.get(part, 0.0) for one in known) for part in PARTS}
        return cls(
            seconds={part: value for part, value in parts.items() if value},
            usd=sum(costs) if costs and len(costs) == len(known) else None,
            runs=sum(one.runs for one in known),
        )

    @property
    def wall_s(self) -> float:
        """Seconds of all parts together."""
        return sum(self.seconds.values())

    def shares(self) -> dict[str, float]:
        """Share of the whole time by part."""
        return {part: value / self.wall_s for part, value in self.seconds.items()}

    def rest(self) -> str:
        """Text on the parts beside the steps, the longest first: `imports 51 %, environment 9 %`.

        With a known cost: `boot 41 s (0.0082 USD)`; a part costs its share of the whole.
        """
        shares = sorted(self.shares().items(), key=lambda one: -one[1])
        others = [(part, share) for part, share in shares if part != STEPS and share >= LEAST_SHARE]
        if self.usd is None:
            return ", ".join(f"{PARTS[part]} {percent(share)}" for part, share in others)
        return ", ".join(
            f"{PARTS[part]} {time_text(self.seconds[part])} ({usd_text(share * self.usd)})" for part, share in others
        )

    def text(self) -> str:
        """Line for people: `steps 5 % of 122 s (18 runs); imports 51 %, environment 9 %`; empty without runs."""
        if not self.runs:
            return ""
        cost = "" if self.usd is None else f" and {usd_text(self.usd)}"
        whole = f"{percent(self.shares().get(STEPS, 0.0))} of {time_text(self.wall_s)}{cost}"
        rest = self.rest()
        return f"steps {whole} ({counted(self.runs, 'run')})" + (f"; {rest}" if rest else "")

    def to_json(self) -> dict[str, Any] | None:
        """Plain values for JSON; None without runs."""
        if not self.runs:
            return None
        parts = {f"{part}_s": round(value, 3) for part, value in self.seconds.items()}
        return {"runs": self.runs, "wall_s": round(self.wall_s, 3), "usd": self.usd, **parts}


def joules_per_image(record: Record) -> float | None:
    """Energy of all devices for an image, or for another unit that `timing.images` counts; None if unknown."""
    energy, images = record.energy, record.timing.images
    if record.ranks:
        # Without a common rate, some ranks took steps that others did not.
        images = None if record.ranks.images_per_s is None else record.ranks.images
    return energy.joules / images if energy and energy.joules and images else None


def energy_text(record: Record, joules: float, runs: str = "") -> str:
    """Energy of an image in a line: `0.41 J per image  (NVML counter; 22 W idle, not subtracted)`.

    `joules`: of an image in `record`, or their median in several runs alike, on which `runs` has words.
    """
    energy, script = record.energy or Energy(), record.spec.script
    # The time between two updates of a counter.
    error = LONGEST_UPDATE_S.get(energy.source or "", 0.0) / (energy.seconds or math.inf)
    source = SOURCES.get(energy.source or "", "unknown") + (f", ± {percent(error)}" if error > SMALL_ERROR else "")
    idle = "" if energy.idle_w is None else f"{plain(energy.idle_w, 2)} W idle, not subtracted"
    unit = ((script and script.unit) or "images").removesuffix("s")
    return f"{joules_text(joules)} per {unit}  ({'; '.join(filter(None, (runs, source, idle)))})"


def joules_text(joules: float) -> str:
    """Text of an energy in joules, with three digits: `0.412 J`."""
    return f"{plain(joules, 3)} J"


def time_text(value_s: float) -> str:
    """Seconds with three digits, or a longer duration: `7.21 s`, `412 ms`, `17 min`."""
    return seconds(value_s, 3) if value_s < SECONDS_UP_TO_S else duration(value_s)


def usd_text(usd: float) -> str:
    """Small sum of money: `0.0082 USD`."""
    rounded = round(usd, USD_DECIMALS)
    return f"less than {10**-USD_DECIMALS:.4f} USD" if usd > 0 == rounded else f"{plain(rounded, 2)} USD"


# --- the user's own amount of work

MILLION, BILLION = 10**6, 10**9
MULTIPLES = {1: "", MILLION: " million", BILLION: " billion"}
TOKENS = "tokens"
# Arguments of common training scripts (Hugging Face, Lightning, timm, torchvision, nanoGPT, diffusers) that say how
# long the whole training is: in passes over the data, and in steps of the optimizer. Other names are not guessed.
EPOCHS = frozenset({"epochs", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs"})
STEP_NUMBERS = frozenset({"max_steps", "max_train_steps", "num_train_steps", "max_iters", "train_iters"})


class Amount(NamedTuple):
    """Amount of work in `unit`, which throughput counts. `is_epoch`: one pass over the data."""

    number: float
    unit: str
    is_epoch: bool = False

    @classmethod
    def usual(cls, unit: str) -> Self:
        """Amount of work if the length of the data is unknown: a million of the unit, or a billion tokens."""
        return cls(BILLION if unit == TOKENS else MILLION, unit)

    @property
    def text(self) -> str:
        """The amount in words: `50,000 images`, `1 billion tokens`."""
        factor = next((factor for factor in (BILLION, MILLION) if self.number % factor == 0), 1)
        return f"{self.number / factor:,.0f}{MULTIPLES[factor]} {self.unit}"


def epoch_of(record: Record) -> tuple[float | None, float | None]:
    """Samples in one pass over the run's data, of all devices, and their number of images, tokens and so on.

    Both are None if unknown. Only sequences of tokens are counted in another unit than samples.
    """
    script, timing = record.spec.script, record.timing
    samples = script.dataset_samples if script else record.spec.dataset_images
    if not (samples and script and script.unit == TOKENS):
        return samples, samples
    if not (timing.images and timing.samples):
        return None, None
    # The mean length of the measured sequences is that of all.
    return samples, samples * timing.images / timing.samples


def amount_of(record: Record, samples: int | None = None) -> Amount:
    """Amount of work: `samples`, else that of the run's options, else one pass over its data, else a usual amount."""
    unit, (_, epoch) = (record.spec.script and record.spec.script.unit) or "images", epoch_of(record)
    if own := samples or record.spec.samples:
        return Amount(own, unit)
    return Amount(epoch, unit, is_epoch=True) if epoch else Amount.usual(unit)


def units_per_step(record: Record) -> float | None:
    """Images, tokens or samples of a measured step of one device; None without measured steps."""
    steps = record.timing.step_s and record.timing.step_s.n
    return record.timing.images / steps if record.timing.images and steps else None


def units_per_s(record: Record) -> float | None:
    """Throughput of all devices of a run together, in images, tokens or samples per second; None if it is unknown."""
    if record.spec.ranks == 1:
        return record.timing.images_per_s
    return record.ranks.images_per_s if record.ranks else None


def whole_script(record: Record) -> tuple[str, float] | None:
    """The argument of a script that says how long it trains, as `epochs=90`, and the seconds of these steps.

    None if no argument says so, or several do, or the length of the data is unknown.
    """
    argv = (record.spec.script and record.spec.script.argv) or ()
    found: dict[str, tuple[str, float]] = {}
    for typed, value, _ in arguments_of(argv[len(script_words(argv)) :]):
        name = typed.lstrip("-+")
        key = name.rpartition(".")[2].replace("-", "_").lower()
        # Hugging Face's scripts mean no limit by max_steps=-1.
        if key in EPOCHS | STEP_NUMBERS and (number := number_of(value or "") or 0.0) > 0:
            found[key] = f"{name}={value}", number
    if len(found) != 1:
        return None
    (key, (words, number)), timing = found.popitem(), record.timing
    if key in EPOCHS:
        (_, epoch), rate = epoch_of(record), units_per_s(record)
        return (words, number * epoch / rate) if epoch and rate else None
    steps = timing.step_s and timing.step_s.n
    return (words, number * timing.measured_s / steps) if steps and timing.measured_s else None


def work_rows(
    records: Sequence[Record], interval: Callable[[Sequence[float]], tuple[float, float] | None] = lambda _: None
) -> Iterator[tuple[str, str]]:
    """Lines on what the user's own work takes: `epoch` and `50,000 images: 4.2 min (3.9 to 4.5), 0.02 USD`.

    `records`: completed runs of one configuration; `interval`: of the median of some seconds. A second line is on the
    whole script, if `whole_script` knows it. Costs are those of all machines at their recorded price.
    """
    first, rates = records[0], [rate for record in records if (rate := units_per_s(record))]
    prices = [cost.usd_per_h for record in records if (cost := record.cost) and cost.usd_per_h is not None]
    usd_per_h = median(prices) if len(prices) == len(records) else None

    def takes(times_s: Sequence[float]) -> str:
        value_s = median(times_s)
        usd = "" if usd_per_h is None else f", {usd_text(usd_per_h * value_s / SECONDS_PER_H)}"
        return span(value_s, interval(times_s)) + usd

    if len(rates) == len(records):
        amount = amount_of(first)
        label = "epoch" if amount.is_epoch else "time"
        yield label, f"{amount.text}: {takes([amount.number / rate for rate in rates])}"
    known = [known for record in records if (known := whole_script(record))]
    if len(known) == len(records):
        times_s = [value_s for _, value_s in known]
        yield "whole script", f"{known[0][0]} of its arguments: {takes(times_s)}; training steps only"


def _in_trainer(record: Record) -> dict[str, float]:
    """Seconds by part of the trainer's process, from its start to the last phase; empty without `timing.phases`."""
    timing, parts = record.timing, dict.fromkeys(PARTS, 0.0)
    began = sorted((at, name) for name, at in (timing.phases or {}).items() if at is not None and name != "end")
    end_s = (timing.phases or {}).get("end")
    if end_s is None or not began:
        return {}
    ends = [min(at, end_s) for at, _ in began[1:]] + [end_s]
    for (at, name), until in zip(began, ends, strict=True):
        part = PART_OF_PHASE.get(name, name)
        parts[part if part in parts else "other"] += max(0.0, until - at)
    parts[IMPORTS] += timing.interpreter_s or 0.0
    gaps_s = sum(gap.seconds or 0.0 for gap in (timing.gaps or {}).values())
    parts["gaps"] = min(gaps_s, parts[STEPS])
    parts[STEPS] -= parts["gaps"]
    ceilings = record.ceilings
    if record.spec.script and ceilings and not ceilings.age_s and CEILINGS not in (timing.phases or {}):
        # Ceilings measured after the last phase that is known: that of a phase that was set aside, or of an old bundle.
        parts[CEILINGS] += ceilings.elapsed_s or 0.0
    return parts
