"""Decision rule of a duel: variant B is slower than A by a margin or more, faster, or the same within the margin.

Segments come in quadruples, ABBA or BAAB, in random order (`order`). Each quadruple gives one difference of logarithms,
from which every steady drift cancels. If both variants are the same program, the random order alone decides the sign of
each difference: slow waves, throttling and heavy tails of the machine change the sizes, but no sign. The verdict uses
the mean of two e-processes for each hypothesis "the difference exceeds `shift`". An e-process starts at 1. If the
hypothesis is false, it ever reaches 40 in at most 1 of 40 duels (Ville 1939), so testing after every quadruple is
valid. The mean of two e-processes has the same property.

Signs: a bet that cannot be won in the long run. For a shift and a stake, the product over quadruples of exp(bet) /
cosh(bet), with bet = stake x (difference - shift), is a martingale if differences are symmetric about the shift. The
bet may be any odd function of the difference: here, the difference is clipped, as by Huber's function. The capital at
most doubles with each quadruple, so even a very large difference needs several quadruples.

Sizes: the anytime-valid t-test, a mixture of likelihood ratios of normal differences over effects that are a multiple
of the unknown spread. Its evidence is the smaller of two: with the spread between differences, and with that spread
pooled with the differences between a variant's own two segments. Therefore quadruples that all begin with a slow
segment are no evidence. Without normality only the random order is certain: n differences of equal size have one sign
with probability 2 / 2^n, so there is no verdict before the sixth quadruple (3 %).

de la Pena, A general class of exponential inequalities for martingales and ratios, Annals of Probability 27 (1999), for
symmetric variables; Howard, Ramdas, McAuliffe & Sekhon, Time-uniform, nonparametric, nonasymptotic confidence
sequences, Annals of Statistics 49 (2021), for intervals and mixtures; Wang & Ramdas, Anytime-valid t-tests and
confidence sequences for Gaussian means with unknown variance (2024); Fisher, The Design of Experiments, 1935, for the
random order. `python benchmarks/duel.py` simulates the errors.
"""

import random
from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from math import ceil, exp, expm1, inf, isfinite, log, log1p, log2, sqrt
from statistics import median, stdev

from workload.contract.text import counted, percent, signed_percent

# Default margin: smaller differences do not matter for the choice between two variants.
MARGIN = 0.02
# Share of duels in which the interval ever excludes the truth; half of them on either side. A verdict follows from
# the interval.
ERROR = 0.05
# Stakes of the bets on signs, in units of 1 / s, where s is the spread of segments of one variant. The capital is
# divided equally among the stakes. These stakes are best for differences of 0.2 s to 2 s.
STAKES = (0.25, 0.5, 1.0, 2.0)
# Larger differences count as this many spreads, so that other work that starts or ends within a quadruple cannot
# decide.
LARGEST = 1.5
# The difference of a quadruple has the spread of one segment. The median absolute difference of two segments is 0.95
# times this spread.
MEDIAN_TO_SPREAD = 1 / 0.9539
# Lower limit of the spread, for segments that differ by less than the clock's resolution; it keeps stakes finite.
LEAST_SPREAD = 1e-4
# With 5 quadruples, differences of equal size all have one sign by chance in 6 % of duels.
LEAST_QUADRUPLES = 6

# Inverse variance of the mixture of effects, in spreads: best for effects of about 2 spreads, for which a few
# quadruples suffice. With 0.1 or 1, the same number of quadruples is needed.
PRIOR = 0.3
LOG_2 = log(2.0)
# Fewest differences from which the spread, and the number of quadruples needed, are estimated.
LEAST_FOR_SPREAD = 3
# Largest number of quadruples that is predicted; a difference that needs more is too close to the margin.
MOST_EXPECTED = 1000
# A duel is given up if its limit would not even suffice for a difference that is this many standard errors easier to
# decide, with this factor more quadruples. Of simulated duels that are decided within a limit of 8 to 60 quadruples,
# at most 1.1 % are given up; the others take 51 % to 84 % of their limit (benchmarks/duel.py --forecast).
EASIER, LUCKIER = 1.5, 1.5
# 1 / Phi^-1(3/4): factor from the median absolute deviation of a normal sample to its standard deviation.
MAD_TO_SPREAD = 1.4826
# The estimate uses the latest 200 quadruples, which have 20,000 pairs.
MOST_FOR_PAIRS = 200
SEGMENTS = 4
PATTERNS = ("ABBA", "BAAB")
# Ends of intervals are searched up to a factor of 1000, by bisection to 1 in a million.
WIDEST, HALVINGS = log(1000.0), 24


