"""Selection of pairs to compare: two sides of runs that differ in one fact and agree in the others. Pure.

Runs of one side that may not be pooled (another driver, a container instead of a process) form separate pools. A pool
is compared with the matching pool of the other side. The result names the facts that separate the pools.
"""

import difflib
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from typing import Any

from analysis.loading.cases import Case, arguments_in, besides, cases, with_arguments
from analysis.loading.configurations import (
    ARGUMENT,
    CONFIGURATION,
    NUMBERS,
    PLACE,
    SOFTWARE,
    label,
    measured,
    pool_words,
    require_poolable,
    shown,
)
from analysis.loading.tables import Tables
from workload.contract.errors import NothingToDoError, UsageError
from workload.contract.invocation import as_typed
from workload.contract.spec import Precision
from workload.contract.text import counted, printable
from workload.stats.design import Contrast, Design, Run

# Facts of a machine that vary together: if one of them is compared, the others may differ too.
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
BY_EXAMPLES = ("place", "device_name", "precision", "batch_size", "zone", "torch")
# Facts to compare by if the user names none: the first fact in which otherwise equal runs differ. First come the most
# common questions, then other options of a run, then versions. The model is last: another model is another task.
DEFAULT_ORDER = tuple(
    dict.fromkeys(
        [
            "place",
            "device_name",
            "precision",
            "batch_size",
            *(fact for fact in CONFIGURATION if fact != "model"),
            "runtime",
            "machine_type",
            *SOFTWARE,
            "model",
        ]
    )
)
# Facts that a script's arguments do not decide: scripts are compared although they differ in the other facts.
OF_EVERY_SCRIPT = ("model", "unit", *NUMBERS)
# The 15 pairs of 6 values fit a screen, and keep most of their power under Holm's correction.
MOST_VALUES = 6
# Maximum number of values that a message lists.
MOST_NAMED = 8


@dataclass(frozen=True, kw_only=True)
class Side:
    """Runs with one value of the compared fact that may be pooled."""

    value: Any
    runs: Sequence[Case]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two sides that agree in all facts that must be equal.

    `shared`: these facts with their values; `pool`: facts that tell this pool of runs from others, for example
    `runtime process`.
    """

    left: Side
    right: Side
    shared: Mapping[str, Any]
    pool: tuple[str, ...] = ()

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.left, self.right

    @property
    def runs(self) -> list[Case]:
        """Runs of both sides."""
        return [*self.left.runs, *self.right.runs]


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """All pairs that differ in `by`. `mixed`: facts in which runs of one side differ, so that they form several pools.

    A group is all runs that agree in the facts that must be equal. `without_other_value`: runs of groups in which `by`
    has a single value, or not the baseline's: for example the only precision of a batch size.
    `without_matching_pool`: runs of the other groups that are in no pair, because no pool of another value matches
    theirs, for example if the driver differs too.

    `also`: other facts by which these runs could be compared, if the user named no fact. `baselines`: values with which
    all other values were compared; empty if all pairs were made. `runs`: all measured runs, compared or not. `pooled`:
    facts in which runs of one configuration may differ.
    """

    by: str
    pairs: Sequence[Pair]
    mixed: tuple[str, ...] = ()
    without_matching_pool: tuple[str, ...] = ()
    without_other_value: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    baselines: tuple[str, ...] = ()
    runs: Sequence[Case] = ()
    pooled: frozenset[str] = frozenset()


def pair_up(
    results: Tables,
    by: str | None = None,
    *,
    baseline: str | None = None,
    allow_mixed: Collection[str] = (),
    every: Sequence[Case] | None = None,
) -> Pairing:
    """Pairs that differ in `by`; without `by`, in the first fact in which runs differ.

    `baseline`: the value of `by` with which all other values are compared. Without a baseline, all pairs of values are
    compared. With more than `MOST_VALUES` values, the value with the most runs is the baseline: the correction for many
    comparisons would hide real differences, and thousands of rows are unreadable.

    `every`: all runs as cases, if they are known; runs that are missing in `results` are left out.

    Raises `UsageError` for a column that runs cannot be compared by, `NotPoolableError` (exit code 9) if runs differ in
    `by` but none has a counterpart on the other side, and `NothingToDoError` if no two runs differ in `by` alone.
    """
    is_argument = by is not None and by.startswith(ARGUMENT)
    _require_comparable([*([by] if by and not is_argument else []), *allow_mixed])
    for fact in NUMBERS:
        if fact in allow_mixed:
            raise UsageError(
                f"runs on different numbers of {fact} are never mixed: their figures are those of one device",
                hint=f"--by {fact} compares them",
            )
    runs = measured(results.runs)
    runs = runs[runs["images_per_s"] > 0]
    wanted = set(runs["run_id"])
    compared = with_arguments([case for case in every or cases(results) if case.run_id in wanted])
    if not compared:
        raise NothingToDoError(
            "nothing to compare: no run completed its measured steps", hint="analyze summary shows how the runs ended"
        )
    if by and is_argument and by not in arguments_in(compared):
        raise UsageError(
            f"no two scripts of one name differ in '{by}'",
            hint="--by " + " | ".join([*arguments_in(compared), *BY_EXAMPLES][: len(BY_EXAMPLES)]),
        )
    options = _Options(
        baseline=None if baseline is None else _value_of(compared, by, baseline),
        allow_mixed=frozenset(allow_mixed),
    )
    if by is None:
        return _by_what_differs(compared, options)
    pairing = _paired(compared, by, options)
    if not pairing.pairs and pairing.without_matching_pool:
        ignored = dict.fromkeys([by, *allow_mixed, *_equal_facts(by), *(CONFIGURATION if is_argument else ())])
        mixed = [f"--allow-mixed {fact}" for fact in (*allow_mixed, *pairing.mixed)]
        require_poolable(
            runs[runs["run_id"].isin(pairing.without_matching_pool)].assign(**ignored),
            hint=" ".join([f"--by {by}", *mixed]),
        )
    if not pairing.pairs:
        raise _nothing(compared, by, options)
    return pairing


@dataclass(frozen=True, kw_only=True)
class _Options:
    """The user's options for pairs; `baseline`: a fact and one of its values."""

    baseline: tuple[str, Any] | None
    allow_mixed: frozenset[str]


