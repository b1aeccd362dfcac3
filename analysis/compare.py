"""Comparison of places, devices, precisions or versions: ratio, certainty, smallest detectable difference. Pure.

The figure of a run is its images over its wall time. If both sides share two blocks or more, their runs are compared
within the blocks, even if the interval is wider; else as two independent samples.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from analysis.loading.cases import Case, besides, shared
from analysis.loading.configurations import (
    ARGUMENT,
    CONFIGURATION,
    DATA_DETAILS,
    NUMBERS,
    PLACE,
    SOFTWARE,
    label,
    needs_no_digest,
    shown,
)
from analysis.loading.tables import Tables, joined
from analysis.pairing import (
    MACHINE,
    OF_EVERY_SCRIPT,
    Designs,
    Pair,
    Pairing,
    Side,
    is_busy,
    pair_up,
    value_text,
)
from analysis.statistics.comparison import (
    ALPHA,
    Comparison,
    WithinBlocks,
    compare_within_blocks,
    difference_of,
    holm,
    holm_levels,
    shared_blocks,
)
from analysis.statistics.comparison import compare as compare_runs
from analysis.statistics.samples import LEAST_FOR_SPREAD, Interval, too_few
from analysis.summary import usd_per_h
from workload.contract.tables import Column, Role, facts, number
from workload.contract.text import counted, digits_beside_one, percent, plain
from workload.stats.design import Contrast
from workload.stats.intervals import LEAST_REPLICATES, LEVEL

# If the whole interval of the ratio is closer to 1 than this, the verdict names no winner, even if one is certain.
SAME_WITHIN = 0.001
# Meaning of the ratio if numbers of machines or of devices are compared.
PER_DEVICE = {
    name: f"images/s per device, so the ratio to 1 {name.removesuffix('s')} is the efficiency" for name in NUMBERS
}
# Characters of a commit, as `launch duel` shows it.
SHORT_COMMIT = 10
# Facts that the column `note` names if both sides also differ in them, because they may explain the difference.
NOTED = (*SOFTWARE, "cudnn")

COLUMNS = (
    *facts(by="by", model="model", batch_size="batch", precision="precision", left="left", right="right"),
    Column(name="combinations", heading="combinations", optional=True),
    Column(name="ratio", heading="right/left"),
    Column(name="ratio_low", heading="low"),
    Column(name="ratio_high", heading="high"),
    Column(name="runs_left", heading="runs left"),
    Column(name="runs_right", heading="right"),
    Column(name="level", heading="at", unit="%", digits=5),
    Column(name="p", heading="p", digits=2),
    Column(name="p_holm", heading="p (Holm)", digits=2),
    Column(name="test", heading="test", optional=True, role=Role.NOTE),
    Column(name="blocks", heading="blocks", optional=True),
    Column(name="effect", heading="effect", digits=3),
    Column(name="smallest_detectable_ratio", heading="detectable from"),
    Column(name="joules_ratio", heading="energy right/left", digits=3, optional=True),
    Column(name="cost_ratio", heading="cost right/left", digits=3, optional=True),
    Column(name="busy", heading="busy", optional=True, detail=True),
    Column(name="verdict", heading="verdict", role=Role.SENTENCE),
    Column(name="gain", heading="all together", optional=True, role=Role.NOTE),
    Column(name="note", heading="note", optional=True, role=Role.NOTE),
    *DATA_DETAILS,
)


DETAIL_NAMES = tuple(column.name for column in DATA_DETAILS)


def compare(
    results: Tables,
    by: str | None = None,
    *,
    baseline: str | None = None,
    allow_mixed: Collection[str] = (),
) -> pd.DataFrame:
    """A row per pair of values of `by`, columns as in `COLUMNS`: `ratio` is images/s of the right side over the left.

    If `by` is an option that varies within the blocks of a sweep, the first rows are averages over combinations of the
    other options; column `combinations`: their number.

    `by`: the compared fact; None: the first fact in which otherwise equal runs differ (column `by` names this fact).
    `baseline`: the value, on the left, with which all other values are compared. Without a baseline, all pairs are
    compared; with more than six values, the value with the most runs is the baseline.
    `allow_mixed`: facts in which runs of one side may differ; runs that differ in other facts make separate pairs (see
    `analysis.pairing`).

    Raises `NotPoolableError` (exit code 9) if no run has a counterpart on the other side, `UsageError` for an unknown
    column, `NothingToDoError` if no two runs differ in `by` alone.
    """
    return table(pair_up(results, by, baseline=baseline, allow_mixed=allow_mixed))


def table(pairing: Pairing) -> pd.DataFrame:
    """Rows of effects (averaged over combinations of other options), then a row per pair; columns as in `COLUMNS`."""
    averages, pairs = effects(pairing), of_pairs(pairing)
    return pd.concat([averages, pairs], ignore_index=True) if len(averages) else pairs


def of_pairs(pairing: Pairing) -> pd.DataFrame:
    """A row per pair.

    `effect`: Hedges' g of the logarithms of run figures, positive if the right side is faster. `p_holm`, interval and
    `smallest_detectable_ratio` are corrected for all rows: the interval has the level `level`, and excludes 1 if and
    only if p_holm < 0.05; 4 of 5 such comparisons would find the smallest detectable ratio. `blocks`: number of blocks
    with runs of both sides.
    """
    designs = Designs(pairing)
    return _table(pairing, pairing.pairs, [compare_sides(pair, designs) for pair in pairing.pairs])


def _table(pairing: Pairing, pairs: Sequence[Pair], comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """A row for each comparison, with Holm's correction over all of them."""
    p_values = [np.nan if comparison.p_value is None else comparison.p_value for comparison in comparisons]
    levels = holm_levels(p_values, alpha=ALPHA)
    lines = [
        _line(pair, pairing.by, comparison, level=float(level), count=len(pairs))
        | {"p_holm": None if np.isnan(p_holm) else float(p_holm)}
        for pair, comparison, p_holm, level in zip(pairs, comparisons, holm(p_values), levels, strict=True)
    ]
    return pd.DataFrame(lines, columns=[column.name for column in COLUMNS])