def least_quadruples(error: float) -> int:
    """Fewest quadruples for a verdict at this level: differences of equal size all have one sign by chance less often.

    n of them do with probability 2 / 2^n, so that the random order alone keeps the level, on any machine.
    """
    return max(LEAST_QUADRUPLES, ceil(log2(2 / error)))


class DuelVerdict(StrEnum):
    """Verdict on B against A: slower or faster by the margin or more, or the same within the margin."""

    SAME = "same"
    SLOWER = "slower"
    FASTER = "faster"
    NOT_DECIDABLE = "not decidable"


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A segment: consecutive steps of one variant. `seconds`: median of the steps; `position` counts segments from 0.

    `is_busy`: other processes used the machine meanwhile.
    """

    position: int
    variant: str
    seconds: float
    is_busy: bool = False


@dataclass(frozen=True, kw_only=True)
class DuelState:
    """State of a duel. `verdict`: None while about `expected` more quadruples are needed; a verdict is final.

    `sign`: slower or faster by any amount, or None if unknown. `ratio`: seconds of B over those of A; None with too few
    quadruples. In a share `level` of duels, the interval from `low` to `high` covers the true ratio after every
    quadruple. `spread`: relative difference of segments of one variant. `left_out`: number of quadruples with a segment
    without a time. `fewest`: total of quadruples without which a verdict is not plausible; None if unknown.
    `busy`: number of segments on a busy machine. `withheld`: verdict from all quadruples, if quadruples
    without busy segments do not confirm this verdict. `ended`: why no more segments follow.
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
    fewest: int | None = None
    busy: int = 0
    withheld: DuelVerdict | None = None
    sign: DuelVerdict | None = None

    @property
    def interval(self) -> str:
        """Interval of B against A in words: `98 %: -0.4 % to +0.6 %`."""
        if self.low is None or self.high is None:
            return f"no interval before {counted(SEGMENTS * least_quadruples(1 - self.level), 'run')}"
        return f"{percent(self.level)}: {signed_percent(self.low - 1)} to {signed_percent(self.high - 1)}"

    @property
    def against(self) -> str:
        """The interval in words that also say what is compared: `B's time against A's, 98 %: -0.4 % to +0.6 %`."""
        return self.interval if self.low is None else f"B's time against A's, {self.interval}"

    @property
    def reason(self) -> str:
        """Text with the figures that explain the verdict, or why none was reached, and how busy the machine was."""
        return self._verdict_text + self._busy_text

    @property
    def _busy_text(self) -> str:
        if not self.busy:
            return ""
        alone = f", and without these runs it is unknown whether B is {self.withheld}" if self.withheld else ""
        return f"; {self.busy} of {SEGMENTS * self.quadruples} runs on a busy machine{alone}"

    @property
    def _verdict_text(self) -> str:
        after = f"after {counted(SEGMENTS * self.quadruples, 'run')}"
        match self.verdict:
            case None:
                return f"undecided {after} ({self.against})"
            case DuelVerdict.SAME if self.sign is None:
                return f"B takes the same time as A within {percent(self.margin)} ({self.interval}), {after}"
            case DuelVerdict.SLOWER | DuelVerdict.FASTER | DuelVerdict.SAME if self.ratio is not None:
                less_or_more = "longer" if self.ratio > 1 else "less time"
                return f"B takes {percent(abs(self.ratio - 1))} {less_or_more} than A ({self.interval}), {after}"
        if self.spread is None:
            return f"{self.ended} before {SEGMENTS} runs were complete"
        noise = f"runs of the same side differ by {percent(self.spread)}"
        # Estimates from few quadruples differ by a factor.
        rounded = SEGMENTS * round(self.expected, 1 - len(str(self.expected))) if self.expected else 0
        about = f"; about {rounded} more runs would decide it" if rounded else ""
        if self.fewest and not rounded:
            about = f"; more than {SEGMENTS * MOST_EXPECTED} runs would be needed"
        return f"{self.ended} {after} ({self.against}); {noise}{about}"


