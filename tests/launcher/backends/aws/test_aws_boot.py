"""The user data of an instance, run by a real bash against fake servers; what changes a machine is a shim."""

import ast
import gzip
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from launcher.agent import home as agent_home
from launcher.backends.aws import answers, guest, plan
from launcher.backends.aws.boot import signed
from launcher.backends.aws.plan import MAX_BYTES
from launcher.backends.shared_plan import program_text
from launcher.protocol.records import Heartbeat
from tests.launcher.backends.aws.fake_instance import (
    BUCKET,
    IMAGE,
    NAME,
    NOTE,
    PASSWORD,
    REGISTRY,
    Instance,
    instance,
)
from tests.waiting import until
from tests.workload.environment.imds_server import CREDENTIALS, ROLE, SECRET, SESSION
from workload.contract.errors import UsageError

pytestmark = pytest.mark.world

PHASES = ["booted", "driver_ready", "docker_ready", "image_pulled"]
STARTUP = plan.FOLDER / "startup.sh"
PARAMETERS = {
    "launch": NAME,
    "driver": "preinstalled",
    "ends_tag": plan.ENDS_TAG,
    "store": f"s3://{BUCKET}",
    "region": "us-east-1",
    "image": IMAGE,
    "is_task": False,
    "limit_s": 3601,
}


@pytest.fixture
def vm(tmp_path: Path) -> Iterator[Instance]:
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("the user data needs root, and here a mount name space of its own")
    with instance(tmp_path) as made:
        yield made


def test_a_boot(vm: Instance) -> None:
    vm.run()
    home, socket = f"/var/lib/rooflaunch/{NAME}", Path("/var/run/docker.sock")
    group = f" --group-add {socket.stat().st_gid}" if socket.exists() else ""
    agent = (
        f"docker run --rm --name {NAME} -u 1000:1000 -v /var/run/docker.sock:/var/run/docker.sock{group}"
        f" -v /:/host:ro -v {home}:{home} --network host --read-only"
        " --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges --stop-timeout 25"
        " -e AWS_EC2_METADATA_SERVICE_ENDPOINT -e AWS_ENDPOINT_URL -e AWS_REGION=us-east-1"
        f" -e AWS_DEFAULT_REGION=us-east-1 -e ROOFLAUNCH_LAUNCH={NAME}"
        f" -e ROOFLAUNCH_STORE=s3://{BUCKET}/a+b -e ROOFLAUNCH_LIMIT_S=3600 --entrypoint python"
        f" {IMAGE} -m launcher.agent {home} /host"
    )
    assert vm.calls() == [
        "shutdown -P +60",
        f"hostnamectl set-hostname {NAME}",
        "systemctl enable --now --no-block rooflaunch.service",
        "shutdown -P +60",
        "nvidia-smi ",
        "docker info --format {{json .Runtimes}}",
        "docker info --format Docker {{.ServerVersion}}",
        f"docker login -u AWS --password-stdin https://{REGISTRY}",
        f"docker pull -q {IMAGE}",
        f"docker ps -aqf volume={home} -f volume={home}/results",
        agent,
        "poweroff ",
    ]
    assert vm.log().startswith("rooflaunch: phase booted ")
    assert vm.log().endswith("the agent ran\n")
    assert vm.aws.signed.count("us-west-2/ecr/aws4_request") == 1, "the registry's own region"
    assert set(vm.aws.signed) == {"us-west-2/ecr/aws4_request", "us-east-1/s3/aws4_request"}
    # The launcher sees the phases before the agent begins.
    status = Heartbeat.from_bytes(vm.record("status.json"))
    assert (list(status.phases), status.zone, status.runs) == (PHASES, "use1-az4", [])
    for phase, at in status.phases.items():
        assert f"rooflaunch: phase {phase} {at}\n" in vm.console()
    assert sum(path.endswith("status.json") for path in vm.aws.written) == len(PHASES)


