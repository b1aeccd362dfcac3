"""`python -m workload complexity`: its tables and files, and published figures that it gives again."""

import json
from contextlib import chdir
from pathlib import Path

import pytest
import torch  # noqa: F401 - cannot be imported a second time, after a test that restores the loaded modules

from workload.cli import main
from workload.contract.errors import ExitCode

SMALL = ("complexity", "--model", "resnet18", "--image-size", "32", "--num-classes", "10", "--batch-size")


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "4", "8"]) == ExitCode.DONE
    printed = capsys.readouterr().out
    # C: a forward pass of a CIFAR-10 image is 0.0367 GFLOP by scaling ImageNet's; counted: 0.0370 GMAC.
    assert "37.0" in printed.split("\n\n")[0]
    assert "11181642" in printed
    assert printed.count("resnet18") >= 3
    assert "convolution" in printed
    assert "O(N·(C+K)·H·W + K·C·R·S/G)" in printed
    assert "depthwise" not in printed


def test_a_row_for_each_model_and_batch_size_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "intensity.json"
    assert main([*SMALL, "4", "8", "4", "-o", str(target)]) == ExitCode.DONE
    assert capsys.readouterr().out == ""
    small, large = json.loads(target.read_text())
    assert [(row["model"], row["batch_size"]) for row in (small, large)] == [("resnet18", 4), ("resnet18", 8)]
    assert large["train_flop_per_step"] == 2 * small["train_flop_per_step"]
    assert large["intensity_low"] > small["intensity_low"]
    # The keys of the course's template beside ours.
    macs = 37016576
    assert small["params"] == small["parameters"] == 11181642
    assert small["mult_adds_per_sample_forward"] == small["forward_mac_per_image"] == macs
    assert small["flops_per_batch_forward"] == small["forward_flop_per_step"] == 4 * 2 * macs


def test_modules_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "4", "--by-module", "layer3.0", "fc", "--format", "json"]) == ExitCode.DONE
    rows = {row["module"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) > {"layer3.0", "layer3.0.conv1", "fc"}
    assert "layer3.1" not in rows
    parts = [row for name, row in rows.items() if name.startswith("layer3.0.") and name.count(".") == 2]
    # What the block itself does is its addition, without FLOP.
    assert rows["layer3.0"]["train_flop"] == sum(row["train_flop"] for row in parts)
    assert rows["fc"]["forward_flop"] == 2 * 4 * 512 * 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "resnet19"), "did you mean resnet18"),
        (("--by-module", "layer9"), "did you mean layer"),
        (("--by-module", "--batch-size", "1", "2"), "for one model and one batch size"),
        (("--num-classes", "ten"), "num classes must be a positive integer"),
        (("-o", "figures.xls"), "must end in .csv or .json"),
        (("-o", "no/such/folder.csv"), "no such folder"),
    ],
)
def test_a_mistake_is_one_line_and_a_hint(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with chdir(tmp_path):
        assert main(["complexity", *words]) == ExitCode.USAGE
    printed = capsys.readouterr().err
    assert message in printed
    assert "hint: " in printed
    assert not list(tmp_path.iterdir())
