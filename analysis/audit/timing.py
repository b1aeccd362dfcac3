"""Rules on time: timers, throughput, steadiness, repeats."""

from collections.abc import Iterator, Sequence

import numpy as np

from analysis.audit.rule import AuditEvidence, Hit, Rule, Severity, each_case, each_group
from analysis.loading.cases import Case
from analysis.statistics.autocorrelation import period_scan
from analysis.statistics.components import differ
from analysis.statistics.samples import Floats, Mask
from analysis.statistics.steady import (
    MOST_STALLED,
    REPEATED,
    REPEATED_RATIO,
    STALL_RATIO,
    TOLERANCE,
    VISIBLE_SHARE,
    WANTED_VISIBLE,
    stalls,
    two_speeds,
)
from workload.contract.record import Status
from workload.contract.text import counted, percent, plain, seconds, signed_percent

# Least number and least share of short steps for a finding: a print or an epoch boundary changes the time of single
# steps; regular prints change the time of a share of the steps.
LEAST_ODD_STEPS = 3
LEAST_ODD_SHARE = 0.05
# No step of fixed shapes takes less than half of the time of the others.
SHORT = 0.5
# If steps of unusual time agree with the others by their time stamps within this fraction, the timer is at fault.
STAMPS_ALIKE = 0.1
# CONTRIBUTING.md, "Rules of measuring": steps and waits must add up to the wall time within 2 %.
EXPLAINED_WITHIN = 0.02
# Longest time that our hooks take between two steps of a script; benchmarks/script_overhead.py measured 30 to 250 us
# per step on a busy machine.
HOOKS_S = 250e-6
# Two runs are too few: the half width of a 95 % t interval is 12.7 standard errors from two runs, 4.3 from three.
LEAST_RUNS = 3
# A change of 1 % decides between machines; `steady_state` tolerates as much.
CHANGE = TOLERANCE
# Step times are scattered if p95 / p5 is above this factor, which is more than the noise of a clock. In public logs of
# idle machines, p95 is within 1 % of p5.
SCATTER = 1.5
# Largest relative difference of runs without a finding; in public logs, repeats on one machine differ by about 0.6 %.
RUNS_APART = 0.05
# An audit tests hundreds of configurations: allow 1 false alarm in 200.
RUNS_ALPHA = 0.005
LEAST_STEPS = 20
# Times as many steps show less than half of a change, if the noise of the steps is independent.
MORE_STEPS = 5
LESS_NOISE = "or a machine with less other work, where steps vary less"
# Possible resolutions of a log's time stamps, s; finer ones do not matter.
STAMP_UNITS = (60.0, 1.0)
SHOWN_GAPS = 3


def unsynchronised(case: Case) -> str | None:
    """Text on steps that are unusually long or short by the timer, but not by the time stamps; else None."""
    timer, stamps = case.iteration_s, case.interval_s
    known = np.isfinite(timer) & np.isfinite(stamps)
    timer, stamps = timer[known], stamps[known]
    if timer.size < LEAST_STEPS:
        return None
    period = period_scan(timer)
    if period.found and period.period is not None and period.phase is not None:
        odd = np.arange(timer.size) % period.period == period.phase
        if _denied(odd, timer, stamps):
            first = int(case.measured("step")[known][period.phase])
            return _denial(f"every {period.period}th step from {first} on", odd, timer, stamps)
    odd = timer < SHORT * np.median(timer)
    if odd.sum() >= max(LEAST_ODD_STEPS, LEAST_ODD_SHARE * timer.size) and _denied(odd, timer, stamps):
        return _denial(f"{odd.sum()} of {timer.size} steps", odd, timer, stamps)
    return None


def _ratio(odd: Mask, values: Floats) -> float:
    others = float(np.median(values[~odd]))
    return float(np.median(values[odd])) / others if others > 0 else 1.0


def _denied(odd: Mask, timer: Floats, stamps: Floats) -> bool:
    return abs(_ratio(odd, stamps) - 1) <= STAMPS_ALIKE < abs(_ratio(odd, timer) - 1)