# --- one pair


def compare_sides(pair: Pair, designs: Designs) -> Comparison:
    """Compare the sides of a pair, within blocks if both share two or more; `ratio` is images/s, right over left.

    The compared figure is seconds per image, with the right side as baseline. There is no interval with fewer than
    three runs on a side (or three blocks), or if the difference is not confirmed without the runs on a busy machine.
    """
    left, right = ([case for case in side.runs if not is_busy(case)] for side in pair.sides)
    return _confirmed(
        _compare_all(pair.left.runs, pair.right.runs, designs, with_busy=True),
        lambda: _compare_all(left, right, designs, with_busy=False) if left and right else None,
        pair.runs,
    )


def _confirmed(every: Comparison, without_busy: Callable[[], Comparison | None], runs: Sequence[Case]) -> Comparison:
    """The comparison `every`, without interval and p-value if the runs on idle machines do not confirm the winner.

    `without_busy`: function that compares only the runs on idle machines; returns None if a side has no such run.
    """
    busy = sum(map(is_busy, runs))
    if not busy:
        return every
    words = f"{busy} of {counted(len(runs), 'run')} on a busy machine"
    if _winner(every) and ((quiet := without_busy()) is None or _winner(quiet) != _winner(every)):
        every = every.without_difference(f"{words}; without them there is no difference")
    return replace(every, busy=words)


def _winner(comparison: Comparison) -> int:
    """Winner: 1 if the right side is certainly faster, -1 if the left one is, else 0."""
    interval = comparison.interval
    if interval is None or comparison.ratio is None or interval.holds(1.0):
        return 0
    return 1 if comparison.ratio > 1 else -1


