"""Rooflines: roofs of devices, training steps and kernels below the roofs, and the limit of each step. Pure.

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52 (2009): a step of intensity I
(FLOP per byte of DRAM) reaches at most min(FLOP/s of the device, I x bytes/s of its memory). The time of a step always
comes from the run without a profiler; the profiled run's counters give only FLOP and bytes.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from analysis import traced_times
from analysis.breakdown import COLUMNS, breakdown, in_steps, l2_bytes_are, per_step
from analysis.configurations import CONFIGURATION, DEVICE, PLACE, SOFTWARE, WORK_NAMED, Group, completed, group
from analysis.loading import Tables
from analysis.lower_bound import LOWER_BOUND, TENSOR, counted_over_model, model_warning, reasons
from analysis.ncu.families import is_backward
from analysis.roof import Roof, Work, intensity
from analysis.statistics import over_runs
from workload.contract import peaks
from workload.contract.environment_record import DeviceFacts
from workload.contract.errors import BundleError
from workload.contract.peaks import Gpu, Peak
from workload.contract.record import Verdict
from workload.contract.spec import Device
from workload.contract.text import percent, si
from workload.contract.verdict import (
    ABOVE_CEILING,
    MOST_UNATTRIBUTED,
    UNKNOWN,
    Bound,
    Figures,
    RoofKind,
    decide,
)

# Tolerance for rounding: a figure counts as above a roof beyond this factor.
ABOVE = 1 + 1e-9


if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class WorkSource(StrEnum):
    """Source of the FLOP and bytes of a step."""

    COUNTERS = "counters"
    MODELLED = "modelled"
    # Counters divided by the profiler's own time, if the step was not timed without the profiler.
    PROFILER = "under the profiler"


# Further facts that distinguish groups of runs; each is a column in data output.
UNNAMED = tuple(name for name in (*CONFIGURATION, *PLACE, *SOFTWARE) if name not in WORK_NAMED)


@dataclass(frozen=True, kw_only=True)
class RoofRow:
    """A row of `roofs`."""

    place: str | None
    device_name: str | None
    threads: float | None
    precision: str
    kind: str
    flop_per_s: float
    bytes_per_s: float | None
    measurements: int | None = None
    source: str
    note: str | None


@dataclass(frozen=True, kw_only=True)
class PointRow:
    """A row of `points`, without the facts in `UNNAMED`."""

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
    flop_per_step: float | None
    counted_over_model: float | None
    flop_is_lower_bound: bool
    note: str | None = None


def names_of(row: "type[DataclassInstance]") -> tuple[str, ...]:
    """Column names of a table with these rows."""
    return tuple(field.name for field in fields(row))


POINT_COLUMNS = names_of(PointRow)


# --- roofs


def roofs(results: Tables) -> pd.DataFrame:
    """Measured ceilings and vendors' peaks, a row per place, device, precision and kind.

    `flop_per_s` and `bytes_per_s` are medians over the `measurements`; `bytes_per_s` is the copy rate. A run that
    reused the ceilings of an earlier run adds no measurement. Vendors' figures are from peaks.toml; a device without a
    known peak has no such row.
    """
    rows = list[RoofRow]()
    for values, runs in completed(results.runs).groupby(list(DEVICE), dropna=False, sort=False):
        known = zip(DEVICE, cast("tuple[Any, ...]", values), strict=True)
        keys = {name: None if pd.isna(value) else value for name, value in known}
        rows += _roofs(results, keys, runs)
    return frame(list(map(vars, rows)), names_of(RoofRow))


def _roofs(results: Tables, keys: Mapping[str, Any], runs: pd.DataFrame) -> Iterator[RoofRow]:
    ceilings = results.ceilings[results.ceilings["run_id"].isin(runs["run_id"])]
    ceilings = ceilings.drop_duplicates(["quantity", "name", "roof_per_s", "measured_at"])
    ceilings = ceilings[~ceilings["roof_per_s"].isin(list(_refuted(results.runs)))]
    rates = ceilings[ceilings["quantity"] == "flop_per_s"]
    copies = ceilings.loc[(ceilings["quantity"] == "bytes_per_s") & (ceilings["name"] == "copy"), "roof_per_s"]
    where = {name: keys[name] for name in ("place", "device_name", "threads")}
    for precision, measured in rates.groupby("name", sort=False, observed=True):
        yield RoofRow(
            **where,
            precision=str(precision),
            kind=str(RoofKind.MEASURED),
            flop_per_s=float(measured["roof_per_s"].median()),
            bytes_per_s=float(copies.median()) if len(copies) else None,
            measurements=len(measured),
            source="one measurement" if len(measured) == 1 else f"median of {len(measured)} measurements",
            note=_burst_note(measured["burst_per_s"]),
        )
    device = _device(results, keys, runs)
    for precision in dict.fromkeys([*rates["name"], *runs["precision"].dropna()]):
        peak = device.peak(str(precision))
        if peak:
            yield RoofRow(
                **where,
                precision=str(precision),
                kind=str(RoofKind.PEAK),
                flop_per_s=peak.flop_per_s,
                bytes_per_s=peak.bytes_per_s,
                source=peak.source,
                note=_joined([_range_note(peak), device.warning]),
            )


def _burst_note(bursts: pd.Series) -> str | None:
    """Note on the burst rate, if measurements slowed down under load; else None."""
    known = bursts.dropna()
    return f"what it sustains; {si(float(known.median()), 'FLOP/s')} in a burst" if len(known) else None


@dataclass(frozen=True, kw_only=True)
class _Device:
    """The device of a place; `warning`: its own memory facts contradict the table of peaks."""

    name: str | None
    memory_bytes: float | None
    gpu: Gpu | None
    warning: str | None

    def peak(self, precision: str | None) -> Peak | None:
        return peaks.find(self.name, precision=precision, memory_bytes=self.memory_bytes)


def _refuted(runs: pd.DataFrame) -> dict[float, float]:
    """Ceilings of CPUs that a run has exceeded, with the largest factor.

    Other work used the CPUs while such a ceiling was measured. Bundles of today measure again. Ceilings of GPUs stay,
    because a GPU's kernels may execute fewer FLOP than modelled.
    """
    cpu = runs[(runs["device_type"] == "cpu") & (runs["ceiling_flop_per_s"] > 0) & (runs["step_median_s"] > 0)]
    shares = cpu["train_flop_per_step"] / cpu["step_median_s"] / cpu["ceiling_flop_per_s"]
    above = cpu.assign(share=shares)[shares > ABOVE_CEILING]
    refuted: dict[float, float] = {}
    for value, share in zip(above["ceiling_flop_per_s"].tolist(), above["share"].tolist(), strict=True):
        refuted[value] = max(share, refuted.get(value, 0.0))
    return refuted


def _device(results: Tables, keys: Mapping[str, Any], runs: pd.DataFrame) -> _Device:
    """The device, from the record of the first run: two devices of one name in one place would be two places."""
    name = keys["device_name"]
    device = DeviceFacts()
    if name is not None and keys["device_type"] == "cuda":
        # If the bundle has moved since it was loaded, only the device's name is known.
        with suppress(BundleError):
            device = results.record(str(runs["run_id"].iloc[0])).environment.device
    gpu = peaks.find_gpu(name, memory_bytes=device.memory_total_bytes)
    clock, width = device.memory_clock_max_mhz, device.memory_bus_width_bits
    warning = peaks.bandwidth_warning(gpu, memory_clock_mhz=clock, bus_width_bits=width) if gpu else None
    return _Device(name=name, memory_bytes=device.memory_total_bytes, gpu=gpu, warning=warning)


def _range_note(peak: Peak) -> str | None:
    if peak.flop_per_s_low is None:
        return peak.note
    low, high = peak.flop_per_s_low / 1e12, peak.flop_per_s / 1e12
    return f"{low:.1f} to {high:.1f} TFLOP/s {peak.note or ''}; shown is the highest".replace(" ;", ";")


# --- steps


def points(results: Tables) -> pd.DataFrame:
    """Training steps in the roofline plane: a row per group of runs that may be pooled, and source of FLOP and bytes.

    `flop_per_s`: FLOP of a step divided by the median over runs of their median unprofiled step time, with its 95 %
    interval over runs; NaN if no step was timed. Modelled bytes are an interval, and so is the intensity:
    `intensity_low` and `intensity_high`, with the point between them; counted bytes are one figure. A profile without
    another timing is a point over its own time. FLOP that are a lower bound have neither a bound nor a share of a roof.
    `roof` says which roof `roof_flop_per_s` is of: the measured one, or the vendor's if none was measured.
    `fraction_of_peak` is of the vendor's FLOP/s.
    """
    return frame([{**pool.facts, **vars(row)} for pool, row in point_rows(results)], (*POINT_COLUMNS, *UNNAMED))


def point_rows(results: Tables) -> Iterator[tuple[Group, PointRow]]:
    """The rows of `points`, each with its group of runs."""
    devices: dict[tuple[Any, ...], _Device] = {}
    refuted = _refuted(results.runs)
    for pool in group(completed(results.runs)):
        place = tuple(pool[name] for name in DEVICE)
        if place not in devices:
            devices[place] = _device(results, pool.facts, pool.runs)
        for measurement in _measurements(results, pool):
            yield pool, _point(pool, measurement, devices[place], refuted)


@dataclass(frozen=True, kw_only=True)
class _Measurement:
    """FLOP and bytes of a step from one source, and the step's seconds per run.

    `lower_bounds`: reasons why the FLOP are incomplete. `is_whole_profile`: the number of steps in the profile is
    unknown, so FLOP, bytes and time are those of the whole profile. `is_traced`: only torch.profiler timed the step.
    `kernels_alone`: the time is that of kernels, and the gaps between them are unknown. `launches`,
    `uncounted_launches`: number of the profile's kernel launches, and of those without counted FLOP.
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


