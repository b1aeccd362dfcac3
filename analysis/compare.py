"""Places, devices, precisions or versions against each other: how much faster, how sure, and what would be seen. Pure.

The figure of a run is its images over its wall time; the variation of its steps is put around it.
"""

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import ttest_ind

from analysis.cases import Case
from analysis.configurations import SOFTWARE, label, needs_no_digest, shown
from analysis.loading import Results
from analysis.pairing import MACHINE, Pair, Pairing, Side, pair_up, value_text
from analysis.statistics import Comparison, holm
from analysis.statistics import compare as compare_runs
from analysis.statistics.power import ALPHA
from analysis.statistics.samples import LEAST_FOR_SPREAD, Floats
from workload.tables import Column

# Told where they differ besides what is compared: they may be the cause as well.
TOLD = (*SOFTWARE, "cudnn")

COLUMNS = (
    Column(name="by", heading="by"),
    Column(name="model", heading="model"),
    Column(name="batch_size", heading="batch"),
    Column(name="precision", heading="precision"),
    Column(name="left", heading="left"),
    Column(name="right", heading="right"),
    Column(name="runs_left", heading="runs"),
    Column(name="runs_right", heading="runs"),
    Column(name="ratio", heading="right/left"),
    Column(name="ratio_low", heading="low"),
    Column(name="ratio_high", heading="high"),
    Column(name="p", heading="p", digits=2),
    Column(name="p_holm", heading="p (Holm)", digits=2),
    Column(name="test", heading="test", optional=True),
    Column(name="effect", heading="effect", digits=3),
    Column(name="smallest_detectable_ratio", heading="would be seen from"),
    Column(name="verdict", heading="verdict"),
    Column(name="note", heading="note", optional=True),
)


def compare(results: Results, by: str | None = None, *, allow_mixed: Collection[str] = ()) -> pd.DataFrame:
    """A row per pair of values of `by`, columns as in `COLUMNS`: `ratio` is images/s of the right over the left.

    Without `by`, the first fact in which runs differ that agree in the rest; the column `by` says which. Runs that
    differ in more than `by` are in pairs of their own, unless that is in `allow_mixed`; `analysis.pairing` says more.
    Raises `NotPoolableError` (exit code 9) where no run has a like one on the other side, `UsageError` for an unknown
    column, `NothingToDoError` where no two runs differ in `by` alone.
    """
    return of_pairs(pair_up(results, by, allow_mixed=allow_mixed))


def of_pairs(pairing: Pairing) -> pd.DataFrame:
    """The table of `compare`.

    `effect` is Hedges' g of the logarithms of run figures, positive where the right is faster. `p_holm` is corrected
    for all rows, and so is `smallest_detectable_ratio`, which 4 of 5 such comparisons would find.
    """
    by, pairs = pairing.by, pairing.pairs
    alpha = ALPHA / len(pairs)
    found = [_compared(pair, alpha=alpha) for pair in pairs]
    tested = [_test(pair, one, alpha=alpha) for pair, one in zip(pairs, found, strict=True)]
    corrected = holm([np.nan if p is None else p for p, _ in tested])
    lines = [
        _line(pair, by, one, p=p, test=test, p_holm=None if np.isnan(adjusted) else float(adjusted))
        for pair, one, (p, test), adjusted in zip(pairs, found, tested, corrected, strict=True)
    ]
    return pd.DataFrame(lines, columns=[column.name for column in COLUMNS])


# --- one pair


def _image_s(case: Case) -> Floats:
    """Seconds per image, one per step, in order: the median is exactly the run's wall time per image.

    Of a run without usable steps the one figure of the run.
    """
    per_image = 1 / float(case["images_per_s"])
    steps = case.iteration_s
    usable = steps[np.isfinite(steps) & (steps > 0)]
    return usable / np.median(usable) * per_image if usable.size else np.array([per_image])


def _compared(pair: Pair, *, alpha: float) -> Comparison:
    """By seconds per image, the right as the baseline: so the ratio is that of images/s, right over left."""
    left, right = ([_image_s(case) for case in side.runs] for side in (pair.left, pair.right))
    return compare_runs(right, left, alpha=alpha)


