"""How often is a verdict of a duel false, how often is there one, and how many quadruples does it take?

    python benchmarks/duel.py                                     104,400 simulated duels, half an hour on one core
    python benchmarks/duel.py --duels 20 --results build/duel.jsonl      small, and resumed where it was broken off
    python benchmarks/duel.py --effects "A/A" "+10 %"             some of the true differences
    python benchmarks/duel.py --forecast 100                      how often a duel is given up too early, 5 minutes
    python benchmarks/duel.py --real                              540 duels of real training steps here, 40 minutes
    python benchmarks/duel.py --trial 10                          30 of them, with slow-downs of 0 %, 3 % and 10 %
    python benchmarks/duel.py --fit ../shared/data/iterations     the noise in benchmarks/duel_noise.toml, from logs

Simulated: steps with the distribution and the autocorrelation of real logs (`duel_noise.toml`) on machines that hold
still, drift, have a neighbour or throttle; a segment's figure is the median of its steps. Besides, segments whose
logarithms are autoregressive, heavy-tailed, skewed, of two modes, or slow at the first, or at the first and the last,
place of each quadruple. A verdict is false where what it says of the difference is not so: *slower by 2 % or more* of
one that is smaller, *the same within 2 %* of one that is not, any sign of a program against itself. On the same
segments: the bet on signs alone, called from a quarter of the margin on (the rule until 0.2.0); a fixed threshold for
one run a side (the first two segments: no two runs are nearer to each other); Welch's test that is looked at after
every quadruple until p < 0.05.
"""

import argparse
import csv
import os
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import solve_toeplitz
from scipy.signal import lfilter
from scipy.special import betaincinv, ndtr, stdtr

from analysis.statistics.autocorrelation import acf, normal_scores
from analysis.statistics.samples import Floats
from analysis.statistics.steady import steady_state
from benchmarks import duel_real
from benchmarks.resumable import Results
from launcher.duel.decision import (
    ERROR,
    LARGEST,
    LEAST_QUADRUPLES,
    LEAST_SPREAD,
    MARGIN,
    MEDIAN_TO_SPREAD,
    SEGMENTS,
    STAKES,
    DuelState,
    DuelVerdict,
    Segment,
    judge,
    order,
)

NOISE = Path(__file__).with_name("duel_noise.toml")
# What `--real` measured, and goes on with; another machine's figures belong into another file (--results).
REAL = Path(__file__).with_name("duel_real.jsonl")
# Of each condition.
REAL_DUELS = 81
# Of each noise and true difference.
DUELS = 400
QUADRUPLES = 60
STEPS = 20
# A segment is a process of its own; processes on one machine differ by this much (the report's data: 0.2 to 0.6 %).
BETWEEN_SEGMENTS = 0.003
SETTLE = 300
LAGS = 5
PROBABILITIES = (0.0, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 1.0)
CHUNK = 100
# Logarithms of B over A. Below the margin by less than any rule can tell.
EDGE, UNDER = float(np.log1p(MARGIN)), 1e-9
EFFECTS = {
    "A/A": 0.0,
    "+1.5 %": float(np.log1p(0.015)),
    "just below +2 %": EDGE - UNDER,
    "+2 %": EDGE,
    "-2 %": float(np.log1p(-MARGIN)),
    "+3 %": float(np.log1p(0.03)),
    "-3 %": float(np.log1p(-0.03)),
    "+10 %": float(np.log1p(0.1)),
    "+50 %": float(np.log1p(0.5)),
}
MACHINES = ("still", "drift", "neighbour", "throttled")
# Noise of segments, on a machine that holds still.
SCATTER = {"normal": 0.01, "normal, 14 %": 0.14}
SEGMENT_NOISES = (
    *SCATTER, "AR 0.5", "AR 0.9", "heavy tails", "skew", "two modes", "first slow", "slow, fast, fast, slow",
)  # fmt: skip
RULES = ("duel", "signs alone", "threshold 10 %", "threshold 5 %", "peeking Welch")
QUADRUPLES_OF = ("quadruples", "quadruples of signs")
# Slow-downs of a trial with real steps.
TRIED = (0.0, 0.03, 0.1)
# Of the forecast: limits in quadruples, spreads of runs, true differences, and quadruples after which it is made.
FORECAST_LIMITS = (8, 12, 20, 30, 60)
FORECAST_SCATTER = ("1 %", "3 %", "5 %", "7 %", "10 %", "20 %")
FORECAST_EFFECTS = (0.0, 0.015, 0.03, 0.05, 0.1, 0.2)
FORECAST_LOOKS = (6, 7, 8, 9, 10, 12, 15, 18, 22, 27, 33, 40, 48)
# Of the bet on signs alone.
SIGNS_LIMIT, SIGNS_CALLED_FROM = 100.0, 0.25


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Steps of a log: `quantiles` of log(step / median) at `PROBABILITIES`, and an autoregression of normal scores."""

    name: str
    source: str
    steps: int
    autoregression: Sequence[float]
    quantiles: Sequence[float]

    def steps_of(self, rng: np.random.Generator, *, series: int, steps: int) -> Floats:
        """Logarithms, shape (series, steps)."""
        shocks = rng.normal(size=(series, steps + SETTLE))
        waves = lfilter([1.0], [1.0, *(-weight for weight in self.autoregression)], shocks, axis=1)[:, SETTLE:]
        return np.interp(ndtr(waves / self._stdev()), PROBABILITIES, self.quantiles)

    def _stdev(self) -> float:
        impulse = np.zeros(20_000)
        impulse[0] = 1.0
        response = lfilter([1.0], [1.0, *(-weight for weight in self.autoregression)], impulse)
        return float(np.sqrt(np.sum(response**2)))


# --- the noise, fitted to logs


def fitted(path: Path) -> Noise:
    """Noise of a log's steps after the warm-up: Yule-Walker on normal scores, which is always stationary."""
    with path.open() as file:
        times = np.array([float(row["iter_time_ms"]) for row in csv.DictReader(file)])
    steps = times[max(steady_state(times).warmup_steps or 0, 2) :]
    logs = np.log(steps / np.median(steps))
    correlations = acf(normal_scores(steps))[: LAGS + 1]
    weights = solve_toeplitz(correlations[:-1], correlations[1:])
    return Noise(
        name=path.stem,
        source=SOURCES["h100" if path.stem.startswith(("h100", "rtx4090")) else "t4"],
        steps=steps.size,
        autoregression=[round(float(weight), 4) for weight in weights],
        quantiles=[round(float(value), 5) for value in np.quantile(logs, PROBABILITIES)],
    )