def _measurements(results: Tables, pool: Group) -> Iterator[_Measurement]:
    steps_s = _step_times(pool)
    is_traced = not steps_s and bool(traced := traced_times.times(pool))
    steps_s = traced if is_traced else steps_s
    profile = None if steps_s or pool.runs["kernels_file"].isna().all() else _profile(results, pool)
    if profile:
        yield profile
        return
    for source, columns in WORK.items():
        # For an import without a time, formulas add nothing to the name of its model.
        is_told = source is WorkSource.COUNTERS or steps_s or not pool["imported"]
        if is_told and any(pool.known(column) for column in columns):
            bounds = _lower_bounds(pool) if source is WorkSource.COUNTERS else ()
            bounds = traced_times.lower_bounds(pool) if is_traced and source is WorkSource.MODELLED else bounds
            yield _Measurement(
                source=source,
                work=work_of(pool, source),
                steps_s=steps_s,
                lower_bounds=bounds,
                is_traced=is_traced,
                kernels_alone=is_traced and traced_times.has_no_gaps(pool),
            )


def _step_times(pool: Group) -> list[float]:
    """Seconds of a step by run: the median step, or from images over wall time if a table of rates has no steps."""
    steps = [step_s for step_s in pool.known("step_median_s") if step_s > 0]
    if steps or not pool["imported"]:
        return steps
    return [pool["batch_size"] / rate for rate in pool.known("images_per_s") if rate > 0]


