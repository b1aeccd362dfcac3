"""What sections of the report say of runs of one kind, beside what they say of nearly the same runs."""

import functools
from collections.abc import Callable
from typing import TypeAlias

import pytest

from analysis.report import answer, context, measurements
from analysis.report.content import Section
from analysis.report.evidence import ReportEvidence
from tests.analysis.by_hand import results, run
from tests.analysis.report.report_texts import texts
from tests.analysis.sentence_runs import (
    CPU,
    NEAR,
    ROOFS,
    SLOW,
    T4,
    Golden,
    Make,
    above_the_ceiling,
    batches,
    dear_and_cheap,
    differences,
    failed,
    gains,
    own,
    profile_alone,
    two_batches,
    two_clouds,
    two_environments,
    undrawn,
    with_roofs,
)

Of: TypeAlias = Callable[[ReportEvidence], Section]

# Section, runs of which the sentence is true, and runs of which it is not.
CASES: dict[str, dict[str, tuple[Of, Make, Make]]] = {
    "settings": {
        "a place": (answer.section, two_environments, lambda: [*own(), *own(NEAR, "b", **T4)]),
        "a setting": (
            answer.section,
            lambda: [*own(SLOW), *own(name="b", precision="amp")],
            lambda: [*own(), *own(SLOW, "b", precision="amp")],
        ),
        "a setting of the fastest configuration, though slower ones gain more": (
            answer.section,
            lambda: [*gains(5, batch_size=8), *gains(1.5, 100, batch_size=64)],
            lambda: gains(5, batch_size=8),
        ),
        "an argument of a script": (
            answer.section,
            lambda: [
                *own(SLOW, "a", model="t.py", script="t.py -b 8 --workers 2", workers=2),
                *own(name="b", model="t.py", script="t.py -b 8 --workers 0", workers=0),
            ],
            lambda: [
                *own(SLOW, "a", model="t.py", script="t.py"),
                *own(name="b", model="t.py", script="t.py -b 8 --workers 0", workers=0),
            ],
        ),
        "a GPU in two clouds": (answer.section, two_clouds, lambda: two_clouds(blocks=2)),
        "a GPU in two clouds, in two precisions": (
            answer.section,
            lambda: [
                one | {"run_id": f"{one['run_id']}{precision}"}
                for precision in ("fp32", "amp")
                for one in two_clouds(
                    device_name="NVIDIA L4",
                    compute_capability="8.9",
                    precision=precision,
                    usd_per_h=None,
                    spot=True,
                    driver_version="580",
                    cpu_model="x",
                )
            ],
            lambda: two_clouds(backend="ssh"),
        ),
    },
    "batches": {
        "the last step pays": (
            answer.section,
            lambda: batches(100.0, 120.0, 150.0),
            lambda: batches(100.0, 120.0, 110.0),
        ),
        "the next step is open": (
            answer.section,
            lambda: batches(100.0, 120.0, 120.1),
            lambda: batches(100.0, 120.0, 150.0),
        ),
        "two models": (
            answer.section,
            lambda: [
                *two_batches(),
                *(one | {"model": "vgg16", "run_id": f"v{one['run_id']}"} for one in two_batches()),
            ],
            two_batches,
        ),
        "memory": (
            answer.section,
            lambda: [one | {"peak_memory_bytes": one["batch_size"] / 16 * 1e9} for one in two_batches()],
            lambda: [one | {"peak_memory_bytes": 1e9} for one in two_batches()],
        ),
    },
    "what_limits": {
        "one configuration": (answer.section, own, two_batches),
        "several devices": (measurements.scaling, lambda: own(devices=2.0), lambda: own(devices=1.0)),
        "no efficiency": (
            answer.section,
            lambda: own(devices=2.0, all_images_per_s=200.0),
            lambda: [*own(devices=1.0), *own(SLOW, "b", devices=2.0, all_images_per_s=100.0)],
        ),
        "a busy machine": (answer.section, lambda: own(**CPU, busy="the run got 0.3"), lambda: own(**CPU)),
        "an error of the audit": (answer.section, above_the_ceiling, own),
        "a limit": (answer.section, with_roofs, lambda: own(**ROOFS | {"bound": "neither", "bound_why": "below half"})),
        "why no limit is known": (answer.section, lambda: own(bound_why="the run reached 150 % of the ceiling"), own),
        "runs that do not agree": (
            answer.section,
            lambda: [
                one | {"bound": bound, "bound_why": "w"}
                for one, bound in zip(own(), ("compute", "compute", "memory"), strict=True)
            ],
            with_roofs,
        ),
    },
    "cost_and_gaps": {
        "out of memory": (
            answer.section,
            lambda: [*own(), *[one | {"status": "out_of_memory"} for one in failed(batch_size=128)]],
            lambda: [*own(), *failed(batch_size=128)],
        ),
        "no throughput": (answer.section, failed, lambda: [*failed(), *own()]),
        "profiles alone": (answer.section, profile_alone, lambda: [*profile_alone(), *own()]),
        "cost": (answer.section, dear_and_cheap, lambda: [*own(), *failed(usd_per_h=0.5)]),
        "least energy": (
            answer.section,
            lambda: [*own(joules_per_image=0.4), *own(SLOW, "b", batch_size=8, joules_per_image=0.3)],
            lambda: [*own(joules_per_image=0.3), *own(SLOW, "b", batch_size=8, joules_per_image=0.29)],
        ),
        "too few runs": (answer.section, lambda: [*own(), *own((50.0,), "b", batch_size=64)], two_batches),
        "too few runs of the only one": (answer.section, lambda: own((100.0,)), lambda: own((100.0,), imported=True)),
    },
    "method": {
        "how ours are timed": (context.method, own, lambda: own(imported=True)),
        "events on a CPU": (context.method, own, lambda: own(**CPU)),
        "ours beside foreign runs": (
            context.method,
            lambda: [*own(), *own(SLOW, "b", imported=True, model="vgg16")],
            own,
        ),
        "profiles are a second pass": (context.method, lambda: own(profile_status="completed"), own),
        "counters": (context.method, lambda: own(kernels_file="ncu/kernels.csv"), own),
        "runs that broke off": (context.method, lambda: [*own(), *failed()], own),
    },
    "tables": {
        "least and most work per byte": (
            measurements.complexity,
            lambda: [
                one | {"parameters": 1e7, "bytes_upper_per_step": size, "train_flop_per_step": 1e11}
                for one, size in zip([*own(batch_size=16)[:1], *own(name="b")[:1]], (2e9, 1e9), strict=True)
            ],
            lambda: own(parameters=1e7, bytes_upper_per_step=1e9),
        ),
        "shifts": (measurements.roofs, lambda: [one | ROOFS for one in batches(100.0, 120.0)], own),
        "variation": (measurements.variability, lambda: [run(f"v{number}") for number in range(3)], failed),
        "comparisons": (measurements.throughput, two_environments, own),
        "the time of runs": (measurements.throughput, lambda: own(steps_s=10.0), lambda: own(steps_s=10.0, usd=0.01)),
        "imported": (measurements.roofs, lambda: own(imported=True, imported_file="log.csv"), own),
        "few steps": (context.limits, own, lambda: [run("long", steps=[0.1, 0.101] * 600, path="/nowhere")]),
        "synthetic data": (context.limits, own, lambda: own(dataset="imagenette")),
        "prices": (context.limits, lambda: own(usd_per_h=0.5), own),
    },
}


@functools.cache
def said_of(make: Make, section: Of) -> list[str]:
    runs = (one | {"path": "/nowhere"} for one in make())
    return texts(section(undrawn(results(*runs))), cells=False)


@pytest.mark.parametrize("group", CASES)
def test_sentences_of_runs_and_of_nearly_the_same_runs(group: str, golden: Golden) -> None:
    said = {name: (said_of(true, of), said_of(other, of)) for name, (of, true, other) in CASES[group].items()}
    golden(f"sentences_{group}.txt", differences(said))
