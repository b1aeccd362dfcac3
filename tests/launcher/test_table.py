import copy
from pathlib import Path
from typing import Any

import pytest

from launcher.table import render
from workload.bundle import Bundle

RECORD: dict[str, Any] = {
    "run_id": "a",
    "status": "completed",
    "error": None,
    "spec": {"model": "resnet18", "batch_size": 16, "precision": "fp32", "device": "cpu"},
    "environment": {"device": {"name": "A CPU", "threads": 2}},
    "timing": {
        "images_per_s": 20.0,
        "data_wait_fraction": 0.001,
        "step_s": {"n": 20, "median": 0.8, "p5": 0.75, "p95": 1.1},
    },
    "complexity": {"train_flop_per_step": 1.6e11, "train_flop_per_image": 1e10, "theoretical_step_s": 0.4},
    "ceilings": {"flop_per_s": {"fp32": {"median": 4e11}}},
    "bound": {"bound": "compute", "why": "because"},
    "profile": {"status": "not requested"},
    "notes": ["a note"],
}
COUNTED: dict[str, Any] = {
    "kind": "ncu",
    "status": "completed",
    "flop_per_step": 1.2e11,
    "flop_is_lower_bound": False,
    "dram_bytes_per_step": 3e9,
    "intensity_flop_per_byte": 40.0,
    "kernels_per_step": 123.0,
    "checks": {"flop_verified": True},
}
TRACED: dict[str, Any] = {
    "kind": "torch",
    "status": "completed",
    "calls_per_step": 321.0,
    "rows": "kernels",
    "top": [{"name": "k" * 61, "share": 0.25}, {"name": "other", "share": 0.2}],
}
BROKEN: dict[str, Any] = {"kind": "ncu", "status": "unavailable", "reason": "no NVIDIA GPU"}


def bundle(**changes: Any) -> Bundle:
    record = copy.deepcopy(RECORD) | changes
    return Bundle(path=Path("results") / record["run_id"], record=record, files=())


def test_one_run() -> None:
    assert render([bundle()]).splitlines() == [
        "resnet18, batch 16, fp32, on cpu: A CPU, threads: 2",
        "",
        "  images/s      20  (one run: no interval)",
        "  step time     800 ms  (median of 20 steps; 5 % to 95 % of steps: 750 ms to 1.1 s)",
        "  in theory     400 ms  (the step's FLOP at the measured ceiling, nothing else)",
        "  FLOP/s        200 GFLOP/s  (50% of the measured fp32 ceiling, 400 GFLOP/s; 10 GFLOP per image)",
        "  limited by    compute: because",
        "  data waits    0.1% of the wall time",
        "  note          a note",
        "  bundle        results/a",
        "  next          the same again for an interval: add --repeats 3",
    ]


def test_repeats_show_their_spread() -> None:
    runs = [
        bundle(run_id=name, timing=RECORD["timing"] | {"images_per_s": rate})
        for name, rate in (("a", 19.0), ("b", 22.0), ("c", 20.0))
    ]
    text = render(runs)
    assert "images/s      20  (median of 3 runs, 19 to 22)" in text
    assert "results/a\n                results/b\n" in text
    assert text.endswith("verify the bundles: python -m workload.bundle results/*")
    spaced = [Bundle(path=Path("my runs/a"), record=found.record, files=()) for found in runs]
    assert render(spaced).endswith("python -m workload.bundle 'my runs'/*")


def test_no_ceilings_is_said_not_guessed() -> None:
    unknown = RECORD["complexity"] | {"theoretical_step_s": None}
    text = render([bundle(ceilings=None, bound=None, complexity=unknown)])
    assert "in theory" not in text
    assert "limited by    unknown: no ceilings were measured (--no-ceilings)" in text
    assert "FLOP/s        200 GFLOP/s  (10 GFLOP per image)" in text


def test_run_that_broke_off_is_named() -> None:
    text = render([bundle(), bundle(run_id="b", status="out_of_memory", error="too big")])
    assert "(one run: no interval)" in text
    assert "out of memory too big" in text
    assert render([bundle(status="interrupted", error="by SIGINT")]).splitlines()[2] == "  interrupted   by SIGINT"


@pytest.mark.parametrize(
    ("profile", "lines"),
    [
        ({"status": "not requested"}, []),
        (BROKEN, ["ncu: unavailable: no NVIDIA GPU"]),
        (COUNTED, ["ncu: 120 GFLOP a step, 3 GB of DRAM traffic with cold caches, 40 FLOP/byte; 123 kernels"]),
        (
            COUNTED | {"flop_is_lower_bound": True, "dram_bytes_per_step": None, "intensity_flop_per_byte": None},
            ["ncu: at least 120 GFLOP a step; 123 kernels"],
        ),
        (
            COUNTED | {"status": "partial", "reason": "out of time", "intensity_flop_per_byte": None},
            [
                "ncu: partial: out of time",
                "ncu: 120 GFLOP a step, 3 GB of DRAM traffic with cold caches; 123 kernels",
            ],
        ),
        (
            COUNTED | {"checks": {"flop_verified": False}, "dram_bytes_per_step": None},
            ["ncu: 120 GFLOP a step (unverified: the calibration is off), 40 FLOP/byte; 123 kernels"],
        ),
        (TRACED, [f"torch: 321 kernels a step; longest: {'k' * 60}, 25% of the time"]),
        (
            TRACED | {"rows": "operators", "top": [{"name": "conv", "share": None}]},
            ["torch: 321 operators a step; longest: conv"],
        ),
        (TRACED | {"top": []}, []),
    ],
)
def test_profile(profile: dict[str, Any], lines: list[str]) -> None:
    shown = render([bundle(profile=profile), bundle(run_id="b", profile=BROKEN)]).splitlines()
    told = [line.removeprefix("  profile       ") for line in shown if line.startswith("  profile ")]
    assert told == lines
