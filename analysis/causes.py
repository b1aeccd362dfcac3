"""Find the causes of slow or uneven runs, and the share that each cause explains. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd

from analysis.loading.cases import Case, OfRuns, cases
from analysis.loading.configurations import CONFIGURATION, PLACE
from analysis.loading.tables import Tables
from analysis.statistics.autocorrelation import share_explained
from analysis.statistics.samples import Floats, Mask
from workload.contract import peaks, verdict
from workload.contract.record import Status
from workload.contract.spec import Device
from workload.contract.text import cpu_share, percent, plain
from workload.contract.verdict import COMPETED_SHARE

# Least number of telemetry samples: fewer would correlate by chance. `share_explained` needs as many pairs.
LEAST_SAMPLES = 8
# Probability of a false cause per run, divided among the covariates.
FALSE_CAUSES = 0.01
# If the level of the step times changes, a covariate is a cause if it explains at least this share of the change.
LEAST_SHARE_OF_CHANGE = 0.5
# Least number of samples on either side of a change of level.
LEAST_SAMPLES_APART = 2
# Least share of the variation that a cause must explain; a smaller share is not reported, however certain.
LEAST_SHARE = 0.1
# Least share of samples with a lowered clock: a single sample of one second does not characterize a run.
LEAST_CLOCK_LOWERED = 0.05
# The precision of the wall time: CONTRIBUTING.md, "Rules of measuring".
LEAST_TIME_SHARE = 0.02
# If a run waits for data for a larger share of its time, the remainder is too short to judge.
MOST_WAITS = 0.9
# A batch whose images/s are below this ratio to those of a smaller batch has spilled into system memory. A bigger batch
# that fits into the GPU's memory gives as many images/s or more; a step that spills takes 10 to 45 times as long.
SPILL_RATIO = 0.5
# Boards whose power limit (W, from the data sheet) reduces the clock under any steady load, which is no fault.
CAPPED_BY_DESIGN = {"T4": 70, "L4": 72}


class ShareOf(StrEnum):
    """The total that a share of a cause refers to."""

    VARIATION = "variation of steps"
    WALL_TIME = "wall time"
    CPU_TIME = "CPU time"
    STEP_TIME = "step time"
    SLOWDOWN = "slowdown within the run"


class Reason(StrEnum):
    """Reasons why a GPU's clock is held down: NVML's terms, shortened."""

    POWER_CAP = "power cap"
    THERMAL = "thermal limit"
    SLOWDOWN = "hardware slowdown"
    POWER_BRAKE = "power brake"


# NVML, nvmlClocksEventReasons: the bits of `clock_event_reasons`.
REASON_BITS: Mapping[Reason, int] = {
    Reason.POWER_CAP: 0x4,
    Reason.THERMAL: 0x20 | 0x40,
    Reason.SLOWDOWN: 0x8,
    Reason.POWER_BRAKE: 0x80,
}
REASON_CURES: Mapping[Reason, str] = {
    Reason.POWER_CAP: "nvidia-smi --power-limit raises the limit if the board allows it; compare at equal limits",
    Reason.THERMAL: "better cooling, more warm-up until the temperature is stable, or a pause between runs",
    Reason.SLOWDOWN: "the board protects itself from damage: check cooling "
    "and power supply (nvidia-smi -q -d PERFORMANCE)",
    Reason.POWER_BRAKE: "the power supply limits the load: check it, or tell the provider",
}


@dataclass(frozen=True, kw_only=True)
class Covariate:
    """A telemetry column that step times may follow."""

    cause: str
    column: str
    unit: str
    cure: str
    is_clock: bool = False


COVARIATES = (
    Covariate(
        cause="GPU clock",
        column="sm_clock_mhz",
        unit="MHz",
        cure="lock the clock (nvidia-smi --lock-gpu-clocks), or warm up until it is stable",
        is_clock=True,
    ),
    Covariate(
        cause="CPU clock", column="cpu_mhz", unit="MHz", cure="a fixed CPU governor, or more warm-up", is_clock=True
    ),
    Covariate(
        cause="steal",
        column="cpu_steal_percent",
        unit="%",
        cure="a machine type without shared CPUs, or another machine",
    ),
    Covariate(cause="CPU pressure", column="cpu_pressure_percent", unit="%", cure="stop other work on the machine"),
)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A cause of a slow or uneven run; `share_explained`: fraction of `share_of`, with its interval, None if unknown.

    `is_fault`: whether the cause must be removed before the run is compared with others.
    """

    cause: str
    share_explained: float | None
    share_low: float | None = None
    share_high: float | None = None
    share_of: ShareOf
    is_fault: bool = True
    evidence: str
    cure: str


