import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.run_table import render
from tests.launcher.told import Golden
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


GPT = {"command": "gpt.py", "step": "a step = 1 SGD step, 2 sequences of 256 tokens, from t.py:9", "unit": "tokens"}


def bundle(**changes: Any) -> Bundle:
    record = copy.deepcopy(RECORD) | changes
    return Bundle(path=Path("results") / record["run_id"], document=record, files=(), contents={})


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


# A GPU on which steps take 1 s with their waits, of 156 TFLOP in bf16, the half of its peak.
A100: dict[str, Any] = {
    "spec": RECORD["spec"] | {"precision": "bf16", "device": "cuda"},
    "ceilings": {"flop_per_s": {"bf16": {"median": 250e12}}},
    "environment": {"device": {"type": "cuda", "name": "NVIDIA A100-SXM4-40GB"}},
    "complexity": {"train_flop_per_step": 156e12, "train_flop_per_image": 1e12, "flop_by_precision": {"bf16": 156e12}},
    "timing": RECORD["timing"] | {"measured_s": 20.0},
}
REPEATING = {"complexity": A100["complexity"] | {"recomputed_flop_per_step": 39e12}}
A_LITTLE_FASTER = {"timing": A100["timing"] | {"measured_s": 19.0}}
REPEATS = repeated((19.0, 0.84), (22.0, 0.73), (20.0, 0.8), bound=COMPUTE, notes=[["x", "y"], ["x"], ["x", "x"]])
NEITHER = verdict("neither", "below both")
SLOWED = {"flop_per_s": {"fp32": {"median": 5e11, "burst": 8e11, "sustained": 4e11}}}
NOT_TIMED = RECORD["complexity"] | {"theoretical_step_s": None}
UNCHECKED = {"checks": {"flop_verified": False}, "dram_bytes_per_step": None}
NO_INTENSITY = {"intensity_flop_per_byte": None}


def same(**changes: Sequence[Any]) -> list[Bundle]:
    """Equal runs, as many as there are values of each change."""
    return repeated(*[(20.0, 0.8)] * len(next(iter(changes.values()))), **changes)


def waits_for_others(name: str, wait_s: float) -> Bundle:
    return bundle(run_id=name, ranks={"own_s": [0.1, 0.1], "exposed_s": [wait_s, wait_s], "data_s": [0.0, 0.0]})


def with_energy(joules: float, **facts: Any) -> dict[str, Any]:
    """Changes of a run of 100 images."""
    return {"energy": {"joules": joules, **facts}, "timing": RECORD["timing"] | {"images": 100}}


COUNTER = {"source": "nvml counter", "seconds": 30.0, "idle_w": 21.9}
TOKENS = RECORD["spec"] | {"script": {"command": "train.py", "unit": "tokens"}}
SCRIPT = {"argv": ["train.py", "--max-steps", "9000"], "command": "train.py --max-steps 9000", "unit": "images"}
TRAINED = RECORD["spec"] | {"model": "train.py", "script": SCRIPT | {"dataset_samples": 50_000}}


