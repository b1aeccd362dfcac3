"""How often do the rules on steadiness speak of clean runs, and how often do they find what is there?

    python benchmarks/false_alarms.py                          print the page; about 5 minutes on one core
    python benchmarks/false_alarms.py --write                  all rows to false_alarms.json, and docs/false-alarms.md
    python benchmarks/false_alarms.py --limits --runs 20000    the limits in analysis/statistics

Clean runs: steps that vary by 3 % about one level, by ten kinds of noise, beside telemetry that wanders by itself. The
limits of the scan were chosen with other seeds, and without the noises called "unseen".
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.signal import lfilter

from analysis import causes
from analysis.audit import RULES, Rule, Severity
from analysis.audit.rule import Breach, CaseCheck
from analysis.loading.cases import Case
from analysis.loading.run_row import RUN_COLUMNS
from analysis.statistics import changes, steady
from analysis.statistics.samples import Floats
from workload.contract.bundle import TELEMETRY_COLUMNS
from workload.contract.record import Status

STEP_S = 1.0
NOISE = 0.03
LEVELS_SETTLE = 300
STEPS = (20, 100)
TOGETHER = (1, 3, 5)
# What an audit of runs with steps and telemetry alone can say.
NAMES = (
    "warm-up too short",
    "unsteady steps",
    "scattered steps",
    "unsynchronised timing",
    "runs disagree",
    "CPU competition",
)
CAUSE = "a cause"
ANY = "any of them"


@dataclass(frozen=True, kw_only=True)
class Noise:
    """A first-order autoregression of `lag1` with innovations of one kind, under a share of white noise; variance 1."""

    name: str
    lag1: float = 0.0
    innovations: str = "normal"
    white: float = 0.0

    def series(self, rng: np.random.Generator, *, runs: int, steps: int) -> Floats:
        size = (runs, steps + LEVELS_SETTLE)
        drawn = {
            "normal": lambda: rng.normal(size=size),
            "skewed": lambda: rng.exponential(size=size) - 1,
            "heavy": lambda: rng.standard_t(3, size=size) / np.sqrt(3),
            "Laplace": lambda: rng.laplace(size=size) / np.sqrt(2),
        }[self.innovations]()
        waves = lfilter([1.0], [1.0, -self.lag1], drawn * np.sqrt(1 - self.lag1**2), axis=1)
        mixed = np.sqrt(1 - self.white) * waves + np.sqrt(self.white) * rng.normal(size=size)
        return np.asarray(mixed[:, LEVELS_SETTLE:], dtype=np.float64)


NOISES = (
    Noise(name="white"),
    Noise(name="lag 1 = 0.5", lag1=0.5),
    Noise(name="lag 1 = 0.8", lag1=0.8),
    Noise(name="lag 1 = 0.9", lag1=0.9),
    Noise(name="skewed", innovations="skewed"),
    Noise(name="skewed, 0.5", lag1=0.5, innovations="skewed"),
    Noise(name="heavy tails", innovations="heavy"),
    Noise(name="heavy, 0.5", lag1=0.5, innovations="heavy"),
    Noise(name="unseen: lag 1 = 0.65", lag1=0.65),
    Noise(name="unseen: Laplace, 0.3", lag1=0.3, innovations="Laplace"),
)
# No first-order autoregression: slow waves that white noise hides. What the rules promise does not hold for it.
BEYOND = Noise(name="beyond: 0.9 under white", lag1=0.9, white=0.5)


@dataclass(frozen=True, kw_only=True)
class Audited:
    """Evidence for the audit's rules, without files and tables."""

    cases: Sequence[Case]
    groups: Sequence[Sequence[Case]]

    def breaches(self, check: CaseCheck) -> Iterator[Breach]:
        return map(check, self.cases)


def case(run_id: str, step_s: Floats, telemetry: Mapping[str, Floats], **facts: Any) -> Case:
    """A run of ours on a CPU, alone there, whose samples of the telemetry are spread over its steps."""
    samples = len(next(iter(telemetry.values()), ()))
    ended = np.cumsum(step_s)
    columns = {"t_s": np.linspace(ended[0] / 2, ended[-1], samples), **telemetry}
    known = {
        "run_id": run_id,
        "status": Status.COMPLETED,
        "imported": False,
        "device_type": "cpu",
        "threads": 2.0,
        "cpus_used": 1.9,
        "data_wait_fraction": 0.0,
        "explained_fraction": 1.0,
        "iterations": float(step_s.size),
        "images_per_s": 16 * step_s.size / float(step_s.sum()),
    }
    return Case(
        facts={**dict.fromkeys(RUN_COLUMNS), **known, **facts},
        steps={"step_s": step_s, "ended_at_s": ended, "data_s": np.zeros(step_s.size)},
        is_measured=np.ones(step_s.size, dtype=np.bool_),
        telemetry={name: columns.get(name, np.full(samples, np.nan)) for name in TELEMETRY_COLUMNS},
    )


