"""The table on README is the one that a run prints."""

from pathlib import Path
from typing import Any

from launcher.run_table import render
from tests.docs import pages
from workload.contract.bundle import Bundle
from workload.contract.fields import encode
from workload.contract.verdict import Figures, RoofKind, decide

STEP_S, FLOP_PER_STEP, FLOP_PER_S, BYTES_PER_S = 0.7286, 1.705e11, 3.94e11, 2e10
# The figures of README's run as its bundle has them.
RECORD: dict[str, Any] = {
    "run_id": "20261121T055709Z-local-cpu-resnet18-b16-fp32-cede8f",
    "status": "completed",
    "error": None,
    "spec": {"model": "resnet18", "batch_size": 16, "precision": "fp32", "device": "cpu"},
    "environment": {"device": {"name": "Intel(R) Xeon(R) Processor", "threads": 2}},
    "timing": {
        "images_per_s": 21.59,
        "data_wait_fraction": 2e-5,
        "step_s": {"n": 20, "median": STEP_S, "p5": 0.6651, "p95": 0.858},
    },
    "complexity": {
        "train_flop_per_step": FLOP_PER_STEP,
        "train_flop_per_image": 1.064e10,
        "theoretical_step_s": 0.4328,
    },
    "ceilings": {"flop_per_s": {"fp32": {"median": FLOP_PER_S}}},
    "bound": encode(
        decide(
            Figures(
                step_s=STEP_S,
                data_wait_fraction=0.0,
                flop=FLOP_PER_STEP,
                bytes_low=0.07 * BYTES_PER_S * STEP_S,
                bytes_high=0.22 * BYTES_PER_S * STEP_S,
                roof=RoofKind.MEASURED,
                roof_flop_per_s=FLOP_PER_S,
                roof_bytes_per_s=BYTES_PER_S,
            )
        )
    ),
    "profile": {"status": "not requested"},
    "notes": [],
}


def test_the_table_of_the_first_run() -> None:
    [first] = [command for command in pages.commands("README.md") if command.text == "make run"]
    bundle = Bundle(path=Path("results") / RECORD["run_id"], document=RECORD, files=(), contents={})
    assert "\n".join(first.shown) == render([bundle])