@pytest.mark.slow
def test_no_secret_is_seen(vm: Instance) -> None:
    vm.run()
    assert (vm.folder / "password").read_text() == PASSWORD
    told = "".join(
        [vm.console(), vm.log(), vm.text(), *vm.calls(), *(text.decode() for text in vm.aws.objects.values())]
    )
    assert not [secret for secret in (SECRET, SESSION, PASSWORD) if secret in told]
    kept = [path for path in (vm.folder / "root").rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if any(secret in path.read_text() for secret in (SECRET, SESSION, PASSWORD))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "image", ["rooflaunch:cpu", "docker.io/a/b:1", f"{REGISTRY}.example.com/a:1", "public.ecr.aws/a/b"]
)
def test_no_other_registry_is_given_a_password(image: str, vm: Instance) -> None:
    vm.parameters |= {"image": image, "driver": "none"}
    vm.run()
    assert not (vm.folder / "password").exists()
    assert f"docker pull -q {image}" in vm.calls()
    assert "nvidia-smi " not in vm.calls()


def test_no_run_starts_before_its_end_is_scheduled(vm: Instance) -> None:
    tag = "meta-data/tags/instance/rooflaunch-ends"
    del vm.imds.keys[tag]
    vm.constants = {"TAG_TRIES, TAG_AGAIN_S": "100_000, 0.001"}
    vm.start()
    until(lambda: vm.imds.asked.count(tag) > 2)
    assert f"docker pull -q {IMAGE}" in vm.calls(), "meanwhile the image is pulled"
    assert not [call for call in vm.calls() if call.startswith("docker run")]
    vm.imds.tag("rooflaunch-ends", "2026-11-21T11:00:00Z")
    until((vm.folder / "off").exists)
    assert vm.log().endswith("the agent ran\n")


@pytest.mark.slow
def test_an_instance_whose_launcher_died_ends(vm: Instance) -> None:
    del vm.imds.keys["meta-data/tags/instance/rooflaunch-ends"]
    vm.run()
    assert vm.log().endswith("error: nobody has scheduled the end of this instance: its launcher was killed\n")
    assert not [call for call in vm.calls() if call.startswith("docker run")]


@pytest.mark.slow
def test_a_store_that_refuses_keeps_no_instance_alive(vm: Instance) -> None:
    vm.aws.refused = True
    vm.run()
    assert vm.console().count("the status cannot be written: HTTP 403 AccessDenied\n") == len(PHASES)
    assert vm.console().endswith("error: the log cannot be uploaded: HTTP 403 AccessDenied\n")
    assert not [secret for secret in (SECRET, SESSION) if secret in vm.console()], "the answer repeats the request"
    assert [call for call in vm.calls() if call.startswith("docker run")]


@pytest.mark.slow
def test_a_role_that_ec2_may_not_use(vm: Instance) -> None:
    vm.imds.keys[f"meta-data/iam/security-credentials/{ROLE}"] = '{"Code": "AssumeRoleUnauthorizedAccess"}'
    vm.run()
    why = "the instance's role has no credentials: AssumeRoleUnauthorizedAccess"
    assert f"the status cannot be written: {why}\n" in vm.console()
    assert f"error: the registry gives no token: {why}\n" in vm.console()
    assert f"error: the log cannot be uploaded: {why}\n" in vm.console()
    assert "Traceback" not in vm.console()
    assert vm.calls()[-1] == "poweroff "


@pytest.mark.slow
def test_boot_that_fails_ends_and_leaves_its_log(vm: Instance) -> None:
    vm.shims["docker"] = NOTE + "[ $1 = info ] && echo nvidia\n"
    vm.run()
    assert vm.calls()[-1] == "poweroff "
    assert sum(call.startswith("docker pull") for call in vm.calls()) == 3
    assert vm.log().endswith(f"\nerror: the image '{IMAGE}' cannot be pulled\n")


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", "ro", "size=8k"], ids=["a program fails", "read-only disk", "full disk"])
def test_user_data_that_fails_ends_the_instance_at_once(options: str, vm: Instance) -> None:
    if options:
        vm.mount(options)
    else:
        vm.shims["cat"] = "#!/bin/bash\nexit 1\n"
    vm.run()
    assert vm.calls() == ["shutdown -P +60", "poweroff "]