def _denial(steps: str, odd: Mask, timer: Floats, stamps: Floats) -> str:
    read, stamped = _ratio(odd, timer), _ratio(odd, stamps)
    return f"{steps}: {percent(read)} of the other steps' time by the timer, {percent(stamped)} by the time stamps"


GAP_CURE = (
    "none, if the gap is the end of an epoch or a first step: both rates are true, one for the run and one for "
    "its steps"
)


def mean_of_rates(case: Case) -> str | Hit | None:
    """Text on rates of a log that differ from images over wall time, and on gaps that explain this; else None."""
    # The first row is warm-up, which the claimed rate should not include.
    claimed = case["claimed_measured_images_per_s"] or case["claimed_images_per_s"]
    measured = case["images_per_s"]
    # The resolution of a log's time stamps limits the accuracy of its wall time.
    stamps = case.steps["ended_at_s"][np.isfinite(case.steps["ended_at_s"])]
    fitting = (unit for unit in STAMP_UNITS if stamps.size and bool(np.all(stamps == np.round(stamps / unit) * unit)))
    within = EXPLAINED_WITHIN + next(fitting, 0.0) / (case["measured_s"] or np.inf)
    if not claimed or not measured or abs(claimed / measured - 1) <= within:
        return None
    figure = (
        f"{plain(claimed, 4)} {case.unit}/s by the log's rates, {plain(measured, 4)} by {case.unit} over wall time:"
        f" {claimed / measured:.2f} x"
    )
    # Gaps in a log: few intervals between time stamps, far longer than the others.
    stamps, images = case.interval_s, case.measured("images")
    known = np.isfinite(stamps) & np.isfinite(images)
    slow = stalls(stamps[known])
    if not slow.count:
        return figure
    stamps, images, steps = stamps[known], images[known], case.measured("step")[known]
    rate = float(images[~slow.mask].sum()) / float(stamps[~slow.mask].sum())
    longest = np.flatnonzero(slow.mask)[np.argsort(-stamps[slow.mask], kind="stable")]
    shown = [f"{seconds(float(stamps[row]))} up to step {steps[row]:.0f}" for row in sorted(longest[:SHOWN_GAPS])]
    more = [f"{longest.size - SHOWN_GAPS} more"] if longest.size > SHOWN_GAPS else []
    share = percent(float(stamps[slow.mask].sum() / stamps.sum()), decimals=1)
    holds, them = ("1 gap takes", "it") if slow.count == 1 else (f"{slow.count} gaps take", "them")
    figure += f"; {holds} {share} of the wall time ({', '.join([*shown, *more])})"
    if abs(claimed / rate - 1) > within:
        return f"{figure}, which does not explain it"
    return Hit(figure=f"{figure}, without {them} {plain(rate, 4)}", cure=GAP_CURE, severity=Severity.NOTE)


def clock_set_back(case: Case) -> str | None:
    """Text on time stamps that decrease, else None.

    Only imported logs can have decreasing time stamps: loading refuses other bundles that contain them.
    """
    back = np.flatnonzero(np.diff(case.steps["ended_at_s"]) < 0)
    if not back.size:
        return None
    times = "once" if back.size == 1 else f"{back.size} times"
    return f"time stamps go back {times}, first at row {back[0] + 2}"


def time_outside(case: Case) -> str | Hit | None:
    """Text on wall time outside of steps and data waits; else None.

    In a user's script with short steps, our measuring hooks take this time between the steps.
    """
    explained, steps = case["explained_fraction"], case.step_s.size
    if explained is None or abs(explained - 1) <= EXPLAINED_WITHIN:
        return None
    rest = percent(abs(explained - 1), decimals=1)
    sums = f"steps and waits add up to {percent(explained, decimals=1)} of the wall time"
    figure = f"{sums}: {rest} too much" if explained > 1 else f"{sums}: {rest} are outside of the timed parts"
    outside_s = (1 - explained) * case["measured_s"] / steps if steps and case["measured_s"] else 0.0
    if isinstance(case["script"], str) and 0 < outside_s <= HOOKS_S:
        cure = "use larger batches: our hooks take this time between any two steps, and the rate includes it"
        return Hit(figure=f"{figure}, {seconds(outside_s)} a step", cure=cure)
    return figure