SOURCES = {
    "h100": "training logs of github.com/lambdal/deeplearning-benchmark, one time per iteration",
    "t4": "iteration logs of github.com/dhairyamishra/cloud-training-and-analysis-nyu25",
}


def as_toml(noises: Sequence[Noise]) -> str:
    lines = [
        "# Steps of real logs, as numbers to simulate with: python benchmarks/duel.py --fit FOLDER writes this file.",
        "# quantiles: of log(step / median step) after the warm-up, at the probabilities of benchmarks/duel.py.",
        f"# autoregression: of the steps' normal scores, {LAGS} lags, Yule-Walker.",
    ]
    for noise in noises:
        lines += [
            "",
            "[[log]]",
            f'name = "{noise.name}"',
            f'source = "{noise.source}"',
            f"steps = {noise.steps}",
            f"autoregression = {list(noise.autoregression)}",
            f"quantiles = {list(noise.quantiles)}",
        ]
    return "\n".join(lines) + "\n"


def noises() -> list[Noise]:
    return [Noise(**row) for row in tomllib.loads(NOISE.read_text())["log"]]


# --- duels


def machine(rng: np.random.Generator, kind: str, *, duels: int, segments: int) -> Floats:
    """Effect of the machine on the logarithms of all steps of a segment, shape (duels, segments)."""
    match kind:
        case "still":
            return np.zeros((duels, segments))
        case "drift":
            return rng.uniform(-0.1, 0.1, size=(duels, 1)) * np.linspace(0, 1, segments)
        case "neighbour":
            return 0.15 * on_and_off(rng, duels=duels, segments=segments, mean_on=6, mean_off=12)
        case "throttled":
            return 0.4 * on_and_off(rng, duels=duels, segments=segments, mean_on=10, mean_off=20)
    raise ValueError(kind)


def on_and_off(rng: np.random.Generator, *, duels: int, segments: int, mean_on: float, mean_off: float) -> Floats:
    state = rng.random(duels) < mean_on / (mean_on + mean_off)
    states = np.empty((duels, segments))
    for segment in range(segments):
        states[:, segment] = state
        changes = rng.random(duels) < np.where(state, 1 / mean_on, 1 / mean_off)
        state = state ^ changes
    return states


