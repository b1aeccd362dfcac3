"""Unit tests touch nothing outside their process; a test marked `world` may."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import hypothesis_profiles  # noqa: F401 - loads the profile `day`
import pytest

from workload.contract import invocation

ROOT = Path(__file__).parents[1]

# Two workers whose OpenMP threads spin for the same cores slow each other down tenfold.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


# These train, start servers or a browser in most of their tests, and take half of the time of all. CI runs them.
SLOW_FILES = {
    "tests/analysis/test_report_browser.py",
    "tests/launcher/agent/test_agent_for_real.py",
    "tests/launcher/backends/batch/test_batch_contract.py",
    "tests/launcher/backends/batch/test_batch_machines.py",
    "tests/launcher/backends/slurm/test_slurm_contract.py",
    "tests/launcher/backends/ssh/test_ssh_contract.py",
    "tests/launcher/backends/ssh/test_ssh_machines.py",
    "tests/launcher/duel/test_duel_for_real.py",
    "tests/launcher/machine/test_machine_task.py",
    "tests/launcher/sweep/test_rented.py",
    "tests/launcher/test_interruptions.py",
    "tests/workload/gpu_truth/test_gpu_truth_collect.py",
    "tests/workload/storage/test_faults_for_real.py",
    "tests/workload/storage/test_fetch_for_real.py",
    "tests/workload/test_profile_session.py",
    "tests/workload/test_train.py",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the slow files' tests that go out into the world to whoever asks for all."""
    if "FULL_PAGES" in os.environ:
        return
    slow = pytest.mark.skip(reason="in a file that takes long: FULL_PAGES=1 runs it")
    for item in items:
        if str(item.path).removeprefix(f"{ROOT}/") in SLOW_FILES and item.get_closest_marker("world"):
            item.add_marker(slow)


def _forbid(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        pytest.fail(f"a unit test must not {what}; mark it `world` if it has to")

    return refuse


@pytest.fixture(autouse=True)
def closed_world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Network, processes and sleeping raise, and no option of the developer's own leaks in."""
    for name in [name for name in os.environ if name.startswith(("ROOFLAUNCH_", "SLURM_")) or name == "COLUMNS"]:
        monkeypatch.delenv(name)
    if request.node.get_closest_marker("world"):
        return
    monkeypatch.setattr(socket.socket, "connect", _forbid("use the network"))
    monkeypatch.setattr(subprocess, "Popen", _forbid("start a process"))
    monkeypatch.setattr(time, "sleep", _forbid("sleep"))


@pytest.fixture(autouse=True)
def plain_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name our commands as where they are on PATH, whatever this machine's PATH is."""
    call = invocation.Call(started="launch", python="", scripts="", path="", folder="")
    monkeypatch.setattr(invocation, "this_call", lambda: call)
    monkeypatch.setattr(invocation, "_is_on_path", lambda *_: True)


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """A door that ran in this process leaves signals without effect, as its own end needs."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of 24 real JPEGs of two classes, 80 x 60 pixels."""
    from PIL import Image

    folder = tmp_path / "images"
    for index in range(24):
        path = folder / ("cat", "dog")[index % 2] / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((80, 60), 40 + index).convert("RGB").save(path, quality=90)
    return folder