def too_few_runs(group: Sequence[Case]) -> str | None:
    if len(group) >= LEAST_RUNS:
        return None
    return "one run: no interval" if len(group) == 1 else f"{len(group)} runs"


def short_warmup(case: Case) -> str | None:
    """Text on first measured steps that are slow and raise the mean by more than the fraction `CHANGE`; else None."""
    steps, warmup = case.step_s, case.steadiness.warmup_steps
    if not warmup:
        return None
    first, rest = steps[:warmup], steps[warmup:]
    moved = float(steps.mean() / rest.mean() - 1)
    if moved <= CHANGE:
        return None
    ratio = float(np.median(first) / np.median(rest))
    subject = "the first step" if first.size == 1 else f"the first {first.size}"
    verb = "takes" if first.size == 1 else "take"
    effect = "it moves" if first.size == 1 else "they move"
    return (
        f"{subject} of {steps.size} steps {verb} {ratio:.2f} x the rest; {effect} the mean by {signed_percent(moved)}"
    )


def unsteady(case: Case) -> str | None:
    """Text on a change of speed, a drift, or stalls that cost more than the fraction `CHANGE`; else None."""
    state, parts = case.steadiness, []
    if state.change is not None:
        parts.append(str(state.change))
    if state.drifts and state.drift is not None:
        size = percent(abs(state.drift), decimals=1)
        steps = state.n - (state.warmup_steps or 0)
        parts.append(f"steps get {size} {'slower' if state.drift > 0 else 'faster'} over {steps} steps")
    slow = state.stalls
    if slow is not None and slow.ratio is not None and slow.lost > CHANGE:
        take = f"{slow.count} of {slow.n} steps {'takes' if slow.count == 1 else 'take'} {slow.ratio:.1f} x the others"
        parts.append(f"{take}: {percent(slow.lost, decimals=1)} of the throughput")
    return "; ".join(parts) or None


def unseen(case: Case) -> str | Hit | None:
    """Text on changes that a steady run is too short or too noisy to show; else None."""
    figure = case.steadiness.unseen if case.steadiness.steady else None
    if figure is None or case["imported"]:
        return figure
    return Hit(figure=figure, cure=f"more steps (--iterations {MORE_STEPS * case.steadiness.n}), {LESS_NOISE}")


def scattered(case: Case) -> str | None:
    """Text on widely scattered step times; else None.

    Step times are computed from time stamps if there are enough, because the timer may be wrong.
    """
    stamps = case.interval_s
    steps = stamps[np.isfinite(stamps)]
    steps = case.step_s[np.isfinite(case.step_s)] if steps.size < LEAST_STEPS else steps
    if steps.size < LEAST_STEPS or steps.min() <= 0:
        return None
    low, high = (float(value) for value in np.percentile(steps, [5, 95]))
    if high / low <= SCATTER:
        return _two_speeds(case, steps)
    inner = f"the middle 90 % of steps take {seconds(low, 3)} to {seconds(high, 3)}: {high / low:.1f} x"
    if not case["imported"]:
        return inner
    # The timer of another program may be wrong: it is shown beside the time stamps.
    timer = case.step_s[np.isfinite(case.step_s)]
    return f"{inner} ({_range(steps)} in all; {_range(timer)} by the timer)"


def _two_speeds(case: Case, steps: Floats) -> str | None:
    """Text on many slow steps that warm-up, change, drift and stalls do not explain; else None."""
    state = case.steadiness
    has_other_rule = not state.steady or (state.stalls is not None and state.stalls.lost > CHANGE)
    speeds = None if has_other_rule else two_speeds(steps[state.warmup_steps or 0 :])
    if speeds is None or speeds.slow / speeds.n * (speeds.ratio - 1) <= CHANGE:
        return None
    return f"{speeds.slow} of {speeds.n} steps, spread over the run, take {speeds.ratio:.2f} x the others: two speeds"


def _range(values: Floats) -> str:
    return f"{seconds(float(values.min()), 3)} to {seconds(float(values.max()), 3)}"