TABLES: dict[str, list[Bundle]] = {
    "one run": [bundle()],
    "repeats": REPEATS,
    "neither limits": same(bound=[NEITHER]),
    "limit unknown": same(bound=[verdict(None, "nobody measured")]),
    "limit of two runs": same(bound=[COMPUTE[0], COMPUTE[0]]),
    "input limits two runs": same(bound=[verdict("input", f"it waits {share} %") for share in (90, 80)]),
    "limits differ": same(bound=[COMPUTE[0], NEITHER, COMPUTE[1]]),
    "no verdict": same(bound=[None]),
    "busy machine": same(bound=[COMPUTE[0] | {"busy": "it got 4 % of one"}]),
    "two of three on a busy machine": same(
        bound=[COMPUTE[0] | {"busy": why} for why in (None, "it got 4 % of one", "it got 5 % of one")]
    ),
    "ceiling fell under load": same(ceilings=[SLOWED]),
    "no ceilings": [bundle(ceilings=None, bound=None, complexity=NOT_TIMED)],
    "several devices": [bundle(ranks={"number": 2, "images_per_s": 39.0, "slowest": 1, "slower_by": 0.31})],
    "tokens": [
        bundle(
            spec=RECORD["spec"] | {"model": "gpt.py", "batch_size": 512, "script": GPT},
            timing=RECORD["timing"] | {"images_per_s": 2048.0, "images": 4096, "samples": 16, "measured_s": 2.0},
        )
    ],
    # The medians of 0.1 s of own work and 0.02 s of waits in one run, 0.04 s in the other.
    "collectives limit scaling": [waits_for_others("a", 0.02), waits_for_others("b", 0.04)],
    # Without a cost, that of a user's own machine.
    "an epoch": repeated((19.0, 0.84), (22.0, 0.73), (20.0, 0.8), spec=[TRAINED] * 3),
    "the whole script on a rented machine": [
        bundle(
            spec=TRAINED | {"samples": 1e9},
            timing=RECORD["timing"] | {"measured_s": 16.0},
            cost={"usd_per_h": 0.6},
        )
    ],
    "share of the peak": [bundle(**A100)],
    "repeated FLOP": [bundle(**A100 | REPEATING), bundle(run_id="b", **A100 | REPEATING | A_LITTLE_FASTER)],
    "FLOP that are unknown in part": [bundle(**A100 | {"complexity": A100["complexity"] | {"uncounted": ["sort"]}})],
    "out of memory": [bundle(), bundle(run_id="b", status="out_of_memory", error="too big")],
    "interrupted": [bundle(status="interrupted", error="interrupted by Ctrl-C")],
    "energy": [bundle(**with_energy(41.2, **COUNTER))],
    "energy of a short run, by tokens": [
        bundle(spec=TOKENS, **with_energy(0.2, **COUNTER | {"seconds": 3.0, "idle_w": None}))
    ],
    "energy of two of three runs": [
        bundle(**with_energy(joules, source="nvml power", seconds=30.0)) for joules in (40.0, 50.0)
    ]
    + [bundle()],
    "energy of a CPU": [bundle(**with_energy(4000.0, source="rapl", seconds=1.0))],
    "energy of two devices": [bundle(ranks={"images": 200, "images_per_s": 39.0}, **with_energy(80.0, **COUNTER))],
    "energy of steps that a rank lacks": [bundle(ranks={"images": 200}, **with_energy(80.0, **COUNTER))],
    "no counters": [bundle(profile=BROKEN)],
    "counted": [bundle(profile=COUNTED), bundle(run_id="b", profile=BROKEN)],
    "counted in part": [bundle(profile=COUNTED | {"status": "partial", "reason": "out of time"} | NO_INTENSITY)],
    "counted at least": [
        bundle(profile=COUNTED | {"flop_is_lower_bound": True, "dram_bytes_per_step": None} | NO_INTENSITY)
    ],
    "counted without a check": [bundle(profile=COUNTED | UNCHECKED)],
    "traced": [bundle(profile=TRACED)],
    "traced operators": [bundle(profile=TRACED | {"rows": "operators", "top": [{"name": "conv", "share": None}]})],
    "traced without rows": [bundle(profile=TRACED | {"top": []})],
}


def test_tables(golden: Golden) -> None:
    """Of one run, of repeats, and in other cases the lines that neither has."""
    usual = {*render(TABLES["one run"]).splitlines(), *render(REPEATS).splitlines()}
    texts = []
    for name, runs in TABLES.items():
        lines = render(runs).splitlines()
        texts.append([f"## {name}", *(line for line in lines if len(texts) < 2 or line not in usual), ""])
    golden("run_table.txt", "\n".join(line for text in texts for line in text))


def test_the_next_command_is_quoted_and_as_it_can_be_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [Bundle(path=Path("my runs") / name, document=RECORD, files=(), contents={}) for name in "ab"]
    assert render(runs).endswith("  next          analyze report 'my runs'")
    assert "my runs/a\n" in render(runs, width=17)
    monkeypatch.setattr("launcher.run_table.as_typed", lambda text: f".venv/bin/{text}")
    assert render(runs, width=40).endswith("  next          .venv/bin/analyze report 'my runs'")


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_long_values_wrap_below_their_column(width: int) -> None:
    shown = render(REPEATS, width=width)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= width
    values = lines[lines.index("") + 1 :]
    assert all(line.startswith(" " * 16) for line in values if line[2] == " ")
    assert shown.split() == render(REPEATS).split()
