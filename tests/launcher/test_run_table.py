import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.run_table import render
from workload.contract.bundle import Bundle

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
    return Bundle(path=Path("results") / record["run_id"], document=record, files=(), contents={})


CEILING = "the measured fp32 ceiling, 400 GFLOP/s"
RATES = "median of 3 runs; 95 % interval: 170 GFLOP/s to 242 GFLOP/s"


def test_one_run() -> None:
    assert render([bundle()]).splitlines() == [
        "resnet18, batch 16, fp32, on cpu: A CPU, threads: 2",
        "",
        "  images/s      20  (one run: no interval)",
        "  step time     800 ms  (median of 20 steps; 5 % to 95 % of steps: 750 ms to 1.1 s)",
        "  in theory     400 ms  (the step's FLOP at the measured ceiling, nothing else)",
        f"  FLOP/s        200 GFLOP/s while stepping  (50 % of {CEILING}; 10 GFLOP per image)",
        "  limited by    compute: because",
        "  data waits    0.1 % of the wall time",
        "  note          a note",
        "  bundle        results/a",
        "  next          to get an interval, run again with --repeats 3",
    ]


def repeated(*figures: tuple[float, float], **changes: Sequence[Any]) -> list[Bundle]:
    """Runs a, b … with these images/s and step times, and for each of `changes` a value per run."""
    return [
        bundle(
            run_id=name,
            timing=RECORD["timing"]
            | {"images_per_s": rate, "step_s": {"n": 20, "median": step_s, "p5": step_s, "p95": step_s}},
            **{field: values[index] for field, values in changes.items()},
        )
        for index, (name, (rate, step_s)) in enumerate(zip("abc", figures, strict=False))
    ]


def verdict(bound: str | None, why: str) -> dict[str, Any]:
    return {"bound": bound, "why": why}


COMPUTE = [verdict("compute", f"{share:.0%} of it") for share in (0.5, 0.4, 0.52)]


def test_repeats_have_one_summary() -> None:
    runs = repeated((19.0, 0.84), (22.0, 0.73), (20.0, 0.8), bound=COMPUTE, notes=[["x", "y"], ["x"], ["x", "x"]])
    assert render(runs).splitlines()[2:] == [
        "  images/s      20  (median of 3 runs; 95 % interval: 16.87 to 24.42)",
        "  step time     800 ms  (median of 3 runs; 95 % interval: 660.7 ms to 941.4 ms; 20 steps each)",
        "  in theory     400 ms  (the step's FLOP at the measured ceiling, nothing else)",
        f"  FLOP/s        200 GFLOP/s while stepping  ({RATES}; 48 % to 55 % of {CEILING}; 10 GFLOP per image)",
        "  limited by    compute in all 3 runs; in the first: 50% of it",
        "  data waits    0.1 % of the wall time",
        "  note          x",
        "  note          y  (in 1 of 3 runs)",
        "  bundle        results/a",
        "                results/b",
        "                results/c",
        "  next          analyze report results",
    ]


@pytest.mark.parametrize(
    ("bounds", "lines"),
    [
        ([COMPUTE[0]], ["compute: 50% of it"]),
        ([verdict("neither", "below both")], ["neither compute nor memory: below both"]),
        ([verdict(None, "nobody measured")], ["unknown: nobody measured"]),
        ([COMPUTE[0], COMPUTE[0]], ["compute in all 2 runs: 50% of it"]),
        (
            [verdict("input", "it waits 90 %"), verdict("input", "it waits 80 %")],
            ["input in all 2 runs; in the first: it waits 90 %"],
        ),
        (
            [COMPUTE[0], verdict("neither", "20% of it"), COMPUTE[1]],
            [
                "differs between runs: compute in 2, neither compute nor memory in 1",
                "compute, in one: 50% of it",
                "neither compute nor memory, in one: 20% of it",
            ],
        ),
        ([None], ["unknown: no ceilings were measured (--no-ceilings)"]),
    ],
)
def test_verdicts_of_all_runs(bounds: list[Any], lines: list[str]) -> None:
    shown = render(repeated(*[(20.0, 0.8)] * len(bounds), bound=bounds)).splitlines()
    start = next(index for index, line in enumerate(shown) if line.startswith("  limited by"))
    assert [line[16:] for line in shown[start : start + len(lines)]] == lines
    assert shown[start + len(lines)].startswith(("  data waits", "  busy"))


