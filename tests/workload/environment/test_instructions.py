import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from workload import cli
from workload.contract.errors import UsageError
from workload.environment import device
from workload.measure import ceilings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks only on Linux")


@pytest.fixture(autouse=True)
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(device.ISA_VARIABLE, raising=False)


def cpu_that_faults_above(monkeypatch: pytest.MonkeyPatch, usable: str | None) -> None:
    """Make the child kill itself as the CPU would, unless oneDNN is limited to `usable`."""

    def step(_: torch.dtype) -> None:
        if os.environ.get(device.ISA_VARIABLE) != usable:
            os.kill(os.getpid(), signal.SIGILL)

    monkeypatch.setattr(device, "_small_step", step)


def test_sound_cpu_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_that_faults_above(monkeypatch, None)
    assert device.hold_back(torch.bfloat16) is None
    assert device.ISA_VARIABLE not in os.environ


@pytest.mark.slow
@pytest.mark.parametrize("usable", device.OLDER_INSTRUCTIONS)
def test_newest_instructions_that_work_are_kept(monkeypatch: pytest.MonkeyPatch, usable: str) -> None:
    cpu_that_faults_above(monkeypatch, usable)
    note = device.hold_back(torch.bfloat16)
    assert note == f"programs crash on instructions that this CPU reports: ONEDNN_MAX_CPU_ISA={usable} was set"
    assert os.environ[device.ISA_VARIABLE] == usable
    monkeypatch.delenv(device.ISA_VARIABLE)


@pytest.mark.parametrize("users_own", [None, "AVX512_CORE"])
def test_nothing_helps(monkeypatch: pytest.MonkeyPatch, users_own: str | None) -> None:
    cpu_that_faults_above(monkeypatch, "SSE41")
    if users_own:
        monkeypatch.setenv(device.ISA_VARIABLE, users_own)
    with pytest.raises(UsageError, match=r"torch's kernels for torch.bfloat16 crash on this CPU \(SIGILL\)"):
        device.hold_back(torch.bfloat16)
    assert os.environ.get(device.ISA_VARIABLE) == users_own


def test_refusal_and_other_deaths_are_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: torch.dtype) -> None:
        raise RuntimeError("not implemented for 'Half'")

    monkeypatch.setattr(device, "_small_step", refuse)
    assert not device.faults(torch.float16)
    monkeypatch.setattr(device, "_small_step", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    assert not device.faults(torch.float16)


@pytest.mark.slow
@pytest.mark.world
def test_this_cpu_survives_what_it_is_told_to_use() -> None:
    code = (
        "import torch; from workload.environment.device import hold_back, _small_step; "
        "types = (torch.bfloat16, torch.float16); [hold_back(t) for t in types]; [_small_step(t) for t in types]"
    )
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("device", "held_back"), [("cpu", ["torch.bfloat16", "torch.float16"]), ("mps", [])])
def test_ceilings_beside_a_script_hold_back_instructions_of_a_cpu(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    device: str,
    held_back: list[str],
) -> None:
    """The first precision is refused, and the second is still tried. No rate is measured here."""
    tried: list[str] = []

    def hold_back(dtype: object) -> None:
        tried.append(str(dtype))
        raise UsageError("torch's kernels crash on this CPU", hint="--precision fp32")

    measured = SimpleNamespace(to_json=lambda: {"device": device})
    monkeypatch.setattr("workload.environment.device.hold_back", hold_back)
    monkeypatch.setattr(ceilings, "cached_or_measure", lambda *_, **__: (measured, 2.0))
    words = ["ceilings", "--device", device, "--precision", "bf16", "--precision", "amp"]
    parsed = cli._parser().parse_args([*words, "--cache", str(tmp_path)])
    assert parsed.command(parsed, None) == 0
    assert tried == held_back
    assert json.loads(capsys.readouterr().out) == {"device": device, "age_s": 2.0}
