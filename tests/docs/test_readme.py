"""The table on README is the one that a run prints."""

from pathlib import Path
from typing import Any

from launcher.run_table import render
from tests.docs import pages
from workload.contract.bundle import Bundle
from workload.contract.fields import encode
from workload.contract.verdict import Figures, RoofKind, decide

STEP_S, FLOP_PER_STEP, FLOP_PER_S = 0.04388486, 4.580179968e9, 317.03e9
COMMAND = "examples/mnist.py --lr 0.5"
# The figures of README's run as its bundle has them.
RECORD: dict[str, Any] = {
    "run_id": "20261123T170358Z-local-cpu-mnist.py-b64-fp32-a8aabd",
    "status": "completed",
    "error": None,
    "spec": {
        "model": "mnist.py",
        "batch_size": 64,
        "precision": "fp32",
        "device": "cpu",
        "script": {
            "command": COMMAND,
            "unit": "images",
            "step": "a step = 1 backward pass and 1 Adadelta step, 64 images from DataLoader at mnist.py:32",
        },
    },
    "environment": {"device": {"name": "Intel(R) Xeon(R) Processor", "threads": 2}},
    "timing": {
        "images_per_s": 1351.414,
        "data_wait_fraction": 0.01185,
        "step_s": {"n": 20, "median": STEP_S, "p5": 0.038668, "p95": 0.062113},
    },
    "complexity": {
        "train_flop_per_step": FLOP_PER_STEP,
        "train_flop_per_image": 71565312,
        "theoretical_step_s": FLOP_PER_STEP / FLOP_PER_S,
    },
    "ceilings": {"flop_per_s": {"fp32": {"median": FLOP_PER_S}}},
    "bound": encode(
        decide(
            Figures(
                step_s=STEP_S,
                data_wait_fraction=0.01185,
                flop=FLOP_PER_STEP,
                bytes_low=98.678e6,
                bytes_high=316.197e6,
                roof=RoofKind.MEASURED,
                roof_flop_per_s=FLOP_PER_S,
                roof_bytes_per_s=21.537e9,
            )
        )
    ),
    "profile": {"status": "not requested"},
    "notes": [],
}


def test_the_table_of_the_first_run() -> None:
    [first] = [command for command in pages.commands("README.md") if command.text.endswith(f"-- {COMMAND}")]
    bundle = Bundle(path=Path("results") / RECORD["run_id"], document=RECORD, files=(), contents={})
    assert "\n".join(first.shown) == render([bundle])
