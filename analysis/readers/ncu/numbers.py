"""Reads the numbers in a file of ncu. Some files write 2,433,449.5, others 2.433.449,5: the style is found out first.

ncu follows the locale of its machine, and prints 2 or 6 digits after the decimal mark. Exactly 3 digits after a mark
are therefore thousands, unless other numbers contradict.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Text: TypeAlias = pa.ChunkedArray
Floats = npt.NDArray[np.float64]

ABSENT = ("", "n/a", "N/A", "nan", "-nan", "inf", "-inf")

_NUMBER = r"^\s*[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\s*$"
# Patterns of unambiguous marks; {0} separates thousands, {1} the fraction.
_SURE = r"\d{0}\d\d\d{0}\d|{0}\d\d\d{1}\d|{1}\d{{1,2}}$|{1}\d{{4,}}|^[-+]?0{1}\d|\d\d\d\d{1}\d"
_PATTERNS = {"english": _SURE.format(",", r"\."), "european": _SURE.format(r"\.", ","), "comma": ","}
_PATTERNS_OF_WHOLE = {"whole dot": r"\.\d\d\d$", "whole comma": r",\d\d\d$"}
# Number of rows at either end that are examined first.
_END_ROWS = 10_000
# Grouping by apostrophes or any kind of blank: 1'234, 1 234.
_OTHER_GROUPS = "(\\d)['\u2019\u00a0\u202f\u2009 ](\\d)"


class NumberFormat(StrEnum):
    """Thousands and decimal marks of a file."""

    PLAIN = "1234.5"
    ENGLISH = "1,234.5"
    EUROPEAN = "1.234,5"


class MixedNumbersError(ValueError):
    """Two numbers of one file that no single format can represent."""

    def __init__(self, english: str, european: str) -> None:
        super().__init__(f"'{english}' and '{european}' cannot be numbers of one format")


def decide(columns: Sequence[tuple[Text, bool]]) -> NumberFormat:
    """The number format that all columns share. Each column has a flag: True if its values are integers by nature.

    Both ends of the file decide if possible, else the whole file. Raises `MixedNumbersError`.
    """
    ends = [(part, is_whole) for column, is_whole in columns for part in (column[:_END_ROWS], column[-_END_ROWS:])]
    marks = _marks(ends)
    if not {"english", "european"} & marks.keys():
        marks = _marks(columns)
    if {"english", "european"} <= marks.keys():
        raise MixedNumbersError(marks["english"], marks["european"])
    if "european" in marks or ("whole dot" in marks and not {"english", "whole comma"} & marks.keys()):
        return NumberFormat.EUROPEAN
    return NumberFormat.ENGLISH if {"english", "comma"} & marks.keys() else NumberFormat.PLAIN


def _marks(columns: Iterable[tuple[Text, bool]]) -> dict[str, str]:
    """An example number for each clue to the number format that the columns contain.

    Keys: `english`, `european`: the number can only have this format. `comma`: it contains a comma. `whole dot`,
    `whole comma`: it is an integer by nature, and ends in 3 digits after this mark.
    """
    evidence: dict[str, str] = {}
    for column, is_whole in columns:
        if not _has(column, ",") and not _has(column, "."):
            continue
        for shown, pattern in (_PATTERNS | _PATTERNS_OF_WHOLE if is_whole else _PATTERNS).items():
            cell = _first(column, pattern)
            if cell is not None:
                evidence[shown] = cell
    return evidence


def convert(column: Text, form: NumberFormat) -> tuple[Floats, str | None]:
    """Values as floats, NaN if not a number, and the first text that is neither a number nor a mark of absence."""
    match form:
        case NumberFormat.ENGLISH if _has(column, ","):
            column = pc.replace_substring(column, ",", "")
        case NumberFormat.EUROPEAN:
            column = pc.replace_substring(pc.replace_substring(column, ".", ""), ",", ".")
        case _:
            pass
    foreign = None
    try:
        numbers = pc.cast(column, pa.float64())
    except pa.ArrowInvalid:
        column = _ungrouped(column)
        is_number = pc.match_substring_regex(column, _NUMBER)
        foreign = _first_foreign(column.filter(pc.invert(pc.fill_null(is_number, fill_value=True))))
        kept = pc.if_else(is_number, pc.utf8_trim_whitespace(column), pa.scalar(None, pa.string()))
        numbers = pc.cast(kept, pa.float64())
    return finite(numbers.to_numpy()), foreign


def finite(values: Floats) -> Floats:
    """Values with NaN for infinities, which ncu prints after a division by 0."""
    infinite = np.isinf(values)
    return np.where(infinite, np.nan, values) if infinite.any() else values


def _ungrouped(column: Text) -> Text:
    # Twice, because matches that share a digit, as in 1'2'3, are not found in one pass.
    for _ in range(2):
        column = pc.replace_substring_regex(column, _OTHER_GROUPS, r"\1\2")
    return column


def _first_foreign(texts: Text) -> str | None:
    return next((text for text in texts.unique().to_pylist() if text.strip() not in ABSENT), None)


def _has(column: Text, mark: str) -> bool:
    return pc.any(pc.match_substring(column, mark)).as_py() is True


def _first(column: Text, pattern: str) -> str | None:
    position = pc.index(pc.match_substring_regex(column, pattern), value=True).as_py()
    cell: str | None = None if position < 0 else column[position].as_py()
    return cell