def _lower_bounds(pool: Group, has_backward: bool | None = None, counted: float | None = None) -> tuple[str, ...]:
    """Reasons why a group's counted FLOP are incomplete.

    `has_backward` and `counted` (FLOP of a step): facts from the kernels themselves, if known.
    """
    flagged, backward = (pool.runs[name].astype(object) for name in ("flop_is_lower_bound", "backward_kernels"))
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
    """The kernels of a profile as one measurement over their own time; None if no kernels can be read."""
    launches = results.kernels.groupby("run_id", sort=False).indices
    profiled = [run_id for run_id in pool.runs["run_id"] if run_id in launches]
    if not profiled:
        return None
    whole = _kernel_rows(results, pool, launches, ()).astype(object).to_dict("records")[0]
    flop, moved, duration_s = (_number(whole[name]) for name in ("flop", "dram_bytes", "duration_s"))
    kernels = pd.concat([results.kernels.iloc[launches[run_id]] for run_id in profiled])
    has_backward = any(is_backward(str(name)) for name in kernels["name"].unique())
    steps = _number(whole["steps"])
    return _Measurement(
        source=WorkSource.PROFILER,
        work=Work(flop=flop, bytes_low=moved, bytes_high=moved),
        steps_s=[duration_s] if duration_s else [],
        lower_bounds=_lower_bounds(pool, has_backward, flop if steps else None) if flop is not None else (),
        is_whole_profile=steps is None,
        kernels_alone=True,
        launches=len(kernels),
        uncounted_launches=int(kernels["flop"].isna().sum()),
    )


