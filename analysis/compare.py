"""Places, devices, precisions or versions against each other: how much faster, how sure, and what would be seen. Pure.

The figure of a run is its images over its wall time; the variation of its steps is put around it.
"""

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import ttest_ind

from analysis.cases import Case, cases, rows
from analysis.configurations import CONFIGURATION, PLACE, SOFTWARE, label, measured, require_poolable, shown
from analysis.loading import Results
from analysis.statistics import Comparison, holm
from analysis.statistics import compare as compare_runs
from analysis.statistics.power import ALPHA
from analysis.statistics.samples import LEAST_FOR_SPREAD, Floats
from workload.errors import NothingToDoError, UsageError
from workload.tables import Column

# Facts of a machine that go together: with one of them varied, the others may vary as well.
MACHINE = (
    *PLACE,
    "backend",
    "runtime",
    "compute_capability",
    "hostname",
    "cpu_model",
    "hypervisor",
    "zone",
    "region",
    "machine_type",
    "cpu_platform",
    "physical_host",
    "spot",
)
VERSIONS = (*SOFTWARE, "torchvision", "cuda_build", "cudnn", "python", "rooflaunch", "os", "kernel")
COMPARABLE = (*CONFIGURATION, *MACHINE, *VERSIONS)
# Told where they differ besides what is compared: they may be the cause as well.
TOLD = (*SOFTWARE, "cudnn")

COLUMNS = (
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


@dataclass(frozen=True, kw_only=True)
class Side:
    """The runs that have one value of what is compared."""

    value: Any
    runs: Sequence[Case]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two sides that agree in everything that is not compared; `shared`: what they agree in."""

    left: Side
    right: Side
    shared: Mapping[str, Any]


def compare(results: Results, by: str = "place", *, allow_mixed: Collection[str] = ()) -> pd.DataFrame:
    """A row per pair of values of `by`, columns as in `COLUMNS`: `ratio` is images/s of the right over the left.

    `effect` is Hedges' g of the logarithms of run figures, positive where the right is faster. `p_holm` is corrected
    for all rows, and so is `smallest_detectable_ratio`, which 4 of 5 such comparisons would find.
    Raises `NotPoolableError` (exit code 9) where the runs of a side are unlike, unless in a column of `allow_mixed`;
    `UsageError` for an unknown column, `NothingToDoError` where `by` has a single value everywhere.
    """
    _require_comparable([by, *allow_mixed])
    pairs = _pairs(results, by, frozenset(allow_mixed))
    if not pairs:
        values = sorted({_value(by, value) for value in _column(measured(results.runs), by)})
        raise NothingToDoError(
            f"nothing to compare: no two runs that differ in {label(by)} and agree in the rest; "
            f"{label(by)} is {', '.join(values) or 'unknown'}",
            hint="name folders with other runs too, or compare --by " + " | ".join(BY_EXAMPLES),
        )
    alpha = ALPHA / len(pairs)
    found = [_compared(pair, alpha=alpha) for pair in pairs]
    tested = [_test(pair, one, alpha=alpha) for pair, one in zip(pairs, found, strict=True)]
    corrected = holm([np.nan if p is None else p for p, _ in tested])
    lines = [
        _line(pair, by, one, p=p, test=test, p_holm=None if np.isnan(adjusted) else float(adjusted))
        for pair, one, (p, test), adjusted in zip(pairs, found, tested, corrected, strict=True)
    ]
    return pd.DataFrame(lines, columns=[column.name for column in COLUMNS])


BY_EXAMPLES = ("place", "device_name", "precision", "batch_size", "zone", "torch")


def _require_comparable(columns: Sequence[str]) -> None:
    for column in columns:
        if column not in COMPARABLE:
            close = difflib.get_close_matches(column, COMPARABLE, n=1)
            raise UsageError(
                f"runs cannot be compared by '{column}'",
                hint=f"--by {close[0]}" if close else "--by " + " | ".join(BY_EXAMPLES),
            )


# --- who is compared with whom


def _pairs(results: Results, by: str, allow_mixed: frozenset[str]) -> list[Pair]:
    runs = measured(results.runs)
    runs = runs[runs["images_per_s"].notna()]
    by_id = {case.run_id: case for case in cases(results)}
    facts = [fact for fact in _held(by) if fact not in allow_mixed]
    groups: dict[tuple[Any, ...], dict[Any, list[Case]]] = {}
    for row in rows(runs):
        sides = groups.setdefault(tuple(row[fact] for fact in facts), {})
        sides.setdefault(row[by], []).append(by_id[row["run_id"]])
    pairs = []
    for values, sides in groups.items():
        for side in sides.values() if len(sides) > 1 else ():
            _require_alike(runs, side, allow_mixed)
        shared = dict(zip(facts, values, strict=True))
        ordered = sorted(sides.items(), key=lambda item: _order(item[0]))
        pairs += [
            Pair(left=Side(value=left, runs=first), right=Side(value=right, runs=second), shared=shared)
            for (left, first), (right, second) in combinations(ordered, 2)
        ]
    return pairs


def _held(by: str) -> tuple[str, ...]:
    """What has to be the same on both sides: what the user chose and, unless machines are compared, where it ran."""
    kept = CONFIGURATION if by in MACHINE else (*CONFIGURATION, *PLACE)
    return tuple(fact for fact in kept if fact != by)


def _require_alike(runs: pd.DataFrame, side: Sequence[Case], allow_mixed: frozenset[str]) -> None:
    ours = runs[runs["run_id"].isin([case.run_id for case in side])]
    # One value for all: what may differ does.
    require_poolable(ours.assign(**dict.fromkeys(allow_mixed)))


def _column(runs: pd.DataFrame, by: str) -> list[Any]:
    return [row[by] for row in rows(runs[[by]])]


def _order(value: Any) -> tuple[bool, float, str]:
    """Numbers by size, then texts, the unknown last."""
    is_number = isinstance(value, int | float)
    return value is None, float(value) if is_number else 0.0, "" if is_number else str(value)


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
        "note": "; ".join([*_where(pair, by), *_also_different(pair, by)]) or None,
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
    text = _value(by, side.value)
    devices = sorted({str(case["device_name"]) for case in side.runs if case["device_name"]})
    return f"{text} ({', '.join(devices)})" if by == "place" and devices and devices != [text] else text


def _value(by: str, value: Any) -> str:
    return shown(by, value).removeprefix(f"{label(by)} ")


def _where(pair: Pair, by: str) -> Iterator[str]:
    """The place that both sides share."""
    if by not in MACHINE and pair.shared.get("place"):
        yield f"on {pair.shared['place']}"


def _also_different(pair: Pair, by: str) -> Iterator[str]:
    facts = [fact for fact in TOLD if fact != by]
    sides = [[{case[fact] for case in side.runs} for fact in facts] for side in (pair.left, pair.right)]
    for fact, left, right in zip(facts, *sides, strict=True):
        if left != right:
            words = [" and ".join(sorted(_value(fact, value) for value in values)) for values in (left, right)]
            yield f"{label(fact)} differs too: {words[0]} against {words[1]}"
