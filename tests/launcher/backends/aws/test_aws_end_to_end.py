"""An instance whose user data, agent and trainer are real, with S3 and ECR by moto; only its Docker is a shim."""

import json
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from launcher.protocol import records
from launcher.protocol.records import LaunchPhase, Result
from tests.launcher.backends.aws.fake_instance import DOCKER, IMAGE, NAME, Instance, instance
from tests.launcher.own_machine import own_machine_request
from tests.waiting import until
from tests.workload.environment.imds_server import ACCOUNT, ADDRESS, IDENTITY, SECRET, SESSION
from tests.workload.storage import s3_server
from tests.workload.storage.s3_server import BUCKET, S3Server
from workload.contract import bundle
from workload.contract.errors import ExitCode
from workload.contract.spec import resolve
from workload.storage.address import open_store
from workload.storage.inventory import sealed_runs
from workload.storage.store import Store

pytestmark = [pytest.mark.world, pytest.mark.slow]

ROOT = Path(__file__).parents[4]
TINY = {"device": "cpu", "image_size": "32", "batch_size": "2", "warmup": "1", "iterations": "3", "ceilings": False}
# The agent runs outside a container, with the variables that its container would have.
AGENT = f"""run)
  while (($#)); do case $1 in
  -e) if [[ $2 == *=* ]]; then export "$2"; fi; shift 2 ;;
  launcher.agent) home=$2; break ;;
  *) shift ;;
  esac; done
  PYTHONPATH='{ROOT}' exec "$REAL_PYTHON" -m launcher.agent "$home" / ;;
"""
PHASES = (LaunchPhase.BOOTED, LaunchPhase.DRIVER_READY, LaunchPhase.DOCKER_READY, LaunchPhase.IMAGE_PULLED)
LIMIT_S = 240


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server.running(tmp_path_factory.mktemp("s3") / "log") as server:
        yield server


@pytest.fixture
def vm(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("the user data needs root, and here a mount name space of its own")
    s3.meet(monkeypatch)
    with instance(tmp_path) as made:
        made.aws.url = s3.url
        made.parameters |= {"store": f"s3://{BUCKET}/{tmp_path.name}", "driver": "none"}
        made.shims["docker"] = DOCKER.partition("run) ")[0] + AGENT + "esac\n"
        yield made


def launch(vm: Instance, **options: str) -> None:
    """Store the request, and give the instance its start and the end of its schedule, as a launcher does."""
    now = datetime.now(UTC)
    identity = {**IDENTITY, "pendingTime": f"{now:%Y-%m-%dT%H:%M:%SZ}"}
    vm.imds.keys["dynamic/instance-identity/document"] = json.dumps(identity)
    vm.imds.tag("rooflaunch-ends", f"{now + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}")
    spec = resolve({**TINY, **options}, {}, None).spec.to_json()
    request = own_machine_request(
        name=NAME,
        backend="aws",
        place="aws-t4",
        store=vm.parameters["store"],
        limit_s=3600,
        image=IMAGE,
        spot=True,
        options={"ami": "ami-0abcdef1234567890"},
        spec=spec,
    )
    store_of(vm).write(records.request_object(NAME), request.to_bytes())


def store_of(vm: Instance) -> Store:
    return open_store(vm.parameters["store"], probe=records.LAUNCHES)


def read(vm: Instance, name: str) -> bytes:
    content = store_of(vm).read(name)
    assert content is not None, name
    return content


def await_end(vm: Instance) -> Result:
    until((vm.folder / "off").exists, vm.console, within_s=LIMIT_S)
    assert vm.calls()[-1] == "poweroff "
    return Result.from_bytes(read(vm, records.result_object(NAME)))


def test_a_run_from_the_user_data_to_the_bundle_in_s3(vm: Instance) -> None:
    launch(vm)
    vm.start()
    result = await_end(vm)
    assert (result.exit_code, result.error, result.zone) == (ExitCode.DONE, "", "use1-az4")
    [run_id] = result.runs
    assert [run.run_id for run in sealed_runs(store_of(vm))] == [run_id]
    record = json.loads(read(vm, f"runs/{run_id}/{bundle.RECORD}"))
    cloud = record["environment"]["cloud"]
    known = ("provider", "zone", "region", "machine_type", "spot", "image", "vm_image", "preempted")
    assert [cloud[name] for name in known] == [
        *("ec2", "use1-az4", "us-east-1", "g4dn.xlarge", True),
        *("ami-0abcdef1234567890", "ami-0abcdef1234567890", False),
    ]
    assert record["environment"]["place"] == "aws-t4-use1-az4"
    assert {*PHASES, LaunchPhase.RUN_STARTED, LaunchPhase.RUN_ENDED} <= set(cloud["phases"])
    assert {LaunchPhase.UPLOADED, LaunchPhase.FINISHED} <= set(result.phases)
    log = read(vm, records.log_object(NAME)).decode()
    assert f"uploaded {run_id}: " in log
    assert not [secret for secret in (SECRET, SESSION) if secret in log + vm.console() + json.dumps(record)]
    assert not [private for private in (ACCOUNT, ADDRESS) if private in json.dumps(record).replace(IMAGE, "")]


def test_a_spot_notice_seals_uploads_and_ends(vm: Instance) -> None:
    launch(vm, iterations="1000000")
    vm.start()
    until(lambda: any("measured" in path.read_text() for path in vm.home.glob(f"results/*/{bundle.STEPS}")), vm.console)
    vm.imds.interrupt()
    result = await_end(vm)
    why = "the spot VM was taken away (preempted) in use1-az4"
    assert (result.exit_code, result.preempted, result.error) == (ExitCode.RUN_FAILED, True, why)
    [sealed] = sealed_runs(store_of(vm), run_id=result.runs[0])
    assert sealed.status == "preempted"