def _compare_all(left: Sequence[Case], right: Sequence[Case], designs: Designs, *, with_busy: bool) -> Comparison:
    """Compare two sides, within blocks if they share enough; `with_busy`: designs include runs on busy machines."""
    left_blocks, right_blocks = _by_block(left), _by_block(right)
    if len(shared_blocks(right_blocks, left_blocks)) >= LEAST_FOR_SPREAD:
        contrast = designs.contrast(
            {designs.configuration(left): -1.0, designs.configuration(right): 1.0}, [*left, *right], with_busy=with_busy
        )
        paired = compare_within_blocks(right_blocks, left_blocks, contrast=contrast)
        blocks = paired.within_blocks.blocks if paired.within_blocks else 0
        return paired if blocks >= LEAST_REPLICATES else paired.without_difference(too_few(blocks, "block"))
    unpaired = compare_runs(*([_seconds_per_image(case) for case in side] for side in (right, left)))
    fewest = min(unpaired.runs_baseline, unpaired.runs_other)
    if fewest >= LEAST_REPLICATES:
        return unpaired
    on_a_side = "" if unpaired.runs_baseline == unpaired.runs_other else " on a side"
    return unpaired.without_difference(too_few(fewest, "run").replace(":", f"{on_a_side}:"))


def _seconds_per_image(case: Case) -> float:
    return 1 / float(case["images_per_s"])


def _by_block(runs: Sequence[Case]) -> dict[Hashable, list[float]]:
    """Seconds per image by block; a run without a block is its own block, which the other side does not share."""
    blocks: dict[Hashable, list[float]] = defaultdict(list)
    for case in runs:
        blocks[case.block or case.run_id].append(_seconds_per_image(case))
    return blocks


def _line(pair: Pair, by: str, comparison: Comparison, *, level: float, count: int) -> dict[str, Any]:
    """Row of a pair. `level`: level of interval and verdict after Holm's correction for `count` pairs."""
    interval = comparison.difference.interval(level) if comparison.difference else None
    detectable = comparison.difference.detectable(1 - level) if comparison.difference else None
    within = comparison.within_blocks
    left, right = (_name(by, side) for side in pair.sides)
    runs = pair.runs
    facts = {name: shared(runs, name) for name in ("model", "batch_size", "precision", *DETAIL_NAMES)}
    is_argument = by.startswith(ARGUMENT)
    if is_argument:
        facts["model"] = shared(runs, besides(by)) or facts["model"]
    return facts | {
        "by": by,
        "left": value_text(by, pair.left.value) if is_argument else left,
        "right": value_text(by, pair.right.value) if is_argument else right,
        "combinations": None,
        "runs_left": comparison.runs_other,
        "runs_right": comparison.runs_baseline,
        "ratio": comparison.ratio,
        "ratio_low": interval.low if interval else None,
        "ratio_high": interval.high if interval else None,
        "level": level if interval else None,
        "p": comparison.p_value,
        "test": str(interval.method) if interval else None,
        "blocks": within.blocks if within else None,
        "effect": comparison.hedges_g,
        "joules_ratio": _joules_ratio(pair),
        **_gain(pair, by, comparison.ratio, interval, level),
        "busy": comparison.busy,
        "smallest_detectable_ratio": None if detectable is None else float(np.exp(detectable)),
        "verdict": verdict(comparison, left=left, right=right, level=level, detectable=detectable, count=count),
        "note": joined(
            [
                *([f"on {pair.shared['place']}"] if by not in MACHINE and pair.shared.get("place") else []),
                *([PER_DEVICE[by]] if by in NUMBERS else []),
                *pair.pool,
                *_blocks_words(pair, comparison),
                *_also_different(pair, by),
            ]
        ),
    }


def _joules_ratio(pair: Pair) -> float | None:
    """Median energy per image of the right side, divided by that of the left; None if one of them is unknown."""
    left, right = ([joules for case in side.runs if (joules := case["joules_per_image"])] for side in pair.sides)
    return median(right) / median(left) if left and right else None


