"""The whole ncu pass, with scripts in place of ncu and of the profiled process."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.workload.profile.ncu_stand_in import write_ncu
from workload import cli
from workload.contract import bundle
from workload.contract.errors import ExitCode
from workload.contract.record import StepSeconds, Timing
from workload.contract.record_sections import ProfileResult
from workload.contract.spec import Device, Profile, RunSpec
from workload.environment.machine import HostSystem
from workload.profile import command, diagnosis, ncu_pass, profile_bundle, profiled_script
from workload.profile.command import ExpectedTime
from workload.profile.diagnosis import Facts
from workload.profile.profile_bundle import ProfileRequest
from workload.steps import program

pytestmark = [pytest.mark.world, pytest.mark.usefixtures("fake_ncu")]

APP = """
import json, os, sys
from pathlib import Path
mode, report = sys.argv[1], Path(sys.argv[2])
if os.environ.get("FAKE_APP") == mode:
    print("error: resnet18 at batch size 2 in fp32 does not fit into the cuda's memory\\nhint: --batch-size 1")
    sys.exit(7)
# AMP's scale has settled after so many steps of warm-up.
settled = int(sys.argv[3]) >= int(os.environ.get("FAKE_SETTLED", "0"))
found = {"steps": int(sys.argv[4]), "skipped_steps": 0 if settled else 1, "warmup_steps": 20}
if mode == "count":
    found = {"device": os.environ.get("FAKE_GPU", "NVIDIA L4"), "compute_capability": os.environ.get("FAKE_CC", "8.9"),
             "torch": "2.11", "start_s": 3.0, "warmup_steps": 20,
             "kernels_per_step": 4, "calibration_kernels": 1, "calibration_flop": {"fp32": 2000}}