def causes(results: Tables, of_runs: OfRuns | None = None) -> pd.DataFrame:
    """A row per run and cause that was found: `run_id`, and the fields of `Cause`.

    Share of the variation of steps: squared rank correlation with the telemetry at the step's time, and its interval,
    at a level that leaves 1 false cause in 100 runs. Share of a slowdown within the run: the change of a clock over
    that of the steps, as logarithms. Share of time: the part that would be saved.
    """
    of_runs = of_runs or OfRuns(cases=cases(results))
    spilled = spills(of_runs.cases)
    lines = [
        {"run_id": case.run_id, **cause}
        for case, found in zip(of_runs.cases, of_runs.of(causes_of), strict=True)
        for cause in [*found, *([asdict(spilled[case.run_id])] if case.run_id in spilled else [])]
    ]
    return pd.DataFrame(lines, columns=["run_id", *(field.name for field in fields(Cause))])


def causes_of(case: Case) -> list[dict[str, Any]]:
    """Causes that are visible in one run, as JSON; see `analysis.loading.cases`."""
    return [asdict(cause) for cause in of_run(case)]


def of_run(case: Case) -> Iterator[Cause]:
    """Causes that are visible in one run, without others to compare it with."""
    for covariate in COVARIATES:
        yield from _followed(case, covariate)
    for reason, share in clock_reasons(case).items():
        yield _held(case, reason, share)
    yield from _time_shares(case)
    memory = case.record.memory if case["device_type"] == Device.CUDA else None
    if memory and (retries := memory.allocator_retries):
        yield Cause(
            cause="allocator retries",
            share_explained=None,
            share_of=ShareOf.STEP_TIME,
            evidence=f"{retries} times the allocator emptied its cache and tried again",
            cure=f"--batch-size {max(1, case['batch_size'] // 2)}; --grad-accumulation for the same step",
        )


def clock_reasons(case: Case) -> dict[Reason, float]:
    """Reasons that lowered the GPU's clock, with their share of the samples of measured steps; without rare reasons."""
    _, masks = case.samples("clock_event_reasons")
    if not masks.size:
        return {}
    bits = masks.astype(np.int64)
    shares = {reason: float(((bits & mask) != 0).mean()) for reason, mask in REASON_BITS.items()}
    return {reason: share for reason, share in shares.items() if share >= LEAST_CLOCK_LOWERED}


def capped_by_design(case: Case) -> int | None:
    """The power limit in W of a board that reaches it under any steady load; None for other boards."""
    gpu = peaks.find_gpu(case["device_name"])
    return CAPPED_BY_DESIGN.get(gpu.gpu) if gpu else None


# --- causes that the step times follow


def _followed(case: Case, covariate: Covariate) -> Iterator[Cause]:
    at, values = case.samples(covariate.column)
    if not at.size or np.ptp(values) == 0:
        return
    slow_steps = case.steadiness.slow_steps
    if covariate.is_clock and slow_steps is not None:
        yield from _moved_along(case, covariate, at, values, slow_steps)
        return
    if at.size < LEAST_SAMPLES:
        return
    level = 1 - FALSE_CAUSES / len(COVARIATES)
    share = share_explained(case.step_s, _at_steps(case, at, values), level=level)
    if share.value is None or share.interval is None or share.value < LEAST_SHARE or share.interval.low == 0:
        return
    yield Cause(
        cause=covariate.cause,
        share_explained=share.value,
        share_low=share.interval.low,
        share_high=share.interval.high,
        share_of=ShareOf.VARIATION,
        evidence=f"{values.min():.4g} to {values.max():.4g} {covariate.unit} in {at.size} samples",
        cure=covariate.cure,
    )