def verdict(
    comparison: Comparison, *, left: str, right: str, level: float, detectable: float | None, count: int
) -> str:
    """Sentence on the faster side and its ratio, or on the smallest detectable difference if none was found.

    A difference is certain if its interval at `level` excludes 1; `level` is above 95 % if `count`, the number of
    pairs, is above 1. `detectable`: smallest detectable difference of logarithms at `level`. A difference that is
    certain only without the correction for `count` pairs is shown with both intervals.
    """
    if comparison.ratio is None:
        return "no figures"
    faster, slower, ratio = (
        (right, left, comparison.ratio) if comparison.ratio >= 1 else (left, right, 1 / comparison.ratio)
    )
    if comparison.difference is None or comparison.interval is None:
        return f"no winner: {comparison.reasons[0]}"
    busy = f"; {comparison.busy}" if comparison.busy else ""
    corrected = comparison.difference.interval(level)
    if max(abs(end - 1) for end in (corrected.low, corrected.high)) < SAME_WITHIN:
        return f"{left} and {right} are the same within {percent(SAME_WITHIN)} ({_percent(level)}){busy}"
    digits = digits_beside_one((ratio, *_ends(corrected, comparison.ratio)))
    times = f"{faster} is {plain(ratio, digits)} x as fast as {slower}"
    if not corrected.holds(1.0):
        return f"{times} ({_percent(level)}: {_ends_words(corrected, comparison.ratio, digits)}){busy}"
    limit = ""
    if detectable is not None:
        least = float(np.exp(detectable))
        # Where a ratio reads easier than an excess over 1.
        size = f"{number(100 * (least - 1), 2)} %" if least < 2 else f"{plain(least, 3)} x"  # noqa: PLR2004
        limit = f"{size} or more would have been detected"
    if not comparison.interval.holds(1.0):
        digits = digits_beside_one((ratio, *_ends(comparison.interval, comparison.ratio)))
        times = f"{faster} is {plain(ratio, digits)} x as fast as {slower}"
        return (
            f"not certain in {count} comparisons: {times} ({_percent(level)}: "
            f"{_ends_words(corrected, comparison.ratio)}{'; ' if limit else ''}{limit}); if "
            f"it were the only comparison, it would be certain ({_percent(LEVEL)}: "
            f"{_ends_words(comparison.interval, comparison.ratio, digits)}){busy}"
        )
    return f"no difference found{': ' if limit else ''}{limit}{busy}"


def _ends(interval: Interval, ratio: float) -> tuple[float, float]:
    """Ends of the interval of the faster side over the slower one: both are inverted if `ratio` is below 1."""
    return (interval.low, interval.high) if ratio >= 1 else (1 / interval.high, 1 / interval.low)


def _ends_words(interval: Interval, ratio: float, digits: int = 3) -> str:
    low, high = _ends(interval, ratio)
    return f"{plain(low, digits)} to {plain(high, digits)}"


def _percent(level: float) -> str:
    """Level in per cent, with two significant digits of its distance to 100 %: `95 %`, `98.3 %`, `99.9936 %`."""
    decimals = 1 - int(np.floor(np.log10(100 * (1 - level))))
    return f"{100 * level:.{decimals}f}".rstrip("0").rstrip(".") + " %"


def _name(by: str, side: Side) -> str:
    """Value of a side in words; for a place, with its device."""
    if by in NUMBERS and side.value:
        text = counted(int(side.value), by.removesuffix("s"))
        return f"each of {text}" if side.value > 1 else text
    if isinstance(side.value, int | float) or by.startswith(ARGUMENT):
        return shown(by, side.value)
    text = value_text(by, side.value)
    if by == "script_sha256":
        commits = sorted({case["script_commit"][:SHORT_COMMIT] for case in side.runs if case["script_commit"]})
        return f"{text} (commit {', '.join(commits)})" if commits else text
    devices = sorted({str(case["device_name"]) for case in side.runs if case["device_name"]})
    return f"{text} ({', '.join(devices)})" if by == "place" and devices and devices != [text] else text


