"""Every sentence of a figure's caption: runs of which it is true, and runs of which it is false."""

import re
from dataclasses import dataclass
from math import nan
from pathlib import Path

import pytest

from analysis.figures import Figure, material, registry
from analysis.figures.registry import REGISTRY, built
from analysis.figures.throughput import MOST_RUNS
from tests.analysis.by_hand import results, run
from tests.analysis.sentence_runs import (
    FAST,
    ROOFS,
    SLOW,
    T4,
    Make,
    Runs,
    batches,
    failed,
    own,
    pieces,
    profile_alone,
    two_environments,
    undrawn,
    with_roofs,
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """`words` stands in a caption of `figure`, a key of `REGISTRY`, with `true` and in none with `false`."""

    figure: str
    words: str
    true: Make
    false: Make
    instead: str | None = None


def imported_runs() -> Runs:
    """Throughput of whole runs, without steps."""
    rates = (100.0, 101.0, 99.5)
    return [
        run(f"i{number}", steps=[], imported=True, images_per_s=rate, path="/nowhere")
        for number, rate in enumerate(rates)
    ]


def of_four_models(make: Make) -> Make:
    """The runs of each of four models: fewer values are no figure."""
    names = ("resnet18", "vgg11", "vgg13", "vgg16")
    return lambda: [one | {"model": name, "run_id": f"{name}{one['run_id']}"} for name in names for one in make()]


def in_two_places(make: Make) -> Make:
    return lambda: [*make(), *(one | {**T4, "run_id": f"t{one['run_id']}"} for one in make())]


def three_batches() -> Runs:
    return batches(100.0, 120.0, 130.0)


def two_models() -> Runs:
    return [*own(), *own(SLOW, "b", model="vgg16", **T4)]


def two_roofs() -> Runs:
    return [*own(**ROOFS), *own(SLOW, "b", **T4, **ROOFS)]


def two_points() -> Runs:
    """Two environments with FLOP and bytes, and nothing known of what they can do."""
    unknown = {"device_name": "Unknown GPU", "compute_capability": None}
    bytes_ = {"bytes_lower_per_step": 1e9, "bytes_upper_per_step": 2e9}
    return [*own(**bytes_, **unknown), *own(SLOW, "b", **T4 | unknown, **bytes_)]


def profile_without_batch() -> Runs:
    [one] = profile_alone()
    return [one | {"batch_size": nan}]


def environments(number: int, *, devices: int) -> Runs:
    return [
        one
        for place in range(number)
        for one in own(SLOW, f"e{place}-", place=f"zone-{place}", device_name=f"GPU {place % devices}")
    ]


def on_devices(*numbers: float) -> Runs:
    """Runs that are half as fast on each of two devices."""
    return [one for number in numbers for one in own(SLOW if number > 1 else FAST, f"d{number:g}-", devices=number)]


def lower_bounds() -> Runs:
    [one] = profile_alone()
    return [one | {"kernels": one["kernels"].assign(flop_is_lower_bound=True)}]


CASES = {
    "intervals": Case(
        figure="throughput_comparison",
        words=r"Bars are 95 % intervals over runs, where there are at least three\.",
        true=of_four_models(own),
        false=of_four_models(lambda: own((100.0,))),
        instead=r"One run each: no intervals\.",
    ),
    "intervals that are cut": Case(
        figure="throughput_comparison",
        words="An arrowhead means that the interval continues outside of the figure",
        true=lambda: [
            *own((10.0, 90.0, 40.0)),
            *(one | {"model": one["model"][::-1]} for one in of_four_models(own)()),
        ],
        false=of_four_models(own),
    ),
    "copies": Case(
        figure="throughput_comparison",
        words=r"(?<!: n)No intervals\.",
        true=of_four_models(lambda: own((100.0, 100.0))),
        false=of_four_models(own),
        instead="Bars are 95 %",
    ),
    "a batch size that failed": Case(
        figure="throughput_env",
        words="A cross at the bottom marks a batch size with no completed run",
        true=lambda: [*three_batches(), run("f", steps=[], status="failed", batch_size=128, path="/nowhere")],
        false=lambda: [*three_batches(), run("f", steps=[], status="failed", batch_size=32, path="/nowhere")],
    ),
    "the steps of a run": Case(
        figure="variance_fixed_config",
        words="The line through it: the throughput if all steps were",
        true=own,
        false=imported_runs,
        instead="No run recorded how its steps vary",
    ),
    "the steps of some runs": Case(
        figure="variance_fixed_config",
        words="The line through it, where its steps are known: ",
        true=lambda: [*own(imported=True), *imported_runs()],
        false=own,
    ),
    "too many runs": Case(
        figure="variance_fixed_config",
        words=f"At most {MOST_RUNS} runs of each place are drawn",
        true=lambda: own(tuple(100 + number / 100 for number in range(MOST_RUNS + 1))),
        false=own,
    ),
    "measured roofs": Case(
        figure="roofline_env",
        words="Solid roofs are measured ceilings",
        true=with_roofs,
        false=lambda: two_points()[:3],
        instead="There is no roof, because no ceiling was measured and no peak is known",
    ),
    "a roof each": Case(
        figure="roofline_combined",
        words="Each place has one roof, for its most frequent precision",
        true=two_roofs,
        false=two_points,
        instead="no roof",
    ),
    "batch sizes as numbers": Case(
        figure="roofline_env",
        words="The numbers are batch sizes, if there is room for them",
        true=with_roofs,
        false=profile_without_batch,
    ),
    "modelled points": Case(
        figure="roofline_env",
        words="Hollow points: FLOP by formula",
        true=with_roofs,
        false=profile_alone,
    ),
    "times of a trace": Case(
        figure="roofline_env",
        words="The time of an imported trace was measured under torch.profiler",
        true=lambda: [run("t", steps=[], imported=True, traced_busy_s=0.1, images_per_s=None, **ROOFS)],
        false=with_roofs,
    ),
    "imported points": Case(
        figure="roofline_env",
        words=r"Imported: measured by others\.",
        true=lambda: own(**ROOFS, imported=True),
        false=with_roofs,
    ),
    "lower bounds": Case(
        figure="kernel_roofline",
        words="≥ marks a lower bound: some FLOP were not counted",
        true=lower_bounds,
        false=profile_alone,
    ),
    "side by side": Case(
        figure="ai_vs_batch",
        words="Points of the same batch size are side by side",
        true=lambda: (
            [one | {**ROOFS} for one in three_batches()]
            + [one | {**ROOFS, **T4, "run_id": "t" + one["run_id"]} for one in batches(50.0, 60.0)]
        ),
        false=lambda: [one | {**ROOFS} for one in three_batches()],
    ),
    "one ceiling": Case(
        figure="efficiency_comparison",
        words=r"divided by the measured ceiling of its precision\.",
        true=of_four_models(lambda: own(**ROOFS, device_name="Unknown GPU", compute_capability=None)),
        false=of_four_models(lambda: own(device_name="Tesla T4", compute_capability="7.5")),
        instead=r"divided by the vendor's peak of its precision\.",
    ),
    "larger batches that are slower": Case(
        figure="batch_size_scaling",
        words="No larger batch was faster than the smallest",
        true=in_two_places(lambda: batches(100.0, 80.0)),
        false=in_two_places(lambda: batches(100.0, 120.0)),
        instead=r"Largest gain: 1\.20 times, resnet18.* at batch 32",
    ),
    "several devices": Case(
        figure="devices_efficiency",
        words="At 100 %, the dashed line, 4 devices together are 4 times as fast as one",
        true=lambda: on_devices(1.0, 2.0),
        false=lambda: on_devices(2.0),
    ),
    "efficiency with an interval": Case(
        figure="devices_efficiency",
        words=r"2 devices: 50\.0 % \(4\d\.\d % to 5\d\.\d %\)",
        true=lambda: on_devices(1.0, 2.0),
        false=lambda: [one for one in on_devices(1.0, 2.0) if not one["run_id"].endswith("2")],
        instead=r"2 devices: 50\.0 %$",
    ),
    "throughput of each device": Case(
        figure="throughput_env",
        words="Where several devices train together, the figure is that of one of them",
        true=lambda: [one | {"devices": 2.0} for one in three_batches()],
        false=three_batches,
    ),
    "many places": Case(
        figure="throughput_comparison",
        words=r"^9 places: the 8 fastest are drawn; the tables show all\.",
        true=lambda: environments(9, devices=1),
        false=two_environments,
    ),
}


def figures(make: Make, name: str) -> list[Figure]:
    material = undrawn(results(*(one | {"path": "/nowhere"} for one in make()))).material
    return list(built(REGISTRY[name], material))


def captions(make: Make, name: str) -> list[str]:
    """With what a reader hears in place of the picture."""
    return [text for drawn in figures(make, name) for text in (drawn.caption, drawn.text)]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_caption_says_what_is_drawn(name: str) -> None:
    case = CASES[name]
    true, untrue = captions(case.true, case.figure), captions(case.false, case.figure)
    assert any(re.search(case.words, text) for text in true), true
    assert not any(re.search(case.words, text) for text in untrue), untrue
    assert case.instead is None or any(re.search(case.instead, text) for text in untrue), untrue


# Captions of profiles that are read from files: test_foreign_rooflines.py.
ELSEWHERE = {
    # `test_bars_may_be_a_standard_deviation`.
    registry.DEVIATIONS,
    "mean ± 1 SD",
    "Filled points: FLOP and DRAM bytes from the GPU's counters.",
    "Pale points: rates of a profile's kernels over their own time, not over a step's time.",
}


@pytest.mark.night(part="report")
def test_every_sentence_has_a_case() -> None:
    """A new sentence of a figure needs data of which it is true, and data of which it would be false."""
    asked = [(make, case.figure) for case in CASES.values() for make in (case.true, case.false)]
    asked += [(make, name) for make in (own, failed, two_models) for name in REGISTRY]
    asked += [(two_roofs, "roofline_env"), (of_four_models(own), "model_comparison")]
    asked += [(lambda: environments(8, devices=8), "throughput_env")]
    drawn = [one for make, name in asked for one in figures(make, name)]
    told = "\n".join(f"{one.title} {one.caption} {one.text}" for one in drawn)
    unsaid = {
        piece
        for module in (registry, material)
        for piece in pieces(Path(module.__file__))
        if piece.lower() not in told.lower()
    }
    assert unsaid == ELSEWHERE