def clean(rng: np.random.Generator, noise: Noise, *, runs: int, steps: int) -> list[Case]:
    waves = np.exp(NOISE * noise.series(rng, runs=runs, steps=steps))
    wanders = {
        covariate.column: 1 + 0.02 * NOISES[2].series(rng, runs=runs, steps=steps) for covariate in causes.COVARIATES
    }
    return [
        case(f"r{number}", STEP_S * waves[number], {name: values[number] for name, values in wanders.items()})
        for number in range(runs)
    ]


def spoken(one: Case) -> set[str]:
    """Rules that report something about a single run, and whether a cause is named."""
    alone: Any = Audited(cases=[one], groups=[])
    names = {rule.name for rule in rules() if next(iter(rule.check(alone)), None) is not None}
    return names | ({CAUSE} if next(causes.of_run(one), None) else set())


def spoken_together(group: Sequence[Case]) -> set[str]:
    """Rules that report something about repeats."""
    together: Any = Audited(cases=[], groups=[group])
    return {rule.name for rule in rules() if next(iter(rule.check(together)), None) is not None}


def rules() -> list[Rule]:
    return [rule for rule in RULES if rule.name in NAMES and rule.severity is not Severity.NOTE]


# --- false alarms


def false_alarms(runs: int, seed: int) -> Iterator[list[str]]:
    """Row per noise, number of steps and of repeats: percentage of audits in which each rule reports something."""
    for steps in STEPS:
        for kind, noise in enumerate((*NOISES, BEYOND)):
            rng = np.random.default_rng([seed, steps, kind])
            cases = clean(rng, noise, runs=runs, steps=steps)
            of_one = [spoken(one) for one in cases]
            for together in TOGETHER:
                firsts = range(0, runs - together + 1, together)
                heard = [
                    set().union(*of_one[first : first + together], spoken_together(cases[first : first + together]))
                    for first in firsts
                ]
                shares = [np.mean([name in names for names in heard]) for name in (*NAMES, CAUSE)]
                some = float(np.mean([bool(names) for names in heard]))
                yield [
                    noise.name,
                    str(steps),
                    str(together),
                    *(percent(float(share)) for share in shares),
                    f"{percent(some)} ± {100 * error(max(some, 1 / len(heard)), len(heard)):.1f}",
                ]


def error(share: float, trials: int) -> float:
    """Standard error of a share of that many trials."""
    return float(np.sqrt(share * (1 - share) / trials))


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


# --- power


