"""The closing table of `launch local`: what was measured, how much it varies, what limits it, what to type next."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from workload.contract.bundle import Bundle, Status
from workload.contract.invocation import as_typed
from workload.contract.text import between, counted, percent, plain, seconds, si, unbroken, wrapped
from workload.contract.verdict import roof_per_s

INDENT = 2
TEXT_COLUMN = 16
KERNEL_WIDTH = 60
# Where a bound's name alone would be a riddle.
BOUNDS = {None: "unknown", "busy": "the machine was busy"}
NO_BOUND = {"bound": None, "why": "no ceilings were measured (--no-ceilings)"}

Record = Mapping[str, Any]


def render(bundles: Sequence[Bundle], *, width: int | None = None) -> str:
    """One summary of the repeats of one configuration, wrapped to `width`; runs that broke off are named below it."""
    completed = [run for run in bundles if run.record["status"] == Status.COMPLETED]
    rows = list(_measured_rows([run.record for run in completed])) if completed else []
    rows += [(_status_label(run), run.record["error"] or "") for run in bundles if run not in completed]
    rows += [("bundle" if index == 0 else "", unbroken(str(run.path))) for index, run in enumerate(bundles)]
    lines = [wrapped(as_typed(text), width, indent=TEXT_COLUMN, first=_label(name)) for name, text in rows]
    if completed:
        lines.append(wrapped(unbroken(as_typed(_next(completed))), width, indent=TEXT_COLUMN, first=_label("next")))
    return "\n".join([wrapped(_headline(bundles[0].record), width), "", *lines])


def _label(name: str) -> str:
    """What stands before a value."""
    return f"{' ' * INDENT}{name} "


def _headline(record: Record) -> str:
    spec, where = record["spec"], record["environment"]
    device = where["device"].get("name") or spec["device"]
    threads = where["device"].get("threads")
    on = f"{spec['device']}: {device}" + (f", threads: {threads}" if threads else "")
    return f"{spec['model']}, batch {spec['batch_size']}, {spec['precision']}, on {on}"


def _status_label(run: Bundle) -> str:
    return str(run.record["status"]).replace("_", " ")


def _measured_rows(records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    yield "images/s", _throughput(records)
    yield "step time", _step_time(records)
    if theoretical_s := [known for record in records if (known := record["complexity"]["theoretical_step_s"])]:
        said = _range(theoretical_s, seconds)
        yield "in theory", f"{said}  (the step's FLOP at the measured ceiling, nothing else)"
    yield "FLOP/s", _flop_rate(records)
    for index, line in enumerate(_limits([record["bound"] or NO_BOUND for record in records])):
        yield "limited by" if index == 0 else "", line
    yield (
        "data waits",
        f"{_range([record['timing']['data_wait_fraction'] for record in records], percent)} of the wall time",
    )
    for line in _profile(records[0]["profile"]):
        yield "profile", line
    for note, runs in Counter(note for record in records for note in dict.fromkeys(record["notes"])).items():
        yield "note", note if runs == len(records) else f"{note}  (in {runs} of {len(records)} runs)"


def _range(values: Sequence[float], show: Callable[[float], str]) -> str:
    """The least and the most, or one figure where both read the same."""
    low, high = show(min(values)), show(max(values))
    return low if low == high else f"{low} to {high}"


def _over_runs(values: Sequence[float], show: Callable[[float], str]) -> str:
    return f"median of {len(values)} runs, {_range(values, show)}"


def _throughput(records: Sequence[Record]) -> str:
    rates = [record["timing"]["images_per_s"] for record in records]
    if len(rates) == 1:
        return f"{_rate(rates[0])}  (one run: no interval)"
    return f"{_rate(median(rates))}  ({_over_runs(rates, _rate)})"


def _rate(value: float) -> str:
    return plain(value, 4)


def _step_time(records: Sequence[Record]) -> str:
    steps = [record["timing"]["step_s"] for record in records]
    if len(steps) > 1:
        medians, numbers = [step_s["median"] for step_s in steps], [step_s["n"] for step_s in steps]
        each = counted(numbers[0], "step") if len(set(numbers)) == 1 else f"{min(numbers)} to {max(numbers)} steps"
        return f"{seconds(median(medians))}  ({_over_runs(medians, seconds)}; {each} each)"
    step_s = steps[0]
    if step_s["n"] == 1:
        return f"{seconds(step_s['median'])}  (of one step)"
    within = (
        "" if step_s["p5"] is None else f"; 5 % to 95 % of steps: {seconds(step_s['p5'])} to {seconds(step_s['p95'])}"
    )
    return f"{seconds(step_s['median'])}  (median of {counted(step_s['n'], 'step')}{within})"


def _flop_rate(records: Sequence[Record]) -> str:
    """Of the median step: unlike images/s it leaves out waits for data."""
    rates = [_flop_per_s(record) for record in records]
    parts = [_over_runs(rates, _flop)] if len(rates) > 1 else []
    precision = records[0]["spec"]["precision"]
    ceilings = [(record["ceilings"] or {"flop_per_s": {}})["flop_per_s"].get(precision) for record in records]
    shares = [rate / roof_per_s(ceiling) for rate, ceiling in zip(rates, ceilings, strict=True) if ceiling]
    if shares:
        roofs = _range([roof_per_s(ceiling) for ceiling in ceilings if ceiling], _flop)
        if bursts := [ceiling["burst"] for ceiling in ceilings if ceiling and ceiling.get("burst")]:
            roofs += f" sustained, {_range(bursts, _flop)} in a burst"
        known = "" if len(shares) == len(rates) else f", known in {len(shares)} of {len(rates)} runs"
        parts.append(f"{_range(shares, percent)} of the measured {precision} ceiling, {roofs}{known}")
    parts.append(f"{si(records[0]['complexity']['train_flop_per_image'], 'FLOP')} per image")
    return f"{_flop(median(rates))} while stepping  ({'; '.join(parts)})"


def _flop_per_s(record: Record) -> float:
    return float(record["complexity"]["train_flop_per_step"] / record["timing"]["step_s"]["median"])


def _flop(value: float) -> str:
    return si(value, "FLOP/s")


def _limits(bounds: Sequence[Record]) -> list[str]:
    """The verdict that all runs share, or that it differs, with the first reason for each."""
    counts = Counter(bound["bound"] for bound in bounds)
    first = {bound["bound"]: bound["why"] for bound in reversed(bounds)}
    if len(bounds) == 1:
        return [f"{_bound(name)}: {why}" for name, why in first.items()]
    if len(counts) > 1:
        said = ", ".join(f"{_bound(name)} in {runs}" for name, runs in counts.most_common())
        return [f"differs between runs: {said}", *(f"{_bound(name)}, in one: {first[name]}" for name in counts)]
    name = bounds[0]["bound"]
    if len({bound["why"] for bound in bounds}) == 1:
        return [f"{_bound(name)} in all {len(bounds)} runs: {first[name]}"]
    if any(bound.get("compute_fraction") is None for bound in bounds):
        return [f"{_bound(name)} in all {len(bounds)} runs; in the first: {first[name]}"]
    compute = [bound["compute_fraction"] for bound in bounds]
    low = min(bound["memory_fraction_low"] for bound in bounds)
    high = max(bound["memory_fraction_high"] for bound in bounds)
    roofs = (
        f"{_range(compute, percent)} of the measured compute ceiling, {between(low, high)} of the bandwidth (modelled)"
    )
    return [f"{_bound(name)} in all {len(bounds)} runs: {roofs}"]


def _bound(name: str | None) -> str:
    return BOUNDS.get(name, str(name))


def _next(completed: Sequence[Bundle]) -> str:
    if len(completed) == 1:
        return "the same again for an interval: add --repeats 3"
    return f"analyze report {shlex.quote(str(completed[0].path.parent))}"


def _profile(profile: Mapping[str, Any]) -> list[str]:
    """The profile of a series is that of its first run."""
    kind, status = profile.get("kind"), profile["status"]
    if kind is None:
        return []
    lines = [] if status == "completed" else [f"{kind}: {status}: {profile['reason']}"]
    if profile.get("flop_per_step") is not None:
        lines.append(_counted(profile))
    if profile.get("top"):
        number = f"{profile['calls_per_step']:.0f} {profile['rows']} a step"
        lines.append(f"torch: {number}; longest: {_longest(profile['top'][0])}")
    return lines


def _counted(profile: Mapping[str, Any]) -> str:
    flop = si(profile["flop_per_step"], "FLOP")
    bound = "at least " if profile["flop_is_lower_bound"] else ""
    verified = "" if profile["checks"]["flop_verified"] else " (unverified: the calibration is off)"
    moved, intensity = profile["dram_bytes_per_step"], profile["intensity_flop_per_byte"]
    bytes_moved = "" if moved is None else f", {si(moved, 'B')} of DRAM traffic with cold caches"
    per_byte = "" if intensity is None else f", {intensity:.3g} FLOP/byte"
    return f"ncu: {bound}{flop} a step{verified}{bytes_moved}{per_byte}; {profile['kernels_per_step']:.0f} kernels"


def _longest(top: Mapping[str, Any]) -> str:
    return str(top["name"])[:KERNEL_WIDTH] + ("" if top["share"] is None else f", {percent(top['share'])} of the time")