def _test(pair: Pair, found: Comparison, *, alpha: float) -> tuple[float | None, str | None]:
    """The permutation test where so few runs can reach the corrected level at all, otherwise Welch's t.

    Which of them depends on the numbers of runs and pairs only, never on what was measured.
    """
    smallest = found.test.smallest_p
    if found.test.p_value is None:
        return None, None
    if smallest is not None and smallest <= alpha:
        return found.test.p_value, "permutation of runs"
    left, right = (np.log([case["images_per_s"] for case in side.runs]) for side in (pair.left, pair.right))
    if np.ptp(left) == 0 or np.ptp(right) == 0:
        return None, None
    return float(ttest_ind(left, right, equal_var=False).pvalue), "Welch t over runs"


def _line(
    pair: Pair, by: str, found: Comparison, *, p: float | None, test: str | None, p_holm: float | None
) -> dict[str, Any]:
    low, high = (found.interval.low, found.interval.high) if found.interval else (None, None)
    difference = found.detectable.difference
    facts = {name: pair.shared.get(name) for name in ("model", "batch_size", "precision")}
    return facts | {
        "by": by,
        "left": _name(by, pair.left),
        "right": _name(by, pair.right),
        "runs_left": found.runs_other,
        "runs_right": found.runs_baseline,
        "ratio": found.ratio,
        "ratio_low": low,
        "ratio_high": high,
        "p": p,
        "p_holm": p_holm,
        "test": test,
        "effect": found.hedges_g,
        "smallest_detectable_ratio": None if difference is None else float(np.exp(difference)),
        "verdict": verdict(found, right=_name(by, pair.right), left=_name(by, pair.left), p_holm=p_holm),
        "note": "; ".join([*_where(pair, by), *pair.pool, *_also_different(pair, by)]) or None,
    }


def verdict(found: Comparison, *, left: str, right: str, p_holm: float | None) -> str:
    """A sentence: which is faster by how much, or that no difference was found and which one would have been."""
    if found.ratio is None:
        return "no figures"
    faster, slower, ratio = (right, left, found.ratio) if found.ratio >= 1 else (left, right, 1 / found.ratio)
    times = f"{faster} is {ratio:.3g} x as fast as {slower}"
    if min(found.runs_baseline, found.runs_other) < LEAST_FOR_SPREAD:
        return f"one run: no interval; {times} in these runs"
    if found.interval is None:
        return f"{times} in these runs; no interval: {found.reasons[0]}"
    ends = (found.interval.low, found.interval.high)
    low, high = ends if found.ratio >= 1 else (1 / ends[1], 1 / ends[0])
    if p_holm is not None and p_holm < ALPHA:
        return f"{times} ({found.interval.level:.0%}: {low:.3g} to {high:.3g})"
    seen = found.detectable.percent
    limit = f": {seen:.2g} % or more would have been seen" if seen is not None else ""
    if not found.interval.holds(1.0):
        return f"no certain difference among all that were compared{limit}; alone, {times} ({low:.3g} to {high:.3g})"
    return f"no difference found{limit}"


def _name(by: str, side: Side) -> str:
    """The value, and for a place the device in it."""
    if isinstance(side.value, int | float):
        return shown(by, side.value)
    text = value_text(by, side.value)
    devices = sorted({str(case["device_name"]) for case in side.runs if case["device_name"]})
    return f"{text} ({', '.join(devices)})" if by == "place" and devices and devices != [text] else text


def _where(pair: Pair, by: str) -> Iterator[str]:
    """The place that both sides share."""
    if by not in MACHINE and pair.shared.get("place"):
        yield f"on {pair.shared['place']}"


def _also_different(pair: Pair, by: str) -> Iterator[str]:
    facts = [fact for fact in TOLD if fact != by]
    sides = [[{case[fact] for case in side.runs} for fact in facts] for side in (pair.left, pair.right)]
    for fact, left, right in zip(facts, *sides, strict=True):
        if left != right and not (fact == "image_digest" and _one_has_no_image(pair)):
            words = [" and ".join(sorted(value_text(fact, value) for value in values)) for values in (left, right)]
            yield f"{label(fact)} differs too: {words[0]} against {words[1]}"


def _one_has_no_image(pair: Pair) -> bool:
    """A process against a container: that the runtime differs says it all."""
    return any(all(needs_no_digest(case.facts) for case in side.runs) for side in (pair.left, pair.right))
