"""How often does a duel call a program slower or faster than itself, and how often does it see 3 %?

    python benchmarks/duel.py                                     10,000 + 4,000 simulated duels, 5 minutes on one core
    python benchmarks/duel.py --duels 20 --results build/duel.jsonl      small, and resumed where it was broken off
    python benchmarks/duel.py --real                              540 duels of real training steps here, 40 minutes
    python benchmarks/duel.py --fit ../shared/data/iterations     the noise in benchmarks/duel_noise.toml, from logs

Simulated: steps with the distribution and the autocorrelation of real logs (`duel_noise.toml`) on machines that hold
still, drift, have a neighbour or throttle. A segment's figure is the median of its steps. On the same segments: what a
fixed threshold says of one run a side (the first two segments: no two runs are nearer to each other), and Welch's test
that is looked at after every quadruple until p < 0.05.
"""

import argparse
import csv
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import solve_toeplitz
from scipy.signal import lfilter
from scipy.special import betaincinv, ndtr, stdtr

from analysis.statistics import steady_state
from analysis.statistics.autocorrelation import acf, normal_scores
from analysis.statistics.samples import Floats
from benchmarks import duel_real
from benchmarks.resumable import Results
from workload.contract.duel import SEGMENTS, DuelVerdict, Segment, judge, order

NOISE = Path(__file__).with_name("duel_noise.toml")
# What `--real` measured, and goes on with; another machine's figures belong into another file (--results).
REAL = Path(__file__).with_name("duel_real.jsonl")
# Of each condition.
REAL_DUELS = 81
QUADRUPLES = 60
STEPS = 20
# A segment is a process of its own; processes on one machine differ by this much (the report's data: 0.2 to 0.6 %).
BETWEEN_SEGMENTS = 0.003
SETTLE = 300
LAGS = 5
PROBABILITIES = (0.0, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 1.0)
CHUNK = 100
EFFECTS = {"A/A": 0.0, "B 3 % slower": 0.03, "B 3 % faster": -0.03}
MACHINES = ("still", "drift", "neighbour", "throttled")
RULES = ("duel", "threshold 10 %", "threshold 5 %", "peeking Welch")


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
    """Of the steps after the warm-up, in normal scores: Yule-Walker, whose autoregression is always stationary."""
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
    """What the machine adds to the logarithms of all steps of a segment, shape (duels, segments)."""
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


def simulated(rng: np.random.Generator, noise: Noise, kind: str, *, effect: float, duels: int) -> list[list[Segment]]:
    segments = SEGMENTS * QUADRUPLES
    steps = noise.steps_of(rng, series=duels, steps=segments * STEPS).reshape(duels, segments, STEPS)
    logs = np.median(steps, axis=2) + BETWEEN_SEGMENTS * rng.normal(size=(duels, segments))
    logs += machine(rng, kind, duels=duels, segments=segments)
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
    """By rule; the quadruples that the duel took besides."""
    state = judge(segments, ended="the budget is used up")
    logs = {variant: np.log([one.seconds for one in segments if one.variant == variant]) for variant in ("A", "B")}
    ratio = float(np.exp(logs["B"][0] - logs["A"][0]))
    return {
        "duel": str(state.verdict),
        "threshold 10 %": by_threshold(ratio, 0.10),
        "threshold 5 %": by_threshold(ratio, 0.05),
        "peeking Welch": peeking_welch(logs["A"], logs["B"]),
        "quadruples": str(state.quadruples),
    }


def by_threshold(ratio: float, threshold: float) -> str:
    if 1 / (1 + threshold) <= ratio <= 1 + threshold:
        return DuelVerdict.SAME
    return DuelVerdict.SLOWER if ratio > 1 else DuelVerdict.FASTER


def peeking_welch(first: Floats, second: Floats) -> str:
    """The first p < 0.05 after a quadruple, from the second on; "the same" where there is none."""
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


def counts_of(results: Results, noise: Noise, kind: str, effect: str, *, duels: int) -> list[dict[str, Any]]:
    """Per chunk: verdicts by rule, and the quadruples of each duel."""
    chunks = []
    for start in range(0, duels, CHUNK):
        size = min(CHUNK, duels - start)

        def measure(rng: np.random.Generator, size: int = size) -> dict[str, Any]:
            by_rule = [
                verdicts(segments) for segments in simulated(rng, noise, kind, effect=EFFECTS[effect], duels=size)
            ]
            return {
                **{rule: Counter(one[rule] for one in by_rule) for rule in RULES},
                "quadruples": [int(one["quadruples"]) for one in by_rule],
            }

        chunks.append(results.once(f"duel/{effect}/{noise.name}/{kind}/{start}+{size}", measure))
    return chunks