def _gain(pair: Pair, by: str, ratio: float | None, interval: Interval | None, level: float) -> dict[str, Any]:
    """Cells on all machines or devices of the right side together, against those of the left side.

    `cost_ratio`: cost of the same work, None if a price is unknown. `gain`: words on the speed-up and this cost.
    Without prices, numbers of machines are compared by machine-hours, because the machines are alike.
    """
    left, right = (side.value for side in pair.sides)
    if by not in NUMBERS or ratio is None or not (left and right):
        return {"cost_ratio": None, "gain": None}
    unit, ends = by.removesuffix("s"), (interval.low, interval.high) if interval else ()
    speedups = [each * right / left for each in (ratio, *ends)]
    at = f"{_percent(level)}: " if ends else ""
    words = [_ranged(speedups, f"times as fast as {counted(int(left), unit)}", at)]
    usd_left, usd_right = (_usd_per_h(side) for side in pair.sides)
    per_h, what = (right / left, "machine-hours") if by == "machines" else (None, "")
    if usd_left and usd_right:
        per_h, what = usd_right / usd_left, "cost"
    if per_h:
        cost, *others = (per_h / each for each in speedups)
        words.append(_ranged([cost, *reversed(others)], f"times the {what} per epoch"))
    return {
        "cost_ratio": cost if what == "cost" else None,
        "gain": f"{counted(int(right), unit)}: {', '.join(words)}",
    }


def _ranged(figures: Sequence[float], what: str, at: str = "") -> str:
    """`1.81 times as fast (1.74 to 1.88)`. `figures`: the figure, and the ends of its interval if it has one."""
    figure, *ends = (f"{each:.2f}" for each in figures)
    return f"{figure} {what}" + (f" ({at}{' to '.join(ends)})" if ends else "")


def _usd_per_h(side: Side) -> float | None:
    """USD per hour of all machines of a run of this side; None if unknown, or if only some of the runs were spot."""
    return usd_per_h(side.runs) if len({case["spot"] for case in side.runs}) == 1 else None


def _blocks_words(pair: Pair, comparison: Comparison) -> Iterator[str]:
    """Words on the pairing within blocks and its effect; none if a side has no blocks."""
    pairing = comparison.within_blocks
    if pairing is None:
        if all(any(case.block for case in side.runs) for side in pair.sides):
            yield "not paired: fewer than 2 blocks have runs of both sides"
        return
    yield f"paired within {counted(pairing.blocks, 'block')}"
    if pairing.shared > len(pair.sides) and comparison.difference:
        yield f"scatter estimated from {pairing.shared} configurations"
    if pairing.noisy and comparison.difference:
        yield "one side may scatter more than the others (F test): only the blocks of this pair are used"
    if pairing.left_out:
        yield f"{counted(pairing.left_out, 'run')} without a partner in the same block left out"


def _also_different(pair: Pair, by: str) -> Iterator[str]:
    # A process has no container image: in a comparison with a container, the note on the runtime is enough.
    one_has_no_image = any(all(needs_no_digest(case.facts) for case in side.runs) for side in pair.sides)
    is_script = by == "script" or by.startswith(ARGUMENT)
    of_script = (
        [fact for fact in CONFIGURATION if fact not in (*OF_EVERY_SCRIPT, "script")] if is_script else ["precision"]
    )
    for fact in (*NOTED, *of_script):
        left, right = ({case[fact] for case in side.runs} for side in pair.sides)
        is_known = fact == by or (fact == "image_digest" and one_has_no_image)
        # The batch size is the compared argument itself.
        is_known |= fact in of_script and [left, right] == [{side.value} for side in pair.sides]
        if left != right and not is_known:
            words = [" and ".join(sorted(value_text(fact, value) for value in values)) for values in (left, right)]
            yield f"{label(fact)} differs too: {words[0]} against {words[1]}"


# --- an option over all combinations of the others