def of_segments(rng: np.random.Generator, name: str, shape: tuple[int, int]) -> Floats:
    """Logarithms of segments with artificial noise instead of a log's, shape (duels, segments)."""
    normal = rng.normal(size=shape)
    position = np.arange(shape[1]) % SEGMENTS
    if name.startswith("AR "):
        weight = float(name.removeprefix("AR "))
        shocks = np.concatenate([rng.normal(size=(shape[0], SETTLE)), normal], axis=1)
        waves = lfilter([1.0], [1.0, -weight], shocks, axis=1)[:, SETTLE:]
        return np.asarray(0.01 * np.sqrt(1 - weight**2) * waves, dtype=np.float64)
    match name:
        case "heavy tails":
            return 0.01 * rng.standard_t(2, size=shape)
        case "skew":
            return 0.01 * rng.exponential(size=shape)
        case "two modes":
            slow = rng.random(shape) < 0.35
        case "first slow":
            slow = position == 0
        case "slow, fast, fast, slow":
            slow = np.isin(position, (0, SEGMENTS - 1))
        case _:
            return SCATTER[name] * normal
    return 0.05 * slow + 0.003 * normal


def conditions() -> Iterator[tuple[str, str]]:
    """Pairs of a noise and a machine."""
    yield from product((noise.name for noise in noises()), MACHINES)
    yield from product(SEGMENT_NOISES, ["still"])


def logs_of(rng: np.random.Generator, name: str, kind: str, *, duels: int, segments: int) -> Floats:
    """Logarithms of segments of one variant with `name`'s noise on a machine of this kind, shape (duels, segments)."""
    log = {noise.name: noise for noise in noises()}.get(name)
    if log:
        steps = log.steps_of(rng, series=duels, steps=segments * STEPS).reshape(duels, segments, STEPS)
        logs = np.median(steps, axis=2) + BETWEEN_SEGMENTS * rng.normal(size=(duels, segments))
    else:
        logs = of_segments(rng, name, (duels, segments))
    return logs + machine(rng, kind, duels=duels, segments=segments)


def simulated(rng: np.random.Generator, name: str, kind: str, *, effect: float, duels: int) -> list[list[Segment]]:
    """Duels with `name`'s noise on a machine of this kind; `effect`: the logarithm of B over A."""
    segments = SEGMENTS * QUADRUPLES
    logs = logs_of(rng, name, kind, duels=duels, segments=segments)
    made = []
    for row in logs:
        variants = islice(order(int(rng.integers(2**31))), segments)
        made.append(
            [
                Segment(position=position, variant=variant, seconds=float(np.exp(log + effect * (variant == "B"))))
                for position, (variant, log) in enumerate(zip(variants, row, strict=True))
            ]
        )
    return made


def verdicts(segments: Sequence[Segment]) -> dict[str, str]:
    """Verdict by rule, and the number of quadruples that the duel and the bet on signs took."""
    state = judge(segments, ended="the budget is used up")
    logs = {variant: np.log([one.seconds for one in segments if one.variant == variant]) for variant in ("A", "B")}
    ratio = float(np.exp(logs["B"][0] - logs["A"][0]))
    signs, quadruples = signs_alone(segments)
    return {
        "duel": said(state),
        "signs alone": signs,
        "threshold 10 %": by_threshold(ratio, 0.10),
        "threshold 5 %": by_threshold(ratio, 0.05),
        "peeking Welch": peeking_welch(logs["A"], logs["B"]),
        "quadruples": str(state.quadruples),
        "quadruples of signs": str(quadruples),
    }


def said(state: DuelState) -> str:
    """Verdict in words, with the sign if that adds something: `same, slower`."""
    has_sign = state.sign and state.verdict in (DuelVerdict.SAME, DuelVerdict.NOT_DECIDABLE)
    return f"{state.verdict}, {state.sign}" if has_sign else str(state.verdict)


def is_false(words: str, effect: float) -> bool:
    """Whether the verdict in `words` is false; `effect`: the logarithm of B over A."""
    verdict, _, sign = words.partition(", ")
    low, high = EFFECTS["-2 %"], EDGE
    is_so = {
        DuelVerdict.SLOWER: effect >= high,
        DuelVerdict.FASTER: effect <= low,
        DuelVerdict.SAME: low < effect < high,
    }.get(DuelVerdict(verdict), True)
    is_sign_so = {"slower": effect > 0, "faster": effect < 0}.get(sign, True)
    return not (is_so and is_sign_so)


