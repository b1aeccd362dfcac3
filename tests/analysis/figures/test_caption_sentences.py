"""Captions of figures of runs of one kind, beside those of nearly the same runs."""

from math import nan

import pytest

from analysis.figures.registry import REGISTRY, built
from analysis.figures.throughput import MOST_RUNS
from tests.analysis.by_hand import results, run
from tests.analysis.sentence_runs import (
    FAST,
    ROOFS,
    SLOW,
    T4,
    Golden,
    Make,
    Runs,
    batches,
    differences,
    own,
    profile_alone,
    two_environments,
    undrawn,
    with_roofs,
)


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


# A key of `REGISTRY`, runs of which the sentence is true, and runs of which it is not.
CASES: dict[str, tuple[str, Make, Make]] = {
    "intervals": ("throughput_comparison", of_four_models(own), of_four_models(lambda: own((100.0,)))),
    "intervals that are cut": (
        "throughput_comparison",
        lambda: [
            *own((10.0, 90.0, 40.0)),
            *(one | {"model": one["model"][::-1]} for one in of_four_models(own)()),
        ],
        of_four_models(own),
    ),
    "copies": ("throughput_comparison", of_four_models(lambda: own((100.0, 100.0))), of_four_models(own)),
    "a batch size that failed": (
        "throughput_env",
        lambda: [*three_batches(), run("f", steps=[], status="failed", batch_size=128, path="/nowhere")],
        lambda: [*three_batches(), run("f", steps=[], status="failed", batch_size=32, path="/nowhere")],
    ),
    "the steps of a run": ("variance_fixed_config", own, imported_runs),
    "the steps of some runs": ("variance_fixed_config", lambda: [*own(imported=True), *imported_runs()], own),
    "too many runs": (
        "variance_fixed_config",
        lambda: own(tuple(100 + number / 100 for number in range(MOST_RUNS + 1))),
        own,
    ),
    "measured roofs": ("roofline_env", with_roofs, lambda: two_points()[:3]),
    "a roof each": ("roofline_combined", two_roofs, two_points),
    "batch sizes as numbers": ("roofline_env", with_roofs, profile_without_batch),
    "modelled points": ("roofline_env", with_roofs, profile_alone),
    "times of a trace": (
        "roofline_env",
        lambda: [run("t", steps=[], imported=True, traced_busy_s=0.1, images_per_s=None, **ROOFS)],
        with_roofs,
    ),
    "imported points": ("roofline_env", lambda: own(**ROOFS, imported=True), with_roofs),
    "lower bounds": ("kernel_roofline", lower_bounds, profile_alone),
    "side by side": (
        "ai_vs_batch",
        lambda: (
            [one | {**ROOFS} for one in three_batches()]
            + [one | {**ROOFS, **T4, "run_id": "t" + one["run_id"]} for one in batches(50.0, 60.0)]
        ),
        lambda: [one | {**ROOFS} for one in three_batches()],
    ),
    "one ceiling": (
        "efficiency_comparison",
        of_four_models(lambda: own(**ROOFS, device_name="Unknown GPU", compute_capability=None)),
        of_four_models(lambda: own(device_name="Tesla T4", compute_capability="7.5")),
    ),
    "larger batches that are slower": (
        "batch_size_scaling",
        in_two_places(lambda: batches(100.0, 80.0)),
        in_two_places(lambda: batches(100.0, 120.0)),
    ),
    "several devices": ("devices_efficiency", lambda: on_devices(1.0, 2.0), lambda: on_devices(2.0)),
    "efficiency with an interval": (
        "devices_efficiency",
        lambda: on_devices(1.0, 2.0),
        lambda: [one for one in on_devices(1.0, 2.0) if not one["run_id"].endswith("2")],
    ),
    "throughput of each device": (
        "throughput_env",
        lambda: [one | {"devices": 2.0} for one in three_batches()],
        three_batches,
    ),
    "many places": ("throughput_comparison", lambda: environments(9, devices=1), two_environments),
}


def captions(make: Make, name: str) -> list[str]:
    """Sentences below the figures, and what a reader hears in place of the pictures."""
    material = undrawn(results(*(one | {"path": "/nowhere"} for one in make()))).material
    drawn = built(REGISTRY[name], material)
    return [line for one in drawn for text in (one.caption, one.text) for line in text.split(". ")]


@pytest.mark.slow
def test_captions_of_runs_and_of_nearly_the_same_runs(golden: Golden) -> None:
    said = {case: (captions(true, name), captions(other, name)) for case, (name, true, other) in CASES.items()}
    golden("captions.txt", differences(said))
