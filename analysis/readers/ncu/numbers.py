"""Reads the numbers in a file of ncu: plain ones, and ones with commas between thousands, as in 2,433,449.5.

ncu follows the locale of its machine. A file whose decimal mark is a comma is refused: `LC_ALL=C` avoids it.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Text: TypeAlias = pa.ChunkedArray
Floats = npt.NDArray[np.float64]

ABSENT = ("", "n/a", "N/A", "nan", "-nan", "inf", "-inf")

_NUMBER = r"^\s*[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\s*$"
# Commas that separate no thousands, and dots that do: 65,77; 0,344; 1234,344; 1.234.567; 1.234,5.
_DECIMAL_COMMA = r"^\s*[-+]?(?:\d*,(?:\d{1,2}|\d{4,})|0,\d+|\d{4,},\d+|\d{1,3}(?:\.\d{3})+[.,]\d+)\s*$"


class DecimalCommaError(ValueError):
    """A number in the format of a locale with decimal commas."""

    def __init__(self, text: str) -> None:
        super().__init__(f"'{text[:80]}' is a number of another locale than English")


def convert(column: Text) -> tuple[Floats, str | None]:
    """Values as floats, NaN if not a number, and the first text that is neither a number nor a mark of absence.

    Raises `DecimalCommaError`.
    """
    position = pc.index(pc.match_substring_regex(column, _DECIMAL_COMMA), value=True).as_py()
    if position >= 0:
        raise DecimalCommaError(column[position].as_py())
    column = pc.replace_substring(column, ",", "")
    foreign = None
    try:
        numbers = pc.cast(column, pa.float64())
    except pa.ArrowInvalid:
        is_number = pc.match_substring_regex(column, _NUMBER)
        texts = column.filter(pc.invert(pc.fill_null(is_number, fill_value=True))).unique().to_pylist()
        foreign = next((text for text in texts if text.strip() not in ABSENT), None)
        kept = pc.if_else(is_number, pc.utf8_trim_whitespace(column), pa.scalar(None, pa.string()))
        numbers = pc.cast(kept, pa.float64())
    return finite(numbers.to_numpy()), foreign


def finite(values: Floats) -> Floats:
    """Values with NaN for infinities, which ncu prints after a division by 0."""
    infinite = np.isinf(values)
    return np.where(infinite, np.nan, values) if infinite.any() else values


def require_whole(values: Floats) -> None:
    """Raise `DecimalCommaError` for a fraction of a count: the dot in 117.344 instructions separates thousands."""
    with np.errstate(invalid="ignore"):
        fractions = values[np.floor(values) < values]
    if len(fractions):
        raise DecimalCommaError(f"{fractions[0]:.15g}")