def _moved_along(case: Case, covariate: Covariate, at: Floats, values: Floats, slow_steps: Mask) -> Iterator[Cause]:
    """The cause that a clock is lower during the slow steps of a run whose speed changed.

    The audit reports the change of speed itself. A correlation cannot show this cause: two levels count as two
    independent pairs, however many steps there are.
    """
    ends = case.measured("ended_at_s")
    slow = slow_steps[np.minimum(np.searchsorted(ends, at), ends.size - 1)]
    if min(slow.sum(), (~slow).sum()) < LEAST_SAMPLES_APART:
        return
    low, high = float(np.median(values[slow])), float(np.median(values[~slow]))
    slower = float(np.log(np.median(case.step_s[slow_steps]) / np.median(case.step_s[~slow_steps])))
    if not 0 < low < high or np.log(high / low) < LEAST_SHARE_OF_CHANGE * slower:
        return
    yield Cause(
        cause=covariate.cause,
        share_explained=min(1.0, float(np.log(high / low)) / slower),
        share_of=ShareOf.SLOWDOWN,
        evidence=f"{low:.4g} {covariate.unit} while the steps are slow, {high:.4g} {covariate.unit} otherwise",
        cure=covariate.cure,
    )


def _at_steps(case: Case, at: Floats, values: Floats) -> Floats:
    middle = case.measured("ended_at_s") - case.step_s / 2
    return np.asarray(np.interp(middle, at, values), dtype=np.float64)


def _held(case: Case, reason: Reason, share: float) -> Cause:
    at, masks = case.samples("clock_event_reasons")
    is_held = ((masks.astype(np.int64) & REASON_BITS[reason]) != 0).astype(np.float64)
    follows = share_explained(case.step_s, _at_steps(case, at, is_held)) if at.size >= LEAST_SAMPLES else None
    limit = capped_by_design(case) if reason is Reason.POWER_CAP else None
    evidence = f"in {percent(share)} of {at.size} samples"
    if limit:
        evidence += f"; this is normal, because this board reaches its {limit} W under any steady load"
    return Cause(
        cause=reason,
        share_explained=follows.value if follows else None,
        share_low=follows.interval.low if follows and follows.interval else None,
        share_high=follows.interval.high if follows and follows.interval else None,
        share_of=ShareOf.VARIATION,
        evidence=evidence,
        cure="none needed" if limit else REASON_CURES[reason],
        is_fault=limit is None,
    )


# --- shares of time


def _time_shares(case: Case) -> Iterator[Cause]:
    if (share := case["data_wait_fraction"]) and share > LEAST_TIME_SHARE:
        yield Cause(
            cause="data waits",
            share_explained=share,
            share_of=ShareOf.WALL_TIME,
            evidence=f"{percent(share, decimals=1)} of the wall time is spent waiting for data",
            cure="--workers, smaller or pre-decoded images, faster storage",
        )
    if (explained := case["explained_fraction"]) and 1 - explained > LEAST_TIME_SHARE:
        yield Cause(
            cause="time outside the steps",
            share_explained=1 - explained,
            share_of=ShareOf.WALL_TIME,
            evidence=f"steps and waits add up to {percent(explained, decimals=1)} of the wall time",
            cure="analyze audit says more",
        )
    if (lost := competed(case)) is not None:
        yield Cause(
            cause="CPU competition",
            share_explained=lost,
            share_of=ShareOf.CPU_TIME,
            evidence=competition_words(case),
            cure="stop other work on the machine, or give the run fewer threads",
        )
    if (stolen := steal(case)) is not None:
        yield Cause(
            cause="steal",
            share_explained=stolen,
            share_of=ShareOf.CPU_TIME,
            evidence=f"{percent(stolen, decimals=1)} of the CPU time went to other virtual machines",
            cure="a machine type without shared CPUs, or another machine",
        )
    if (faults := verdict.page_faults(case.record)) is not None:
        yield Cause(
            cause="page faults",
            share_explained=faults.share,
            share_of=ShareOf.CPU_TIME,
            evidence=f"{faults.per_step:,.0f} page faults in a step, {verdict.FAULTS_WHY}",
            cure=verdict.FAULTS_CURE,
            is_fault=False,
        )
    if (throttled := cgroup_throttled(case)) is not None:
        yield Cause(
            cause="CPU quota",
            share_explained=throttled,
            share_of=ShareOf.CPU_TIME,
            evidence=f"the container's CPU limit stopped its threads for {percent(throttled, decimals=1)} of their "
            "time",
            cure="set --cpus to the run's number of threads, or set no limit",
        )


