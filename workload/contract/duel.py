"""The rule of a duel: is variant B slower than A, faster, or the same? Decided while segments come in. Pure.

Segments come in quadruples, ABBA or BAAB, each one's order drawn by lot (`order`). A quadruple gives one difference of
logarithms, free of every steady drift. Where both variants are the same program, the lot alone decides the sign of each
difference, whatever the machine does: slow waves, throttling and heavy tails change how large differences are, and no
sign. So evidence is counted as a bet on signs that nobody can win in the long run: for a shift and a stake, the product
over quadruples of exp(bet) / cosh(bet), with bet = stake x (difference - shift), is a martingale where differences are
symmetric about the shift, and exceeds 100 at any time in at most 1 of 100 duels (Ville 1939). One may look after every
quadruple. Any odd function of the difference may be bet: here it is held within limits, as Huber's.

de la Pena, A general class of exponential inequalities for martingales and ratios, Annals of Probability 27 (1999), for
symmetric variables; Howard, Ramdas, McAuliffe & Sekhon, Time-uniform, nonparametric, nonasymptotic confidence
sequences, Annals of Statistics 49 (2021), for intervals and mixtures; Fisher, The Design of Experiments, 1935, for the
lot.
"""

import random
from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from math import ceil, exp, expm1, isfinite, log, log1p
from statistics import median

from workload.contract.text import counted, percent, signed_percent

# Smaller differences are the same for a build that is to be let through or not.
MARGIN = 0.02
# Of duels of a program against itself that end in "faster" or "slower", at most this share, by the mathematics above.
ERROR = 0.02
# A difference is spoken of where it is surely more than this share of the margin: what sits in the positions themselves
# (a cold first segment, a timer's grain) is smaller.
CALLED_FROM = 0.25
# Stakes, in the inverse of the spread between two segments of one variant; each has an equal part of the capital. They
# are best for differences of a fifth of that spread to twice of it.
STAKES = (0.25, 0.5, 1.0, 2.0)
# Larger differences count as this many spreads: a neighbour that came or went within a quadruple decides nothing.
LARGEST = 1.5
# The spread of a quadruple's difference is that of one segment; two segments differ by 0.95 of it in the median.
MEDIAN_TO_SPREAD = 1 / 0.9539
# Segments that differ by less than a clock tells: stakes stay finite.
LEAST_SPREAD = 1e-4
# With fewer quadruples no difference, however clear, reaches the limit: capital less than doubles with each.
LEAST_QUADRUPLES = 8
LOG_2 = log(2.0)
# Fewer differences tell no spread, and so not how many are needed.
LEAST_FOR_SPREAD = 3
# 1 / Phi^-1(3/4): makes the median absolute deviation of a normal sample its standard deviation.
MAD_TO_SPREAD = 1.4826
# The middle is that of the latest quadruples: all pairs of 200 are 20,000.
MOST_FOR_PAIRS = 200
SEGMENTS = 4
PATTERNS = ("ABBA", "BAAB")
# Ends of intervals are looked for up to a factor of 1000 and halved until they are known to 1 in a million.
WIDEST, HALVINGS = log(1000.0), 24


class DuelVerdict(StrEnum):
    """B against A."""

    SAME = "same"
    SLOWER = "slower"
    FASTER = "faster"
    NOT_DECIDABLE = "not decidable"


@dataclass(frozen=True, kw_only=True)
class Segment:
    """`seconds`: the median step of one stretch of work of one variant; `position` counts stretches from 0.

    `is_busy`: other processes used the machine meanwhile.
    """

    position: int
    variant: str
    seconds: float
    is_busy: bool = False