report.write_text(json.dumps(found))
"""
# 2*500 + 2*1000 + 100 additions.
FLOP_PER_STEP = 3100


@pytest.fixture
def fake_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = write_ncu(tmp_path / "bin")
    app = tmp_path / "app.py"
    app.write_text(APP)
    facts = Facts(device=Device.CUDA, driver=True, ncus=(path,), admin_only=False, is_admin=False, in_container=False)
    monkeypatch.setattr(diagnosis, "gather", lambda *_: facts)
    monkeypatch.setattr(
        command,
        "profiled_process",
        lambda spec, mode, report, _, warmup_steps=20: [
            *(sys.executable, str(app), mode, str(report), str(warmup_steps), str(spec.profile_steps))
        ],
    )
    return path


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "run", RunSpec(device=Device.CUDA, profile=Profile.NCU, profile_steps=2))


def make_bundle(folder: Path, spec: RunSpec, *, status: str = "completed") -> Path:
    folder.mkdir()
    record = {
        "run_id": folder.name,
        "status": status,
        "spec": spec.filled(Device.CUDA, cpus=2).to_json(),
        "environment": {"device": {"name": "NVIDIA L4"}},
        "timing": {"step_s": {"median": 0.01}},
        "complexity": {"train_flop_per_step": 3000},
        "profile": {"status": "not profiled", "reason": "the profile pass has not run yet"},
    }
    bundle.write_document(folder, record)
    (folder / "steps.csv").write_text("step\n0\n")
    (folder / "log.txt").write_text("before\n")
    bundle.seal(folder)
    return folder


def profile(folder: Path, **request: Any) -> dict[str, Any]:
    """Profile, check that the bundle is whole and its timing untouched, and return what run.json says."""
    profile_bundle.profile(folder, ProfileRequest(**request))
    found = bundle.read(folder)
    assert (folder / "steps.csv").read_text() == "step\n0\n"
    assert found.record.timing == Timing(step_s=StepSeconds(median=0.01))
    assert not (folder / profile_bundle.WORK).exists()
    recorded: dict[str, Any] = found.document["profile"]
    listed = {file.name for file in found.files}
    assert set(recorded.get("files", [])) <= listed
    return recorded


@pytest.mark.parametrize(("settled", "warmups"), [("21", [20, 40]), ("80", [20, 40, 80])])
def test_a_step_that_amp_skipped_is_profiled_again(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, settled: str, warmups: list[int]
) -> None:
    monkeypatch.setenv("FAKE_SETTLED", settled)
    found = profile(run_folder)
    assert (found["status"], found["warmup_steps"], found["skipped_steps"]) == ("completed", warmups[-1], 0)
    again = "profiled again after twice as many"
    assert found["notes"] == [f"AMP skipped 1 of 2 steps after {few} warm-up steps: {again}" for few in warmups[:-1]]
    # Of the last attempt alone.
    assert (found["kernels_profiled"], found["flop_per_step"]) == (9, FLOP_PER_STEP)


@pytest.mark.slow
def test_one_that_amp_always_skips_is_partial(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SETTLED", "1000")
    found = profile(run_folder, profile_throughput=True)
    reason = "AMP skipped 1 of 2 steps in each of 3 attempts: no optimizer kernels"
    assert (found["status"], found["reason"]) == ("partial", reason)
    assert found["hint"] == "--precision bf16, which needs no scaling of gradients"
    assert found["skipped_steps"] == 1
    assert (found["throughput"]["status"], found["throughput"]["reason"]) == ("partial", reason)


OWN = "dram__bytes.sum.per_second,dram__bytes.sum,lts__t_bytez.sum,launch__waves,sm__throughput.nonsense"


def test_metrics_of_the_user_are_collected_too(run_folder: Path) -> None:
    found = profile(run_folder, ncu_metrics=OWN)
    assert (found["status"], found["flop_per_step"]) == ("completed", FLOP_PER_STEP)
    assert found["own_metrics"] == ["dram__bytes.sum.per_second", "dram__bytes.sum", "launch__waves"]
    assert found["metrics"][-2:] == ["dram__bytes.sum.per_second", "launch__waves"]
    assert len(found["metrics"]) == len(set(found["metrics"]))
    assert found["missing"] == ["l1tex__t_bytes.sum", "lts__t_bytez.sum", "sm__throughput.nonsense"]
    assert found["notes"] == [
        f"this ncu does not have {name} for this GPU: left out; ncu's option --query-metrics lists what it has"
        for name in ("lts__t_bytez.sum", "sm__throughput.nonsense")
    ]
    header = (run_folder / "ncu" / "kernels.csv").read_text().splitlines()[0]
    assert '"dram__bytes.sum.per_second"' in header
    # Without the option nothing changes.
    assert "own_metrics" not in profile(run_folder)


@pytest.fixture
def script_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Bundle of a user's script. Its profiled process is replaced by a stand-in, as for a model."""
    app = tmp_path / "app.py"
    monkeypatch.setattr(
        profiled_script,
        "command",
        lambda _, spec, mode, report, __, warmup_steps=None, ___=None: [
            *(sys.executable, str(app), mode, str(report), str(warmup_steps or 20), str(spec.profile_steps))
        ],
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")
    argv = ("train.py", "--token", "12345")
    script = program.script_facts(argv, tmp_path, tmp_path / "train.py", machine=HostSystem())
    folder = make_bundle(tmp_path / "run", RunSpec(device=Device.CUDA, profile=Profile.NCU, profile_steps=2))
    read = bundle.read(folder).record
    bundle.reseal(folder, replace(read, spec=replace(read.spec, script=script, optimizer="Adadelta")))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settled", "status", "hint", "reason"),
    [
        ("21", "completed", None, "after 20 warm-up steps: profiled again after twice as many"),
        ("1000", "partial", "--profile-steps 1", "in each of 3 attempts"),
    ],
)
def test_a_script_is_profiled_as_a_model_is(
    script_folder: Path, settled: str, status: str, hint: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SETTLED", settled)
    collected = profile_bundle.profile(script_folder, ProfileRequest(), ("train.py", "--token", "12345"))
    irregular = "1 of 2 steps contained validation, a checkpoint or parts in another order, or skipped the optimizer"
    assert (collected.status, collected.hint) == (status, hint)
    if settled == "1000":
        assert collected.reason == f"{irregular} {reason}"
    else:
        assert (collected.warmup_steps, collected.flop_per_step) == (40, FLOP_PER_STEP)
        assert collected.notes == (f"{irregular} {reason}",)


def test_completed_profile(fake_ncu: Path, run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = profile(run_folder)
    assert (found["status"], found.get("reason"), found.get("hint")) == ("completed", None, None)
    assert found["flop_per_step"] == FLOP_PER_STEP
    assert found["kernels_per_step"] == 4
    assert found["dram_bytes_per_step"] == 1000
    assert found["intensity_flop_per_byte"] == pytest.approx(3.1)
    assert found["kernel_time_s_per_step"] == pytest.approx(7e-6)
    assert found.get("l1_bytes_per_step") is None
    assert found["missing"] == ["l1tex__t_bytes.sum"], "this ncu does not know it"
    assert found["checks"] == {
        "calibration": {"fp32": {"ratio": 1.0, "verified": True}},
        "flop_verified": True,
        "backward": {"kernels_per_step": 1, "flop_over_forward": 2.0, "present": True},
        "model_flop": {"counted_over_model": pytest.approx(3100 / 3000), "flagged": False, "likely_cause": None},
        "kernels_outside_steps": 0,
    }
    assert (found["kernels_profiled"], found["passes"]) == (9, 4)
    assert found["ncu"] == {"version": "2024.1.1.0", "path": str(fake_ncu)}
    assert found["files"] == [f"ncu/{name}" for name in ("command.txt", "kernels.csv", "ncu.log", "profile.ncu-rep")]
    # Every command is kept and said.
    capsys.readouterr()
    assert cli.main(["profile", str(run_folder)]) == ExitCode.DONE
    captured = capsys.readouterr()
    assert captured.out == f"{run_folder}\n"
    commands = (run_folder / "ncu" / "command.txt").read_text().splitlines()
    assert [line.partition(" --")[0].split("/")[-1][:5] for line in commands[1:]] == ["ncu", "ncu"]
    assert commands[1].startswith(f"LC_ALL=C {fake_ncu} --profile-from-start off")
    assert "--import" in commands[2]
    for line in commands:
        assert f"command    {line}\n" in captured.err
    assert "profile    9 kernels in 2 steps: about 13 s, at most 2.6 min\n" in captured.err
    assert "profile    9/9 kernels" in captured.err
    log = (run_folder / "log.txt").read_text()
    assert log.startswith("before\n")
    assert "9 kernels in 2 steps" in log
    assert "==PROF== Profiling" in (run_folder / "ncu" / "ncu.log").read_text()


def test_further_profiles(run_folder: Path) -> None:
    found = profile(run_folder, profile_step_bytes=True, profile_throughput=True)
    assert found["status"] == "completed"
    step = found["step_bytes"]
    assert (step["status"], step["dram_bytes_per_step"]) == ("completed", 600)
    throughput = found["throughput"]
    # By hand: 10 % for 1 us, 90 % for 2 us and 3 us, 10 % for 1 us.
    assert throughput["sm_percent_time_weighted"] == pytest.approx(470 / 7)
    assert throughput["kernels"] == 8
    for name in ("step.csv", "step.ncu-rep", "throughput.csv", "throughput.ncu-rep"):
        assert f"ncu/{name}" in found["files"]


def test_further_profile_that_fails_costs_nothing(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCU", "throughput fails")
    found = profile(run_folder, profile_step_bytes=True, profile_throughput=True)
    assert (found["status"], found["flop_per_step"]) == ("completed", FLOP_PER_STEP)
    assert found["step_bytes"]["status"] == "completed"
    assert found["throughput"]["status"] == "unavailable"
    assert "DCGM" in found["throughput"]["reason"]


@pytest.mark.parametrize(
    ("how", "reason", "steps"),
    [("error", "ncu reports: LaunchFailed; after 9 kernels", 2), ("no ranges", "the table has no ranges", 0)],
)
def test_partial_profile_keeps_what_is_certain(
    run_folder: Path, how: str, reason: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NCU", how)
    found = profile(run_folder)
    assert found["status"] == "partial"
    assert found["reason"].startswith(reason)
    assert found["steps_profiled"] == steps
    assert ("flop_per_step" in found) is (steps > 0)
    assert "ncu/kernels.csv" in found["files"]


def limit(seconds: float) -> Callable[..., ExpectedTime]:
    return lambda *_: ExpectedTime(expected_s=0.1, limit_s=seconds)


def test_time_limit_without_anything(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCU", "deaf")
    monkeypatch.setattr(command, "estimate_kernels", limit(0.5))
    monkeypatch.setattr(command, "GRACE_S", 0.3)
    found = profile(run_folder)
    assert (found["status"], found["reason"]) == (
        "timed out",
        "the time limit of 0 s ended the profile before a kernel was profiled",
    )
    assert "files" not in found
    assert (run_folder / "ncu" / "ncu.log").is_file(), "what it printed is kept"


def test_ctrl_c_keeps_the_steps_that_were_done(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCU", "hang")
    seen, on_line = threading.Event(), ncu_pass._NcuProgress.on_line

    def watch(self: ncu_pass._NcuProgress, line: str) -> None:
        on_line(self, line)
        if self.done == 7:
            seen.set()

    monkeypatch.setattr(ncu_pass._NcuProgress, "on_line", watch)
    threading.Thread(target=lambda: (seen.wait(60), os.kill(os.getpid(), signal.SIGINT)), daemon=True).start()
    assert cli.main(["profile", str(run_folder), "--profile-throughput"]) == ExitCode.INTERRUPTED
    found = bundle.read(run_folder).document["profile"]
    assert (found["status"], found["reason"]) == ("interrupted", "interrupted after 7 kernels")
    assert found["flop_per_step"] == FLOP_PER_STEP
    assert "throughput" not in found, "nothing more is started"


@pytest.mark.slow
@pytest.mark.usefixtures("logged")  # notes are logged as by a program that was started
def test_failed_pass_leaves_an_earlier_profile(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = profile(run_folder)
    monkeypatch.setenv("FAKE_NCU", "dcgm")
    assert profile(run_folder) == first
    assert "the bundle keeps the profile that it had" in (run_folder / "log.txt").read_text()
    monkeypatch.delenv("FAKE_NCU")
    assert profile(run_folder, profile_steps=3)["steps_profiled"] == 3


FAILURES = (
    "FAKE_NCU=permission",
    "FAKE_NCU=nothing",
    "FAKE_NCU=unreadable",
    "FAKE_APP=count",
    "FAKE_APP=calibrated",
    "FAKE_GPU=Tesla T4",
    "FAKE_CC=9.0",
)


def test_failures_are_said_and_recorded(
    tmp_path: Path,
    golden: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = ""
    for number, failure in enumerate(FAILURES):
        folder = make_bundle(tmp_path / f"{number}", RunSpec(device=Device.CUDA, profile=Profile.NCU, profile_steps=2))
        with monkeypatch.context() as patch:
            patch.setenv(*failure.split("="))
            assert cli.main(["profile", str(folder)]) == ExitCode.TOOL
        captured = capsys.readouterr()
        assert captured.out == ""
        recorded = bundle.read(folder).document["profile"]
        error = f"error: profile {recorded['status']}: {recorded['reason']}\nhint: {recorded['hint']}\n"
        assert error in captured.err
        assert (recorded["kind"], "flop_per_step" in recorded) == ("ncu", False)
        said += f"## {failure}\n{error.replace(str(tmp_path), 'FOLDER')}"
    golden("failed_profiles.txt", said)


# Options, with which a profile of a bundle that has one is refused.
REFUSED = ("--profile torch", "--profile none", "--profile-steps 0", "--profile torch --profile-throughput")


def test_what_cannot_be_asked_for(
    run_folder: Path, golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    before, said = profile(run_folder), ""
    capsys.readouterr()
    for words in REFUSED:
        assert cli.main(["profile", str(run_folder), *words.split()]) == ExitCode.USAGE
        said += f"## {words}\n{capsys.readouterr().err}".replace(str(run_folder), "RUN")
    golden("refused_profiles.txt", said)
    assert bundle.read(run_folder).document["profile"] == before


def test_only_completed_bundles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = make_bundle(tmp_path / "failed", RunSpec(profile=Profile.NCU), status="out_of_memory")
    assert cli.main(["profile", str(failed)]) == ExitCode.USAGE
    assert "cannot be profiled: the run is 'out_of_memory', not completed" in capsys.readouterr().err
    assert cli.main(["profile", str(tmp_path)]) == ExitCode.BAD_BUNDLE
    (failed / "steps.csv").write_text("changed")
    assert cli.main(["profile", str(failed)]) == ExitCode.BAD_BUNDLE


def test_bundle_is_whole_during_the_pass(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the pass is killed, only the profile is lost."""
    seen: list[bundle.Bundle] = []

    def look(*_: object) -> ProfileResult:
        (run_folder / profile_bundle.WORK / "ncu" / "half.csv").write_text("x")
        seen.append(bundle.read(run_folder))
        return ProfileResult(status="failed")

    monkeypatch.setattr(ncu_pass, "profile", look)
    (run_folder / profile_bundle.WORK).mkdir()
    (run_folder / profile_bundle.WORK / "left by a killed one").touch()
    profile_bundle.profile(run_folder, ProfileRequest())
    assert seen[0].document["profile"]["status"] == "not profiled"
    assert "ncu/half.csv" in {file.name for file in bundle.read(run_folder).files}
    assert not (run_folder / profile_bundle.WORK).exists()


def test_the_limit_is_judged_again_with_the_profile(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run for 2 ms of each step of 10 ms."""
    found = ProfileResult(status="completed", kind="ncu", kernel_time_s_per_step=0.002)
    monkeypatch.setattr(ncu_pass, "profile", lambda *_: found)
    profile_bundle.profile(run_folder, ProfileRequest())
    bound = bundle.read(run_folder).record.bound
    assert bound is not None
    assert (bound.bound, bound.device_busy_share) == ("overhead", 0.2)