@pytest.mark.slow
def test_poweroff_is_repeated_until_it_works(vm: Instance) -> None:
    vm.shims["poweroff"] = NOTE + '[ "$(grep -c ^poweroff "$FAKE_VM/calls")" -ge 3 ] && touch "$FAKE_VM/off"\n'
    vm.run()
    assert vm.calls()[-7:] == ["poweroff ", "systemctl is-system-running", "sleep 10"] * 2 + ["poweroff "]


def test_a_shutdown_reaches_the_agent_and_waits_for_it(vm: Instance) -> None:
    vm.note("endless")
    vm.start()
    until(lambda: any(call.startswith("docker run") for call in vm.calls()))
    vm.stop()
    until((vm.folder / "off").exists)
    assert vm.calls()[-2:] == [f"docker kill -s TERM {NAME}", "poweroff "]
    assert vm.log().endswith("the agent ran\n")


@pytest.mark.slow
def test_a_boot_that_is_killed_ends_the_instance(vm: Instance) -> None:
    vm.note("endless")
    vm.start()
    until(lambda: any(call.startswith("docker run") for call in vm.calls()))
    [killed] = vm.processes("boot.py")
    os.kill(killed, signal.SIGKILL)
    until((vm.folder / "off").exists)
    vm.note("killed")
    assert "rooflaunch: phase image_pulled" in vm.log()


@pytest.mark.slow
def test_the_heartbeat_goes_on_until_the_agent_begins(vm: Instance) -> None:
    slow = vm.note("slow-pull")
    vm.note("endless")
    vm.constants = {"BEAT_EVERY_S, BEATS": "0.01, 100_000"}
    vm.start()
    until(lambda: sum(path.endswith("status.json") for path in vm.aws.written) > 2 * len(PHASES))
    slow.unlink()
    until(lambda: any(call.startswith("docker run") for call in vm.calls()))
    beats = len(vm.aws.written)
    vm.note("killed")
    until((vm.folder / "off").exists)
    assert vm.aws.written[beats:] == [f"/{BUCKET}/a%2Bb/launches/{NAME}/startup.log"]


@pytest.mark.slow
@pytest.mark.parametrize("is_task", [False, True])
def test_a_restart_saves_what_the_run_has_left(is_task: bool, vm: Instance) -> None:
    vm.parameters["is_task"] = is_task
    vm.run()
    (vm.home / agent_home.STARTED).touch()
    vm.note("now", f"{1795262400 + 3600 - 630}\n")
    for name in ("calls", "off"):
        (vm.folder / name).unlink()
    status = len(vm.aws.written) - 1
    vm.run((f"/var/lib/rooflaunch/{NAME}/startup.sh", f"/var/lib/rooflaunch/{NAME}"))
    calls = [call.split(" -")[0] for call in vm.calls()]
    driver = ["nvidia-smi "] if is_task else []
    assert calls == ["shutdown", *driver, "docker info", "docker image inspect", "docker ps", "docker run", "poweroff "]
    assert vm.calls()[0] == "shutdown -P +10", "the timer goes on where it was"
    assert vm.log().count("rooflaunch: phase booted") == 2
    assert not [path for path in vm.aws.written[status + 1 :] if path.endswith("status.json")], "the agent's own"


# Without an instance.


