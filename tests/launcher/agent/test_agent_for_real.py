"""`python -m launcher.agent` on a machine of one's own: this one, with a folder as its store and no container."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.agent import home
from launcher.protocol import records
from launcher.protocol.records import Heartbeat, LaunchPhase, Result
from tests.launcher.own_machine import own_machine_request
from tests.waiting import until
from workload.contract import bundle
from workload.contract.errors import ExitCode
from workload.contract.spec import resolve

pytestmark = [pytest.mark.world, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
NAME = "rooflaunch-tower-20261121-100000-0000aa"
TINY = {"device": "cpu", "image_size": "32", "batch_size": "2", "warmup": "1", "iterations": "3", "ceilings": False}
LIMIT_S = 120


@dataclass(frozen=True, kw_only=True)
class Tower:
    """The lab's machine: a folder for the launch, and one for what it leaves."""

    home: Path
    store: Path

    def ask(self, **changes: Any) -> None:
        resolved = resolve({**TINY, **changes}, {}, None)
        request = own_machine_request(
            name=NAME, store=str(self.store), place="ssh-tower", limit_s=3600, spec=resolved.spec.to_json()
        )
        (self.home / home.REQUEST).write_bytes(request.to_bytes())

    @contextmanager
    def started(self) -> Iterator["subprocess.Popen[bytes]"]:
        with (self.home / "log").open("ab") as log:
            command = [sys.executable, "-m", "launcher.agent", str(self.home)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=self.home)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def work(self) -> int:
        with self.started() as process:
            return process.wait(LIMIT_S)

    def result(self) -> Result:
        return Result.from_bytes((self.store / records.result_object(NAME)).read_bytes())

    def record(self, run_id: str) -> dict[str, Any]:
        return dict(bundle.read(self.store / "runs" / run_id).document)

    def log(self) -> str:
        return (self.home / "log").read_text()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        until(condition, self.log, within_s=LIMIT_S)

    def measures(self) -> bool:
        return any("measured" in path.read_text() for path in self.home.glob(f"results/*/{bundle.STEPS}"))


@pytest.fixture
def tower(tmp_path: Path) -> Tower:
    for name in ("home", "store"):
        (tmp_path / name).mkdir()
    return Tower(home=tmp_path / "home", store=tmp_path / "store")


def test_a_run_without_a_cloud_or_a_container(tower: Tower) -> None:
    tower.ask()
    assert tower.work() == 0, tower.log()
    result = tower.result()
    assert (result.exit_code, result.error, result.zone, result.usd) == (0, "", "", None)
    assert list(result.phases) == [
        LaunchPhase.RUN_STARTED,
        LaunchPhase.RUN_ENDED,
        LaunchPhase.UPLOADED,
        LaunchPhase.FINISHED,
    ]
    [run_id] = result.runs
    record = tower.record(run_id)
    environment = record["environment"]
    assert (record["status"], record["spec"]["iterations"]) == ("completed", 3)
    assert (environment["backend"], environment["place"], environment["runtime"]) == ("ssh", "ssh-tower", "process")
    assert record["cost"]["usd"] is None
    heartbeat = Heartbeat.from_bytes((tower.store / records.status_object(NAME)).read_bytes())
    assert (heartbeat.runs, heartbeat.zone) == ([run_id], "")
    assert "measured" in tower.log(), "what the trainer said"
    # Started once more it has nothing to do.
    assert tower.work() == 0
    assert tower.result() == result


@pytest.mark.night(part="kills")
def test_a_stop_seals_the_run(tower: Tower) -> None:
    tower.ask(iterations="1000000")
    with tower.started() as process:
        tower.wait_until(tower.measures)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0, tower.log()
    result = tower.result()
    assert (result.exit_code, result.error) == (ExitCode.INTERRUPTED, "the machine was asked to stop")
    assert tower.record(result.runs[0])["status"] == "interrupted"


@pytest.mark.night(part="kills")
def test_an_agent_that_is_killed_takes_the_trainer_with_it_and_the_next_one_saves_the_rest(tower: Tower) -> None:
    tower.ask(iterations="1000000")
    with tower.started() as process:
        tower.wait_until(tower.measures)
        process.kill()
    [folder] = tower.home.glob("results/[!.]*")
    tower.wait_until((folder / bundle.MANIFEST).exists)
    assert tower.work() == 0, tower.log()
    result = tower.result()
    broken = "the job was broken off: its machine was restarted, or its processes were killed"
    assert (result.exit_code, result.error, result.runs) == (ExitCode.RUN_FAILED, broken, [folder.name])
    record = tower.record(folder.name)
    assert record["status"] == "interrupted"
    assert len(bundle.read(folder).steps()) > 1