# Columns of `runs` by source: FLOP of a step, and the lower and upper bound of its bytes.
WORK = {
    WorkSource.COUNTERS: ("counted_flop_per_step", "counted_dram_bytes_per_step", "counted_dram_bytes_per_step"),
    WorkSource.MODELLED: ("train_flop_per_step", "bytes_lower_per_step", "bytes_upper_per_step"),
}


def work_of(pool: Group, source: WorkSource) -> Work:
    """FLOP and bytes of a step: medians over the runs that have these figures."""
    flop, low, high = (pool.median(column) for column in WORK[source])
    return Work(flop=flop, bytes_low=low, bytes_high=high)


def roof_of(pool: Group, peak: Peak | None, refuted: Collection[float] = ()) -> Roof | None:
    """The measured roof of a group, else the vendor's; None if both are unknown.

    `refuted`: measured FLOP/s to ignore.
    """
    flop_per_s = _median([value for value in pool.known("ceiling_flop_per_s") if value not in refuted])
    bytes_per_s = pool.median("ceiling_bytes_per_s")
    if flop_per_s and bytes_per_s:
        return Roof(kind=RoofKind.MEASURED, flop_per_s=flop_per_s, bytes_per_s=bytes_per_s)
    return Roof(kind=RoofKind.PEAK, flop_per_s=peak.flop_per_s, bytes_per_s=peak.bytes_per_s) if peak else None


def _point(pool: Group, measurement: _Measurement, device: _Device, refuted: Mapping[float, float]) -> PointRow:
    source, work, steps_s = measurement.source, measurement.work, measurement.steps_s
    peak = device.peak(pool["precision"])
    roof, is_whole = roof_of(pool, peak, refuted), not measurement.lower_bounds
    step_s = _median(steps_s)
    estimate = over_runs([] if work.flop is None else [work.flop / taken_s for taken_s in steps_s])
    # Divide by the median time, as run.json does: for an even number of runs, the median of rates differs.
    rate = work.flop / step_s if work.flop is not None and step_s else None
    placed = intensity(work.flop, work.moved(step_s, roof))
    # The intensity and the share of a roof of a lower bound are unknown.
    limit = roof.at(placed) if roof and placed is not None and is_whole else None
    verdict = _verdict(pool, measurement, roof, step_s)
    row = PointRow(
        **{name: pool[name] for name in WORK_NAMED},
        source=str(source),
        runs=len(steps_s),
        intensity_flop_per_byte=placed,
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
        fraction_of_peak=rate / peak.flop_per_s if rate is not None and peak and is_whole else None,
        flop_per_step=None if measurement.is_whole_profile else work.flop,
        counted_over_model=None
        if source is WorkSource.MODELLED or measurement.is_whole_profile
        else counted_over_model(work.flop, pool.median("train_flop_per_step")),
        flop_is_lower_bound=not is_whole,
    )
    unused = [
        f"{percent(refuted[value])} of the measured roof was reached: it is none"
        for value in dict.fromkeys(pool.known("ceiling_flop_per_s"))
        if value in refuted
    ]
    notes = [*_notes(pool, measurement, row), *unused]
    return replace(row, note=_joined([*notes, *_roof_notes(row, roof, peak, was_measured=bool(unused)), *pool.apart]))


