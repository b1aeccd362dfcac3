"""Training steps below the roofs of their devices, their limits, and effects of batch size and precision. Pure.

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52 (2009): a step of intensity I
(FLOP per byte of DRAM) reaches at most min(FLOP/s of the device, I x bytes/s of its memory). The time of a step comes
from the run without a profiler, and counters give only FLOP and bytes. If only a profiler timed the step, a note says
so.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import pandas as pd

from analysis.kernels import LOWER_BOUND, in_steps, kernel_rows
from analysis.loading import units
from analysis.loading.configurations import CONFIGURATION, DEVICE, PLACE, UNNAMED, WORK_NAMED, Group, completed, group
from analysis.loading.tables import Tables, frame, joined
from analysis.loading.tables import rows as rows_of
from analysis.readers.ncu.metrics import is_backward
from analysis.roofline.against_model import TENSOR, counted_over_model, model_flop, model_warning, reasons
from analysis.roofline.roofs import DeviceRoofs, Roof, Work, device_of, intensity, range_note, refuted_ceilings, roof_of
from analysis.statistics.samples import over_runs
from workload.contract.peaks import Peak
from workload.contract.record import Verdict
from workload.contract.spec import Device
from workload.contract.tables import Column, facts
from workload.contract.text import percent, si
from workload.contract.verdict import MOST_UNATTRIBUTED, UNKNOWN, Bound, Figures, RoofKind, decide, traced_step_s
from workload.contract.vocabulary import MODEL_RATIO_FROM

# Tolerance for rounding: a figure counts as above a roof beyond this factor.
ABOVE = 1 + 1e-9
# Beginning of a note on a time that only torch.profiler measured.
TRACED_TIME = "time under torch.profiler"
# Busy share above which gaps are not reported: gaps of a few per cent between kernels are usual.
WHOLLY_BUSY = 0.95


class WorkSource(StrEnum):
    """Source of the FLOP and bytes of a step."""

    COUNTERS = "counters"
    MODELLED = "modelled"
    # Counters, divided by the profiler's own time because only the profiler timed the kernels.
    PROFILER = "under the profiler"


@dataclass(frozen=True, kw_only=True)
class PointRow:
    """A row of the table `points`, without further facts that distinguish groups of runs (`UNNAMED`)."""

    place: str | None
    device_name: str | None
    model: str
    batch_size: float | None
    precision: str | None
    image_size: float | None
    source: str
    runs: int
    intensity_flop_per_byte: float | None
    intensity_low: float | None
    intensity_high: float | None
    flop_per_s: float | None
    flop_per_s_low: float | None
    flop_per_s_high: float | None
    interval: str | None
    bound: str | None
    bound_why: str | None
    busy: str | None
    device_busy_share: float | None
    roof: str | None
    roof_flop_per_s: float | None
    fraction_of_roof: float | None
    fraction_of_peak: float | None
    peak_source: str | None
    flop_per_step: float | None
    counted_over_model: float | None
    flop_is_lower_bound: bool
    note: str | None = None
    step_s: float | None = None
    theoretical_flop_per_step: float | None = None
    dram_bytes_per_step: float | None = None
    dram_bytes_per_s: float | None = None
    sm_percent: float | None = None
    dram_percent: float | None = None
    place_fraction_of_peak: float | None = None


POINT_COLUMNS = tuple(field.name for field in fields(PointRow))


# --- steps


def points(results: Tables) -> pd.DataFrame:
    """Training steps in the roofline plane: a row per group of runs that may be pooled, and source of FLOP and bytes.

    `flop_per_s`: FLOP of a step divided by the step time (median over runs of each run's median step), with a 95 %
    interval over runs; NaN if no step was timed. Steps timed only by a profiler have the profiler's time. Counted bytes
    are one number. Modelled bytes are an interval, and so is the intensity: the point lies between `intensity_low` and
    `intensity_high`. If the FLOP are a lower bound, the fractions of roofs are unknown, and `bound` (the limit) is
    known only if waits or an idle device limit the step. `roof`: kind of the roof that gives `roof_flop_per_s`, the
    measured roof, or the vendor's if none was measured. `fraction_of_peak`: fraction of the vendor's peak FLOP/s, whose
    origin is `peak_source`. `place_fraction_of_peak`: mean of it over the place's rows of the same precision and
    source.
    `theoretical_flop_per_step`: by formula, beside counted FLOP. `dram_bytes_per_step`, `dram_bytes_per_s`: counted
    bytes alone. `sm_percent`, `dram_percent`: of the best possible rate, weighted by the kernels' times.
    """
    rows = list(_rows(results))
    fractions: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in rows:
        if row["fraction_of_peak"] is not None:
            fractions[row["place"], row["device_name"], row["precision"], row["source"]].append(row["fraction_of_peak"])
    for row in rows:
        known = fractions[row["place"], row["device_name"], row["precision"], row["source"]]
        row["place_fraction_of_peak"] = fmean(known) if known else None
    return frame(rows, (*POINT_COLUMNS, *UNNAMED))


def _rows(results: Tables) -> Iterator[dict[str, Any]]:
    devices: dict[tuple[Any, ...], DeviceRoofs] = {}
    refuted = refuted_ceilings(results.runs)
    for pool in group(completed(results.runs)):
        place = tuple(pool[name] for name in DEVICE)
        if place not in devices:
            devices[place] = device_of(results, pool.facts, pool.runs)
        for measurement in _measurements(results, pool):
            yield {**pool.facts, **vars(_point(pool, measurement, devices[place], refuted))}


@dataclass(frozen=True, kw_only=True)
class _Measurement:
    """FLOP and bytes of a step from one source, and the step's seconds per run.

    `lower_bounds`: reasons why the FLOP are incomplete. `is_whole_profile`: the number of steps in the profile is
    unknown, so FLOP, bytes and time are those of the whole profile. `is_traced`: only torch.profiler timed the step.
    `kernels_alone`: the time is that of kernels, and the gaps between them are unknown. `launches`,
    `uncounted_launches`: number of the profile's kernel launches, and of those without counted FLOP. `most_model_flop`:
    the most FLOP by formula that the counted FLOP can stand for.
    """

    source: WorkSource
    work: Work
    steps_s: Sequence[float]
    lower_bounds: tuple[str, ...] = ()
    is_whole_profile: bool = False
    is_traced: bool = False
    kernels_alone: bool = False
    launches: int = 0
    uncounted_launches: int = 0
    most_model_flop: float | None = None
    sm_percent: float | None = None
    dram_percent: float | None = None


def _measurements(results: Tables, pool: Group) -> Iterator[_Measurement]:
    steps_s = [step_s for step_s in pool.known("step_median_s") if step_s > 0]
    if not steps_s and pool["imported"]:
        steps_s = [pool["batch_size"] / rate for rate in pool.known("images_per_s") if rate > 0]
    is_traced = not steps_s and bool(traced := _traced_step_times(pool))
    steps_s = traced if is_traced else steps_s
    profile = None if steps_s or not pool.texts("kernels_file") else _profile(results, pool)
    if profile:
        yield profile
        return
    for source, columns in WORK.items():
        # If an import has no time, formulas say nothing about its run, only about its model.
        is_shown = source is WorkSource.COUNTERS or steps_s or not pool["imported"]
        if is_shown and any(pool.known(column) for column in columns):
            most, bounds = None, tuple[str, ...]()
            if source is WorkSource.COUNTERS:
                # What fast convolutions saved may explain fewer counted FLOP than the model has.
                most, model = pool.median("counted_flop_per_step"), pool.median("train_flop_per_step")
                if most is not None and model and most < MODEL_RATIO_FROM * model and pool.texts("kernels_file"):
                    kernels = results.kernels[results.kernels["run_id"].isin(pool.values("run_id"))]
                    most *= _saved(in_steps(kernels)[0])
                bounds = lower_bounds(pool, counted=most)
            elif is_traced and (share := pool.median("uncounted_share") or 0.0) > MOST_UNATTRIBUTED:
                # Operators without a formula may execute FLOP, too.
                bounds = (f"{percent(share)} of the time is unattributed",)
            yield _Measurement(
                source=source,
                work=work_of(pool, source),
                steps_s=steps_s,
                lower_bounds=bounds,
                is_traced=is_traced,
                kernels_alone=is_traced and _lacks_gaps(pool),
                most_model_flop=most,
                sm_percent=pool.median("sm_percent") if source is WorkSource.COUNTERS else None,
                dram_percent=pool.median("dram_percent") if source is WorkSource.COUNTERS else None,
            )


def _saved(kernels: pd.DataFrame) -> float:
    """The most FLOP by formula that the launches can stand for, over their counted FLOP; 1 without counts."""
    flop = float(kernels["flop"].sum())
    return model_flop(kernels)[1] / flop if flop else 1.0


def lower_bounds(pool: Group, has_backward: bool | None = None, counted: float | None = None) -> tuple[str, ...]:
    """Reasons why a group's counted FLOP are incomplete.

    `has_backward` and `counted` (FLOP of a step, with those that fast convolutions saved): facts from the kernels
    themselves, if known.
    """
    flagged, backward = (pool.values(name) for name in ("flop_is_lower_bound", "backward_kernels"))
    return reasons(
        uncounted=next(iter(pool.texts("lower_bound_reason")), TENSOR)
        if any(value is True for value in flagged)
        else None,
        is_partial=any(status == "partial" for status in pool.texts("profile_status")),
        has_backward=False if any(value is False for value in backward) else has_backward,
        counted=pool.median("counted_flop_per_step") if counted is None else counted,
        model=pool.median("train_flop_per_step"),
    )


def _profile(results: Tables, pool: Group) -> _Measurement | None:
    """The kernels of a profile as one measurement, timed by the profiler; None if no kernels can be read."""
    launches = results.kernels.groupby("run_id", sort=False).indices
    profiled = [run_id for run_id in pool.values("run_id") if run_id in launches]
    if not profiled:
        return None
    whole = kernel_rows(results, pool, launches, ()).astype(object).to_dict("records")[0]
    flop, moved, duration_s = (_number(whole[name]) for name in ("flop", "dram_bytes", "duration_s"))
    kernels = pd.concat([results.kernels.iloc[launches[run_id]] for run_id in profiled])
    has_backward = any(is_backward(str(name)) for name in kernels["name"].unique())
    steps = _number(whole["steps"])
    most = flop * _saved(kernels) if flop is not None and steps else None
    return _Measurement(
        source=WorkSource.PROFILER,
        work=Work(flop=flop, bytes_low=moved, bytes_high=moved),
        steps_s=[duration_s] if duration_s else [],
        lower_bounds=lower_bounds(pool, has_backward, most) if flop is not None else (),
        is_whole_profile=steps is None,
        kernels_alone=True,
        launches=len(kernels),
        uncounted_launches=int(kernels["flop"].isna().sum()),
        most_model_flop=most,
        sm_percent=_number(whole["sm_percent"]),
        dram_percent=_number(whole["dram_percent"]),
    )


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


# Columns of `runs` by source: FLOP of a step, and the lower and upper bound of its bytes.
WORK = {
    WorkSource.COUNTERS: ("counted_flop_per_step", "counted_dram_bytes_per_step", "counted_dram_bytes_per_step"),
    WorkSource.MODELLED: ("train_flop_per_step", "bytes_lower_per_step", "bytes_upper_per_step"),
}


def work_of(pool: Group, source: WorkSource) -> Work:
    """FLOP and bytes of a step: medians over the runs that have these figures."""
    flop, low, high = (pool.median(column) for column in WORK[source])
    return Work(flop=flop, bytes_low=low, bytes_high=high)


def _point(pool: Group, measurement: _Measurement, device: DeviceRoofs, refuted: Mapping[float, float]) -> PointRow:
    source, work, steps_s = measurement.source, measurement.work, measurement.steps_s
    peak, of_all = device.peak(pool["precision"]), pool.median("peak_flop_per_s")
    # A step that computes in several precisions has a peak between theirs.
    peak = replace(peak, flop_per_s=of_all) if peak and of_all else peak
    roof, is_complete = roof_of(pool, peak, refuted), not measurement.lower_bounds
    step_s = median(steps_s) if steps_s else None
    estimate = over_runs([] if work.flop is None else [work.flop / taken_s for taken_s in steps_s])
    # Divide by the median time, as run.json does: for an even number of runs, the median of rates differs.
    rate = work.flop / step_s if work.flop is not None and step_s else None
    flop_per_byte = intensity(work.flop, work.moved(step_s, roof))
    # If the FLOP are a lower bound, so is the intensity, and the share of a roof is unknown.
    limit = roof.at(flop_per_byte) if roof and flop_per_byte is not None and is_complete else None
    verdict = _verdict(pool, measurement, roof, step_s)
    if roof is None and verdict.bound is None and refuted.keys().isdisjoint(pool.known("ceiling_flop_per_s")):
        # Without a bandwidth, the runs may still reach enough of their own compute ceilings.
        verdict = replace(verdict, bound=pool.bound)
    moved = None if source is WorkSource.MODELLED else work.bytes_high
    row = PointRow(
        **{name: pool[name] for name in WORK_NAMED},
        source=str(source),
        runs=len(steps_s),
        intensity_flop_per_byte=flop_per_byte,
        intensity_low=intensity(work.flop, work.bytes_high) if source is WorkSource.MODELLED else None,
        intensity_high=intensity(work.flop, work.bytes_low) if source is WorkSource.MODELLED else None,
        flop_per_s=rate,
        flop_per_s_low=estimate.interval.low if estimate.interval else None,
        flop_per_s_high=estimate.interval.high if estimate.interval else None,
        interval=estimate.interval_words if steps_s else None,
        bound=verdict.bound,
        bound_why=verdict.why,
        busy=pool.busy,
        device_busy_share=verdict.device_busy_share,
        roof=str(roof.kind) if roof else None,
        roof_flop_per_s=limit,
        fraction_of_roof=rate / limit if rate is not None and limit else None,
        fraction_of_peak=rate / peak.flop_per_s if rate is not None and peak and is_complete else None,
        peak_source=peak.source if peak else None,
        flop_per_step=None if measurement.is_whole_profile else work.flop,
        counted_over_model=None
        if source is WorkSource.MODELLED or measurement.is_whole_profile
        else counted_over_model(work.flop, pool.median("train_flop_per_step")),
        flop_is_lower_bound=not is_complete,
        step_s=None if measurement.is_whole_profile else step_s,
        theoretical_flop_per_step=pool.median("train_flop_per_step"),
        dram_bytes_per_step=moved if not measurement.is_whole_profile else None,
        dram_bytes_per_s=moved / step_s if moved is not None and step_s else None,
        sm_percent=measurement.sm_percent,
        dram_percent=measurement.dram_percent,
    )
    unused = [
        f"{percent(refuted[value])} of the measured roof was reached: it is none"
        for value in dict.fromkeys(pool.known("ceiling_flop_per_s"))
        if value in refuted
    ]
    notes = [*_notes(pool, measurement, row), *unused]
    return replace(row, note=joined([*notes, *_roof_notes(row, roof, peak, was_measured=bool(unused)), *pool.apart]))


def _verdict(pool: Group, measurement: _Measurement, roof: Roof | None, step_s: float | None) -> Verdict:
    """The limit of a group of runs, by the same rule as for a single run, applied to medians over the runs."""
    work, is_complete = measurement.work, not measurement.lower_bounds
    has_bytes = not measurement.is_traced or _share_without_bytes(pool) <= MOST_UNATTRIBUTED
    shares = pool.numbers("cpu_time_share")
    figures = Figures(
        step_s=step_s,
        data_wait_fraction=pool.median("data_wait_fraction"),
        device_busy_share=None if measurement.kernels_alone else pool.median("device_busy_share"),
        device_busy_is_upper_limit=not pool["imported"],
        running="operators" if pool["device_type"] == Device.CPU else "kernels",
        flop=work.flop if is_complete else None,
        bytes_low=work.bytes_low if has_bytes else None,
        bytes_high=work.bytes_high if has_bytes else None,
        roof=roof.kind if roof else None,
        roof_flop_per_s=roof.flop_per_s if roof else None,
        roof_bytes_per_s=roof.bytes_per_s if roof else None,
        tf32_flop_per_s=pool.median("tf32_instead_flop_per_s"),
        kernels_alone=measurement.kernels_alone,
        possible_causes=list(dict.fromkeys(pool.texts("limit_known"))),
        # An idle machine counts as 1; None if most runs had an idle machine.
        cpu_time_share=median(1.0 if math.isnan(share) else share for share in shares)
        if 2 * len(pool.known("cpu_time_share")) > len(shares)
        else None,
    )
    return decide(figures, next(iter(pool.texts("bound_why")), UNKNOWN))


def _notes(pool: Group, measurement: _Measurement, row: PointRow) -> Iterator[str | None]:
    if row.bound in (Bound.OVERHEAD, Bound.NEITHER) or measurement.kernels_alone:
        yield row.bound_why if row.bound else None
    yield row.busy
    yield from (f"{LOWER_BOUND}: {reason}" for reason in measurement.lower_bounds)
    match measurement.source:
        case WorkSource.MODELLED:
            if not row.runs:
                yield "no rate, because there is no time without a profiler"
            elif measurement.is_traced:
                yield from _traced_notes(pool, None if row.flop_is_lower_bound else row.flop_per_step, row.bound)
            yield from dict.fromkeys(pool.texts("work_assumption"))
            if row.runs and not measurement.is_traced and not pool.known("step_median_s"):
                yield f"by {units.unit_of(pool.facts)} over wall time, including waits, because the run has no steps"
            # Runs whose own verdict differs from that of the medians.
            verdicts = pool.texts("bound")
            if others := [text for text in verdicts if row.bound is not None and text != row.bound]:
                yield f"{len(others)} of {len(verdicts)} runs say {others[0]}"
        case WorkSource.COUNTERS | WorkSource.PROFILER:
            yield "bytes with a cold cache, per kernel"
            yield from _counter_notes(pool, measurement, row)


def _counter_notes(pool: Group, measurement: _Measurement, row: PointRow) -> Iterator[str | None]:
    if measurement.source is WorkSource.PROFILER:
        yield ("kernels under the profiler: each one alone, at the profiler's clocks, without the gaps between them")
        if measurement.is_whole_profile:
            yield "the whole profile, because its number of steps is unknown"
    if not row.runs:
        yield "no rate, because there is no time without a profiler"
    if 0 < measurement.uncounted_launches < measurement.launches:
        some = f"{measurement.uncounted_launches} of {measurement.launches} launches"
        yield f"no FLOP: {some} have no count, and the sum of the others would be too low"
    elif measurement.work.flop is None:
        yield "FLOP not counted"
    elif not row.flop_is_lower_bound and any(value is False for value in pool.values("calibration_verified")):
        yield "FLOP unverified: the product of the calibration was counted wrongly"
    yield model_warning(
        row.counted_over_model, counted_over_model(measurement.most_model_flop, pool.median("train_flop_per_step"))
    )


# Possible errors if a point lies above a roof, for modelled and for counted work.
_MODELLED_ABOVE = "the roof or the precision's label is wrong, or kernels execute fewer FLOP than modelled (Winograd)"
_COUNTED_ABOVE = "the roof, the precision's label or the bytes (cold cache) are wrong"


def _roof_notes(row: PointRow, roof: Roof | None, peak: Peak | None, *, was_measured: bool) -> Iterator[str | None]:
    if roof is None and row.precision is None:
        yield "no roof: the precision is unknown"
    elif was_measured:
        yield "no roof: the device has no known peak" if roof is None else None
    elif roof is None:
        why = "no ceiling was measured" if row.bound or row.bound_why in (None, UNKNOWN) else row.bound_why
        yield f"no roof: {why}, and the device has no known peak"
    elif roof.kind is RoofKind.PEAK:
        yield "the roof is the vendor's: no ceiling was measured"
    if peak and peak.flop_per_s_low is not None:
        yield f"peak {range_note(peak)}"
    errors = _MODELLED_ABOVE if row.source == WorkSource.MODELLED else _COUNTED_ABOVE
    fractions = {f"the {row.roof} roof": row.fraction_of_roof, "the vendor's peak": row.fraction_of_peak}
    for what, fraction in fractions.items():
        if fraction is not None and fraction > ABOVE:
            yield f"{percent(fraction, decimals=1)} of {what}: {errors}"


# --- steps that only torch.profiler timed


def _traced_step_times(pool: Group) -> list[float]:
    """Seconds of a step by run, for imported traces: wall time, or if unknown the time of kernels or operators."""
    if not pool["imported"]:
        return []
    columns = (pool.numbers(name) for name in ("traced_wall_s", "traced_busy_s"))
    pairs = (tuple(value if value > 0 else None for value in pair) for pair in zip(*columns, strict=True))
    return [step_s for wall_s, busy_s in pairs if (step_s := traced_step_s(wall_s, busy_s))]


def _lacks_gaps(pool: Group) -> bool:
    return not any(wall_s > 0 for wall_s in pool.known("traced_wall_s"))


def _share_without_bytes(pool: Group) -> float:
    """Share of a trace's time in operators whose bytes are unknown."""
    return (pool.median("unattributed_share") or 0.0) - (pool.median("uncounted_share") or 0.0)


def _traced_notes(pool: Group, flop: float | None, bound: str | None) -> Iterator[str]:
    """Notes on a time that only the profiler measured; `flop`: FLOP of a step, None if incomplete.

    The busy share of the step is left out if the reason of `bound` already contains it.
    """
    on_gpu = pool["device_type"] != Device.CPU
    running = "kernels" if on_gpu else "operators"
    if _lacks_gaps(pool):
        yield f"{TRACED_TIME}: the {running}', overlapping ones once, without the gaps between them"
    else:
        yield f"{TRACED_TIME}, which lengthens the gaps between {running}" + ("" if on_gpu else " and slows small ones")
    if (share := _share_without_bytes(pool)) > MOST_UNATTRIBUTED:
        yield f"the bytes of {percent(share)} of the time are missing: the trace lacks their shapes"
    busy_s, wall_s = pool.median("traced_busy_s"), pool.median("traced_wall_s")
    if busy_s and wall_s and busy_s < WHOLLY_BUSY * wall_s:
        if bound not in (Bound.OVERHEAD, Bound.NEITHER):
            yield f"{running} run in {percent(busy_s / wall_s)} of the step"
        yield f"{si(flop / busy_s, 'FLOP/s')} while {running} run" if flop else ""


# --- shifts


SHIFT_COLUMNS = (
    *facts(place="place", device_name="device", model="model", source="source", changed="changed"),
    *facts(left="from", right="to", at="at"),
    Column(name="intensity_left", heading="intensity", unit="FLOP/B"),
    Column(name="intensity_right", heading="then", unit="FLOP/B"),
    Column(name="intensity_ratio", heading="intensity x"),
    Column(name="flop_per_s_ratio", heading="FLOP/s x"),
    Column(name="bound_left", heading="limited by"),
    Column(name="bound_right", heading="then"),
)


def shifts(table: pd.DataFrame) -> pd.DataFrame:
    """Effect of batch size and precision on a step: a row per pair of neighbouring values, all else being equal.

    `table`: from `points`. `changed`: `batch_size` or `precision`, with its values `left` and `right`; `at`: the
    unchanged value of the other of these two columns. Ratios are right divided by left. Rows whose FLOP are a lower
    bound are left out.
    """
    rows = rows_of(table)
    pairs = [pair for changed in ("batch_size", "precision") for pair in _pairs(rows, changed)]
    return frame(pairs, [column.name for column in SHIFT_COLUMNS])


_PRECISIONS = ("fp32", "tf32", "bf16", "amp")


def _pairs(rows: Sequence[Mapping[str, Any]], changed: str) -> Iterator[dict[str, Any]]:
    other = "precision" if changed == "batch_size" else "batch_size"
    fixed = [name for name in (*CONFIGURATION, *PLACE, "driver_version", "torch", "source") if name != changed]
    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row[changed] is not None and not row["flop_is_lower_bound"]:
            alike[tuple(row[name] for name in fixed)].append(row)
    for rows_alike in alike.values():
        # By size; precisions from slow and exact to fast.
        rows_alike.sort(
            key=lambda row: [*_PRECISIONS, row[changed]].index(row[changed]) if changed == "precision" else row[changed]
        )
        for left, right in pairwise(rows_alike):
            if left[changed] != right[changed]:
                yield {
                    **{name: left[name] for name in ("place", "device_name", "model", "source")},
                    "changed": changed.replace("_", " "),
                    "left": _shown(left[changed]),
                    "right": _shown(right[changed]),
                    "at": None if left[other] is None else _shown(left[other]),
                    "intensity_left": left["intensity_flop_per_byte"],
                    "intensity_right": right["intensity_flop_per_byte"],
                    "intensity_ratio": _quotient(right, left, "intensity_flop_per_byte"),
                    "flop_per_s_ratio": _quotient(right, left, "flop_per_s"),
                    "bound_left": left["bound"],
                    "bound_right": right["bound"],
                }


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def _quotient(right: Mapping[str, Any], left: Mapping[str, Any], name: str) -> float | None:
    return right[name] / left[name] if right[name] is not None and left[name] else None
