"""Detect damage among a file's launches: duplicates, missing launches, and launches of several GPUs or processes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.readers.ncu import metrics
from analysis.readers.ncu.launches import Launches
from workload.contract.ncu_csv import Quantity

ADDITIVE = frozenset({Quantity.TIME, Quantity.BYTES, Quantity.COUNT})
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Mended:
    """Tables with each launch once; `damage`: a sentence for each kind of dropped, duplicate or missing data.

    `is_incomplete`: launches are missing, so that every sum is too low.
    """

    tables: Sequence[Launches]
    damage: tuple[str, ...]
    is_incomplete: bool


def mended(tables: Sequence[Launches]) -> Mended:
    """Drop duplicate launches, and describe the damage. A process and an ID identify a launch."""
    who = pd.DataFrame(
        {
            "process": np.concatenate([np.asarray(table.identity["process_id"].astype(object)) for table in tables]),
            "id": np.concatenate([table.ids for table in tables]),
        }
    )
    again = who.duplicated().to_numpy()
    damage = [] if not again.any() else [_repeated(tables, who, again)]
    if again.any():
        ends = np.cumsum([len(table) for table in tables])
        parts = np.split(~again, ends[:-1])
        tables = [_only(table, kept) for table, kept in zip(tables, parts, strict=True)]
        tables = [table for table in tables if len(table)]
        who = who[~again]
    missing = _missing(who)
    if missing:
        damage.append(missing)
    damage += [sentence for table in tables for sentence in _absences(table)]
    processes = who["process"].dropna().nunique()
    if processes > 1:
        damage.append(f"launches of {processes} processes are added up")
    return Mended(tables=tables, damage=tuple(damage), is_incomplete=missing is not None)


def gpus(tables: Sequence[Launches]) -> dict[str, int]:
    """Number of launches on each GPU that the file names."""
    labels = pd.Series(np.concatenate([np.asarray(table.gpus.astype(object)) for table in tables])).dropna()
    return {str(label): int(number) for label, number in labels.value_counts(sort=False).items()}


def _absences(table: Launches) -> list[str]:
    """Warnings on metrics that some launches lack, so that their sums are unavailable."""
    sentences = []
    for role in metrics.known(table.metrics):
        values = table.by_role.get(role.name)
        absent = 0 if values is None or role.kind not in ADDITIVE else int(np.isnan(values).sum())
        if absent:
            why = "n/a, or in a unit that is not known"
            sentences.append(
                f"{role.metrics[0]} has no value for {absent} of {len(table)} launches ({why}): what adds it up is"
                " unavailable"
            )
    return sentences


def _only(table: Launches, kept: npt.NDArray[np.bool_]) -> Launches:
    return replace(
        table,
        identity={name: values[kept] for name, values in table.identity.items()},
        by_role={name: values[kept] for name, values in table.by_role.items()},
        ids=table.ids[kept],
        gpus=table.gpus[kept],
    )


def _repeated(tables: Sequence[Launches], who: pd.DataFrame, again: npt.NDArray[np.bool_]) -> str:
    """A sentence on the number of duplicate launches, and on whether their figures are equal."""
    figures = pd.concat(
        [pd.DataFrame(dict(table.by_role), index=range(len(table))) for table in tables], ignore_index=True
    )
    figures["name"] = np.concatenate([np.asarray(table.identity["name"].astype(object)) for table in tables])
    alike = pd.concat([who, figures], axis=1).duplicated().to_numpy()
    number = int(again.sum())
    if alike[again].all():
        return f"{_launches(number)} in the file again (same process and ID): each is counted once"
    return (
        f"{_launches(number)} in the file again (same process and ID) with other figures: the first"
        " of each counts; two profiles may have been written into one file"
    )


def _missing(who: pd.DataFrame) -> str | None:
    """A sentence on missing IDs between the first and the last; None if there are none.

    Processes count separately if their IDs overlap.
    """
    groups = [group["id"].to_numpy() for _, group in who.groupby("process", dropna=False, sort=False)]
    if sum(len(np.unique(ids)) for ids in groups) == who["id"].nunique():
        groups = [who["id"].to_numpy()]
    gaps = [gap for ids in groups for gap in _gaps(np.unique(ids))]
    if not gaps:
        return None
    number = sum(last - first + 1 for first, last in gaps)
    shown = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in gaps[:_SHOWN])
    more = f" and {len(gaps) - _SHOWN} more gaps" if len(gaps) > _SHOWN else ""
    return f"{_launches(number)} missing, of {number + len(who)} (IDs {shown}{more}): sums are of the others"


def _launches(number: int) -> str:
    return "1 launch is" if number == 1 else f"{number} launches are"


def _gaps(ids: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """First and last of each range of missing IDs; `ids` must be sorted."""
    places = np.flatnonzero(np.diff(ids) > 1)
    return [(int(ids[place]) + 1, int(ids[place + 1]) - 1) for place in places]