def _verdict(pool: Group, measurement: _Measurement, roof: Roof | None, step_s: float | None) -> Verdict:
    """The limit of a group of runs: the rule for a single run, applied to the medians."""
    work, is_whole = measurement.work, not measurement.lower_bounds
    has_bytes = not measurement.is_traced or traced_times.without_bytes(pool) <= MOST_UNATTRIBUTED
    figures = Figures(
        step_s=step_s,
        data_wait_fraction=pool.median("data_wait_fraction"),
        device_busy_share=None if measurement.kernels_alone else pool.median("device_busy_share"),
        is_most=not pool["imported"],
        running="operators" if pool["device_type"] == Device.CPU else "kernels",
        flop=work.flop if is_whole else None,
        bytes_low=work.bytes_low if has_bytes else None,
        bytes_high=work.bytes_high if has_bytes else None,
        roof=roof.kind if roof else None,
        roof_flop_per_s=roof.flop_per_s if roof else None,
        roof_bytes_per_s=roof.bytes_per_s if roof else None,
        kernels_alone=measurement.kernels_alone,
        known=list(dict.fromkeys(pool.texts("limit_known"))),
    )
    return decide(figures, next(iter(pool.texts("bound_why")), UNKNOWN))


def _notes(pool: Group, measurement: _Measurement, row: PointRow) -> Iterator[str | None]:
    """Notes on the limit, FLOP, bytes and time."""
    if row.bound in (Bound.OVERHEAD, Bound.NEITHER) or measurement.kernels_alone:
        yield row.bound_why if row.bound else None
    yield row.busy
    yield from (f"{LOWER_BOUND}: {reason}" for reason in measurement.lower_bounds)
    match measurement.source:
        case WorkSource.MODELLED:
            if not row.runs:
                yield "no time without a profiler: no rate"
            elif measurement.is_traced:
                yield from traced_times.notes(pool, None if row.flop_is_lower_bound else row.flop_per_step, row.bound)
            yield from dict.fromkeys(pool.texts("work_assumption"))
            if row.runs and not measurement.is_traced and not pool.known("step_median_s"):
                yield "by images over wall time, waits included: the run has no steps"
            yield _other_verdicts(pool, row.bound)
        case WorkSource.COUNTERS | WorkSource.PROFILER:
            yield "bytes with a cold cache, per kernel"
            yield from _counter_notes(pool, measurement, row)


def _counter_notes(pool: Group, measurement: _Measurement, row: PointRow) -> Iterator[str | None]:
    if measurement.source is WorkSource.PROFILER:
        yield "kernels under the profiler: one by one, at its clocks, without the gaps between them"
        if measurement.is_whole_profile:
            yield "the whole profile: nobody said how many steps it holds"
    if not row.runs:
        yield "no time without a profiler: no rate"
    if 0 < measurement.uncounted_launches < measurement.launches:
        some = f"{measurement.uncounted_launches} of {measurement.launches} launches"
        yield f"no FLOP: {some} have no count, and the sum of the others would be too low"
    elif measurement.work.flop is None:
        yield "FLOP not counted"
    elif not row.flop_is_lower_bound and any(
        value is False for value in pool.runs["calibration_verified"].astype(object)
    ):
        yield "FLOP unverified: the calibration's product was counted wrong"
    yield model_warning(row.counted_over_model)