def _value_of(compared: Sequence[Case], by: str | None, baseline: str) -> tuple[str, Any]:
    """Fact and value that `baseline` (as typed by the user) names; without `by`, the first fact with this value."""
    facts = [by] if by else _order_of(compared)
    for fact in facts:
        for value in {case[fact]: None for case in compared}:
            if value_text(fact, value) == baseline:
                return fact, value
    values = sorted({value_text(fact, case[fact]) for fact in facts[:1] for case in compared})
    close = difflib.get_close_matches(baseline, values, n=1) or values[:1]
    raise UsageError(
        f"no run has {label(facts[0])} '{printable(baseline)}'; there is {printable(', '.join(values[:MOST_NAMED]))}"
        + (f" and {len(values) - MOST_NAMED} more" if len(values) > MOST_NAMED else ""),
        hint=f"--by {facts[0]} --baseline {as_typed(printable(shlex.quote(close[0])))}",
    )


def _order_of(compared: Sequence[Case]) -> list[str]:
    """Facts to compare by if the user names none: place and device, arguments of scripts, then other options."""
    return list(dict.fromkeys(["place", "device_name", *arguments_in(compared), *DEFAULT_ORDER]))


def _by_what_differs(compared: Sequence[Case], options: _Options) -> Pairing:
    differing = [fact for fact in _order_of(compared) if len({case[fact] for case in compared}) > 1]
    if options.baseline is not None:
        differing = [options.baseline[0]]
    pairings = [pairing for fact in differing if (pairing := _paired(compared, fact, options)).pairs]
    if not pairings:
        raise _nothing(compared, options.baseline[0] if options.baseline else None, options)
    first, *others = pairings
    return replace(first, also=tuple(pairing.by for pairing in others))


def _nothing(compared: Sequence[Case], by: str | None, options: _Options) -> NothingToDoError:
    """Error that no runs differ in `by` (None: in one fact) alone, with the options that compare the nearest two."""
    runs = counted(len(compared), "measured run")
    if by and len({case[by] for case in compared}) == 1:
        return NothingToDoError(
            f"nothing to compare: {label(by)} is {value_text(by, compared[0][by])} in all of {runs}",
            hint="add folders with other runs, or compare --by " + " | ".join(BY_EXAMPLES),
        )
    if by and by.startswith(ARGUMENT):
        return NothingToDoError(
            f"nothing to compare: no two of {runs} differ in {by} alone",
            hint="--by script compares whole command lines",
        )
    nearest = _nearest(compared, by, options)
    if not nearest:
        return NothingToDoError(
            f"nothing to compare: no setting differs in {runs}",
            hint="add folders with other runs: analyze compare RESULTS MORE_RESULTS",
        )
    mixed = {fact: [other for other in nearest if other in _equal_facts(fact)] for fact in nearest}
    fixed = [fact for fact in NUMBERS if fact in nearest]
    first = fixed[0] if fixed else min(nearest, key=lambda fact: len(mixed[fact]))
    return NothingToDoError(
        f"nothing to compare: no two of {runs} differ in {label(by) if by else 'one setting'} alone; "
        f"the nearest two differ in {', '.join(map(label, nearest))}",
        hint="add runs that differ in the number of machines alone, or of devices"
        if len(fixed) > 1
        else " --allow-mixed ".join([f"--by {first}", *sorted(options.allow_mixed), *mixed[first]]) + " compares them",
    )


