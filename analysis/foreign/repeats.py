"""Repetitions in a file: a text that was written again behind itself, and rows that come again further down. Pure."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

# Measured digits of different rows that agree by no chance: ten times of three digits.
_SURE_DIGITS = 30
# Distances between equal rows that are tried, the most frequent first.
_MOST_LAGS = 5
# A row that comes more often says little about the distance.
_RARE = 4


def without_second_half(text: str) -> tuple[str, bool]:
    """The text without a second half that says line for line what the first says, and whether there was one."""
    lines = text.splitlines(keepends=True)
    half, odd = divmod(len(lines), 2)
    if odd or half < 2 or [line.rstrip() for line in lines[:half]] != [line.rstrip() for line in lines[half:]]:  # noqa: PLR2004
        return text, False
    return "".join(lines[:half]), True


def again(rows: Sequence[Hashable], measured: Sequence[str]) -> list[int]:
    """The rows that say, one after the other, what rows before them say, where that is no coincidence.

    `measured`: the figures of each row that differ from run to run. Rows whose figures are all alike prove nothing.
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