def upper_bound(hits: int, of: int) -> float:
    """One-sided 95 % (Clopper & Pearson, Biometrika 26, 1934)."""
    return 1.0 if hits == of else float(betaincinv(hits + 1, of - hits, 0.95))


def table(results: Results, effect: str, *, duels: int) -> Iterator[str]:
    """A line per log and machine, then one for all."""
    right = {"A/A": DuelVerdict.SAME, "B 3 % slower": DuelVerdict.SLOWER, "B 3 % faster": DuelVerdict.FASTER}[effect]
    called = (
        {DuelVerdict.SLOWER, DuelVerdict.FASTER}
        if effect == "A/A"
        else {*DuelVerdict} - {right, DuelVerdict.NOT_DECIDABLE}
    )
    totals = {rule: Counter[str]() for rule in RULES}
    yield f"{effect}: wrong verdicts, and right ones of the duel"
    yield f"{'log':<30} {'machine':<10}" + "".join(f" {rule:>15}" for rule in RULES) + "  right  undecided  quadruples"
    for noise, kind in product(noises(), MACHINES):
        chunks = counts_of(results, noise, kind, effect, duels=duels)
        rules = {rule: sum((Counter(chunk[rule]) for chunk in chunks), Counter[str]()) for rule in RULES}
        quadruples = [count for chunk in chunks for count in chunk["quadruples"]]
        for rule, counter in rules.items():
            totals[rule] += counter
        yield _line(noise.name, kind, rules, called, right) + f"  {np.median(quadruples):10.0f}"
    yield _line("all", "", totals, called, right)
    wrong, of = sum(totals["duel"][verdict] for verdict in called), totals["duel"].total()
    yield f"duel: {wrong} wrong of {of}; at most {upper_bound(wrong, of):.2%} (upper 95 % bound)"
    decided = of - totals["duel"][DuelVerdict.NOT_DECIDABLE]
    if decided:
        yield f"where it decided: right in {totals['duel'][right] / decided:.1%} of {decided}"


def real_table(results: Results, effect: str, *, duels: int) -> Iterator[str]:
    """As `table`, of what was measured: a line per condition, then one for all."""
    right = DuelVerdict.SAME if effect == "A/A" else DuelVerdict.SLOWER
    wrong = {DuelVerdict.SLOWER, DuelVerdict.FASTER} if effect == "A/A" else {DuelVerdict.SAME, DuelVerdict.FASTER}
    totals = {rule: Counter[str]() for rule in RULES}
    yield f"{effect}: wrong verdicts, and right ones of the duel"
    yield f"{'steps':<30} {'condition':<13}" + "".join(f" {rule:>15}" for rule in RULES) + "  right  undecided"
    for condition in duel_real.CONDITIONS:
        chunks = duel_real.chunks_of(results, condition, duels=duels)
        rules = {rule: sum((Counter(chunk[effect][rule]) for chunk in chunks), Counter[str]()) for rule in RULES}
        for rule, counter in rules.items():
            totals[rule] += counter
        yield _line("real", f"{condition:<13}", rules, wrong, right)
    yield _line("all", " " * 13, totals, wrong, right)
    count, of = sum(totals["duel"][verdict] for verdict in wrong), totals["duel"].total()
    yield f"duel: {count} wrong of {of}; at most {upper_bound(count, of):.2%} (upper 95 % bound)"
    decided = of - totals["duel"][DuelVerdict.NOT_DECIDABLE]
    yield f"where it decided: right in {totals['duel'][right]} of {decided}"


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


def _line(name: str, kind: str, rules: Mapping[str, Counter[str]], called: set[DuelVerdict], right: DuelVerdict) -> str:
    shares = [sum(counter[verdict] for verdict in called) / counter.total() for counter in rules.values()]
    duel = rules["duel"]
    return (
        f"{name:<30} {kind:<10}"
        + "".join(f" {share:15.1%}" for share in shares)
        + f"  {duel[right] / duel.total():5.0%}  {duel[DuelVerdict.NOT_DECIDABLE] / duel.total():9.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--duels", type=int, help="A/A duels of each log on each machine (500); fewer of others")
    parser.add_argument("--real", action="store_true", help="duels of real steps on this machine")
    parser.add_argument("--results", type=Path, help="file of parts that are done")
    parser.add_argument("--fit", type=Path, help="folder of logs to fit")
    options = parser.parse_args()
    if options.fit:
        NOISE.write_text(as_toml([fitted(path) for path in sorted(options.fit.glob("*.csv"))]))
        return
    if options.real:
        real(options.results or REAL, duels=options.duels or REAL_DUELS)
        return
    results, duels = Results(options.results), options.duels or 500
    for effect in EFFECTS:
        for line in table(results, effect, duels=duels if effect == "A/A" else max(duels // 5, 1)):
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
