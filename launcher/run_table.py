"""Closing table of `launch local`: measurements, their variation, what limits the run, and the next command."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import TypeVar

from workload.contract import allocations, utilization
from workload.contract.bundle import Bundle
from workload.contract.invocation import as_typed
from workload.contract.ranks import communication, is_alone_slow, limit_sentence, waits
from workload.contract.record import Record, Status, StepSeconds, Verdict
from workload.contract.record_sections import ProfileResult
from workload.contract.spent import energy_text, joules_per_image, joules_text, work_rows
from workload.contract.text import counted, percent, plain, seconds, si, unbroken, wrapped
from workload.contract.verdict import NAMES, busy_sentence, flop_per_s, share_of_ceiling
from workload.stats.intervals import LEAST_REPLICATES, LEVEL, interval_over_runs

INDENT = 2
TEXT_COLUMN = 16
KERNEL_WIDTH = 60
NO_BOUND = Verdict(why="no ceilings were measured (--no-ceilings)")

T = TypeVar("T")


def render(bundles: Sequence[Bundle], *, width: int | None = None) -> str:
    """Summary of the repeats of one configuration, wrapped to `width`. Incomplete runs are listed below the figures."""
    # A completed run of our trainer has all figures; that of a script may lack some.
    completed = [
        run
        for run in bundles
        if run.record.status is Status.COMPLETED
        and None not in (run.record.timing.images_per_s, run.record.timing.data_wait_fraction, flop_per_s(run.record))
    ]
    rows = list(_measured_rows([run.record for run in completed])) if completed else []
    failed = [run.record for run in bundles if run not in completed]
    # The error of an interrupted run begins with its status.
    names = {Status.INTERRUPTED: "ended"}
    rows += [(names.get(record.status, record.status.replace("_", " ")), record.error or "") for record in failed]
    rows += [("bundle" if index == 0 else "", unbroken(str(run.path))) for index, run in enumerate(bundles)]
    lines = [wrapped(as_typed(text), width, indent=TEXT_COLUMN, first=_label(name)) for name, text in rows]
    if completed:
        lines.append(wrapped(unbroken(as_typed(_next(completed))), width, indent=TEXT_COLUMN, first=_label("next")))
    return "\n".join([wrapped(_headline(bundles[0].record), width), "", *lines])


def _label(name: str) -> str:
    return f"{' ' * INDENT}{name} "


def _headline(record: Record) -> str:
    spec, device = record.spec, record.environment.device
    on = f"{spec.device}: {device.name or spec.device}" + (f", threads: {device.threads}" if device.threads else "")
    if spec.script:
        known = [f"batch {spec.batch_size}", spec.precision] if spec.script.step else []
        known += [f"with {spec.change}"] if spec.change else []
        return ", ".join([spec.script.command or spec.model, *(text for text in known if text), f"on {on}"])
    return f"{spec.model}, batch {spec.batch_size}, {spec.precision}, on {on}"


def _measured_rows(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    script = records[0].spec.script
    if script and script.step:
        yield "a step", script.step.removeprefix("a step = ")
    yield f"{(script and script.unit) or 'images'}/s", _throughput(records)
    yield "step time", _step_time(_known(record.timing.step_s for record in records))
    yield from work_rows(records, interval_over_runs)
    complexities = _known(record.complexity for record in records)
    if theoretical_s := _known(complexity.theoretical_step_s for complexity in complexities):
        yield "in theory", f"{_range(theoretical_s, seconds)}  (the step's FLOP at the measured ceiling, nothing else)"
    yield "FLOP/s", _flop_rate(records)
    kept = filter(None, (allocations.sentence(record.step_memory) for record in records))
    told = ("MFU", utilization.sentence(records)), ("memory", next(kept, ""))
    yield from ((name, text) for name, text in told if text)
    for index, line in enumerate(_limits([record.bound or NO_BOUND for record in records])):
        yield "limited by" if index == 0 else "", line
    if scaling := _scaling(records):
        yield "scaling", scaling
    if busy := busy_sentence([record.bound.busy if record.bound else None for record in records]):
        yield "busy", busy
    waits = _known(record.timing.data_wait_fraction for record in records)
    yield "data waits", f"{_range(waits, percent)} of the wall time"
    known = [record for record in records if joules_per_image(record) is not None]
    if used_j := _known(joules_per_image(record) for record in known):
        yield (
            "energy",
            energy_text(known[0], median(used_j), _over_runs(used_j, joules_text) if len(used_j) > 1 else ""),
        )
    for line in _profile(records[0].profile):
        yield "profile", line
    for note, runs in Counter(note for record in records for note in dict.fromkeys(record.notes or ())).items():
        yield "note", note if runs == len(records) else f"{note}  (in {runs} of {len(records)} runs)"


def _known(values: Iterable[T | None]) -> list[T]:
    """Values that are not None. In completed runs of our trainer no value is None."""
    return [value for value in values if value is not None]


def _range(values: Sequence[float], show: Callable[[float], str]) -> str:
    low, high = show(min(values)), show(max(values))
    return low if low == high else f"{low} to {high}"


def _over_runs(values: Sequence[float], show: Callable[[float], str]) -> str:
    """The interval of the median of several runs; their range if it has none."""
    if ends := interval_over_runs(values):
        return f"median of {len(values)} runs; {percent(LEVEL)} interval: {_range(ends, show)}"
    few = ", too few for an interval" if len(values) < LEAST_REPLICATES else ""
    return f"median of {len(values)} runs{few}: {_range(values, show)}"


def _throughput(records: Sequence[Record]) -> str:
    rates = _known(record.timing.images_per_s for record in records)
    runs = "one run: no interval" if len(rates) == 1 else _over_runs(rates, _rate)
    sequences = _known(record.timing.samples_per_s for record in records)
    beside = f" ({_rate(median(sequences))} sequences/s)" if sequences else ""
    return f"{_rate(median(rates))}{beside}{_of_all(records)}  ({runs})"


def _of_all(records: Sequence[Record]) -> str:
    ranks = [record.ranks for record in records if record.ranks]
    rates = _known(each.images_per_s for each in ranks)
    if not rates:
        return ""
    slowest = [each for each in ranks if each.slowest is not None]
    slower = f", rank {slowest[0].slowest:g} is slower by {percent(slowest[0].slower_by or 0.0)}" if slowest else ""
    return f" on each of {ranks[0].number or 0:g} devices, {_rate(median(rates))} on all{slower}"


def _scaling(records: Sequence[Record]) -> str:
    ranks = _known(record.ranks for record in records)
    shares = [shares for each in ranks if (shares := waits(each))]
    medians = {name: median(each[name] for each in shares) for name in (shares[0] if shares else ())}
    slowest = {each.slowest for each in ranks}
    named = slowest.pop() if len(slowest) == 1 else None
    links = [record.ceilings.links if record.ceilings else None for record in records if record.ranks]
    return limit_sentence(
        medians,
        None if named is None else f"{named:g}",
        longest=next(map(communication, ranks, links), None),
        is_alone=all(map(is_alone_slow, ranks)),
    )


def _rate(value: float) -> str:
    return plain(value, 4)


def _step_time(steps: Sequence[StepSeconds]) -> str:
    medians, numbers = _known(step_s.median for step_s in steps), [int(step_s.n or 0) for step_s in steps]
    if len(steps) > 1:
        in_each = counted(numbers[0], "step") if len(set(numbers)) == 1 else f"{min(numbers)} to {max(numbers)} steps"
        return f"{seconds(median(medians))}  ({_over_runs(medians, seconds)}; {in_each} each)"
    if numbers[0] == 1:
        return f"{seconds(medians[0])}  (of one step)"
    low, high = steps[0].p5, steps[0].p95
    within = "" if low is None or high is None else f"; 5 % to 95 % of steps: {seconds(low)} to {seconds(high)}"
    return f"{seconds(medians[0])}  (median of {counted(numbers[0], 'step')}{within})"


def _flop_rate(records: Sequence[Record]) -> str:
    """FLOP/s during the median step. Unlike images/s this leaves out waits for data."""
    rates = _known(flop_per_s(record) for record in records)
    parts = [_over_runs(rates, _flop)] if len(rates) > 1 else []
    precision = records[0].spec.precision
    shares = _known(share_of_ceiling(record) for record in records)
    if shares:
        ceilings = _known(record.ceilings.compute(precision) if record.ceilings else None for record in records)
        roofs = _range(_known(ceiling.roof_per_s for ceiling in ceilings), _flop)
        if bursts := _known(ceiling.burst for ceiling in ceilings):
            roofs += f" sustained, {_range(bursts, _flop)} in a burst"
        known = "" if len(shares) == len(rates) else f", known in {len(shares)} of {len(rates)} runs"
        parts.append(f"{_range(shares, percent)} of the measured {precision} ceiling, {roofs}{known}")
    if records[0].complexity:
        script = records[0].spec.script
        unit = ((script and script.unit) or "images").removesuffix("s")
        parts.append(f"{si(records[0].complexity.train_flop_per_image or 0.0, 'FLOP')} per {unit}")
    return f"{_flop(median(rates))} while stepping  ({'; '.join(parts)})"


def _flop(value: float) -> str:
    return si(value, "FLOP/s")


def _limits(bounds: Sequence[Verdict]) -> list[str]:
    counts = Counter(verdict.bound for verdict in bounds)
    first = {verdict.bound: verdict.why for verdict in reversed(bounds)}
    if len(bounds) == 1:
        return [f"{_bound(name)}: {why}" for name, why in first.items()]
    if len(counts) > 1:
        said = ", ".join(f"{_bound(name)} in {runs}" for name, runs in counts.most_common())
        return [f"differs between runs: {said}", *(f"{_bound(name)}, in one: {first[name]}" for name in counts)]
    [(name, why)] = first.items()
    of_one = "" if len({verdict.why for verdict in bounds}) == 1 else "; in the first"
    return [f"{_bound(name)} in all {len(bounds)} runs{of_one}: {why}"]


def _bound(name: str | None) -> str:
    return NAMES.get(name, str(name))


def _next(completed: Sequence[Bundle]) -> str:
    if len(completed) == 1:
        return "to get an interval, run again with --repeats 3"
    return f"analyze report {shlex.quote(str(completed[0].path.parent))}"


def _profile(profile: ProfileResult) -> list[str]:
    """Lines on the profile. A series of repeats is profiled in its first run."""
    if profile.kind is None:
        return []
    lines = [] if profile.status == "completed" else [f"{profile.kind}: {profile.status}: {profile.reason}"]
    if profile.flop_per_step is not None:
        lines.append(_counted(profile, profile.flop_per_step))
    if profile.top:
        number = f"{profile.calls_per_step:.0f} {profile.rows} a step"
        longest = profile.top[0]
        share = "" if longest.share is None else f", {percent(longest.share)} of the time"
        lines.append(f"torch: {number}; longest: {(longest.name or '')[:KERNEL_WIDTH]}{share}")
    return lines


def _counted(profile: ProfileResult, flop_per_step: float) -> str:
    bound = "at least " if profile.flop_is_lower_bound else ""
    verified = "" if profile.checks and profile.checks.flop_verified else " (unverified: the calibration disagrees)"
    moved, intensity = profile.dram_bytes_per_step, profile.intensity_flop_per_byte
    bytes_moved = "" if moved is None else f", {si(moved, 'B')} of DRAM traffic with cold caches"
    per_byte = "" if intensity is None else f", {intensity:.3g} FLOP/byte"
    flop = si(flop_per_step, "FLOP")
    return f"ncu: {bound}{flop} a step{verified}{bytes_moved}{per_byte}; {profile.kernels_per_step:.0f} kernels"