def _nearest(compared: Sequence[Case], by: str | None, options: _Options) -> list[str]:
    """Facts in which the two most similar runs differ; `by`, if given, is the first of these facts."""
    equal = [*_equal_facts(by), by] if by else [*CONFIGURATION, *PLACE]
    facts = sorted({*equal} - options.allow_mixed, key=[by, *DEFAULT_ORDER, *MACHINE].index)
    base = options.baseline[1:] if options.baseline else ()
    found = (
        [fact for fact, one, other in zip(facts, left, right, strict=True) if one != other]
        for left, right in combinations({tuple(case[fact] for fact in facts): None for case in compared}, 2)
        if not by or (left[0] != right[0] and (not base or base[0] in (left[0], right[0])))
    )
    return min(found, key=len, default=[])


def _require_comparable(columns: Sequence[str]) -> None:
    for column in columns:
        if column not in COMPARABLE:
            close = difflib.get_close_matches(column, COMPARABLE, n=1)
            raise UsageError(
                f"runs cannot be compared by '{column}'",
                hint=f"--by {close[0]}" if close else "--by " + " | ".join(BY_EXAMPLES),
            )


def value_text(by: str, value: Any) -> str:
    """Value of the fact `by` in words, without the name of the fact."""
    return shown(by, value).removeprefix(f"{label(by)} ")


# --- pairs


def _paired(compared: Sequence[Case], by: str, options: _Options) -> Pairing:
    equal = [fact for fact in _equal_facts(by) if fact not in options.allow_mixed]
    separating = [fact for fact in (*PLACE, *SOFTWARE) if fact != by and fact not in options.allow_mixed]
    groups: dict[tuple[Any, ...], dict[Any, list[Case]]] = defaultdict(lambda: defaultdict(list))
    for case in compared:
        facts = {fact: case[fact] for fact in equal}
        if by in MACHINE and case["script"] is not None and case["precision"] in {Precision.FP32, Precision.TF32}:
            # A script's fp32, which some of the machines compute in TF32.
            facts |= dict.fromkeys(facts.keys() & {"precision"})
        groups[tuple(facts.values())][case[by]].append(case)
    pairs, mixed = list[Pair](), set[str]()
    without_matching_pool, without_other_value = list[str](), list[str]()
    runs_of = Counter(case[by] for case in compared)
    baselines = dict[str, None]()
    for values, sides in groups.items():
        baseline = options.baseline[1:] if options.baseline else ()
        if not baseline and len(sides) > MOST_VALUES:
            # The choice depends on the number of runs and never on their figures: choosing the fastest value would
            # require a correction for all pairs.
            baseline = (min(sides, key=lambda value: (-runs_of[value], -len(sides[value]), _order(value))),)
        if len(sides) == 1 or (baseline and baseline[0] not in sides):
            without_other_value += [case.run_id for runs in sides.values() for case in runs]
            continue
        baselines |= {value_text(by, value): None for value in baseline}
        varying = [
            fact for fact in separating if any(len({case[fact] for case in side}) > 1 for side in sides.values())
        ]
        shared = dict(zip(equal, values, strict=True))
        if len(precisions := {case["precision"] for side in sides.values() for case in side}) == 1:
            shared |= dict.fromkeys(shared.keys() & {"precision"}, *precisions)
        made = list(_pairs_of(sides, separating, varying, shared, baseline))
        in_pairs = {case.run_id for pair in made for case in pair.runs}
        run_ids = [case.run_id for runs in sides.values() for case in runs]
        without_matching_pool += [run_id for run_id in run_ids if run_id not in in_pairs]
        mixed |= set(varying)
        pairs += made
    return Pairing(
        by=by,
        pairs=pairs,
        mixed=tuple(fact for fact in separating if fact in mixed),
        without_matching_pool=tuple(without_matching_pool),
        without_other_value=tuple(without_other_value),
        baselines=tuple(baselines),
        runs=compared,
        pooled=options.allow_mixed,
    )