def runs_apart(group: Sequence[Case]) -> str | None:
    """Text on the spread of runs that differ by more than the variation of their steps explains; else None."""
    runs = [case for case in group if case["images_per_s"]]
    rates = [float(case["images_per_s"]) for case in runs]
    if len(rates) < LEAST_RUNS - 1 or max(rates) / min(rates) - 1 <= RUNS_APART:
        return None
    p_value = differ(rates, [case.iteration_s for case in runs])
    if p_value is not None and p_value >= RUNS_ALPHA:
        return None
    apart = percent(max(rates) / min(rates) - 1, decimals=1)
    return f"{len(rates)} runs from {plain(min(rates), 4)} to {plain(max(rates), 4)} {runs[0].unit}/s: {apart} apart"


def broken_off(case: Case) -> str | None:
    """Text on a run, not imported, that ended before its last planned step; else None."""
    planned, done = case["iterations"], int(case.is_measured.sum())
    if case["imported"]:
        return None
    if case["status"] in {Status.COMPLETED, Status.RUNNING}:
        return f"{done} of {planned:.0f} steps, and yet completed" if planned and 0 < done < planned else None
    # Steps that were added for --min-seconds have no planned number.
    progress = f"{done} of {planned:.0f} steps" if planned and done <= planned else counted(done, "step")
    return f"{case['status'].replace('_', ' ')} after {progress}"


def skipped_by_amp(case: Case) -> str | None:
    """Text on the steps in which AMP skipped the optimizer because fp16 gradients overflowed; else None."""
    skipped, steps = case["skipped_steps"], case["steps"]
    if not skipped or not steps:
        return None
    return f"{skipped:.0f} of {counted(int(steps), 'measured step')} ({percent(skipped / steps)})"


_EACH_BROKEN_OFF = each_case(broken_off)


def incomplete_series(evidence: AuditEvidence) -> Iterator[Hit]:
    """Runs that stop early, and imported logs with fewer rows than another log of the same configuration."""
    yield from _EACH_BROKEN_OFF(evidence)
    rows = {case.run_id: case.is_measured.size for case in evidence.cases if case["imported"] and case.is_measured.size}
    logs = [case for case in evidence.cases if case.run_id in rows]
    for case in logs:
        # The batch size determines the number of steps per epoch.
        facts = ("place", "model", "device_name", "batch_size", "precision")
        siblings = [rows[other.run_id] for other in logs if all(case[fact] == other[fact] for fact in facts)]
        if rows[case.run_id] < max(siblings):
            configuration = f"{case['model']} at batch size {case['batch_size']:.0f}"
            other_log = f"another log of {configuration} in '{case['place']}' has {max(siblings)}"
            figure = f"stops after {counted(rows[case.run_id], 'row')}; {other_log}"
            yield Hit(subject=(case.run_id,), figure=figure)