def signs_alone(segments: Sequence[Segment]) -> tuple[str, int]:
    """Verdict of the rule until 0.2.0, which called a difference from a quarter of the margin on; its quadruples."""
    four = np.log([one.seconds for one in segments]).reshape(-1, SEGMENTS)
    sign = np.array([1 if one.variant == "A" else -1 for one in segments[::SEGMENTS]])
    differences = sign * (four[:, 1] + four[:, 2] - four[:, 0] - four[:, 3]) / 2
    apart = np.abs(np.stack([four[:, 0] - four[:, 3], four[:, 1] - four[:, 2]], axis=1)).ravel()
    spread = [
        max(MEDIAN_TO_SPREAD * float(np.median(apart[:last])), LEAST_SPREAD) for last in range(2, apart.size + 1, 2)
    ]
    called = np.log1p(SIGNS_CALLED_FROM * MARGIN)
    shifts, sides = np.array([[-EDGE], [EDGE], [called], [-called]]), np.array([[1], [-1], [1], [-1]])
    sizes = np.clip(sides * (differences - shifts) / spread, -LARGEST, LARGEST)
    bets = np.array(STAKES)[:, None, None] * sizes
    capital = np.exp(np.cumsum(bets - np.log(np.cosh(bets)), axis=2)).mean(axis=0)
    not_faster, not_slower, slower, faster = capital > SIGNS_LIMIT
    for number in range(len(spread)):
        if not_faster[number] and not_slower[number]:
            return DuelVerdict.SAME, number + 1
        if slower[number] or faster[number]:
            return DuelVerdict.SLOWER if slower[number] else DuelVerdict.FASTER, number + 1
    return DuelVerdict.NOT_DECIDABLE, len(spread)


def by_threshold(ratio: float, threshold: float) -> str:
    if 1 / (1 + threshold) <= ratio <= 1 + threshold:
        return DuelVerdict.SAME
    return DuelVerdict.SLOWER if ratio > 1 else DuelVerdict.FASTER


def peeking_welch(first: Floats, second: Floats) -> str:
    """Verdict at the first p < 0.05 after a quadruple, from the second on; "the same" without one."""
    counts = np.arange(4, first.size + 1, 2)
    means, errors = [], []
    for logs in (first, second):
        sums, squares = np.cumsum(logs)[counts - 1], np.cumsum(logs**2)[counts - 1]
        means.append(sums / counts)
        errors.append(np.maximum(squares - sums**2 / counts, 1e-30) / (counts - 1) / counts)
    total = errors[0] + errors[1]
    degrees = total**2 / ((errors[0] ** 2 + errors[1] ** 2) / (counts - 1))
    differences = means[1] - means[0]
    p_values = 2 * stdtr(degrees, -np.abs(differences) / np.sqrt(total))
    below = np.flatnonzero(p_values < 0.05)
    if not below.size:
        return DuelVerdict.SAME
    return DuelVerdict.SLOWER if differences[below[0]] > 0 else DuelVerdict.FASTER


# --- counted


def counts_of(results: Results, name: str, kind: str, effect: str, *, duels: int) -> list[dict[str, Any]]:
    """For each chunk, verdicts by rule, and the quadruples of each duel."""
    chunks = []
    for start in range(0, duels, CHUNK):
        size = min(CHUNK, duels - start)

        def measure(rng: np.random.Generator, size: int = size) -> dict[str, Any]:
            made = simulated(rng, name, kind, effect=EFFECTS[effect], duels=size)
            by_rule = [verdicts(segments) for segments in made]
            return {
                **{rule: Counter(one[rule] for one in by_rule) for rule in RULES},
                **{key: [int(one[key]) for one in by_rule] for key in QUADRUPLES_OF},
            }

        chunks.append(results.once(f"duel/{effect}/{name}/{kind}/{start}+{size}", measure))
    return chunks


def upper_bound(hits: int, of: int) -> float:
    """Upper end of the one-sided 95 % interval of a share (Clopper & Pearson, Biometrika 26, 1934)."""
    return 1.0 if hits == of else float(betaincinv(hits + 1, of - hits, 0.95))


