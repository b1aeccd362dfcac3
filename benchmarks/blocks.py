"""Do the intervals of blocks cover what they say, with stopping too, and what do blocks find? Simulated data.

    python benchmarks/blocks.py                                        about 10 minutes on one core
    python benchmarks/blocks.py --scale 0.1 --parts until --results build/blocks.jsonl      small, and resumable

Wanted: 95 % intervals cover 93-97 %. A figure is exp(host + run); the host is the same for all runs of a block.
"""

import argparse
from collections.abc import Callable, Iterator
from itertools import combinations, product
from math import exp, log, sqrt
from pathlib import Path

import numpy as np

from analysis.statistics.comparison import compare, compare_within_blocks
from analysis.statistics.components import PlacedRun, machine_split
from analysis.statistics.samples import Floats, Interval
from benchmarks.resumable import Figures, Results
from launcher.sweep.places import Configuration, decision_of, in_order
from workload.contract.spec import RunSpec
from workload.stats.design import Design, Run
from workload.stats.intervals import LEAST_REPLICATES, NOMINAL, interval_at_look, looks, single_contrast, student_reach

RUN = 0.005
HOSTS = (0.0, 0.01, 0.05)
BLOCKS = (2, 3, 4, 5, 7, 10)
RATIO = 1.03
# How runs differ where they do not as a normal sample: skewed as what disturbs them, or with heavy tails.
SHAPES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Floats]] = {
    "normal": lambda rng, size: rng.normal(size=size),
    "skewed": lambda rng, size: rng.exponential(size=size) - 1,
    "heavy": lambda rng, size: rng.standard_t(3, size=size) / np.sqrt(3),
}
# Spread of figures over the wanted half-width, and the most blocks: what is still not narrow then counts as it is.
SPREADS = (0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
WANTED = 0.01
MOST = 200


def tally(hits: list[bool]) -> list[int]:
    """Number of hits, and number of trials."""
    return [sum(hits), len(hits)]


def share(hits_of: list[int]) -> str:
    """Share of hits with its binomial standard error, marked if more than two errors outside of 93-97 %."""
    hits, of = hits_of
    covered = hits / of
    error = sqrt(max(covered * (1 - covered), 1e-4) / of)
    mark = "" if 0.93 - 2 * error <= covered <= 0.97 + 2 * error else " OUTSIDE"
    return f"{covered:6.1%} +- {error:4.1%}{mark}"


def holds(interval: Interval | None, truth: float) -> list[bool]:
    return [] if interval is None else [bool(interval.holds(truth))]


def differences(results: Results, scale: float) -> Iterator[str]:
    yield "difference of two configurations: paired within blocks, and unpaired"
    for shape, count, host in ((shape, count, host) for shape in SHAPES for count in BLOCKS for host in HOSTS):

        def measure(rng: np.random.Generator, shape: str = shape, count: int = count, host: float = host) -> Figures:
            paired, unpaired = list[bool](), list[bool]()
            for _ in range(int(4000 * scale)):
                hosts = host * rng.normal(size=count)
                first, second = np.exp(hosts + RUN * SHAPES[shape](rng, (2, count)))
                blocks = [dict(enumerate(figures)) for figures in (first, RATIO * second)]
                comparison = compare_within_blocks(blocks[0], blocks[1])
                paired += holds(comparison.interval, RATIO)
                unpaired += holds(compare(list(first), list(RATIO * second)).interval, RATIO)
            return {"paired": tally(paired), "unpaired": tally(unpaired)}

        figures = results.once(f"difference/{shape}/{count}/{host}/{scale}", measure)
        yield (
            f"{shape:<7} {count:3} blocks, hosts {host:4.0%}: paired {share(figures['paired'])}   "
            f"unpaired {share(figures['unpaired'])}"
        )


def missing(results: Results, scale: float) -> Iterator[str]:
    yield "the same, where each run is missing with 20 %"
    for count in (3, 5, 10):

        def measure(rng: np.random.Generator, count: int = count) -> Figures:
            paired, without = list[bool](), 0
            for _ in range(int(4000 * scale)):
                first, second = np.exp(0.05 * rng.normal(size=count) + RUN * rng.normal(size=(2, count)))
                kept = [
                    {block: figures[block] for block in range(count) if rng.random() > 0.2}
                    for figures in (first, second)
                ]
                interval = compare_within_blocks(kept[0], kept[1]).interval
                paired += holds(interval, 1.0)
                without += interval is None
            return {"paired": tally(paired), "without": without / int(4000 * scale)}

        figures = results.once(f"missing/{count}/{scale}", measure)
        yield f"{count:3} blocks: paired {share(figures['paired'])}   no interval {figures['without']:.0%}"


# Effects of the position on the logarithm of a figure: the second run of a block, the first one, each later one.
POSITIONS: dict[str, Callable[[int], float]] = {
    "none": lambda _: 0.0,
    "second 3 % slower": lambda position: -0.03 * (position == 2),
    "first 3 % slower": lambda position: -0.03 * (position == 1),
    "each 3 % slower": lambda position: -0.03 * position,
}

# Configurations of the simulated sweeps; of three one is always in the middle of two blocks.
MANY = (2, 3, 4, 6)


def order(results: Results, scale: float) -> Iterator[str]:
    yield f"equal configurations, runs vary by {RUN:.1%}: differences that are named; before: orders drawn alone"
    for effect, many, count in (
        (effect, many, count) for effect in POSITIONS for many in MANY for count in range(2, 8)
    ):

        def measure(rng: np.random.Generator, effect: str = effect, many: int = many, count: int = count) -> Figures:
            named, before, widths, widths_before = [0, 0], [0, 0], list[float](), list[float]()
            for seed in range(int(1000 * scale)):
                hosts, noise = 0.01 * rng.normal(size=count), RUN * rng.normal(size=(many, count))
                for is_reversed in (True, False):
                    runs = [
                        Run(
                            figure=exp(hosts[block] + noise[name, block] + POSITIONS[effect](position)),
                            configuration=name,
                            block=block,
                            position=position,
                        )
                        for block, names in enumerate(orders(many, count, seed=seed, is_reversed=is_reversed))
                        for position, name in enumerate(names, start=1)
                    ]
                    verdicts, found = (named, widths) if is_reversed else (before, widths_before)
                    for interval in intervals(runs, is_design=is_reversed).values():
                        verdicts[0] += interval is not None and not interval[0] <= 0 <= interval[1]
                        verdicts[1] += 1
                        found += [] if interval is None else [interval[1] - interval[0]]
            return {
                "named": named,
                "before": before,
                "width": float(np.median(widths)) if widths else 0.0,
                "width before": float(np.median(widths_before)) if widths_before else 0.0,
            }

        figures = results.once(f"order/{effect}/{many}/{count}/{scale}", measure)
        yield (
            f"{effect:<17} {many} configurations x {count} blocks: {at_most(figures['named'], many)}   "
            f"before {at_most(figures['before'], many)}   "
            f"width {figures['width']:.2%} (before {figures['width before']:.2%})"
        )


def at_most(hits_of: list[int], many: int) -> str:
    """Share of false verdicts, marked where it is above 5 % by more than two standard errors.

    Pairs of one design depend on each other: the error is that of as many designs as there were.
    """
    hits, of = hits_of
    found, designs = hits / of, of / (many * (many - 1) / 2)
    mark = " ABOVE 5 %" if found > 0.05 + 2 * sqrt(0.05 * 0.95 / designs) else ""
    return f"{found:6.1%}{mark}"


def orders(many: int, count: int, *, seed: int, is_reversed: bool) -> list[list[int]]:
    """Configurations in the order of each block: the order of a sweep, or with `is_reversed` False a random one."""
    if not is_reversed:
        rng = np.random.default_rng((seed, many, count))
        return [rng.permutation(many).tolist() for _ in range(count)]
    configurations = [Configuration(values={"number": name}, spec=RunSpec()) for name in range(many)]
    blocks = range(1, count + 1)
    return [[one.values["number"] for one in in_order(configurations, seed=seed, block=block)] for block in blocks]


def intervals(runs: list[Run], *, is_design: bool) -> dict[tuple[int, int], tuple[float, float] | None]:
    """95 % interval of each pair of configurations, from the whole design or from the pair's own differences."""
    whole = Design(runs)
    names = sorted({int(str(run.configuration)) for run in runs})
    found: dict[tuple[int, int], tuple[float, float] | None] = {}
    for first, second in combinations(names, 2):
        one = whole.contrast({first: -1.0, second: 1.0})
        found[first, second] = None
        if one.error is None or one.value is None or one.blocks < LEAST_REPLICATES:
            continue
        value, error, degrees = one.value, one.error, one.degrees
        if not is_design:
            value, degrees = float(np.mean(one.series)), one.blocks - 1
            error = float(np.std(one.series, ddof=1)) / sqrt(one.blocks)
        reach = student_reach(error, degrees, 0.95)
        found[first, second] = (value - reach, value + reach)
    return found


# Configurations x blocks: what a design of that size covers, one pair with another.
DESIGNS = ((2, 3), (3, 3), (6, 3), (20, 3), (3, 5), (6, 5), (20, 5), (2, 10), (3, 10), (6, 10), (20, 10))
NOISY = 4.0
DESIGN_CASES = ("equal", "one noisy", "missing", "one noisy, missing", "interaction", "positions")


def design(results: Results, scale: float) -> Iterator[str]:
    yield f"two-way analysis, by kind of pair; one noisy: a configuration scatters {NOISY:g} times as much"
    yield "missing: a block lacks a configuration; interaction: two react to the host, by twice the scatter"
    for case, (many, count) in product(DESIGN_CASES, DESIGNS):

        def measure(rng: np.random.Generator, case: str = case, many: int = many, count: int = count) -> Figures:
            held: dict[str, list[bool]] = {"alike": [], "noisy": [], "own blocks": []}
            widths: dict[str, list[float]] = {"alike": [], "own blocks": []}
            for seed in range(max(int(12000 * scale / many), 1)):
                runs = designed(rng, case, many=many, count=count, seed=seed)
                ends, own = (intervals(runs, is_design=is_design) for is_design in (True, False))
                for (first, second), interval in ends.items():
                    kind = (
                        "noisy"
                        if first == 0 and case in ("one noisy", "one noisy, missing", "interaction")
                        else "alike"
                    )
                    kind = "noisy" if case == "interaction" and first == 1 else kind
                    before = own[first, second]
                    if interval is None or before is None:
                        continue
                    held[kind].append(interval[0] <= 0 <= interval[1])
                    held["own blocks"].append(before[0] <= 0 <= before[1])
                    if kind == "alike":
                        widths["alike"].append(interval[1] - interval[0])
                        widths["own blocks"].append(before[1] - before[0])
            ratio = float(np.median(widths["alike"]) / np.median(widths["own blocks"])) if widths["alike"] else 0.0
            return {**{name: tally(hits) for name, hits in held.items() if hits}, "width": ratio}

        figures = results.once(f"design/{case}/{many}/{count}/{scale}", measure)
        columns = "   ".join(
            f"{name} {share(figures[name])}" for name in ("alike", "noisy", "own blocks") if name in figures
        )
        yield f"{case:<18} {many:2} x {count:2}: {columns}   width {figures['width']:.2f} x that of own blocks"


def designed(rng: np.random.Generator, case: str, *, many: int, count: int, seed: int) -> list[Run]:
    """Runs of equal configurations in the order of a sweep."""
    scatter = np.full(many, RUN)
    scatter[0] *= NOISY if "noisy" in case else 1.0
    hosts = 0.02 * rng.normal(size=count)
    logs = hosts + scatter[:, None] * rng.normal(size=(many, count))
    if case == "interaction":
        reaction = 2 * RUN * rng.normal(size=count)
        logs[0] += reaction
        logs[1] -= reaction
    drift = -0.01 if case == "positions" else 0.0
    lost = (
        (int(rng.integers(many)), int(rng.integers(count))) if "missing" in case and count > LEAST_REPLICATES else None
    )
    return [
        Run(figure=exp(logs[name, block] + drift * position), configuration=name, block=block, position=position)
        for block, names in enumerate(orders(many, count, seed=seed, is_reversed=True))
        for position, name in enumerate(names, start=1)
        if (name, block) != lost
    ]


def machines(results: Results, scale: float) -> Iterator[str]:
    yield "standard deviations between runs and hosts; 4 configurations, 10 % of the runs missing"
    for count, host in ((2, 0.05), (3, 0.0), (3, 0.05), (5, 0.01), (10, 0.01)):

        def measure(rng: np.random.Generator, count: int = count, host: float = host) -> Figures:
            held: dict[str, list[bool]] = {"runs": [], "hosts": []}
            for _ in range(int(1000 * scale)):
                runs = [
                    PlacedRun(figure=exp(of_host + RUN * rng.normal()), configuration=name, host=name_of_host)
                    for name_of_host, of_host in enumerate(host * rng.normal(size=count))
                    for name in range(4)
                    if rng.random() > 0.1
                ]
                split = machine_split(runs)
                held["runs"] += holds(split.between_runs.interval, RUN)
                held["hosts"] += holds(split.between_hosts.interval, host)
            return {name: tally(hits) for name, hits in held.items() if hits}

        held = results.once(f"machines/{count}/{host}/{scale}", measure)
        columns = "   ".join(f"{name} {share(hits)}" for name, hits in held.items())
        yield f"{count} hosts, hosts {host:4.0%}: {columns}"


# What blocks have in common with the one before them, and the change over 20 blocks.
SERIES: dict[str, tuple[float, float]] = {
    "correlation 0.5": (0.5, 0.0),
    "correlation 0.8": (0.8, 0.0),
    "drift of 10 % over 20 blocks": (0.0, 0.005),
}


def until(results: Results, scale: float) -> Iterator[str]:
    yield f"stopped when the interval is within {WANTED:.0%}; naive: looked at after every block from the second on"
    for shape, spread in ((shape, spread) for shape in SHAPES for spread in SPREADS):

        def measure(rng: np.random.Generator, shape: str = shape, spread: float = spread) -> Figures:
            held: dict[str, list[bool]] = {"until": [], "naive t": [], "naive normal": []}
            blocks = []
            for _ in range(int(2000 * scale)):
                logs = WANTED * spread * SHAPES[shape](rng, (MOST,))
                taken, interval, _ = stopped(logs)
                blocks.append(taken)
                held["until"].append(interval[0] <= 0 <= interval[1])
                for name, is_t in (("naive t", True), ("naive normal", False)):
                    low, high = peeked(logs, is_t=is_t)
                    held[name].append(low <= 0 <= high)
            return {**{name: tally(hits) for name, hits in held.items()}, "blocks": float(np.median(blocks))}

        figures = results.once(f"until/{shape}/{spread}/{scale}", measure)
        columns = "   ".join(f"{name} {share(figures[name])}" for name in ("until", "naive t", "naive normal"))
        yield f"{shape:<7} spread {spread:3.1f} x wanted: {columns}   blocks {figures['blocks']:.0f}"
    yield "the same for blocks that are alike; independent: the rule that supposes that they are not, from 4 blocks on"
    for name, spread in product(SERIES, (0.5, 1.0, 2.0)):

        def measure_alike(rng: np.random.Generator, name: str = name, spread: float = spread) -> Figures:
            correlation, drift = SERIES[name]
            held: dict[str, list[bool]] = {"until": [], "independent": []}
            blocks, named = [], 0
            for _ in range(int(2000 * scale)):
                logs = WANTED * spread * autoregression(rng, MOST, correlation=correlation) + drift * np.arange(MOST)
                taken, interval, is_narrow = stopped(logs, most=20 if drift else MOST)
                blocks.append(taken)
                named += is_narrow
                # With a drift there is no mean: what is there to be covered is that of the first 20 blocks.
                truth = float(np.mean(drift * np.arange(20))) if drift else 0.0
                held["until"].append(interval[0] <= truth <= interval[1])
                low, high = supposed_independent(logs)
                held["independent"].append(low <= truth <= high)
            return {
                **{rule: tally(hits) for rule, hits in held.items()},
                "blocks": float(np.median(blocks)),
                "named": named / len(blocks),
            }

        figures = results.once(f"until/{name}/{spread}/{scale}", measure_alike)
        columns = "   ".join(f"{rule} {share(figures[rule])}" for rule in ("until", "independent"))
        yield (
            f"{name}, spread {spread:3.1f} x wanted: {columns}   blocks {figures['blocks']:.0f}   "
            f"called narrow {figures['named']:.0%}"
        )


# Blocks that take 20 % longer: the share of blocks at which such a time begins, and its least and most blocks.
SLOW: dict[str, tuple[float, int, int]] = {
    "one in ten": (1 / 10, 1, 1),
    "one in thirty": (1 / 30, 1, 1),
    "bursts": (1 / 20, 2, 4),
    "rare bursts": (1 / 50, 2, 4),
}


def unlike(results: Results, scale: float) -> Iterator[str]:
    yield f"some blocks take 20 % longer; covered: the figure of an ordinary block, stopped within {WANTED:.0%}"
    for name, spread in product(SLOW, (0.2, 0.5, 1.0)):

        def measure(rng: np.random.Generator, name: str = name, spread: float = spread) -> Figures:
            share_of, least, most = SLOW[name]
            held, blocks, said = list[bool](), list[int](), 0
            for _ in range(int(1000 * scale)):
                slow = np.zeros(MOST, dtype=bool)
                for start in np.flatnonzero(rng.random(MOST) < share_of):
                    slow[start : start + rng.integers(least, most + 1)] = True
                figures = np.exp(-WANTED * spread * rng.normal(size=MOST) - log(1.2) * slow).tolist()
                taken, interval, _ = stopped(np.log(figures))
                blocks.append(taken)
                held.append(interval[0] <= 0 <= interval[1])
                said += interval_at_look(single_contrast(figures[:taken]), target=WANTED).unlike is not None
            return {"held": tally(held), "blocks": float(np.median(blocks)), "said": said / len(blocks)}

        figures = results.once(f"unlike/{name}/{spread}/{scale}", measure)
        yield (
            f"{name:<13} spread {spread:3.1f} x wanted: {share(figures['held'])}   blocks {figures['blocks']:.0f}   "
            f"said {figures['said']:.0%}"
        )


def autoregression(rng: np.random.Generator, count: int, *, correlation: float) -> Floats:
    """Stationary autoregression of the first order, with standard deviation 1."""
    noise = rng.normal(size=count)
    found = [float(noise[0])]
    for one in noise[1:]:
        found.append(correlation * found[-1] + sqrt(1 - correlation**2) * float(one))
    return np.array(found)


def stopped(logs: Floats, *, most: int = MOST) -> tuple[int, tuple[float, float], bool]:
    figures = np.exp(logs).tolist()
    for blocks in looks():
        decision = decision_of({"a": single_contrast(figures[: min(blocks, most)])}, target=WANTED, most=most)
        if decision.is_done:
            break
    stand = decision.precisions["a"]
    assert stand.low is not None
    assert stand.high is not None
    return decision.blocks, (log(stand.low), log(stand.high)), stand.is_narrow


def supposed_independent(logs: Floats) -> tuple[float, float]:
    """The rule before: looks at 4, 5, 7, 9, ... blocks, Student's t at the same level."""
    blocks = 4
    while True:
        taken = min(blocks, logs.size)
        mean, spread = float(logs[:taken].mean()), float(logs[:taken].std(ddof=1))
        reach = student_reach(spread / sqrt(taken), taken - 1, 1 - NOMINAL)
        if np.expm1(reach) <= WANTED or taken == logs.size:
            return mean - reach, mean + reach
        blocks = int(-(-blocks * 1.25 // 1))


def peeked(logs: Floats, *, is_t: bool) -> tuple[float, float]:
    counts = np.arange(2, logs.size + 1)
    means = np.cumsum(logs)[1:] / counts
    variances = np.maximum(np.cumsum(logs**2)[1:] - counts * means**2, 0.0) / (counts - 1)
    factors = np.array([student_reach(1.0, int(count) - 1, 0.95) for count in counts]) if is_t else 1.96
    reach = factors * np.sqrt(variances / counts)
    narrow = np.expm1(reach) <= WANTED
    stop = int(np.argmax(narrow)) if narrow.any() else counts.size - 1
    return float(means[stop] - reach[stop]), float(means[stop] + reach[stop])


def power(results: Results, scale: float) -> Iterator[str]:
    yield f"differences that are comparison (p < 0.05); runs vary by {RUN:.1%}, hosts by 5 %; in brackets: unpaired"
    yield "blocks   " + "".join(f"{difference:>14.1%}" for difference in (0.0, 0.005, 0.01, 0.02, 0.05))
    for count in BLOCKS:
        cells = []
        for difference in (0.0, 0.005, 0.01, 0.02, 0.05):

            def measure(rng: np.random.Generator, count: int = count, difference: float = difference) -> Figures:
                seen, unpaired = 0, 0
                for _ in range(int(2000 * scale)):
                    hosts = 0.05 * rng.normal(size=count)
                    first, second = np.exp(hosts + RUN * rng.normal(size=(2, count)))
                    second *= 1 + difference
                    comparison = compare_within_blocks(dict(enumerate(first)), dict(enumerate(second)))
                    seen += (comparison.p_value or 1.0) < 0.05
                    unpaired += (compare(list(first), list(second)).p_value or 1.0) < 0.05
                return {"seen": seen / int(2000 * scale), "unpaired": unpaired / int(2000 * scale)}

            figures = results.once(f"power/{count}/{difference}/{scale}", measure)
            cells.append(f"{figures['seen']:7.0%} ({figures['unpaired']:3.0%})")
        yield f"{count:6}   " + "".join(f"{cell:>14}" for cell in cells)


PARTS = {part.__name__: part for part in (differences, missing, order, design, machines, until, unlike, power)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--results", type=Path, help="file of parts that are done")
    options = parser.parse_args()
    results = Results(options.results)
    for name in options.parts:
        for line in PARTS[name](results, options.scale):
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
