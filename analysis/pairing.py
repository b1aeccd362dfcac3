"""Which runs are compared with which: two sides that differ in one fact and agree in the rest. Pure.

Runs of one side that may not be pooled (another driver, a container instead of a process) are pools of their own, and
a pool is compared with the pool of the other side that is like it. What is kept apart, and why, is part of the result.
"""

import difflib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from analysis.cases import Case, cases
from analysis.configurations import CONFIGURATION, PLACE, SOFTWARE, label, measured, pool_words, require_poolable, shown
from analysis.loading import Results
from workload.contract.errors import NothingToDoError, UsageError

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
BY_EXAMPLES = ("place", "device_name", "precision", "batch_size", "zone", "torch")
# What to compare by where nobody says: the first in which runs differ that agree in the rest. The questions that people
# come with, then the other options of a run, then versions; another model is another task, so it comes last.
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


@dataclass(frozen=True, kw_only=True)
class Side:
    """Runs that have one value of what is compared, and that may be pooled."""

    value: Any
    runs: Sequence[Case]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two sides that agree in everything that is not compared.

    `shared`: what they agree in; `pool`: which of several pools of runs this pair is of, as `runtime process`.
    """

    left: Side
    right: Side
    shared: Mapping[str, Any]
    pool: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """All pairs that differ in `by`. `mixed`: the facts in which runs of one side differ, so that they are kept apart.

    `alone`: runs of a side without a like run on the other one; `unpaired`: those that no other run differs from in
    `by` alone. `also`: other facts by which these runs could be compared, where `by` was chosen for lack of a wish.
    """

    by: str
    pairs: Sequence[Pair]
    mixed: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    unpaired: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


def pair_up(results: Results, by: str | None = None, *, allow_mixed: Collection[str] = ()) -> Pairing:
    """The pairs by `by`; without it by the first fact of `DEFAULT_ORDER` in which runs differ.

    Raises `UsageError` for a column that runs cannot be compared by, `NotPoolableError` (exit code 9) where runs differ
    in `by` but none has a like one on the other side, and `NothingToDoError` where no two runs differ in `by` alone.
    """
    _require_comparable([*([by] if by else []), *allow_mixed])
    runs = measured(results.runs)
    runs = runs[runs["images_per_s"].notna()]
    wanted = set(runs["run_id"])
    compared = [case for case in cases(results) if case.run_id in wanted]
    if not compared:
        raise NothingToDoError(
            "nothing to compare: no run completed its measured steps", hint="analyze summary says how they ended"
        )
    if by is None:
        return _by_what_differs(compared, frozenset(allow_mixed))
    pairing = _paired(compared, by, frozenset(allow_mixed))
    if not pairing.pairs and pairing.alone:
        ignored = dict.fromkeys([by, *allow_mixed, *_held(by)])
        mixed = [f"--allow-mixed {fact}" for fact in (*allow_mixed, *pairing.mixed)]
        require_poolable(
            runs[runs["run_id"].isin(pairing.alone)].assign(**ignored), hint=" ".join([f"--by {by}", *mixed])
        )
    if not pairing.pairs:
        values = sorted({value_text(by, case[by]) for case in compared})
        raise NothingToDoError(
            f"nothing to compare: no two runs that differ in {label(by)} and agree in the rest; "
            f"{label(by)} is {', '.join(values) or 'unknown'}",
            hint="name folders with other runs too, or compare --by " + " | ".join(BY_EXAMPLES),
        )
    return pairing


def _by_what_differs(compared: Sequence[Case], allow_mixed: frozenset[str]) -> Pairing:
    differing = [fact for fact in DEFAULT_ORDER if len({case[fact] for case in compared}) > 1]
    pairings = [pairing for fact in differing if (pairing := _paired(compared, fact, allow_mixed)).pairs]
    if not pairings:
        where = f"they differ in {_listed(differing)}" if differing else "they agree in everything"
        what = f"{len(compared)} measured run{'' if len(compared) == 1 else 's'}"
        raise NothingToDoError(
            f"nothing to compare: among {what} no two differ in one fact and agree in the rest"
            + (f"; {where}" if len(compared) > 1 else ""),
            hint="name folders with other runs too: analyze compare RESULTS MORE_RESULTS",
        )
    first, *others = pairings
    also = tuple(pairing.by for pairing in others)
    return Pairing(
        by=first.by, pairs=first.pairs, mixed=first.mixed, alone=first.alone, unpaired=first.unpaired, also=also
    )


def _listed(facts: Sequence[str]) -> str:
    return ", ".join(map(label, facts))


def _require_comparable(columns: Sequence[str]) -> None:
    for column in columns:
        if column not in COMPARABLE:
            close = difflib.get_close_matches(column, COMPARABLE, n=1)
            raise UsageError(
                f"runs cannot be compared by '{column}'",
                hint=f"--by {close[0]}" if close else "--by " + " | ".join(BY_EXAMPLES),
            )


def value_text(by: str, value: Any) -> str:
    """A value of `by` for people, without its name."""
    return shown(by, value).removeprefix(f"{label(by)} ")


# --- who is compared with whom


def _paired(compared: Sequence[Case], by: str, allow_mixed: frozenset[str]) -> Pairing:
    held = [fact for fact in _held(by) if fact not in allow_mixed]
    told_apart = [fact for fact in (*PLACE, *SOFTWARE) if fact != by and fact not in allow_mixed]
    groups: dict[tuple[Any, ...], dict[Any, list[Case]]] = {}
    for case in compared:
        sides = groups.setdefault(tuple(case[fact] for fact in held), {})
        sides.setdefault(case[by], []).append(case)
    pairs, mixed, alone, unpaired = list[Pair](), set[str](), list[str](), list[str]()
    for values, sides in groups.items():
        if len(sides) == 1:
            unpaired += [case.run_id for runs in sides.values() for case in runs]
            continue
        varying = [
            fact for fact in told_apart if any(len({case[fact] for case in side}) > 1 for side in sides.values())
        ]
        like_pairs = list(_pairs_of(sides, told_apart, varying, dict(zip(held, values, strict=True))))
        together = {case.run_id for pair in like_pairs for side in (pair.left, pair.right) for case in side.runs}
        alone += [case.run_id for runs in sides.values() for case in runs if case.run_id not in together]
        mixed |= set(varying)
        pairs += like_pairs
    return Pairing(
        by=by,
        pairs=pairs,
        mixed=tuple(fact for fact in told_apart if fact in mixed),
        alone=tuple(alone),
        unpaired=tuple(unpaired),
    )


def _held(by: str) -> tuple[str, ...]:
    """What has to be the same on both sides: what the user chose and, unless machines are compared, where it ran."""
    kept = CONFIGURATION if by in MACHINE else (*CONFIGURATION, *PLACE)
    return tuple(fact for fact in kept if fact != by)


def _pairs_of(
    sides: Mapping[Any, Sequence[Case]],
    told_apart: Sequence[str],
    varying: Sequence[str],
    shared: Mapping[str, Any],
) -> Iterator[Pair]:
    """Each pool of a side with each like pool of another side."""
    ordered = sorted(sides.items(), key=lambda item: _order(item[0]))
    for (left, left_runs), (right, right_runs) in combinations(ordered, 2):
        # A fact in which no run of one side is like a run of the other cannot be held: it is said with the figures.
        alike = [
            fact for fact in told_apart if {case[fact] for case in left_runs} & {case[fact] for case in right_runs}
        ]
        right_pools = _pools(right_runs, told_apart)
        for left_pool in _pools(left_runs, told_apart):
            for right_pool in right_pools:
                if all(left_pool[0][fact] == right_pool[0][fact] for fact in alike):
                    yield Pair(
                        left=Side(value=left, runs=left_pool),
                        right=Side(value=right, runs=right_pool),
                        shared=shared,
                        pool=pool_words(left_pool[0].facts, [fact for fact in varying if fact in alike]),
                    )


def _pools(runs: Sequence[Case], facts: Sequence[str]) -> list[list[Case]]:
    pools: dict[tuple[Any, ...], list[Case]] = defaultdict(list)
    for case in runs:
        pools[tuple(case[fact] for fact in facts)].append(case)
    return list(pools.values())


def _order(value: Any) -> tuple[bool, float, str]:
    """Numbers by size, then texts, the unknown last."""
    is_number = isinstance(value, int | float)
    return value is None, float(value) if is_number else 0.0, "" if is_number else str(value)