def table(results: Results, effect: str, *, duels: int) -> Iterator[str]:
    """Line per noise and machine: false verdicts by rule, decided duels, quadruples; then the sum and the worst."""
    totals, worst = {rule: Counter[str]() for rule in RULES}, dict.fromkeys(RULES, 0.0)
    yield f"{effect}: false verdicts; decided, by the sixth quadruple, and median quadruples (in brackets: signs alone)"
    yield f"{'noise':<30} {'machine':<10}" + "".join(f" {rule:>15}" for rule in RULES) + "   decided   by 6  quadruples"
    for name, kind in conditions():
        chunks = counts_of(results, name, kind, effect, duels=duels)
        rules = {rule: sum((Counter(chunk[rule]) for chunk in chunks), Counter[str]()) for rule in RULES}
        taken, of_signs = ([count for chunk in chunks for count in chunk[key]] for key in QUADRUPLES_OF)
        for rule, counter in rules.items():
            totals[rule] += counter
            worst[rule] = max(worst[rule], _false(counter, effect))
        by_six = float(np.mean([count <= LEAST_QUADRUPLES for count in taken]))
        yield (
            f"{name:<30} {kind:<10}"
            + "".join(f" {_false(counter, effect):15.1%}" for counter in rules.values())
            + f"  {_decided(rules['duel']):4.0%} ({_decided(rules['signs alone']):.0%}) {by_six:5.0%}"
            + f"  {np.median(taken):.0f} ({np.median(of_signs):.0f})"
        )
    yield f"{'all':<41}" + "".join(f" {_false(counter, effect):15.2%}" for counter in totals.values())
    yield f"{'worst':<41}" + "".join(f" {share:15.1%}" for share in worst.values())


def worst(results: Results, effects: Sequence[str], *, duels: int) -> float:
    """Largest share of false verdicts of the duel over all noises, machines and true differences."""
    return max(
        _false(sum((Counter(chunk["duel"]) for chunk in chunks), Counter[str]()), effect)
        for effect in effects
        for name, kind in conditions()
        for chunks in [counts_of(results, name, kind, effect, duels=duels)]
    )


def _false(counter: Mapping[str, int], effect: str) -> float:
    false = sum(count for words, count in counter.items() if is_false(words, EFFECTS[effect]))
    return false / sum(counter.values())


def _decided(counter: Mapping[str, int]) -> float:
    undecided = sum(count for words, count in counter.items() if words.startswith(DuelVerdict.NOT_DECIDABLE))
    return 1 - undecided / sum(counter.values())


def real_table(results: Results, effect: str, *, duels: int) -> Iterator[str]:
    """Lines as in `table` for measured duels: one per condition, then one for all.

    The committed ones were ended and judged by the bet on signs alone, before there was another rule.
    """
    right = DuelVerdict.SAME if effect == "A/A" else DuelVerdict.SLOWER
    wrong = {DuelVerdict.SLOWER, DuelVerdict.FASTER} if effect == "A/A" else {DuelVerdict.SAME, DuelVerdict.FASTER}
    by_condition = {name: duel_real.chunks_of(results, name, duels=duels) for name in duel_real.CONDITIONS}
    known = [rule for rule in RULES if all(rule in one[effect] for chunks in by_condition.values() for one in chunks)]
    judged = known[0]
    totals = {rule: Counter[str]() for rule in known}
    yield f"{effect}: wrong verdicts, and right ones of the {judged}"
    yield f"{'steps':<30} {'condition':<13}" + "".join(f" {rule:>15}" for rule in known) + "  right  undecided"
    for condition, chunks in by_condition.items():
        rules = {rule: sum((Counter(chunk[effect][rule]) for chunk in chunks), Counter[str]()) for rule in known}
        for rule, counter in rules.items():
            totals[rule] += counter
        yield _line("real", f"{condition:<13}", rules, wrong, right)
    yield _line("all", " " * 13, totals, wrong, right)
    count, of = sum(totals[judged][verdict] for verdict in wrong), totals[judged].total()
    yield f"{judged}: {count} wrong of {of}; at most {upper_bound(count, of):.2%} (upper 95 % bound)"
    decided = of - totals[judged][DuelVerdict.NOT_DECIDABLE]
    yield f"where it decided: right in {totals[judged][right]} of {decided}"


def real(path: Path, *, duels: int) -> None:
    """Measure what is missing, then print."""
    results = Results(path)
    for line in duel_real.measure(results, duels=duels, judged=verdicts):
        print(line, flush=True)
    chunks = [chunk for name in duel_real.CONDITIONS for chunk in duel_real.chunks_of(results, name, duels=duels)]
    loads = [load for chunk in chunks for load in chunk["load"]]
    limited_by = ", ".join(sorted({chunk["limited by"] for chunk in chunks}))
    print(f"\nload of the machine: {min(loads):.1f} to {max(loads):.1f}; control group by: {limited_by}")
    for effect in duel_real.EFFECTS:
        print()
        print("\n".join(real_table(results, effect, duels=duels)))


