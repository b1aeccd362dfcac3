"""Spans of time, each a beginning and an end in one unit and on one clock. Standard library only."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

Span = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Span]:
    """Disjoint spans, in order, that cover the same times as `spans`."""
    found: list[Span] = []
    for began, ended in sorted(spans):
        if found and began <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], ended)
        else:
            found.append((began, ended))
    return found


def length(spans: Iterable[Span]) -> float:
    """Time that at least one of the spans covers."""
    return sum(ended - began for began, ended in union(spans))


def common(spans: Iterable[Span], disjoint: Sequence[Span]) -> float:
    """Time that one of `spans` covers, and also one of `disjoint`, which do not overlap and are in order."""
    total = 0.0
    for began, ended in union(spans):
        index = max(0, bisect_left(disjoint, (began,)) - 1)
        while index < len(disjoint) and disjoint[index][0] < ended:
            total += max(0.0, min(ended, disjoint[index][1]) - max(began, disjoint[index][0]))
            index += 1
    return total
