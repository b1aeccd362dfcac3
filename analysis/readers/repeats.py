"""Detect repetitions in a file: a text that was appended to itself, and rows that are repeated further down. Pure."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

# Number of measured digits whose agreement is no coincidence: ten times with three digits.
_SURE_DIGITS = 30
# Number of distances between equal rows that are tried, most frequent first.
_MOST_LAGS = 5
# Rows that occur more often say little about the distance.
_RARE = 4


def without_second_half(text: str) -> tuple[str, bool]:
    """The text without its second half if both halves are equal line by line, and whether they were."""
    lines = text.splitlines(keepends=True)
    half, odd = divmod(len(lines), 2)
    if odd or half < 2 or [line.rstrip() for line in lines[:half]] != [line.rstrip() for line in lines[half:]]:  # noqa: PLR2004
        return text, False
    return "".join(lines[:half]), True


def again(rows: Sequence[Hashable], measured: Sequence[str]) -> list[int]:
    """Indices of rows that repeat a sequence of earlier rows, if that is no coincidence.

    `measured`: the figures of each row that differ between runs. Rows with all figures alike prove nothing.
    """
    places: dict[Hashable, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        places[row].append(index)
    lags = Counter(
        after - before
        for found in places.values()
        if 1 < len(found) <= _RARE
        for position, before in enumerate(found)
        for after in found[position + 1 :]
    )
    dropped = set[int]()
    for lag, _ in lags.most_common(_MOST_LAGS):
        run: list[int] = []
        for index in range(lag, len(rows) + 1):
            if index < len(rows) and rows[index] == rows[index - lag]:
                run.append(index)
                continue
            if sum(sum(map(str.isdigit, figures)) for figures in {measured[one] for one in run}) >= _SURE_DIGITS:
                dropped.update(run)
            run = []
    return sorted(dropped)
