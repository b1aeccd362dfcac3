"""How batch size and precision move a step on the roofline. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pandas as pd

from analysis.configurations import CONFIGURATION, PLACE
from analysis.loading import Tables
from analysis.roofline import frame, names_of, point_rows


@dataclass(frozen=True, kw_only=True)
class ShiftRow:
    """A row of `shifts`."""

    place: str | None
    device_name: str | None
    model: str
    source: str
    changed: str
    left: str
    right: str
    at: str | None
    intensity_left: float | None
    intensity_right: float | None
    intensity_ratio: float | None
    flop_per_s_ratio: float | None
    bound_left: str | None
    bound_right: str | None


def shifts(results: Tables) -> pd.DataFrame:
    """How batch size and precision move a step: a row per step from one to the next, all else being equal.

    `changed` is `batch_size` or `precision`, from `left` to `right` at the value `at` of the other one; ratios are
    right by left. A lower bound of FLOP is compared with nothing.
    """
    rows = [{**pool.facts, **vars(row)} for pool, row in point_rows(results)]
    pairs = [pair for changed in ("batch_size", "precision") for pair in _pairs(rows, changed)]
    return frame(list(map(vars, pairs)), names_of(ShiftRow))


# From the slow and exact to the fast.
_PRECISIONS = ("fp32", "tf32", "bf16", "amp")


def _pairs(rows: Sequence[Mapping[str, Any]], changed: str) -> Iterator[ShiftRow]:
    other = "precision" if changed == "batch_size" else "batch_size"
    fixed = [name for name in (*CONFIGURATION, *PLACE, "driver_version", "torch", "source") if name != changed]
    series: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row[changed] is not None and not row["flop_is_lower_bound"]:
            series[tuple(row[name] for name in fixed)].append(row)
    for line in series.values():
        line.sort(key=lambda row: _rank(row[changed]))
        for left, right in pairwise(line):
            if left[changed] != right[changed]:
                yield ShiftRow(
                    **{name: left[name] for name in ("place", "device_name", "model", "source")},
                    changed=changed,
                    left=str(left[changed]),
                    right=str(right[changed]),
                    at=str(left[other]) if left[other] is not None else None,
                    intensity_left=left["intensity_flop_per_byte"],
                    intensity_right=right["intensity_flop_per_byte"],
                    intensity_ratio=_quotient(right, left, "intensity_flop_per_byte"),
                    flop_per_s_ratio=_quotient(right, left, "flop_per_s"),
                    bound_left=left["bound"],
                    bound_right=right["bound"],
                )


def _rank(value: Any) -> float:
    if isinstance(value, str):
        return _PRECISIONS.index(value) if value in _PRECISIONS else len(_PRECISIONS)
    return float(value)


def _quotient(right: Mapping[str, Any], left: Mapping[str, Any], name: str) -> float | None:
    return right[name] / left[name] if right[name] is not None and left[name] else None
