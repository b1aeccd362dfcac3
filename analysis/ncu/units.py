"""Units as ncu prints them: decimal prefixes, and spellings that changed with its versions."""

import functools
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

_TABLE = Path(__file__).with_name("units.toml")


class Quantity(StrEnum):
    """What a unit measures; values come in the base unit that is named here."""

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
    """Base units of `kind` in one `unit`; None for a unit of another kind, or none that is known."""
    return _table()[kind].get(unit.strip())