def test_user_data_begins_with_the_timer_and_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    text, packed = plan.user_data_text(PARAMETERS), plan.user_data(PARAMETERS)
    assert text.splitlines()[:2] == ["#!/bin/bash", "shutdown -P +61"]
    assert text.isascii()
    assert "mime-version:" not in text.lower(), "cloud-init would take it for a message"
    assert packed == plan.user_data(PARAMETERS), "ClientToken wants the same request"
    assert gzip.decompress(packed).decode() == text
    assert len(packed) < MAX_BYTES * 3 / 4, "room for later"
    monkeypatch.setattr(plan, "MAX_BYTES", len(packed) - 1)
    with pytest.raises(UsageError) as caught:
        plan.user_data(PARAMETERS)
    assert str(caught.value) == f"the user data of the instance has {len(packed)} bytes; EC2 takes {len(packed) - 1}"


def test_nothing_that_a_user_gives_is_run(tmp_path: Path) -> None:
    owned = tmp_path / "owned"
    word = f"$(touch {owned})`touch {owned}`'\"\\n{plan.END}"
    text = plan.user_data_text({**PARAMETERS, "image": word, "store": f"s3://{word}"})
    [line] = [line for line in text.splitlines() if line.startswith('{"launch"')]
    assert json.loads(line)["image"] == word
    assert not [line for line in text.splitlines() if str(owned) in line and not line.startswith("{")]
    assert text.count(f"\n{plan.END}\n") == 5, "one for each file"


def test_the_scripts_are_clean(tmp_path: Path) -> None:
    assert len(STARTUP.read_text().splitlines()) <= 30
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck: apt-get install shellcheck (.ci/packages)")
    script = tmp_path / "user-data.sh"
    script.write_text(plan.user_data_text(PARAMETERS))
    done = subprocess.run(["shellcheck", str(script), str(STARTUP)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_instances_own_python_may_be_old() -> None:
    text = program_text(plan.FOLDER / "boot.py")
    tree = ast.parse(text, feature_version=(3, 8))
    assert "launcher" not in {
        str(node.module).partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
    }


def test_boot_and_guest_mean_the_same_tag() -> None:
    assert f"meta-data/tags/instance/{answers.ENDS_TAG}" == guest.ENDS_KEY


@pytest.mark.parametrize(
    ("service", "method", "url", "content"),
    [
        ("s3", "PUT", "https://s3.us-east-1.amazonaws.com/bucket/a%2Bb/launches/n/status.json", b"{}"),
        ("s3", "PUT", "http://127.0.0.1:5000/bucket/launches/n/startup.log", "ü\n".encode()),
        ("ecr", "POST", "https://api.ecr.us-east-1.amazonaws.com/", b"{}"),
    ],
)
def test_a_signature_is_the_one_of_amazons_client(service: str, method: str, url: str, content: bytes) -> None:
    auth = pytest.importorskip("botocore.auth")
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    headers, now = {"content-type": "text/plain", "x-amz-target": "A.b"}, datetime(2026, 11, 21, 10, 0, 5, tzinfo=UTC)
    ours = signed(service, "us-east-1", method, url, headers, content, CREDENTIALS, now)
    keys = Credentials(CREDENTIALS["AccessKeyId"], SECRET, SESSION)
    sent = AWSRequest(
        method=method, url=url, data=content, headers={**headers, "X-Amz-Content-SHA256": ours["x-amz-content-sha256"]}
    )
    signer = (auth.S3SigV4Auth if service == "s3" else auth.SigV4Auth)(keys, service, "us-east-1")
    sent.context["timestamp"] = ours["x-amz-date"]
    sent.headers["X-Amz-Date"] = ours["x-amz-date"]
    sent.headers["X-Amz-Security-Token"] = SESSION
    canonical = signer.canonical_request(sent)
    signature = signer.signature(signer.string_to_sign(sent, canonical), sent)
    assert ours["authorization"].endswith(f"Signature={signature}")
    assert f"SignedHeaders={signer.signed_headers(signer.headers_to_sign(sent))}," in ours["authorization"]
