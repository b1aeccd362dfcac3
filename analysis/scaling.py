"""Efficiency of several machines or devices against one, the speed-up and its cost, and what limits scaling. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from analysis.compare import PER_DEVICE, of_pairs
from analysis.loading.cases import Case
from analysis.loading.configurations import (
    CONFIGURATION,
    NUMBERS,
    PLACE,
    Group,
    devices_of,
    group,
    measured,
    shown,
)
from analysis.loading.run_row import SLOW_RANK, WAITS
from analysis.loading.tables import Tables, joined
from analysis.loading.tables import rows as rows_of
from analysis.pairing import Pair, pair_up, value_text
from workload.contract.errors import RooflaunchError
from workload.contract.ranks import Collective, Communication, limit_sentence
from workload.contract.text import counted

# Facts that a run of one device must share with a run of several. `batch_size` and `threads` are those of each device.
EQUAL = tuple(fact for fact in (*CONFIGURATION, *PLACE) if fact not in NUMBERS)
# Maximum number of facts that a reason names.
MOST_NAMED = 3


def scaling(results: Tables, every: Sequence[Case] | None = None) -> list[dict[str, Any]]:
    """A row for each group of runs on several devices; none without such runs. `every`: all runs as cases, if known.

    `images_per_s`: of each device, `all_images_per_s`: of all. `by`: "machines" for runs on several machines, which are
    compared with one machine of as many devices; else "devices". `efficiency`: images/s of each device over those of a
    device of the single machine, or of the single device, at the same batch size and number of threads per device; 1
    is perfect. `efficiency_low`, `efficiency_high`: ends of its interval, by the rules of `analysis.compare`. `gain`:
    words on the speed-up and its cost. `why`: why efficiency or interval is absent. `limit`: the largest of the shares
    of a step in which devices wait, with the number of runs if they differ; `sentence`: what limits scaling, by the
    medians of these shares.
    """
    groups = group(measured(results.runs))
    several = [pool for pool in groups if devices_of(pool.facts) > 1]
    found = dict(_efficiencies(results, every)) if several else {}
    rows = []
    for pool in several:
        by = "machines" if (pool["machines"] or 1) > 1 else "devices"
        efficiency = found.get(pool.texts("run_id")[0]) or {"why": _why_none(pool, by, groups)}
        rows.append({**pool.facts, **_figures(pool), "by": by, **dict.fromkeys(EFFICIENCY), **efficiency})
    return rows


EFFICIENCY = ("efficiency", "efficiency_low", "efficiency_high", "level", "gain", "why", "note")


def _figures(pool: Group) -> dict[str, Any]:
    limits = Counter(pool.texts("scaling_limit"))
    names = [
        f"{limit} {counted(number, 'run')}" if len(limits) > 1 else limit for limit, number in limits.most_common()
    ]
    shares = {column: pool.median(column) for column in WAITS}
    known = {WAITS[column]: share for column, share in shares.items() if share is not None}
    # A rank is named if it limits all runs.
    rank = next(iter(limits)).removeprefix(SLOW_RANK) if len(limits) == 1 else ""
    kinds, hosts = set(pool.texts("longest_collective")), set(pool.texts("slow_host"))
    moved, link_share = pool.median("collective_bytes"), pool.median("link_share")
    return {
        "runs": len(pool),
        "images_per_s": pool.median("images_per_s"),
        "all_images_per_s": pool.median("all_images_per_s"),
        **shares,
        "limit": ", ".join(names) or None,
        "sentence": limit_sentence(
            known,
            rank if rank.isdecimal() else None,
            longest=Communication(kind=Collective(*kinds), bytes=moved or 0.0, link_share=link_share)
            if len(kinds) == 1
            else None,
            host=hosts.pop() if len(hosts) == 1 else None,
            is_alone=all(value is True for value in pool.values("slow_alone")),
        )
        or None,
    }


def _efficiencies(results: Tables, every: Sequence[Case] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each run on several devices that has a counterpart on one, or on one machine, with the efficiency of its group.

    If several pools of runs are counterparts, as with two drivers, the largest pool comes last.
    """
    for by in NUMBERS:
        with suppress(RooflaunchError):
            pairing = pair_up(results, by, baseline="1", every=every)
            # Devices are counted on one machine; on several, the machines are.
            pairs = [pair for pair in pairing.pairs if by == "machines" or (pair.shared["machines"] or 1) == 1]
            found = zip(pairs, rows_of(of_pairs(replace(pairing, pairs=pairs))), strict=True)
            for pair, row in sorted(found, key=lambda item: len(item[0].left.runs)):
                efficiency = _efficiency(pair, by, row)
                yield from ((case.run_id, efficiency) for case in pair.right.runs)


def _efficiency(pair: Pair, by: str, row: Mapping[str, Any]) -> dict[str, Any]:
    # Without notes that are clear from the row's place and the word efficiency.
    clear = (f"on {pair.shared['place']}", PER_DEVICE[by])
    return {
        "efficiency": row["ratio"],
        "efficiency_low": row["ratio_low"],
        "efficiency_high": row["ratio_high"],
        "level": row["level"],
        "gain": row["gain"],
        "why": None if row["level"] else row["verdict"].removeprefix("no winner: "),
        "note": joined([*(text for text in (row["note"] or "").split("; ") if text not in clear), row["busy"]]),
    }


def _why_none(pool: Group, by: str, groups: Sequence[Group]) -> str:
    none = f"no run on one {by.removesuffix('s')}"
    equal = EQUAL if by == "devices" else (*EQUAL, "devices")
    alone = [other for other in groups if (other["machines"] or 1) == 1 and (by == "machines" or other["devices"] == 1)]
    differences = [[fact for fact in equal if other[fact] != pool[fact]] for other in alone]
    if not differences:
        return none
    other, facts = min(zip(alone, differences, strict=True), key=lambda item: len(item[1]))
    if not facts:
        return f"{none} with the same software"
    named = ", ".join(
        f"{shown(fact, other[fact])} instead of {value_text(fact, pool[fact])}" for fact in facts[:MOST_NAMED]
    )
    more = f" and {len(facts) - MOST_NAMED} more differences" if len(facts) > MOST_NAMED else ""
    cure = f"; OMP_NUM_THREADS={pool['threads']:g} sets it" if facts == ["threads"] and pool["threads"] else ""
    return f"{none} is otherwise equal: the nearest has {named}{more}{cure}"