def effects(pairing: Pairing) -> pd.DataFrame:
    """A row for each pair of values of an option that varies within blocks: the mean effect over the other options.

    The mean is over combinations of the other options that ran with all values of the compared option, with equal
    weights. There is no row for fewer than two such combinations.
    """
    designs, families = Designs(pairing), _families(pairing)
    frame = _table(pairing, averaged_pairs(pairing), [_effect(family, designs) for family in families])
    frame["combinations"] = [len(family) for family in families]
    frame["verdict"] = [
        f"{verdict}; averaged over {len(family)} combinations"
        for verdict, family in zip(frame["verdict"], families, strict=True)
    ]
    return frame


def averaged_pairs(pairing: Pairing) -> list[Pair]:
    """The pairs that the rows of `effects` compare, in their order. A side has the runs of all combinations."""
    return [_averaged(family) for family in _families(pairing)]


def _families(pairing: Pairing) -> list[list[Pair]]:
    """Pairs grouped by place, software, job and their two values: a pair per combination of the other options.

    Combinations that lack a value of the compared option are left out, and so are groups of a single pair. Empty if no
    option of a run is compared.
    """
    if pairing.by not in CONFIGURATION and not pairing.by.startswith(ARGUMENT):
        return []
    facts = [fact for fact in (*PLACE, *SOFTWARE, "job_name") if fact != pairing.by]
    places: dict[tuple[Any, ...], list[Pair]] = defaultdict(list)
    for pair in pairing.pairs:
        keys = {tuple(side.runs[0][fact] for fact in facts) for side in pair.sides}
        if len(keys) == 1 and all(case.block is not None for case in pair.runs):
            places[keys.pop()].append(pair)
    families: dict[tuple[Any, ...], list[Pair]] = defaultdict(list)
    for place, pairs in places.items():
        values = {side.value for pair in pairs for side in pair.sides}
        values_of: dict[tuple[Any, ...], set[Any]] = defaultdict(set)
        for pair in pairs:
            values_of[tuple(pair.shared.values())] |= {side.value for side in pair.sides}
        for pair in pairs:
            if values_of[tuple(pair.shared.values())] == values:
                families[(*place, pair.left.value, pair.right.value)].append(pair)
    return [family for family in families.values() if len(family) > 1]


def _averaged(family: Sequence[Pair]) -> Pair:
    """Pair that has the runs of all pairs of `family`; `shared`: the facts that all these pairs share."""
    facts = family[0].shared.items()
    return Pair(
        left=Side(value=family[0].left.value, runs=[case for pair in family for case in pair.left.runs]),
        right=Side(value=family[0].right.value, runs=[case for pair in family for case in pair.right.runs]),
        shared={name: value for name, value in facts if all(pair.shared[name] == value for pair in family)},
    )


def _effect(family: Sequence[Pair], designs: Designs) -> Comparison:
    """Average ratio of the pairs in `family`; without interval if only runs on busy machines show the difference."""
    pair = _averaged(family)
    # Weight of each configuration in the contrast of right over left sides.
    weights = {
        designs.configuration(side.runs): sign / len(family)
        for each in family
        for side, sign in zip(each.sides, (-1.0, 1.0), strict=True)
    }

    def comparison(*, with_busy: bool) -> Comparison:
        return _of_contrast(designs.contrast(weights, pair.runs, with_busy=with_busy), pair)

    return _confirmed(comparison(with_busy=True), lambda: comparison(with_busy=False), pair.runs)


def _of_contrast(contrast: Contrast, pair: Pair) -> Comparison:
    difference, reason = difference_of(contrast)
    comparison = Comparison(
        ratio=None if contrast.value is None else float(np.exp(contrast.value)),
        interval=difference.interval(LEVEL) if difference else None,
        p_value=difference.p_value if difference else None,
        difference=difference,
        runs_baseline=len(pair.right.runs),
        runs_other=len(pair.left.runs),
        hedges_g=None,
        reasons=(reason,) if reason else (),
        within_blocks=WithinBlocks(blocks=contrast.blocks, left_out=0, shared=contrast.shared, noisy=contrast.noisy),
    )
    if contrast.blocks >= LEAST_REPLICATES:
        return comparison
    return comparison.without_difference(too_few(contrast.blocks, "block"))