def order(seed: int) -> Iterator[str]:
    """Variant of each position, without end; each quadruple is ABBA or BAAB at random."""
    rng = random.Random(seed)  # noqa: S311 - repeatable, and no secret
    while True:
        yield from rng.choice(PATTERNS)


def judge(
    segments: Sequence[Segment], *, margin: float = MARGIN, error: float = ERROR, ended: str | None = None
) -> DuelState:
    """State of a duel after these segments; `ended`: why no more follow (`60 s are over`), else None.

    *slower*, *faster*: the difference is certainly the margin or more, also without the quadruples on a busy machine.
    *same*: the difference is certainly less; `sign` says whether B is certainly slower or faster at all. The first
    quadruple at which one of these holds decides. An incomplete last quadruple is ignored. Raises `ValueError` if
    positions or variants do not follow `order`.
    """
    quadruples, left_out = _quadruples(segments)
    every = _Claims(margin, error)
    quiet = _Claims(margin, error) if any(quadruple.busy for quadruple in quadruples) else every
    verdict, withheld, sign, used = None, None, None, 0
    while verdict is None and used < len(quadruples):
        every.add(quadruples[used])
        if quiet is not every and not quadruples[used].busy:
            quiet.add(quadruples[used])
        used += 1
        winner, known = every.winner, every.sign
        withheld = winner if winner != quiet.winner else None
        sign = known if known == quiet.sign else None
        verdict = DuelVerdict.SAME if every.is_within else None if withheld else winner
    state = _state(quadruples[:used], verdict, margin=margin, error=error, left_out=left_out, ended=ended)
    busy = sum(quadruple.busy for quadruple in quadruples[:used])
    if withheld:
        state = replace(state, expected=None, fewest=None)
    return replace(state, busy=busy, withheld=withheld, sign=sign)


# --- from segments to differences


@dataclass(frozen=True, kw_only=True)
class _Quadruple:
    """A complete quadruple. `difference`: mean logarithm of B's seconds less A's; `busy`: number of busy segments.

    `spread`: estimated spread of one segment's logarithm, from all quadruples so far. Two segments of one variant
    differ only by the machine, not by the random order, so stakes may depend on the spread. `within`: half of the sum
    of squares of the two differences within a variant; if segments vary alike and independently, the mean of `within`
    is twice the variance of `difference`.
    """

    difference: float
    spread: float
    within: float
    busy: int = 0


