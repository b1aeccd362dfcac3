"""Efficiency of runs on several devices: images/s of each device over images/s of one device alone. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from analysis.compare import ratios
from analysis.compare.pairing import pair_up, value_text
from analysis.loading.cases import Case
from analysis.loading.configurations import CONFIGURATION, PLACE, Group, group, measured, shown
from analysis.loading.run_row import SLOW_RANK, WAITS
from analysis.loading.tables import Tables, joined
from analysis.loading.tables import rows as rows_of
from workload.contract.errors import RooflaunchError
from workload.contract.ranks import limit_sentence
from workload.contract.text import counted

BY = "devices"
# Facts that a run of one device must share with a run of several. `batch_size` and `threads` are those of each device.
EQUAL = tuple(fact for fact in (*CONFIGURATION, *PLACE) if fact != BY)
# Maximum number of facts that a reason names.
MOST_NAMED = 3


def scaling(results: Tables, every: Sequence[Case] | None = None) -> list[dict[str, Any]]:
    """A row for each group of runs on several devices; none without such runs. `every`: all runs as cases, if known.

    `images_per_s`: of each device, `all_images_per_s`: of all. `efficiency`: images/s of each device over images/s of
    one device at the same batch size and number of threads per device; 1 is perfect. `efficiency_low` and
    `efficiency_high`: ends of its interval, by the rules of `analysis.compare`. `why`: why efficiency or interval is
    absent. `limit`: the largest of the shares of a step in which devices wait, with the number of runs if they differ;
    `sentence`: what limits scaling, by the medians of these shares.
    """
    groups = group(measured(results.runs))
    several = [pool for pool in groups if (pool[BY] or 1) > 1]
    found = dict(_efficiencies(results, every)) if several else {}
    alone = [pool for pool in groups if pool[BY] == 1]
    rows = []
    for pool in several:
        efficiency = found.get(pool.texts("run_id")[0]) or {"why": _why_none(pool, alone)}
        rows.append({**pool.facts, **_figures(pool), **dict.fromkeys(EFFICIENCY), **efficiency})
    return rows


EFFICIENCY = ("efficiency", "efficiency_low", "efficiency_high", "level", "why", "note")


def _figures(pool: Group) -> dict[str, Any]:
    limits = Counter(pool.texts("scaling_limit"))
    names = [
        f"{limit} {counted(number, 'run')}" if len(limits) > 1 else limit for limit, number in limits.most_common()
    ]
    shares = {column: pool.median(column) for column in WAITS}
    known = {WAITS[column]: share for column, share in shares.items() if share is not None}
    # A rank is named if it limits all runs.
    rank = next(iter(limits)).removeprefix(SLOW_RANK) if len(limits) == 1 else ""
    return {
        "runs": len(pool),
        "images_per_s": pool.median("images_per_s"),
        "all_images_per_s": pool.median("all_images_per_s"),
        **shares,
        "limit": ", ".join(names) or None,
        "sentence": limit_sentence(known, rank if rank.isdecimal() else None) or None,
    }


def _efficiencies(results: Tables, every: Sequence[Case] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each run on several devices that has a counterpart on one device, with the efficiency of its group.

    If several pools of runs on one device are counterparts, as with two drivers, the largest pool comes last.
    """
    try:
        pairing = pair_up(results, BY, baseline="1", every=every)
    except RooflaunchError:
        return
    found = zip(pairing.pairs, rows_of(ratios.of_pairs(pairing)), strict=True)
    for pair, row in sorted(found, key=lambda item: len(item[0].left.runs)):
        efficiency = {
            "efficiency": row["ratio"],
            "efficiency_low": row["ratio_low"],
            "efficiency_high": row["ratio_high"],
            "level": row["level"],
            "why": None if row["level"] else row["verdict"].removeprefix("no winner: "),
            # Without notes that are clear from the row's place and the word efficiency.
            "note": joined(
                [
                    *(
                        text
                        for text in (row["note"] or "").split("; ")
                        if text not in (f"on {pair.shared['place']}", ratios.PER_DEVICE)
                    ),
                    row["busy"],
                ]
            ),
        }
        for case in pair.right.runs:
            yield case.run_id, efficiency


def _why_none(pool: Group, alone: Sequence[Group]) -> str:
    differences = [[fact for fact in EQUAL if other[fact] != pool[fact]] for other in alone]
    if not differences:
        return "no run on one device"
    other, facts = min(zip(alone, differences, strict=True), key=lambda item: len(item[1]))
    if not facts:
        return "no run on one device with the same software"
    named = ", ".join(
        f"{shown(fact, other[fact])} instead of {value_text(fact, pool[fact])}" for fact in facts[:MOST_NAMED]
    )
    more = f" and {len(facts) - MOST_NAMED} more differences" if len(facts) > MOST_NAMED else ""
    cure = f"; OMP_NUM_THREADS={pool['threads']:g} sets it" if facts == ["threads"] and pool["threads"] else ""
    return f"no run on one device is otherwise equal: the nearest has {named}{more}{cure}"