@pytest.mark.parametrize(
    ("busy", "line"),
    [
        ([None], None),
        (["it got 4 % of one"], "  busy          on a busy machine: it got 4 % of one"),
        (
            [None, "it got 4 % of one", "it got 5 % of one"],
            "  busy          2 of 3 runs on a busy machine, of the first: it got 4 % of one",
        ),
    ],
)
def test_a_busy_machine_stands_beside_the_limit(busy: list[str | None], line: str | None) -> None:
    bounds = [COMPUTE[0] | {"busy": why} for why in busy]
    shown = render(repeated(*[(20.0, 0.8)] * len(busy), bound=bounds)).splitlines()
    limit = next(index for index, text in enumerate(shown) if text.startswith("  limited by    compute"))
    assert (shown[limit + 1] == line) is (line is not None)
    assert any(text.startswith("  busy") for text in shown) is (line is not None)


def test_a_ceiling_that_fell_under_load_is_the_sustained_one() -> None:
    slowed = {"flop_per_s": {"fp32": {"median": 5e11, "burst": 8e11, "sustained": 4e11}}}
    text = render(repeated((20.0, 0.8), ceilings=[slowed]))
    assert "50 % of the measured fp32 ceiling, 400 GFLOP/s sustained, 800 GFLOP/s in a burst;" in text


def test_the_next_command_is_quoted_and_as_it_can_be_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [Bundle(path=Path("my runs") / name, document=RECORD, files=(), contents={}) for name in "ab"]
    assert render(runs).endswith("  next          analyze report 'my runs'")
    assert "my runs/a\n" in render(runs, width=17)
    monkeypatch.setattr("launcher.run_table.as_typed", lambda text: f".venv/bin/{text}")
    assert render(runs, width=40).endswith("  next          .venv/bin/analyze report 'my runs'")


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_long_values_wrap_below_their_column(width: int) -> None:
    runs = repeated((19.0, 0.84), (22.0, 0.73), (20.0, 0.8), bound=COMPUTE)
    shown = render(runs, width=width)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= width
    values = lines[lines.index("") + 1 :]
    assert all(line.startswith(" " * 16) for line in values if line[2] == " ")
    assert shown.split() == render(runs).split()


def test_throughput_of_several_devices() -> None:
    ranks = {"number": 2, "images_per_s": 39.0, "slowest": 1, "slower_by": 0.31}
    (row,) = [line for line in render([bundle(ranks=ranks)]).splitlines() if "images/s" in line]
    assert row.split("images/s")[1].strip().startswith("20 on each of 2 devices, 39 on all, rank 1 is slower by 31 %")


def test_what_limits_scaling_is_below_what_limits_the_step() -> None:
    """Of two runs, the medians: 0.1 s of own work and 0.02 s of waits in one, 0.04 s in the other."""
    ranks = [{"own_s": [0.1, 0.1], "exposed_s": [wait_s, wait_s], "data_s": [0.0, 0.0]} for wait_s in (0.02, 0.04)]
    lines = render([bundle(run_id=name, ranks=each) for name, each in zip("ab", ranks, strict=True)]).splitlines()
    [at] = [number for number, line in enumerate(lines) if line.startswith("  scaling")]
    said = "collectives limit scaling: a device waits 23 % of the step for them after its last gradient"
    assert lines[at].split(maxsplit=1)[1] == said
    assert lines[at - 1].startswith("  limited by")
    assert "  scaling" not in render([bundle()])


def test_no_ceilings_is_said_not_guessed() -> None:
    unknown = RECORD["complexity"] | {"theoretical_step_s": None}
    text = render([bundle(ceilings=None, bound=None, complexity=unknown)])
    assert "in theory" not in text
    assert "limited by    unknown: no ceilings were measured (--no-ceilings)" in text
    assert "FLOP/s        200 GFLOP/s while stepping  (10 GFLOP per image)" in text


def test_run_that_broke_off_is_named() -> None:
    text = render([bundle(), bundle(run_id="b", status="out_of_memory", error="too big")])
    assert "(one run: no interval)" in text
    assert "out of memory  too big" in text
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
            ["ncu: partial: out of time", "ncu: 120 GFLOP a step, 3 GB of DRAM traffic with cold caches; 123 kernels"],
        ),
        (
            COUNTED | {"checks": {"flop_verified": False}, "dram_bytes_per_step": None},
            ["ncu: 120 GFLOP a step (unverified: the calibration disagrees), 40 FLOP/byte; 123 kernels"],
        ),
        (TRACED, [f"torch: 321 kernels a step; longest: {'k' * 60}, 25 % of the time"]),
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