def _quadruples(segments: Sequence[Segment]) -> tuple[list[_Quadruple], int]:
    """Complete quadruples in order, and the number of those left out because a segment has no time."""
    quadruples, apart, left_out = list[_Quadruple](), list[float](), 0
    ordered = sorted(segments, key=lambda segment: segment.position)
    for number, group in groupby(ordered, key=lambda segment: segment.position // SEGMENTS):
        members = list(group)
        positions = [segment.position for segment in members]
        pattern = "".join(segment.variant for segment in members)
        expected = list(range(number * SEGMENTS, (number + 1) * SEGMENTS))
        is_begun = len(members) < SEGMENTS and positions == expected[: len(members)]
        if is_begun and members[-1] is ordered[-1] and any(known.startswith(pattern) for known in PATTERNS):
            break
        if positions != expected or pattern not in PATTERNS:
            raise ValueError(f"runs {positions} are '{pattern}': four in a row must be {' or '.join(PATTERNS)}")
        if not all(isfinite(segment.seconds) and segment.seconds > 0 for segment in members):
            left_out += 1
            continue
        outer_1, inner_1, inner_2, outer_2 = (log(segment.seconds) for segment in members)
        outer, inner = outer_1 - outer_2, inner_1 - inner_2
        for difference in (outer, inner):
            insort(apart, abs(difference))
        sign = 1 if pattern == "ABBA" else -1
        quadruples.append(
            _Quadruple(
                difference=sign * (inner_1 + inner_2 - outer_1 - outer_2) / 2,
                spread=max(MEDIAN_TO_SPREAD * median(apart), LEAST_SPREAD),
                within=(outer**2 + inner**2) / 2,
                busy=sum(segment.is_busy for segment in members),
            )
        )
    return quadruples, left_out


class _Evidence:
    """Evidence (an e-process starting at 1) that the difference exceeds `shift`; with `sign` -1, that it is below."""

    def __init__(self, *, shift: float, sign: int = 1) -> None:
        self._shift, self._sign, self._logs = shift, sign, [0.0] * len(STAKES)
        self._count, self._sum, self._squares, self._within = 0, 0.0, 0.0, 0.0

    def add(self, quadruple: _Quadruple) -> None:
        """Add what one more quadruple (four segments in turn, such as A B B A) shows."""
        difference = self._sign * (quadruple.difference - self._shift)
        size = difference / quadruple.spread
        for number, stake in enumerate(STAKES):
            bet = stake * max(-LARGEST, min(size, LARGEST))
            # log(exp(bet) / cosh(bet)), without overflow
            self._logs[number] += bet - abs(bet) - log1p(exp(-2 * abs(bet))) + LOG_2
        self._count += 1
        self._sum += difference
        self._squares += difference**2
        self._within += quadruple.within

    @property
    def log_capital(self) -> float:
        """Logarithm of the mean of both e-processes."""
        sizes = min(self._of_sizes(self._squares, 1), self._of_sizes(self._squares + self._within, 3))
        return _log_mean([_log_mean(self._logs), sizes])

    def _of_sizes(self, squares: float, each: int) -> float:
        """Logarithm of the t-test's evidence; `squares`: sum of squares; `each`: independent squares per quadruple.

        The mixture over effects of both signs is multiplied by 1 + u / sqrt(2 + u^2). This factor is twice the chance
        of a positive effect by Student's t with 2 degrees of freedom. A mixture over positive effects would use more
        degrees of freedom, which give a larger factor.
        """
        if self._sum <= 0:
            return -inf
        count = self._count
        rest = squares - self._sum**2 / (count + PRIOR)
        u = self._sum * sqrt(each * count / rest / (count + PRIOR))
        ratio = log(PRIOR / (count + PRIOR)) / 2 + each * count / 2 * log(squares / rest)
        return ratio + log1p(u / sqrt(2 + u**2))


class _Claims:
    """Claims about the difference, from a set of quadruples; none is made with fewer than `least_quadruples`."""

    def __init__(self, margin: float, error: float) -> None:
        low, high = log1p(-margin), log1p(margin)
        self._beyond = {DuelVerdict.SLOWER: _Evidence(shift=high), DuelVerdict.FASTER: _Evidence(shift=low, sign=-1)}
        self._signs = {DuelVerdict.SLOWER: _Evidence(shift=0.0), DuelVerdict.FASTER: _Evidence(shift=0.0, sign=-1)}
        self._within = (_Evidence(shift=low), _Evidence(shift=high, sign=-1))
        self._limit, self._count, self._least = log(2 / error), 0, least_quadruples(error)

    def add(self, quadruple: _Quadruple) -> None:
        """Add what one more quadruple (four segments in turn, such as A B B A) shows."""
        self._count += 1
        for evidence in (*self._beyond.values(), *self._signs.values(), *self._within):
            evidence.add(quadruple)

    @property
    def winner(self) -> DuelVerdict | None:
        """Slower or faster, if the difference is certainly the margin or more; else None."""
        return next((verdict for verdict, evidence in self._beyond.items() if self._is_known(evidence)), None)

    @property
    def sign(self) -> DuelVerdict | None:
        """Slower or faster, if B certainly differs from A by any amount; else None."""
        return next((verdict for verdict, evidence in self._signs.items() if self._is_known(evidence)), None)

    @property
    def is_within(self) -> bool:
        """Whether the difference is known to be less than the margin."""
        return all(self._is_known(evidence) for evidence in self._within)

    def _is_known(self, evidence: _Evidence) -> bool:
        return self._count >= self._least and evidence.log_capital > self._limit


def _log_mean(logs: Sequence[float]) -> float:
    largest = max(logs)
    return largest + log(sum(exp(value - largest) for value in logs) / len(logs))


def _log_capital(quadruples: Sequence[_Quadruple], shift: float, sign: int) -> float:
    evidence = _Evidence(shift=shift, sign=sign)
    for quadruple in quadruples:
        evidence.add(quadruple)
    return evidence.log_capital


# --- state and interval


def _state(
    quadruples: Sequence[_Quadruple],
    verdict: DuelVerdict | None,
    *,
    margin: float,
    error: float,
    left_out: int,
    ended: str | None,
) -> DuelState:
    is_early = len(quadruples) < least_quadruples(error)
    ends = None if is_early else _interval(quadruples, limit=log(2 / error))
    difference = _difference([quadruple.difference for quadruple in quadruples]) if quadruples else None
    if difference is not None and ends:
        difference = min(max(difference, ends[0]), ends[1])
    needed, fewest = _forecast(quadruples, difference, margin=margin, limit=log(2 / error))
    expected = None if verdict or needed is None else max(needed - len(quadruples), 1)
    if ended and verdict is None:
        verdict = DuelVerdict.NOT_DECIDABLE
    return DuelState(
        verdict=verdict,
        ratio=None if difference is None else exp(difference),
        low=exp(ends[0]) if ends else None,
        high=exp(ends[1]) if ends else None,
        level=1 - error,
        margin=margin,
        quadruples=len(quadruples),
        left_out=left_out,
        expected=expected,
        spread=expm1(quadruples[-1].spread) if quadruples else None,
        ended=ended,
        fewest=fewest,
    )


def _interval(quadruples: Sequence[_Quadruple], *, limit: float) -> tuple[float, float] | None:
    """Interval of the shifts that neither e-process excludes; None if an end is beyond a factor of 1000."""
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


def _difference(differences: Sequence[float]) -> float:
    """Estimate of the difference: median of the means of all pairs.

    Hodges & Lehmann, Annals of Mathematical Statistics 34 (1963).
    """
    recent = differences[-MOST_FOR_PAIRS:]
    return median((first + second) / 2 for number, first in enumerate(recent) for second in recent[number:])


def _forecast(
    quadruples: Sequence[_Quadruple], difference: float | None, *, margin: float, limit: float
) -> tuple[int | None, int | None]:
    """Totals of quadruples for a verdict: approximately, and at the fewest; None if unknown or too many.

    The fewest are those for the smallest estimate of the spread, and for the most convenient plausible difference.
    """
    count = len(quadruples)
    if difference is None or count < LEAST_FOR_SPREAD:
        return None, None
    differences = [quadruple.difference for quadruple in quadruples]
    spread = max(MAD_TO_SPREAD * median(abs(each - difference) for each in differences), LEAST_SPREAD)
    needed = _needed(difference, spread, margin=margin, limit=limit)
    if count < LEAST_QUADRUPLES:
        return needed, None
    # Two speeds of the machine make one of these estimates much larger than the others.
    spread = max(min(spread, stdev(differences), quadruples[-1].spread), LEAST_SPREAD)
    reach = EASIER * spread / sqrt(count)
    low, high = difference - reach, difference + reach
    plausible = (low, high, min(max(0.0, low), high))
    fewest = min(_needed(each, spread, margin=margin, limit=limit) or MOST_EXPECTED for each in plausible)
    return needed, ceil(fewest / LUCKIER)


def _needed(difference: float, spread: float, *, margin: float, limit: float) -> int | None:
    """Approximate total of quadruples for evidence of `limit` by the t-test; None if too many."""
    square = (min(abs(difference - log1p(margin)), abs(difference - log1p(-margin))) / spread) ** 2
    for count in range(LEAST_QUADRUPLES, MOST_EXPECTED + 1):
        part = PRIOR / (count + PRIOR)
        if (log(part) + count * log((1 + square) / (1 + part * square))) / 2 > limit:
            return count
    return None