def last_fifth(steps: Floats, factor: float) -> Floats:
    return np.concatenate([steps[: steps.size * 4 // 5], factor * steps[steps.size * 4 // 5 :]])


def first_fifth(steps: Floats, factor: float) -> Floats:
    return np.concatenate([factor * steps[: steps.size // 5], steps[steps.size // 5 :]])


def middle(steps: Floats, factor: float) -> Floats:
    inside = (np.arange(steps.size) >= 0.4 * steps.size) & (np.arange(steps.size) < 0.6 * steps.size)
    return np.where(inside, factor * steps, steps)


def rising(steps: Floats, factor: float) -> Floats:
    return np.asarray(steps * np.linspace(1, factor, steps.size), dtype=np.float64)


def few_stalls(steps: Floats, factor: float) -> Floats:
    odd = np.zeros(steps.size, dtype=np.bool_)
    odd[[steps.size // 4, steps.size // 2, steps.size * 3 // 4][: max(1, steps.size * 3 // 100)]] = True
    return np.where(odd, factor * steps, steps)


def here_and_there(steps: Floats, factor: float) -> Floats:
    """Choose 30 % of the steps, depending on the steps themselves."""
    places = np.random.default_rng(int(steps[0] * 1e12)).permutation(steps.size)
    return np.where(places < 0.3 * steps.size, factor * steps, steps)


def every_tenth(steps: Floats, factor: float) -> Floats:
    return np.where(np.arange(steps.size) % 10 == 7, factor * steps, steps)


FAULTS: tuple[tuple[str, Callable[[Floats, float], Floats], tuple[float, ...]], ...] = (
    ("last fifth slower", last_fifth, (1.03, 1.05, 1.1, 1.4)),
    ("a fifth in the middle slower", middle, (1.05, 1.1)),
    ("last fifth faster", last_fifth, (0.95, 0.9)),
    ("first fifth slower", first_fifth, (1.05, 1.2)),
    ("slower and slower", rising, (1.03, 1.05, 1.1)),
    ("3 % of the steps stall", few_stalls, (2.0, 5.0)),
    ("every tenth step stalls", every_tenth, (1.3,)),
    ("30 % of the steps", here_and_there, (1.1, 1.3)),
)
QUIET = ((0.003, NOISES[0]), (0.01, NOISES[0]), (0.01, NOISES[2]), (0.03, NOISES[0]), (0.03, NOISES[1]))


def power(runs: int, seed: int) -> Iterator[list[str]]:
    """Row per fault and size: the share of runs that a rule reports, by noise and number of steps."""
    for name, fault, factors in FAULTS:
        for factor in factors:
            row = [name, f"{factor:g} x"]
            for steps in STEPS:
                for spread, noise in QUIET:
                    rng = np.random.default_rng([seed, 7, steps, NOISES.index(noise)])
                    waves = np.exp(spread * noise.series(rng, runs=runs, steps=steps))
                    row.append(f"{100 * np.mean([is_found(fault(wave, factor)) for wave in waves]):.0f}")
            yield row


def is_found(step_s: Floats) -> bool:
    """By the rules of the audit, and of a warm-up also where it moves the mean by less than they speak of."""
    one = case("r", step_s, {})
    return bool(one.steadiness.warmup_steps) or bool(spoken(one) - {CAUSE})


# --- the limits


def limits(runs: int, seed: int) -> Iterator[str]:
    """What `LIMITS` holds: the 99.5 % quantile of the gain by lag 1, over noises of all kinds together."""
    rng = np.random.default_rng(seed)
    noises = [
        *(Noise(name="", lag1=lag1) for lag1 in (0.0, 0.3, 0.5, 0.7, 0.8, 0.9)),
        *(Noise(name="", lag1=lag1, innovations=kind) for lag1 in (0.0, 0.5) for kind in ("skewed", "heavy")),
    ]
    for points in changes.LIMITS:
        pairs = []
        for noise in noises:
            for series in noise.series(rng, runs=runs, steps=points):
                found = changes.scan(series)
                centred = np.clip(series - series.mean(), -4, 4)
                if found is not None:
                    pairs.append((float(centred[1:] @ centred[:-1] / (centred @ centred)), found.gain))
        lag1, gain = np.array(pairs).T
        row = [quantile(gain, lag1, at) for at in changes.LIMIT_LAG1]
        yield f"{points}: ({', '.join(f'{value:.1f}' for value in np.maximum.accumulate(row))}),"


def leak_limits(runs: int, seed: int) -> Iterator[str]:
    """What `LEAK_LIMITS` holds: by class of lag 1, the t that series of no noise exceed in a part of 1.2 %.

    The parts are as large as the class is where independent steps get slower, so that most of those are found.
    """
    rng, classes = np.random.default_rng(seed), len(steady.LEAK_LAG1) + 1
    noises = [
        *(Noise(name="", lag1=lag1) for lag1 in (0.0, 0.3, 0.5, 0.65, 0.8, 0.9)),
        *(Noise(name="", lag1=lag1, innovations=kind) for lag1 in (0.0, 0.5) for kind in ("skewed", "heavy")),
    ]
    for steps in steady.LEAK_LIMITS:
        lines = [
            np.array([steady.line(series) for series in noise.series(rng, runs=runs, steps=steps)]) for noise in noises
        ]
        of = [np.searchsorted(steady.LEAK_LAG1, lag1, side="right") for _, lag1 in (one.T for one in lines)]
        share = np.bincount(of[0], minlength=classes) / runs + 0.02
        parts = 0.012 * share / share.sum()
        row = [
            max(
                float(np.sort(np.append(one[own == column, 0], np.full(runs, -np.inf)))[-int(part * runs) - 1])
                for one, own in zip(lines, of, strict=True)
            )
            for column, part in enumerate(parts)
        ]
        yield f"{steps}: ({', '.join(f'{value:.1f}' for value in np.maximum.accumulate(np.maximum(row, 2.4)))}),"


def quantile(gain: Floats, lag1: Floats, at: float) -> float:
    """Of the series whose own correlation is near this; the outer columns hold all that lies beyond them."""
    low = -1.0 if at == changes.LIMIT_LAG1[0] else at - 0.07
    high = 1.0 if at == changes.LIMIT_LAG1[-1] else at + (0.05 if at == 0 else 0.07)
    return float(np.quantile(gain[(lag1 > low) & (lag1 <= high)], 0.995))


# --- the page

RESULTS = Path(__file__).with_suffix(".json")
PAGE_FILE = Path(__file__).parents[1] / "docs" / "false-alarms.md"
PAGE = """# How often the audit is wrong

`analyze audit` and `analyze variance` look for problems within a run: steps that drift, stall or jump. How often is
there no such problem, and how often do they find one? The runs are simulated, so the truth is known (`python
benchmarks/false_alarms.py --write`; `benchmarks/false_alarms.json` has all rows).

## False alarms

Nothing is wrong with these runs: their steps vary by 3 % about one level, with {noises} kinds of noise (independent,
correlated, skewed, heavy tails). The limits of the rules were chosen without two of the kinds. The table shows the
percentage of {runs} runs in which a rule reports something, for the worst kind. The other rules reported nothing.

{alarms}

Of audits of five runs, {five_mean} report something; {five_most} for the worst kind. Slow waves under independent
noise are one kind more, which the rules cannot tell from a real change: they report {beyond} of runs with 20 and 100
steps.

## Problems that are found

Percentage of {power_runs} runs in which a problem is found, for the smallest size that was tried, by the number of
steps and how much they vary:

{power}

A run's note says what could be missed, for example "20 steps are too few to notice if a fifth of them took 1.19 x the
others".

Next: [how well comparisons do](blocks.md).
"""
ALARM_HEADINGS = ("noise", "steps", "runs", *NAMES, CAUSE, ANY)
POWER_HEADINGS = (
    "fault",
    "size",
    *(f"{steps} steps, {100 * spread:g} %, {noise.lag1:g}" for steps in STEPS for spread, noise in QUIET),
)
# Columns of the page's table of power.
ON_PAGE = ("20 steps, 1 %, 0", "20 steps, 3 %, 0", "100 steps, 1 %, 0", "100 steps, 3 %, 0")


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    first, *others = (f"| {' | '.join(cells)} |" for cells in (headings, *rows))
    return "\n".join([first, f"|{'---|' * len(headings)}", *others])


def simulated(runs: int, seed: int) -> dict[str, Any]:
    """Rows of both simulations; faults are put into a fifth of `runs`."""
    tried = max(runs // 5, 2)
    alarms, found = list(false_alarms(runs, seed)), list(power(tried, seed))
    return {"runs": runs, "power_runs": tried, "alarms": alarms, "power": found}


def page(results: Mapping[str, Any]) -> str:
    """Text of docs/false-alarms.md for the rows of `simulated`."""
    rows = [dict(zip(ALARM_HEADINGS, row, strict=True)) for row in results["alarms"]]
    known = [row for row in rows if row["noise"] != BEYOND.name]

    def shares(name: str, runs: int, *, steps: Sequence[int] = STEPS) -> list[float]:
        """Percentages of a rule by kind of noise, for audits of `runs` runs."""
        chosen = [row for row in known if int(row["runs"]) == runs and int(row["steps"]) in steps]
        return [float(row[name].partition(" ")[0]) for row in chosen]

    most = {name: [max(shares(name, 1, steps=[steps])) for steps in STEPS] for name in (*NAMES, CAUSE, ANY)}
    alarms = [[name, *(f"{share:.1f}" for share in of)] for name, of in most.items() if any(of)]
    beyond = [row[ANY].partition(" ")[0] for row in rows if row["noise"] == BEYOND.name and row["runs"] == "1"]
    found = {row[0]: dict(zip(POWER_HEADINGS, row, strict=True)) for row in reversed(results["power"])}
    power_rows = [
        [f"{name}: {found[name]['size']}", *(found[name][column] for column in ON_PAGE)] for name, _, _ in FAULTS
    ]
    return PAGE.format(
        noises=len(NOISES),
        runs=results["runs"],
        alarms=table(("rule", *(f"{steps} steps" for steps in STEPS)), alarms),
        five_mean=f"{np.mean(shares(ANY, 5)):.1f} %",
        five_most=f"{max(shares(ANY, 5)):.1f} %",
        beyond=" and ".join(f"{share} %" for share in beyond),
        power_runs=results["power_runs"],
        power=table(("problem", *(column.removesuffix(", 0") for column in ON_PAGE)), power_rows),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300, help="simulated runs of each noise and number of steps")
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--limits", action="store_true", help="print the limits of the scan, recomputed")
    parser.add_argument("--write", action="store_true", help="write the page and its rows")
    options = parser.parse_args()
    if options.limits:
        for line in (*limits(options.runs, options.seed), *leak_limits(options.runs, options.seed)):
            print(line, flush=True)
        return
    results = simulated(options.runs, options.seed)
    if options.write:
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        PAGE_FILE.write_text(page(results), encoding="utf-8")
    else:
        print(page(results))


if __name__ == "__main__":
    main()
