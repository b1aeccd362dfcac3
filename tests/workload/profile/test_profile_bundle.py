"""Real profiles by `--profile torch` on this machine's CPU, started by `train` and by `profile`."""

import csv
import gzip
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.workload.script_stage import trainer
from workload import cli
from workload.contract import bundle
from workload.contract.errors import ExitCode

pytestmark = [pytest.mark.world, pytest.mark.slow]

TINY = ["--model", "resnet18", "--device", "cpu", "--image-size", "32", "--batch-size", "2", "--warmup", "1"]


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    with process:
        output, error = process.communicate()
    return process.returncode, output, error


def record_of(folder: Path) -> dict[str, Any]:
    return dict(bundle.read(folder).document)


def test_train_with_repeats_and_a_trace(tmp_path: Path) -> None:
    words = [*TINY, "--iterations", "2", "--no-ceilings", "--repeats", "2", "--profile", "torch"]
    code, output, error = finish(trainer(tmp_path, "train", *words, "--profile-steps", "3", "-o", "out"))
    assert code == ExitCode.DONE, error
    first, second = (tmp_path / line for line in output.splitlines())
    profile = record_of(first)["profile"]
    assert (profile["status"], profile["kind"], profile["steps"]) == ("completed", "torch", 3)
    assert profile["rows"] == "operators"
    assert profile["warmup_steps"] == 1
    assert len(profile["step_s"]) == 3
    assert profile["step_without_profiler_s"] > 0
    assert profile["time_s_per_step"] <= 1.05 * sum(profile["step_s"]) / 3, (
        "self times add up to no more than the steps"
    )
    names = [each["name"] for each in profile["top"]]
    assert "aten::convolution_backward" in names, "the backward pass is in the profile"
    assert profile["device"]
    with (first / "torch" / "kernels.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert sum(int(row["calls"]) for row in rows) == pytest.approx(3 * profile["calls_per_step"])
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1, abs=1e-3)
    with gzip.open(first / "torch" / "trace.json.gz") as trace:
        events = json.load(trace)["traceEvents"]
    assert {"step 0", "step 1", "step 2"} <= {event.get("name") for event in events}
    assert "with torch.profiler" in (first / "log.txt").read_text()
    assert len((first / "steps.csv").read_text().splitlines()) == 1 + 1 + 2, "the profile adds no row"
    assert record_of(second)["profile"] == {
        "status": "not profiled",
        "kind": "torch",
        "reason": "the profile is in the bundle of repeat 1 of 2",
    }


@pytest.mark.night(part="trainer")
def test_profile_that_cannot_be_had_is_no_failed_run(tmp_path: Path) -> None:
    words = [*TINY, "--iterations", "1", "--no-ceilings", "--profile", "ncu"]
    code, output, error = finish(trainer(tmp_path, "train", *words, "-o", "out"))
    assert code == ExitCode.DONE
    folder = tmp_path / output.strip()
    assert "error: profile unavailable: ncu needs an NVIDIA GPU; the run was on cpu\nhint: --profile torch" in error
    record = record_of(folder)
    assert record["status"] == "completed"
    assert record["profile"] == {
        "status": "unavailable",
        "reason": "ncu needs an NVIDIA GPU; the run was on cpu",
        "hint": "--profile torch",
        "kind": "ncu",
    }
    assert cli.main(["profile", str(folder)]) == ExitCode.TOOL, "asked for by itself, it has failed"


def test_launcher_profiles_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*TINY, "--iterations", "1", "--no-ceilings", "--profile", "torch", "-o", str(tmp_path)]
    assert cli.main(["train", *words, "--context", '{"profile_later": true}']) == ExitCode.DONE
    folder = Path(capsys.readouterr().out.strip())
    assert record_of(folder)["profile"] == {
        "status": "not profiled",
        "kind": "torch",
        "reason": "the profile pass has not run yet",
    }
