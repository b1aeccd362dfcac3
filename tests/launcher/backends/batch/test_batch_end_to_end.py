"""`launch batch` as its user has it: the real command, client, store, agent and trainer; Batch itself is a fake."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from launcher.backends.batch.backend import BatchMachines
from launcher.backends.batch.options import Options
from launcher.backends.batch.plan import PREFIX
from launcher.backends.batch.service import ENDPOINT_VARIABLE, BatchService
from launcher.jobs import run as jobs_run
from launcher.jobs.session import Session
from launcher.protocol.records import Task, TaskRun
from tests.launcher.backends.batch.batch_plans import batch_plan
from tests.launcher.backends.batch.fake_batch import PROJECT, REGION, FakeBatch, FakeTask
from tests.launcher.backends.gcp.canned_cloud import IMAGE
from tests.launcher.backends.gcp.compute_bodies import plain_body
from tests.launcher.backends.gcp.fake_compute import Vm
from tests.launcher.backends.gcp.fake_metadata import FakeMetadata
from tests.launcher.script import tiny
from tests.waiting import until
from tests.workload.storage import gcs_server
from tests.workload.storage.gcs_server import BUCKET
from workload.contract import bundle
from workload.contract.errors import ExitCode
from workload.contract.spec import Device, Origin, Resolved, RunSpec
from workload.storage.address import open_store
from workload.storage.inventory import sealed_runs

pytestmark = [
    pytest.mark.world,
    pytest.mark.slow,
]

ROOT = Path(__file__).parents[4]
TINY = ("--cpu", "--model=squeezenet1_1", "--batch-size=1", "--warmup=1", "--image-size=64", "--no-ceilings")
PLACE = ("--region", REGION, "--project", PROJECT, "--bucket", BUCKET)


@dataclass
class World:
    """What a launch meets."""

    fake: FakeBatch
    folder: Path
    vm: Any

    def launch(self, *words: str, code: int = ExitCode.DONE) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "launcher", *words],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout, done.stderr


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    def execute(
        task: FakeTask, container: Mapping[str, Any], variables: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        assert container["entrypoint"] == "python"
        log = (tmp_path / f"{task.launch}-{task.attempt}.txt").open("wb")
        words = [sys.executable, *container["commands"]]
        return subprocess.Popen(
            words, env={**os.environ, **variables, "PYTHONPATH": str(ROOT)}, stdout=log, stderr=subprocess.STDOUT
        )

    vm = Vm(PROJECT, "us-central1-a", plain_body("batch-vm-1", "us-central1-a"), 1, created_s=0.0)
    with (
        gcs_server.running(tmp_path / "gcs.log") as server,
        FakeMetadata(vm) as metadata,
        FakeBatch(execute=execute) as fake,
    ):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        monkeypatch.setenv("GCE_METADATA_HOST", metadata.host)
        monkeypatch.setenv("ROOFLAUNCH_COMPUTE_ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.setenv(ENDPOINT_VARIABLE, fake.url)
        yield World(fake, tmp_path, vm)


def test_from_the_command_to_the_bundle(world: World) -> None:
    words = ("--gpu", "t4", *PLACE, "--image", IMAGE, "--usd-per-h", "3600", *TINY, "--iterations", "2")
    out, err = world.launch("batch", *words)
    [folder] = (world.folder / "results").iterdir()
    run = bundle.read(folder).record
    assert (run.status, run.environment.backend, run.environment.runtime) == ("completed", "batch", "process")
    assert "-batch-t4-us-central1-a-squeezenet1_1-" in folder.name
    assert run.environment.cloud is not None
    assert (run.environment.cloud.zone, run.environment.cloud.spot) == ("us-central1-a", False)
    assert run.cost is not None
    assert run.cost.usd is not None
    assert "asking Cloud Batch in us-central1 for 1 task" in err
    assert re.search(r"^  cost +\d+\.\d{3} USD from ", out, re.MULTILINE)

    [job] = world.fake.jobs
    out, _ = world.launch("status", *PLACE)
    assert re.search(rf"^{job} +t4 +us-central1-a +done .* 1$", out, re.MULTILINE)
    out, _ = world.launch("logs", job, *PLACE)
    assert "uploaded" in out
    _, err = world.launch("down", job, *PLACE)
    assert f"'{job}' has no task: it is gone already" in err


@pytest.mark.night(part="places")
def test_a_task_that_is_taken_back_in_the_middle_goes_on_where_it_was(world: World) -> None:
    base = RunSpec(model="squeezenet1_1", device=Device.CPU, batch_size=1, warmup=1, iterations=3, image_size=64)
    base = RunSpec(**{**base.to_json(), "ceilings": False})
    runs = tuple(TaskRun(spec=base, block=block, run_key=f"{block:016x}") for block in (1, 2, 3))
    service = BatchService(PROJECT, REGION)
    store = open_store(f"gs://{BUCKET}/{PREFIX}", jobs=4)
    machines = BatchMachines(service, lambda: store)
    plan = batch_plan(
        Resolved(spec=base, origin={"model": Origin.OPTION}),
        Options(gpu="t4", spot=True, rerun_preempted=2, usd_per_h=1.0),
        REGION,
        now=datetime.now(UTC),
        token="0000bb",
        task=Task(job="night", runs=runs),
    )

    def take_back() -> None:
        until(lambda: list(sealed_runs(store)), within_s=120)
        world.vm.preempted = True
        world.fake.preempt(plan.request.name)
        world.vm.preempted = False

    thread = threading.Thread(target=take_back)
    thread.start()
    outcome = jobs_run.run(Session(machines=machines, store=store), plan, output=world.folder / "results")
    thread.join()
    assert outcome.exit_code == ExitCode.DONE, outcome.error
    sealed = list(sealed_runs(store))
    completed = sorted(run.run_key for run in sealed if run.status == "completed")
    assert completed == [run.run_key for run in runs], "each once"
    assert world.fake.task(plan.request.name).attempt == 1
    assert world.fake.running() == 0


@pytest.mark.night(part="places")
def test_a_script_of_ones_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.project(world.folder)
    bucket = open_store(f"gs://{BUCKET}")
    bucket.write("photos/cats/1.jpg", b"cat")
    bucket.write("photos/labels.csv", b"1,cat")
    monkeypatch.setenv("MY_NOTE", "a-note")
    words = ("--gpu", "t4", *PLACE, "--image", IMAGE, "--usd-per-h", "3600", *tiny.FEW, "--repeats", "2")
    data = ("--data", f"gs://{BUCKET}/photos", "--env", "MY_NOTE")
    out, err = world.launch("batch", *words, *data, "--", "-m", "package.train", "--root", "{data}")
    [log] = world.folder.glob("rooflaunch-*-*.txt")
    assert log.read_text().count("data: cats labels.csv variable: a-note\n") == 2
    stored = open_store(f"gs://{BUCKET}/{PREFIX}")
    [name] = [listed.name for listed in stored.objects("launches/variables/")]
    assert stored.read(name) == b"{}"
    runs = [bundle.read(folder).record for folder in sorted((world.folder / "results").iterdir())]
    assert [run.status for run in runs] == ["completed", "completed"]
    assert [run.spec.script.command for run in runs if run.spec.script] == ["-m package.train --root '{data}'"] * 2
    assert re.search(r"^sends +5 files, \d+ B, of commit [0-9a-f]{7}; and MY_NOTE$", err, re.MULTILINE)
    assert out.startswith("-m package.train --root '{data}', batch 4, fp32, on cpu")