RULES = (
    Rule(
        name="unsynchronised timing",
        severity=Severity.ERROR,
        threshold="a timer that agrees with the time stamps, because no step ends before the device has finished it. "
        "The two disagree if some steps differ in the timer (every n-th step, which chance produces in 1 of "
        f"1000 series, or at least {LEAST_ODD_STEPS} and {percent(LEAST_ODD_SHARE)} of them below "
        f"{percent(SHORT)} of the median) but are within {percent(STAMPS_ALIKE)} of the other steps in their "
        "time stamps",
        why="a GPU works asynchronously: a timer that does not wait for it measures only how long it took to "
        "submit the work",
        cure="synchronise at both ends of the measured region, or time with CUDA events; use the time stamps",
        check=each_case(unsynchronised),
    ),
    Rule(
        name="mean of rates",
        severity=Severity.ERROR,
        threshold=f"a rate within {percent(EXPLAINED_WITHIN)} of {{unit}} over wall time (plus the resolution of the "
        "time stamps), because wall times are as accurate as that",
        why="a mean of {unit}/s gives fast steps too much weight, and leaves out the time outside of the timed parts",
        cure="use {unit} divided by wall time, as in `images_per_s`",
        check=each_case(mean_of_rates),
    ),
    Rule(
        name="clock set back",
        severity=Severity.WARNING,
        threshold="time stamps that increase from row to row",
        why="wall time and {unit}/s are calculated from time stamps, and are wrong if the clock was set during the run",
        cure="use a log with a monotonic clock, or only the part after the jump",
        check=each_case(clock_set_back),
    ),
    Rule(
        name="wall time not explained",
        severity=Severity.WARNING,
        threshold=f"steps and data waits add up to the wall time within {percent(EXPLAINED_WITHIN)}, because other "
        "work between steps takes less",
        why="step times alone then overstate the speed, because the rest of the time belongs to the run too",
        cure="find what runs between the timed parts (loading, logging, validation), or compare wall times only",
        check=each_case(time_outside),
    ),
    Rule(
        name="too few runs",
        severity=Severity.NOTE,
        threshold=f"at least {LEAST_RUNS} runs: the interval of 2 runs is +- 12.7 standard errors, that of 3 runs +- "
        "4.3",
        why="the steps of one run do not predict the next run, because most of the variation is between runs",
        cure="--repeats 3, or more",
        check=each_group(too_few_runs),
    ),
    Rule(
        name="runs disagree",
        severity=Severity.WARNING,
        threshold=f"repeats at most {percent(RUNS_APART)} apart, or no further than the variation of their steps can "
        f"explain (1 false alarm in {1 / RUNS_ALPHA:.0f}); on an idle machine they differ by about 0.6 %",
        why="something other than the configuration changed the speed",
        cure="analyze variance shows the causes found; stop other work, and repeat",
        check=each_group(runs_apart),
    ),
    Rule(
        name="warm-up too short",
        severity=Severity.WARNING,
        threshold="first measured steps that are as fast as the rest, except for chance (1 false alarm in 200 runs), "
        f"or that change the mean by at most {percent(CHANGE)}, which is too little to decide between "
        "machines",
        why="compilation, autotuning and cold caches are then part of the measurement",
        cure="--warmup 20, or more",
        check=each_case(short_warmup),
    ),
    Rule(
        name="unsteady steps",
        severity=Severity.WARNING,
        threshold=f"steps at one level, except for changes of at most {percent(CHANGE)} or by chance (1 false alarm in "
        f"100 runs), and at most {percent(CHANGE)} of the throughput lost in stalls: single steps, at most"
        f" {percent(MOST_STALLED)} of all, above {STALL_RATIO:g} x the median, or {REPEATED} or more above"
        f" {REPEATED_RATIO:g} x",
        why="the figure mixes several speeds and depends on the length of the run; {unit}/s includes stalls and the "
        "median step does not. Likely causes are heat, a falling clock, memory that fills up, validation, a "
        "checkpoint, and other work",
        cure="analyze variance shows clock, temperature and load; lock the clock, or measure until the speed is "
        "stable; compare medians as well as {unit}/s",
        check=each_case(unsteady),
    ),
    Rule(
        name="steadiness not certain",
        severity=Severity.NOTE,
        threshold=f"enough steps to notice, 9 times in 10, that {percent(VISIBLE_SHARE)} of them took"
        f" {1 + WANTED_VISIBLE:g} x the others",
        why="no change was found within the run, but one of this size could be missed, and would be part of the figure",
        cure=f"more steps, {LESS_NOISE}",
        check=each_case(unseen),
    ),
    Rule(
        name="scattered steps",
        severity=Severity.WARNING,
        threshold=f"a 95th percentile of the step times of at most {SCATTER:g} x the 5th percentile, and "
        "steps at one speed, because the same work on an idle machine varies by 1 %",
        why="the median of such steps describes none of them; likely causes are full memory or other work",
        cure="a smaller batch, or a machine without other work; analyze variance shows the causes found",
        check=each_case(scattered),
    ),
    Rule(
        name="steps skipped by AMP",
        severity=Severity.WARNING,
        threshold="every measured step runs the optimizer; a step without it is shorter, and trains nothing",
        why="a gradient overflowed in fp16: the GradScaler halves its scale and skips the optimizer's kernels",
        cure="--warmup 50, so that the scale has settled; if it never does, --precision bf16",
        check=each_case(skipped_by_amp),
    ),
    Rule(
        name="incomplete series",
        severity=Severity.WARNING,
        threshold="all planned steps; and for a log as many rows as other logs of the same configuration at the same "
        "place",
        why="whatever ended the run may have slowed it down before, and the missing steps may be the slow ones",
        cure="repeat the runs that did not complete",
        check=incomplete_series,
    ),
)