@dataclass(frozen=True, kw_only=True)
class DuelState:
    """`verdict`: None while more quadruples are needed, about `expected` of them; a verdict stays once it is reached.

    `ratio`: seconds of B over those of A with its interval, that covers the truth at every look in `level` of duels;
    None where there are too few quadruples. `spread`: by how much segments of one variant differ. `left_out`:
    quadruples with a segment that has no time. `busy`: segments on a busy machine. `withheld`: the winner of all
    quadruples, where those without a busy segment do not name it.
    """

    verdict: DuelVerdict | None
    ratio: float | None
    low: float | None
    high: float | None
    level: float
    margin: float
    quadruples: int
    left_out: int
    expected: int | None
    spread: float | None
    ended: str | None
    busy: int = 0
    withheld: DuelVerdict | None = None

    @property
    def interval(self) -> str:
        """`98 %: -0.4 % to +0.6 %`, of B against A."""
        if self.low is None or self.high is None:
            return "no interval yet"
        return f"{percent(self.level)}: {signed_percent(self.low - 1)} to {signed_percent(self.high - 1)}"

    @property
    def reason(self) -> str:
        """What the verdict rests on, or why there is none, and how busy the machine was."""
        return self._verdict_words + self._busy_words

    @property
    def _busy_words(self) -> str:
        if not self.busy:
            return ""
        alone = f", and without them B is not known to be {self.withheld}" if self.withheld else ""
        return f"; {self.busy} of {SEGMENTS * self.quadruples} runs on a busy machine{alone}"

    @property
    def _verdict_words(self) -> str:
        after = f"after {counted(self.quadruples, 'quadruple')}"
        about = f"; about {counted(self.expected, 'quadruple')} more would decide" if self.expected else ""
        match self.verdict:
            case None:
                return f"undecided {after} ({self.interval}){about}"
            case DuelVerdict.SAME:
                return f"B takes the same time as A within {percent(self.margin)} ({self.interval}), {after}"
            case DuelVerdict.SLOWER | DuelVerdict.FASTER if self.ratio is not None:
                less_or_more = "longer" if self.verdict is DuelVerdict.SLOWER else "less time"
                return f"B takes {percent(abs(self.ratio - 1))} {less_or_more} than A ({self.interval}), {after}"
        if self.spread is None:
            return f"{self.ended} before a quadruple was complete"
        noise = f"segments of one variant differ by {percent(self.spread)} themselves"
        return f"{self.ended} {after} ({self.interval}); {noise}{about}"


def order(seed: int) -> Iterator[str]:
    """The variant of each position, for ever: each quadruple ABBA or BAAB by lot."""
    lot = random.Random(seed)  # noqa: S311 - repeatable, and no secret
    while True:
        yield from lot.choice(PATTERNS)


def judge(
    segments: Sequence[Segment], *, margin: float = MARGIN, error: float = ERROR, ended: str | None = None
) -> DuelState:
    """Where the duel stands after these segments; `ended` is why there will be no more (`60 s are over`).

    *same*: the interval lies within the margin; *slower*, *faster*: it lies beyond a quarter of the margin on one side,
    also without the quadruples in which the machine was busy.
    The first quadruple at which one of them holds decides. A last quadruple that is not complete does not count yet.
    Raises ValueError where positions or variants do not follow `order`.
    """
    quadruples, left_out = _quadruples(segments)
    edge, called, limit = log1p(margin), log1p(CALLED_FROM * margin), log(2 / error)
    not_faster, not_slower = _Evidence(shift=-edge), _Evidence(shift=edge, sign=-1)
    slower, faster = _Evidence(shift=called), _Evidence(shift=-called, sign=-1)
    quiet = {DuelVerdict.SLOWER: _Evidence(shift=called), DuelVerdict.FASTER: _Evidence(shift=-called, sign=-1)}
    verdict, withheld, used = None, None, 0
    while verdict is None and used < len(quadruples):
        quadruple = quadruples[used]
        for evidence in (not_faster, not_slower, slower, faster, *(() if quadruple.busy else quiet.values())):
            evidence.add(quadruple)
        used += 1
        if not_faster.log_capital > limit and not_slower.log_capital > limit:
            verdict = DuelVerdict.SAME
        elif slower.log_capital > limit:
            verdict = DuelVerdict.SLOWER
        elif faster.log_capital > limit:
            verdict = DuelVerdict.FASTER
        withheld = verdict if verdict in quiet and quiet[verdict].log_capital <= limit else None
        verdict = None if withheld else verdict
    state = _state(quadruples[:used], verdict, margin=margin, error=error, left_out=left_out, ended=ended)
    busy = sum(quadruple.busy for quadruple in quadruples[:used])
    return replace(state, busy=busy, withheld=withheld, expected=None if withheld else state.expected)


# --- from segments to differences


@dataclass(frozen=True, kw_only=True)
class _Quadruple:
    """`difference` of logarithms, B less A; `spread`: of one segment, from all quadruples so far; `busy` segments.

    Two segments of one variant differ by the machine alone, whatever the lot, so stakes may depend on the spread.
    """

    difference: float
    spread: float
    busy: int = 0