def competition_words(case: Case) -> str:
    """Sentence on the CPUs that a run got while other processes competed for them."""
    if case["threads"] == 1:
        got = f"the run got {cpu_share(case['cpus_used'], 1)}"
    else:
        got = f"the run got {case['cpus_used']:.1f} of the {case['threads']:.0f} CPUs for which it has threads"
    return verdict.competition(case.record) or got


def competed(case: Case) -> float | None:
    """Share of its threads' time that a CPU run lost to other processes; None if it lost little, or if unknown.

    If waits for a CPU were not measured, idle threads indicate competition. Threads are also idle while a step waits
    for data, so this waiting time is excluded; data that the run decodes itself only makes the run busier.
    """
    used, threads, waits = case["cpus_used"], case["threads"], case["data_wait_fraction"] or 0.0
    if not case.on_cpu or used is None or not threads:
        return None
    waited = case.record.timing.cpus_waited
    if waited is not None:
        is_taken = used < COMPETED_SHARE * threads and verdict.is_starved(case.record)
        return min(1.0, float(waited / threads)) if is_taken else None
    if waits > MOST_WAITS:
        return None
    share = float(used / (threads * (1 - waits)))
    return None if share >= COMPETED_SHARE else 1 - share


def steal(case: Case) -> float | None:
    """Share of CPU time that the hypervisor gave to other machines; None if negligible or unknown."""
    _, percent = case.samples("cpu_steal_percent")
    share = float(percent.mean()) / 100 if percent.size else 0.0
    return share if share > LEAST_TIME_SHARE else None


def cgroup_throttled(case: Case) -> float | None:
    """Share of the threads' time for which a CPU quota held them back; None if negligible or unknown."""
    at, seconds = case.samples("cgroup_throttled_s")
    if at.size < 2 or at[-1] <= at[0]:  # noqa: PLR2004 - a difference needs two
        return None
    share = float((seconds[-1] - seconds[0]) / (at[-1] - at[0]) / max(case["threads"] or 1.0, 1.0))
    return share if share > LEAST_TIME_SHARE else None


# --- comparison of batch sizes


def spills(every: Sequence[Case]) -> dict[str, Cause]:
    """Memory spills by run id: memory ran out, so a batch gives less than half the images/s of a smaller batch."""
    series: dict[tuple[Any, ...], list[Case]] = {}
    facts = [fact for fact in (*CONFIGURATION, *PLACE) if fact != "batch_size"]
    for case in every:
        if case["images_per_s"] and case["status"] == Status.COMPLETED:
            series.setdefault(tuple(case[fact] for fact in facts), []).append(case)
    return {run_id: spill for runs in series.values() for run_id, spill in _spills_in(runs)}


def _spills_in(configuration_runs: Sequence[Case]) -> Iterator[tuple[str, Cause]]:
    """Spills among the runs of one configuration: each batch is compared with the fastest smaller one."""
    best: Case | None = None
    by_size = itemgetter("batch_size")
    for batch_size, group in groupby(sorted(configuration_runs, key=by_size), key=by_size):
        runs = list(group)
        for case in runs:
            if best and case["images_per_s"] < SPILL_RATIO * best["images_per_s"]:
                here, there = plain(case["images_per_s"], 4), plain(best["images_per_s"], 4)
                smaller = f"{best['batch_size']:g}"
                spill = Cause(
                    cause="memory spill",
                    share_explained=1 - case["images_per_s"] / best["images_per_s"],
                    share_of=ShareOf.STEP_TIME,
                    evidence=f"{here} {case.unit}/s at batch size {batch_size:g}, {there} at {smaller}",
                    cure=f"--batch-size {smaller}; --grad-accumulation for the same step",
                )
                yield case.run_id, spill
        best = max([*runs, *([best] if best else [])], key=lambda case: float(case["images_per_s"]))
