"""When to stop adding blocks: every interval that was asked for is narrow enough, whatever one saw on the way. Pure.

Looking again and again and stopping at the first narrow interval picks samples that happen to vary little: 95 %
intervals then cover 88 %, and with normal quantiles 68 %. So one looks at fixed numbers of blocks only, and the
interval of each look leaves out 3 %: the error is spent look by look at a constant nominal level (Lan & DeMets,
Biometrika 70, 1983; Pocock, Biometrika 64, 1977; repeated intervals: Jennison & Turnbull, JRSS B 51, 1989). The level
is chosen for stops by width, which of a normal sample say nothing about its mean (Anscombe, JRSS B 15, 1953; Starr,
Annals of Mathematical Statistics 37, 1966): over all looks intervals cover 94.4 % to 97 %, whatever the spread is
(benchmarks/blocks.py --parts until). Heavy tails change little; of figures as skewed as an exponential they cover 84 %
to 93 %, where naive peeking covers 76 % to 92 %. Differences within blocks are hardly skewed, throughputs may be.
Stopping because a difference shows needs another rule: `workload.contract.duel`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from math import cos, exp, expm1, inf, isfinite, log, pi, sin, sqrt
from statistics import NormalDist, fmean, stdev

from workload.contract.text import counted, percent

LEVEL = 0.95
# Looks: 4, 5, 7, 9, 12, 15, 19, 24, 30, 38, 48, ... blocks. From 3 on, 95 % intervals would cover 93.5 % in the worst
# case in place of 94.4 %.
FIRST_LOOK = 4
GROWTH = 1.25
# Share that the interval of one look leaves out. With 5 % in its place, coverage falls to 91 %.
NOMINAL = 0.03
# Beyond this nobody waits for it.
MOST_EXPECTED = 10_000
# Ends of a quantile are halved until they are known to 15 digits; from so many degrees of freedom on, an expansion in
# their inverse is exact to 6.
HALVINGS = 60
MANY_DEGREES = 60


@dataclass(frozen=True, kw_only=True)
class BlocksInterval:
    """Where one figure stands: its geometric mean over blocks, and an interval that covers it in 95 % with stopping.

    `half_width`: the larger distance from the figure to an end, as a fraction of the figure. `expected`: blocks in all
    that make it narrow, about; None where nobody can tell. `reason`: why there is no interval.
    """

    blocks: int
    value: float | None
    low: float | None
    high: float | None
    half_width: float | None
    target: float
    is_narrow: bool
    expected: int | None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """`is_done`: stop here. `add`: blocks until the next look, 0 where it is done.

    `expected`: blocks that are still to come until all are narrow, about. `widest`: the name of the widest interval.
    """

    is_done: bool
    is_narrow: bool
    blocks: int
    add: int
    expected: int | None
    widest: str | None
    target: float
    precisions: Mapping[str, BlocksInterval]

    @property
    def reason(self) -> str:
        """A sentence for the line of the sweep."""
        after = f"after {counted(self.blocks, 'block')}"
        if self.widest is None:
            return "nothing to be sure of: no interval was asked for"
        widest = self.precisions[self.widest]
        width = widest.reason if widest.half_width is None else f"+-{percent(widest.half_width)}"
        if self.is_narrow:
            return f"every interval is within +-{percent(self.target)} {after} (the widest: {self.widest}, {width})"
        if self.is_done:
            return f"not within +-{percent(self.target)} {after}, the most that were allowed: {self.widest}, {width}"
        about = f", about {self.expected} until all are narrow enough" if self.expected else ""
        return f"{self.widest} is the widest {after}: {width}; next look after {self.add} more{about}"


def looks() -> Iterator[int]:
    """The numbers of blocks at which one looks."""
    blocks = FIRST_LOOK
    while True:
        yield blocks
        blocks = int(-(-blocks * GROWTH // 1))


def precision(figures: Sequence[float], *, target: float) -> BlocksInterval:
    """Of one positive figure per block: a throughput, or the ratio of two within the block.

    Student's t on logarithms at the level of one look. Figures that are not positive numbers do not count.
    """
    logs = [log(figure) for figure in figures if isfinite(figure) and figure > 0]
    n = len(logs)
    value = exp(fmean(logs)) if logs else None
    if n < FIRST_LOOK or value is None:
        return _without_interval(n, value, target, f"the first look is at {FIRST_LOOK} blocks")
    if max(logs) == min(logs):
        same = f"all {n} blocks read exactly the same: no interval (copies of one block?)"
        return _without_interval(n, value, target, same)
    spread = stdev(logs)
    reach = _reach(spread, n)
    further = (max(blocks, n) for blocks in takewhile(lambda blocks: blocks <= MOST_EXPECTED, looks()))
    return BlocksInterval(
        blocks=n,
        value=value,
        low=value * exp(-reach),
        high=value * exp(reach),
        half_width=expm1(reach),
        target=target,
        is_narrow=expm1(reach) <= target,
        expected=next((blocks for blocks in further if expm1(_reach(spread, blocks)) <= target), None),
    )


def _without_interval(blocks: int, value: float | None, target: float, reason: str) -> BlocksInterval:
    return BlocksInterval(
        blocks=blocks,
        value=value,
        low=None,
        high=None,
        half_width=None,
        target=target,
        is_narrow=False,
        expected=None,
        reason=reason,
    )


def _reach(spread: float, blocks: int) -> float:
    """Half of the interval of logarithms that vary by `spread`."""
    return student(NOMINAL, blocks - 1) * spread / sqrt(blocks)


def decide(series: Mapping[str, Sequence[float]], *, target: float, most: int | None = None) -> Decision:
    """Whether to stop after these blocks, by the figures of each configuration or difference that was asked for.

    Between two looks the answer is to go on. A series that lacks blocks is as long as it is: one that cannot get any,
    out of memory say, has to be left out by the caller. `most`: no more blocks than this are run.
    """
    precisions = {name: precision(figures, target=target) for name, figures in series.items()}
    blocks = max((len(figures) for figures in series.values()), default=0)
    at_most = most is not None and blocks >= most
    past = list(takewhile(lambda look: look <= blocks, looks()))
    is_look = at_most or blocks in past
    is_narrow = is_look and bool(precisions) and all(one.is_narrow for one in precisions.values())
    is_done = is_narrow or at_most or not precisions
    next_look = next(look for look in looks() if look > blocks)
    add = 0 if is_done else min(next_look, most or next_look) - blocks
    totals = [one.expected for one in precisions.values()]
    known = [total for total in totals if total is not None]
    return Decision(
        is_done=is_done,
        is_narrow=is_narrow,
        blocks=blocks,
        add=add,
        expected=max(max(known) - blocks, add) if not is_done and len(known) == len(totals) else None,
        widest=max(precisions, key=lambda name: _width(precisions[name]), default=None),
        target=target,
        precisions=precisions,
    )


def _width(one: BlocksInterval) -> float:
    return inf if one.half_width is None else one.half_width


@cache
def student(outside: float, degrees: int) -> float:
    """The quantile of Student's t that leaves this share outside of +- itself.

    Abramowitz & Stegun, Handbook of Mathematical Functions, 1964, 26.7.3 and 26.7.4; of many degrees 26.7.5.
    """
    if degrees > MANY_DEGREES:
        z = NormalDist().inv_cdf(1 - outside / 2)
        first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
        third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
        return z + first / degrees + second / degrees**2 + third / degrees**3
    low, high = 0.0, pi / 2
    for _ in range(HALVINGS):
        angle = (low + high) / 2
        if _inside(angle, degrees) < 1 - outside:
            low = angle
        else:
            high = angle
    # Of the angle whose tangent is t / sqrt(degrees).
    return sqrt(degrees) * sin(low) / cos(low)


def _inside(angle: float, degrees: int) -> float:
    """Chance that |t| is below sqrt(degrees) x tan(angle)."""
    term = cos(angle) if degrees % 2 else 1.0
    total = 0.0
    for factor in range(2 + degrees % 2, degrees + 1, 2):
        total += term
        term *= cos(angle) ** 2 * (factor - 1) / factor
    return 2 / pi * (angle + sin(angle) * total) if degrees % 2 else sin(angle) * total