def trial(duels: int) -> Iterator[str]:
    """A line for each slow-down that is injected into B's steps, on this machine as it is."""
    with ExitStack() as stack:
        machine = duel_real.Machine(stack)
        for slower in TRIED:
            made = [machine.duel("as it is", slower=slower, seed=seed) for seed in range(duels)]
            words = Counter(verdicts(segments)["duel"] for segments in made)
            runs = np.median([len(segments) for segments in made])
            yield f"B {slower:.0%} slower: {dict(words)}, {runs:.0f} runs in the median; load {os.getloadavg()[0]:.0f}"


def forecasts(duels: int) -> Iterator[str]:
    """For each limit: how often a duel is given up that would be decided, and how much of their limit others take."""
    taken: dict[int, list[tuple[bool, int | None]]] = {limit: [] for limit in FORECAST_LIMITS}
    for name, effect in product(FORECAST_SCATTER, FORECAST_EFFECTS):
        SCATTER[name] = float(name.removesuffix(" %")) / 100
        rng = np.random.default_rng((FORECAST_SCATTER.index(name), round(1000 * effect)))
        for segments in simulated(rng, name, "still", effect=float(np.log1p(effect)), duels=duels):
            whole = judge(segments, ended="the budget is used up")
            is_decided = whole.verdict is not DuelVerdict.NOT_DECIDABLE
            # As after every quadruple, but for the later ones of a long duel.
            looks = [look for look in FORECAST_LOOKS if look < (whole.quadruples if is_decided else QUADRUPLES)]
            fewest = {look: judge(segments[: look * SEGMENTS]).fewest or 0 for look in looks}
            for limit, known in taken.items():
                given_up = next((look for look in looks if look < limit and fewest[look] > limit), None)
                known.append((is_decided and whole.quadruples <= limit, given_up))
    for limit, known in taken.items():
        decided = [given_up for is_decided, given_up in known if is_decided]
        others = [given_up or limit for is_decided, given_up in known if not is_decided]
        early = sum(given_up is not None for given_up in decided)
        yield (
            f"limit {limit:2} quadruples: given up {early} of {len(decided)} duels that would be decided; the "
            f"{len(others)} others take {np.mean(others) / limit:.0%} of the limit"
        )


def _line(name: str, kind: str, rules: Mapping[str, Counter[str]], called: set[DuelVerdict], right: DuelVerdict) -> str:
    shares = [sum(counter[verdict] for verdict in called) / counter.total() for counter in rules.values()]
    first = next(iter(rules.values()))
    return (
        f"{name:<30} {kind:<10}"
        + "".join(f" {share:15.1%}" for share in shares)
        + f"  {first[right] / first.total():5.0%}  {first[DuelVerdict.NOT_DECIDABLE] / first.total():9.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--duels", type=int, help=f"duels of each noise and difference ({DUELS})")
    parser.add_argument("--effects", nargs="+", choices=EFFECTS, default=list(EFFECTS), help="true differences")
    parser.add_argument("--real", action="store_true", help="duels of real steps on this machine")
    parser.add_argument("--forecast", type=int, metavar="N", help="N duels of each noise and true difference")
    parser.add_argument("--trial", type=int, metavar="N", help="N duels of real steps for each injected slow-down")
    parser.add_argument("--results", type=Path, help="file of parts that are done")
    parser.add_argument("--fit", type=Path, help="folder of logs to fit")
    options = parser.parse_args()
    if options.fit:
        NOISE.write_text(as_toml([fitted(path) for path in sorted(options.fit.glob("*.csv"))]))
        return
    if options.forecast:
        for line in forecasts(options.forecast):
            print(line, flush=True)
        return
    if options.trial:
        for line in trial(options.trial):
            print(line, flush=True)
        return
    if options.real:
        real(options.results or REAL, duels=options.duels or REAL_DUELS)
        return
    results, duels = Results(options.results), options.duels or DUELS
    for effect in options.effects:
        for line in table(results, effect, duels=duels):
            print(line, flush=True)
        print()
    share = worst(results, options.effects, duels=duels)
    print(f"false verdicts at worst: {share:.1%}; promised: {ERROR:.0%}")
    # The largest of 261 shares, each of which may be off by three standard errors.
    if share > ERROR + 3 * np.sqrt(ERROR * (1 - ERROR) / duels):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
