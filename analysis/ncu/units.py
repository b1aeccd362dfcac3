"""Units as printed by ncu: decimal prefixes, and spellings that differ between versions."""

import functools
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

_TABLE = Path(__file__).with_name("units.toml")


class Quantity(StrEnum):
    """Kind of quantity that a unit measures; the comments name base units."""

    TIME = "time"  # s
    BYTES = "bytes"
    COUNT = "count"
    PERCENT = "percent"
    BYTES_PER_SECOND = "bytes_per_second"
    FREQUENCY = "frequency"  # Hz
    PER_CYCLE = "per_cycle"


@functools.cache
def _table() -> Mapping[Quantity, Mapping[str, float]]:
    content = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    return {Quantity(kind): factors for kind, factors in content.items()}


def factor(kind: Quantity, unit: str) -> float | None:
    """Number of base units of `kind` in one `unit`; None for an unknown unit or one of another kind."""
    return _table()[kind].get(unit.strip())