def _quadruples(segments: Sequence[Segment]) -> tuple[list[_Quadruple], int]:
    """The complete ones in their order, and how many were left out."""
    quadruples, apart, left_out = list[_Quadruple](), list[float](), 0
    ordered = sorted(segments, key=lambda segment: segment.position)
    for number, group in groupby(ordered, key=lambda segment: segment.position // SEGMENTS):
        four = list(group)
        positions, pattern = [segment.position for segment in four], "".join(segment.variant for segment in four)
        whole = list(range(number * SEGMENTS, (number + 1) * SEGMENTS))
        is_last = four[-1] is ordered[-1] and positions == whole[: len(four)] and len(four) < SEGMENTS
        if is_last and any(known.startswith(pattern) for known in PATTERNS):
            break
        if positions != whole or pattern not in PATTERNS:
            raise ValueError(f"segments {positions} are '{pattern}': four in a row must be {' or '.join(PATTERNS)}")
        if not all(isfinite(segment.seconds) and segment.seconds > 0 for segment in four):
            left_out += 1
            continue
        outer_1, inner_1, inner_2, outer_2 = (log(segment.seconds) for segment in four)
        for difference in (outer_1 - outer_2, inner_1 - inner_2):
            insort(apart, abs(difference))
        sign = 1 if pattern == "ABBA" else -1
        quadruples.append(
            _Quadruple(
                difference=sign * (inner_1 + inner_2 - outer_1 - outer_2) / 2,
                spread=max(MEDIAN_TO_SPREAD * median(apart), LEAST_SPREAD),
                busy=sum(segment.is_busy for segment in four),
            )
        )
    return quadruples, left_out


class _Evidence:
    """That the difference is above `shift` (below, with `sign` -1), as the capital of who bets on it with 1."""

    def __init__(self, *, shift: float, sign: int = 1) -> None:
        self._shift, self._sign, self._logs = shift, sign, [0.0] * len(STAKES)

    def add(self, quadruple: _Quadruple) -> None:
        """Win or lose by one more quadruple."""
        size = self._sign * (quadruple.difference - self._shift) / quadruple.spread
        for number, stake in enumerate(STAKES):
            bet = stake * max(-LARGEST, min(size, LARGEST))
            # The logarithm of exp(bet) / cosh(bet), without overflow.
            self._logs[number] += bet - abs(bet) - log1p(exp(-2 * abs(bet))) + LOG_2

    @property
    def log_capital(self) -> float:
        """Of all stakes together."""
        largest = max(self._logs)
        return largest + log(sum(exp(capital - largest) for capital in self._logs) / len(STAKES))


def _log_capital(quadruples: Sequence[_Quadruple], shift: float, sign: int) -> float:
    evidence = _Evidence(shift=shift, sign=sign)
    for quadruple in quadruples:
        evidence.add(quadruple)
    return evidence.log_capital


# --- what is said of them


def _state(
    quadruples: Sequence[_Quadruple],
    verdict: DuelVerdict | None,
    *,
    margin: float,
    error: float,
    left_out: int,
    ended: str | None,
) -> DuelState:
    ends = _interval(quadruples, limit=log(2 / error))
    middle = _middle([quadruple.difference for quadruple in quadruples]) if quadruples else None
    if middle is not None and ends:
        middle = min(max(middle, ends[0]), ends[1])
    needed = _needed(quadruples, middle, margin=margin, limit=log(2 / error))
    expected = None if verdict or needed is None else max(needed - len(quadruples), 1)
    if ended and verdict is None:
        verdict = DuelVerdict.NOT_DECIDABLE
    return DuelState(
        verdict=verdict,
        ratio=None if middle is None else exp(middle),
        low=exp(ends[0]) if ends else None,
        high=exp(ends[1]) if ends else None,
        level=1 - error,
        margin=margin,
        quadruples=len(quadruples),
        left_out=left_out,
        expected=expected,
        spread=expm1(quadruples[-1].spread) if quadruples else None,
        ended=ended,
    )


def _interval(quadruples: Sequence[_Quadruple], *, limit: float) -> tuple[float, float] | None:
    """The shifts that neither bet rules out; None where the ends are beyond a factor of 1000."""
    ends = []
    for sign in (1, -1):
        inside, outside = sign * WIDEST, -sign * WIDEST
        if _log_capital(quadruples, outside, sign) <= limit:
            return None
        for _ in range(HALVINGS):
            shift = (inside + outside) / 2
            if _log_capital(quadruples, shift, sign) > limit:
                outside = shift
            else:
                inside = shift
        ends.append(outside)
    return (ends[0], ends[1]) if ends[0] < ends[1] else None


def _middle(differences: Sequence[float]) -> float:
    """The median of the means of all pairs: Hodges & Lehmann, Annals of Mathematical Statistics 34 (1963)."""
    recent = differences[-MOST_FOR_PAIRS:]
    return median((first + second) / 2 for number, first in enumerate(recent) for second in recent[number:])


def _needed(quadruples: Sequence[_Quadruple], middle: float | None, *, margin: float, limit: float) -> int | None:
    """Quadruples that a verdict takes, about: capital grows by gap^2 / (spread^2 + gap^2) / 2 with each."""
    if middle is None or len(quadruples) < LEAST_FOR_SPREAD:
        return None
    spread = max(MAD_TO_SPREAD * median(abs(one.difference - middle) for one in quadruples), LEAST_SPREAD)
    # The nearer verdict: the same, or a difference.
    gap = max(log1p(margin) - abs(middle), abs(middle) - log1p(CALLED_FROM * margin))
    growth = min(gap**2 / (spread**2 + gap**2) / 2, LOG_2)
    return max(LEAST_QUADRUPLES, ceil((limit + log(len(STAKES))) / growth))