def _other_verdicts(pool: Group, bound: str | None) -> str | None:
    """Note on runs of a group whose own verdict differs from that of the medians; None if all agree."""
    verdicts = pool.texts("bound")
    others = [text for text in verdicts if bound is not None and text != bound]
    return f"{len(others)} of {len(verdicts)} runs say {others[0]}" if others else None


# Possible errors if a point lies above a roof.
_ABOVE_A_ROOF = {
    WorkSource.PROFILER: "the roof, the precision's label or the bytes (cold cache) are wrong",
    WorkSource.COUNTERS: "the roof, the precision's label or the bytes (cold cache) are wrong",
    WorkSource.MODELLED: (
        "the roof or the precision's label is wrong, or kernels execute fewer FLOP than modelled (Winograd)"
    ),
}


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
        yield f"peak {_range_note(peak)}"
    fractions = {f"the {row.roof} roof": row.fraction_of_roof, "the vendor's peak": row.fraction_of_peak}
    for what, fraction in fractions.items():
        if fraction is not None and fraction > ABOVE:
            yield f"{percent(fraction, decimals=1)} of {what}: {_ABOVE_A_ROOF[WorkSource(row.source)]}"


# --- kernels


def kernel_points(results: Tables, *, keys: Sequence[str] = ("family",)) -> pd.DataFrame:
    """Kernels of profiled runs in the roofline plane: a row per group of runs and value of `keys`, longest first.

    `launches` and `duration_s` (seconds) are per step if the number of `steps` in the profile is known, otherwise of
    the whole profile. Intensities are FLOP per byte of DRAM, L2 and L1, NaN if the bytes were not counted.
    `l2_bytes_are` says which traffic counts as L2 bytes. The time is the profiler's, so `flop_per_s` compares kernels
    with each other; it is not the rate of the step.
    """
    launches = results.kernels.groupby("run_id", sort=False).indices
    profiled = [pool for pool in group(completed(results.runs)) if not launches.keys().isdisjoint(pool.runs["run_id"])]
    tables = [_kernel_rows(results, pool, launches, keys) for pool in profiled]
    columns = [*WORK_NAMED, "profiles", "steps", *keys, *COLUMNS, "l2_bytes_are", "note", *UNNAMED]
    return pd.concat(tables, ignore_index=True)[columns] if tables else pd.DataFrame(columns=columns)


def _kernel_rows(results: Tables, pool: Group, launches: Mapping[Any, Any], keys: Sequence[str]) -> pd.DataFrame:
    """Rows of one group. `launches`: for each run id, the positions of its rows in `results.kernels`."""
    parts, steps = [], list[int | None]()
    for run_id in pool.runs["run_id"]:
        if run_id in launches:
            in_a_step, number = in_steps(results.kernels.iloc[launches[run_id]])
            parts.append(in_a_step)
            steps.append(number or _steps_said(results, run_id))
    known = [number for number in steps if number]
    number = sum(known) if len(known) == len(steps) else None
    launched = pd.concat(parts)
    rows = per_step(breakdown(launched, keys), number)
    label = l2_bytes_are(launched)
    facts = {**pool.facts, "profiles": len(parts), "steps": number, "l2_bytes_are": label}
    return rows.assign(**facts, note=_joined([*pool.apart, label and f"L2 bytes are {label}"]))


def _steps_said(results: Tables, run_id: str) -> int | None:
    """Number of steps that the user gave for an imported profile; None if unknown."""
    with suppress(BundleError):
        return int(results.record(run_id).profile.steps_profiled or 0) or None
    return None


# --- shared


def frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """A table in which an absent number is NaN; a column without any text becomes numeric."""
    table = pd.DataFrame(list(rows), columns=list(columns))
    for name in columns:
        is_empty = table[name].isna().all()
        if table[name].dtype == object and (
            is_empty or not any(isinstance(value, str | bool) for value in table[name].dropna())
        ):
            table[name] = pd.to_numeric(table[name])
    return table


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _joined(parts: Iterable[str | None]) -> str | None:
    return "; ".join(part for part in parts if part) or None