def _equal_facts(by: str) -> tuple[str, ...]:
    """Facts that must be equal on both sides: the configuration and, unless machines are compared, the place.

    A script's arguments decide most of its configuration, such as the batch size.
    """
    if by == "script":
        return (*OF_EVERY_SCRIPT, *PLACE)
    if by.startswith(ARGUMENT):
        return (*OF_EVERY_SCRIPT, besides(by), *PLACE)
    facts = CONFIGURATION if by in MACHINE else (*CONFIGURATION, *PLACE)
    return tuple(fact for fact in facts if fact != by)


def _pairs_of(
    sides: Mapping[Any, Sequence[Case]],
    separating: Sequence[str],
    varying: Sequence[str],
    shared: Mapping[str, Any],
    baseline: Sequence[Any],
) -> Iterator[Pair]:
    """Pair each pool of a side with each matching pool of another side.

    `baseline`: the value that is always the left side; empty to compare all pairs.
    """
    ordered = sorted(sides.items(), key=lambda item: _order(item[0]))
    chosen: Iterable[tuple[tuple[Any, Sequence[Case]], tuple[Any, Sequence[Case]]]] = combinations(ordered, 2)
    for value in baseline:
        chosen = [((value, sides[value]), other) for other in ordered if other[0] != value]
    values_of = {value: {fact: {case[fact] for case in runs} for fact in separating} for value, runs in sides.items()}
    pools: dict[Any, list[list[Case]]] = {}
    for value, runs in sides.items():
        alike: dict[tuple[Any, ...], list[Case]] = defaultdict(list)
        for case in runs:
            alike[tuple(case[fact] for fact in separating)].append(case)
        pools[value] = list(alike.values())
    for (left, _), (right, _) in chosen:
        # A fact without a common value on both sides cannot be kept equal: the note of the comparison names it.
        common = [fact for fact in separating if values_of[left][fact] & values_of[right][fact]]
        for left_pool, right_pool in product(pools[left], pools[right]):
            if all(left_pool[0][fact] == right_pool[0][fact] for fact in common):
                yield Pair(
                    left=Side(value=left, runs=left_pool),
                    right=Side(value=right, runs=right_pool),
                    shared=shared,
                    pool=pool_words(left_pool[0].facts, [fact for fact in varying if fact in common]),
                )


def _order(value: Any) -> tuple[bool, float, str]:
    """Sort key of values: numbers by size, then texts, None last."""
    is_number = isinstance(value, int | float)
    return value is None, float(value) if is_number else 0.0, "" if is_number else str(value)


# --- designs of blocks


class Designs:
    """Cache of designs for comparisons within blocks; a design contains all configurations that ran in its blocks."""

    def __init__(self, pairing: Pairing) -> None:
        facts = dict.fromkeys((*CONFIGURATION, *PLACE, *SOFTWARE, pairing.by))
        self._facts = [fact for fact in facts if fact not in pairing.pooled]
        self._runs = [case for case in pairing.runs if case.block is not None]
        self._design = cache(self._made)

    def configuration(self, runs: Sequence[Case]) -> Hashable:
        """Configuration of a side's runs, as identified in their design."""
        return tuple(runs[0][fact] for fact in self._facts)

    def contrast(self, sides: Mapping[Hashable, float], runs: Sequence[Case], *, with_busy: bool = True) -> Contrast:
        """Weighted sum of the logarithms of images/s, from all blocks of `runs`; `sides`: weight by configuration."""
        return self.design(runs, with_busy=with_busy).contrast(sides)

    def design(self, runs: Sequence[Case], *, with_busy: bool = True) -> Design:
        """Design of all runs in the blocks of `runs`; without those on a busy machine unless `with_busy`."""
        return self._design(frozenset(case.block for case in runs), with_busy)

    def _made(self, blocks: frozenset[Hashable], with_busy: bool) -> Design:
        return Design(
            Run(
                figure=float(case["images_per_s"]),
                configuration=tuple(case[fact] for fact in self._facts),
                block=case.block,
                position=case["position"],
            )
            for case in self._runs
            if case.block in blocks and (with_busy or not is_busy(case))
        )


def is_busy(case: Case) -> bool:
    """Whether other processes used the machine during the run."""
    return isinstance(case["busy"], str)
