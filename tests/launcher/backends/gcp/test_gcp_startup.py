"""The start-up script, run by a real bash against fake servers; every program that changes a machine is a shim."""

import ast
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.agent import home
from launcher.agent import home as agent_home
from launcher.backends import boot as boot_program
from launcher.backends.gcp import boot as gcp_boot
from launcher.backends.gcp.boot import RELEASES
from launcher.backends.gcp.plan import PROGRAM_FOLDER
from launcher.backends.shared_plan import program_text
from launcher.protocol.records import log_object
from tests.launcher.backends.gcp import fake_vm
from tests.launcher.backends.gcp.fake_compute import FakeCompute, Vm
from tests.launcher.backends.gcp.fake_metadata import TOKEN
from tests.launcher.backends.gcp.fake_vm import NOTE, PROJECT, PYTHON
from tests.waiting import until
from tests.workload.storage import gcs_server
from tests.workload.storage.gcs_server import BUCKET
from workload.storage.gcs import connect

pytestmark = pytest.mark.world

STARTUP, SHUTDOWN, BOOT, GUEST = (
    PROGRAM_FOLDER / name for name in ("startup.sh", "shutdown.sh", "boot.py", "guest.py")
)
# As on a VM, but for the pauses between two tries.
PROGRAMS = {
    "startup-script": STARTUP.read_text(),
    "shutdown-script": SHUTDOWN.read_text(),
    "rooflaunch-guest": GUEST.read_text(),
    "rooflaunch-boot": re.sub(r"(_AGAIN_S = .*?)(\d+)$", r"\g<1>0.001", program_text(BOOT), flags=re.MULTILINE),
}
NAME = "rooflaunch-t4-20261121-100000-0000aa"
REGISTRY = "us-central1-docker.pkg.dev"
IMAGE = f"{REGISTRY}/{PROJECT}/rooflaunch/trainer@sha256:" + "ab" * 32
# Folders that the script writes to are the test's own: a mount name space of its own takes care.
PRIVATE = ("/var/lib/rooflaunch", "/etc/apt", "/opt")
LIMIT_S = 60
# The agent runs as long as the file says, and ends at SIGTERM, which `docker kill` sends to it.
DOCKER = (
    NOTE
    + """
case $1 in
login) cat >"$FAKE_VM/password"; cp -r "$DOCKER_CONFIG" "$FAKE_VM/config" ;;
info) cat "$FAKE_VM/runtimes" 2>/dev/null; true ;;
ps) cat "$FAKE_VM/left" 2>/dev/null; true ;;
kill) touch "$FAKE_VM/killed" ;;
pull) [ ! -e "$FAKE_VM/no-image" ] ;;
run) while [ -e "$FAKE_VM/endless" ] && [ ! -e "$FAKE_VM/killed" ]; do read -rt 0.02 <> <(:); done
  echo "the agent ran"; [ -e "$FAKE_VM/codes" ] || exit 0
  exit "$(sed -n "$(grep -c '^docker run' "$FAKE_VM/calls")p" "$FAKE_VM/codes")" ;;
esac
"""
)
# Answers for hosts that are not here; and what fails is tried again once, and soon.
CURL = """#!/bin/bash
echo "curl $*" >>"$FAKE_VM/curls"
case $* in
*//nvidia.github.io/*) cp "$FAKE_VM/key" /etc/apt/nvidia.asc ;;
*//storage.googleapis.com/*) [ ! -e "$FAKE_VM/no-mirror" ] && echo installer >/opt/installer.pyz ;;
*//github.com/*) echo release >/opt/installer.pyz ;;
*) exec "$REAL_CURL" "$@" --retry 1 --retry-delay 1 ;;
esac
"""
# The installer ends with a restart of the machine: the script is told to end, and is not waited for.
INSTALLER = PYTHON + NOTE + 'touch "$FAKE_VM/driver"; kill -TERM $PPID; sleep 60\n'
DRIVER = NOTE + '[ -e "$FAKE_VM/driver" ]\n'


@pytest.mark.parametrize("script", [STARTUP, SHUTDOWN], ids=["startup", "shutdown"])
def test_the_scripts_are_short_and_clean(script: Path) -> None:
    lines = script.read_text().splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 120
    assert "eval" not in script.read_text()
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck: apt-get install shellcheck (.ci/packages)")
    done = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


class Boot:
    """A VM whose script has been started, and what a test looks at afterwards."""

    def __init__(self, compute: FakeCompute, guest: Callable[[Vm], None], folder: Path) -> None:
        self.compute, self.guest, self.folder = compute, guest, folder
        self.shims: dict[str, str] = {}
        self.storage_url = ""
        self.own = folder / "vms" / NAME
        self.own.mkdir(parents=True)

    def note(self, name: str, text: str = "") -> None:
        """Something that the shims look at."""
        (self.own / name).write_text(text)

    def start(self, *, driver: str = "preinstalled", image: str = IMAGE, **changes: Any) -> Vm:
        request = fake_vm.make_request(NAME, image, {"model": "$(touch /tmp/owned)"}, **changes)
        return fake_vm.insert(self.compute, request, programs=PROGRAMS, driver=driver)

    def run(self, *, driver: str = "preinstalled", image: str = IMAGE, **changes: Any) -> Vm:
        """From the insert to the VM's own deletion."""
        vm = self.start(driver=driver, image=image, **changes)
        self.await_end(vm)
        return vm

    def await_end(self, vm: Vm) -> None:
        assert vm.gone.wait(LIMIT_S), vm.serial()[0]
        assert self.compute.instances == []

    def calls(self) -> list[str]:
        """Of programs, in order, without the pause between two tries of the VM to delete itself."""
        path = self.own / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line != "sleep 10"]

    def words(self) -> list[str]:
        """Calls without their options."""
        return [call.split(" -")[0] for call in self.calls()]

    def begin_run(self) -> None:
        """As a VM is that was stopped after its run had begun."""
        home = self.folder / "root/var/lib/rooflaunch" / NAME
        home.mkdir()
        (home / agent_home.STARTED).touch()

    def log(self) -> str:
        return (connect(BUCKET, prefix="").read(log_object(NAME)) or b"").decode()


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Boot]:
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("the script of a VM needs root, and here a mount name space of its own")
    mounts = []
    for path in PRIVATE:
        Path(path).mkdir(exist_ok=True)
        private = tmp_path / "root" / path.lstrip("/")
        (private / "sources.list.d").mkdir(parents=True)
        mounts.append(f"mount --bind '{private}' '{path}'")
    inside = ("unshare", "--mount", "sh", "-c", f'{" && ".join(mounts)} && exec "$@"', "sh")
    shims = dict.fromkeys(("sleep", "nvidia-ctk", "systemctl", "apt-get"), NOTE)
    shims |= {"docker": DOCKER, "curl": CURL.replace("$REAL_CURL", shutil.which("curl") or "curl")}
    with gcs_server.running(tmp_path / "gcs.log") as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)

        def run(vm: Vm) -> None:
            url = made.storage_url or storage.url
            fake_vm.guest(url, compute.url, tmp_path / "vms", shims=shims | made.shims, inside=inside)(vm)

        with FakeCompute(vm=run, grace_s=5) as compute:
            made = Boot(compute, run, tmp_path)
            yield made


def test_a_boot_with_driver_and_toolkit_there(boot: Boot) -> None:
    boot.note("runtimes", " Runtimes: io.containerd.runc.v2 nvidia runc\n")
    vm = boot.run()
    assert list(vm.guest_attributes["rooflaunch"]) == ["booted", "driver_ready", "docker_ready", "image_pulled"]
    for phase, at in vm.guest_attributes["rooflaunch"].items():
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", at)
        assert f"rooflaunch: phase {phase} {at}\n" in vm.serial()[0]
    home, socket = f"/var/lib/rooflaunch/{NAME}", Path("/var/run/docker.sock")
    group = f" --group-add {socket.stat().st_gid}" if socket.exists() else ""
    agent = (
        f"docker run --rm --name {NAME} -u 1000:1000 -v /var/run/docker.sock:/var/run/docker.sock{group}"
        f" -v /:/host:ro -v {home}:{home} --network host --read-only"
        " --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges --stop-timeout 25 -e GCE_METADATA_HOST"
        " -e STORAGE_EMULATOR_HOST -e ROOFLAUNCH_COMPUTE_ENDPOINT --entrypoint python"
        f" {IMAGE} -m launcher.agent {home} /host"
    )
    assert boot.calls() == [
        "nvidia-smi ",
        "docker info --format {{json .Runtimes}}",
        "docker info --format Docker {{.ServerVersion}}",
        f"docker login -u oauth2accesstoken --password-stdin https://{REGISTRY}",
        f"docker pull -q {IMAGE}",
        f"docker ps -aqf volume={home} -f volume={home}/results",
        agent,
    ]
    assert "the agent ran\n" in boot.log()
    assert boot.log().startswith("rooflaunch: phase booted ")
    assert boot.compute.instances == []


def test_the_token_is_seen_by_docker_and_google_alone(boot: Boot) -> None:
    vm = boot.run(driver="none")
    assert (boot.own / "password").read_text().strip() == TOKEN
    assert boot.compute.tokens == {TOKEN}
    told = vm.serial()[0] + boot.log() + "\n".join(boot.calls()) + (boot.own / "curls").read_text()
    assert TOKEN not in told
    assert not Path("/tmp/owned").exists(), "what the user gave is data"


@pytest.mark.parametrize("image", ["rooflaunch:cpu", "docker.io/pytorch/pytorch:1", "evil-pkg.dev.example.com/a:1"])
def test_no_other_registry_is_given_the_token(image: str, boot: Boot) -> None:
    boot.run(driver="none", image=image)
    assert not (boot.own / "password").exists()
    assert f"docker pull -q {image}" in boot.calls()


def test_what_is_missing_is_installed(boot: Boot) -> None:
    boot.note("key", "a key")
    installs = 'case $* in *nvidia-container-toolkit) cp "$0" "${0%/*}/nvidia-ctk" ;; esac\n'
    boot.shims = {"nvidia-ctk": "", "apt-get": NOTE + installs}
    vm = boot.run()
    calls = boot.calls()
    assert "apt-get -qy -o DPkg::Lock::Timeout=300 install nvidia-container-toolkit" in calls
    assert calls.index("nvidia-ctk runtime configure --runtime=docker") < calls.index("systemctl restart docker")
    apt = boot.folder / "root/etc/apt"
    source = "https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /"
    assert (apt / "sources.list.d/nvidia-toolkit.list").read_text() == f"deb [signed-by=/etc/apt/nvidia.asc] {source}\n"
    assert (apt / "nvidia.asc").read_text() == "a key"
    assert "image_pulled" in vm.guest_attributes["rooflaunch"]


def test_the_installation_of_a_driver_survives_its_restart(boot: Boot) -> None:
    boot.note("runtimes", " Runtimes: nvidia\n")
    boot.shims = {"nvidia-smi": DRIVER, "python3": INSTALLER, "sleep": '#!/bin/sh\nexec /bin/sleep "$@"\n'}
    vm = boot.start(driver="install")
    until(lambda: "startup-script exit status" in vm.serial()[0])
    first = vm.guest_attributes["rooflaunch"]["booted"]
    assert list(vm.guest_attributes["rooflaunch"]) == ["booted"]
    assert not vm.gone.is_set(), "the machine restarts: nobody deletes it"
    assert (
        "python3 /opt/installer.pyz install_driver --installation-mode binary --installation-branch lts" in boot.calls()
    )
    second = threading.Thread(target=boot.guest, args=(vm,))
    second.start()
    boot.await_end(vm)
    second.join()
    assert list(vm.guest_attributes["rooflaunch"])[1:] == ["driver_ready", "docker_ready", "image_pulled"]
    assert boot.log().count("rooflaunch: phase booted") == 2
    assert boot.log().startswith(f"rooflaunch: phase booted {first}\n"), "when the VM began to cost"


@pytest.mark.parametrize("mirror", [True, False])
def test_the_drivers_version_is_fixed(mirror: bool, boot: Boot) -> None:
    boot.note("runtimes", " Runtimes: nvidia\n")
    if not mirror:
        boot.note("no-mirror")
    boot.shims = {"nvidia-smi": DRIVER, "python3": PYTHON + NOTE + 'touch "$FAKE_VM/driver"\n'}
    vm = boot.run(driver="install")
    assert "image_pulled" in vm.guest_attributes["rooflaunch"], "without a restart, which this driver needs not"
    bucket = "https://storage.googleapis.com/compute-gpu-installation-us/installer/v1.9.1/cuda_installer.pyz"
    release = f"{RELEASES}/cuda-installer-v1.9.1/cuda_installer.pyz"
    curls = (boot.own / "curls").read_text().splitlines()
    assert [call.split()[-1] for call in curls if "/opt/installer.pyz" in call] == [bucket, release][: 2 - mirror]
    assert (boot.folder / "root/opt/installer.pyz").read_text() == ("installer\n" if mirror else "release\n")


def test_pauses_between_tries_grow(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(boot_program.time, "sleep", pauses.append)
    with pytest.raises(SystemExit) as caught:
        boot_program.persist("apt-get cannot install docker.io", lambda: False)
    assert (caught.value.code, pauses) == (4, [5, 10, 20, 40])
    assert capsys.readouterr().out == "error: apt-get cannot install docker.io\n"


@pytest.mark.parametrize(
    ("shims", "driver", "last", "tries"),
    [
        ({"python3": PYTHON + NOTE + "exit 1\n", "nvidia-smi": DRIVER}, "install", "python3 /opt", 5),
        ({"nvidia-smi": DRIVER}, "preinstalled", "nvidia-smi ", 60),
        ({"docker": NOTE + "exit 1\n"}, "none", "docker info", 12),
        ({"docker": NOTE + '[ "$1" != pull ]\n'}, "none", "docker pull", 3),
    ],
    ids=["installer", "no driver", "no engine", "no image"],
)
def test_boot_that_fails_deletes_its_vm_and_leaves_its_log(
    shims: dict[str, str], driver: str, last: str, tries: int, boot: Boot
) -> None:
    boot.shims = shims
    boot.run(driver=driver)
    calls = [call for call in boot.calls() if not call.startswith("sleep")]
    assert calls[-1].startswith(last)
    assert sum(call.startswith(last) for call in calls) == tries
    assert "rooflaunch: phase booted" in boot.log()


@pytest.mark.parametrize("codes", ["137\n0\n", "1\n4\n"], ids=["and works then", "and fails again"])
def test_an_agent_that_fails_is_started_once_more(codes: str, boot: Boot) -> None:
    boot.note("codes", codes)
    boot.note("left", "c0ffee\n")
    boot.run(driver="none")
    calls = [call for call in boot.words() if re.match("docker (ps|rm|run)", call)]
    assert calls == ["docker ps", "docker rm", "docker run"] * 2
    assert boot.calls().count("docker rm -f c0ffee") == 2


def test_a_preemption_reaches_the_agent(boot: Boot) -> None:
    boot.note("endless")
    vm = boot.start(driver="none")
    until(lambda: any(call.startswith("docker run") for call in boot.calls()))
    boot.compute.preempt(NAME)
    boot.await_end(vm)
    kill = boot.calls().index(f"docker kill -s TERM {NAME}")
    assert boot.calls()[kill + 1] == f"docker wait {NAME}", "the machine waits for it"
    assert "the agent ran\n" in boot.log(), "the shell waited for its end"


@pytest.mark.slow
def test_a_stop_before_the_run_has_nothing_to_save(boot: Boot) -> None:
    boot.shims = {"docker": NOTE + '[ "$1" != kill ] && read -rt 60 <> <(:)\n'}
    vm = boot.start(driver="none")
    until(boot.calls)
    boot.compute.preempt(NAME)
    assert vm.gone.wait(LIMIT_S)
    assert boot.calls()[-1] == f"docker kill -s TERM {NAME}", "and the machine waits for nothing"


@pytest.mark.parametrize("held", [True, False], ids=["image held", "image pruned"])
def test_second_boot_after_the_run_had_begun_only_saves(held: bool, boot: Boot) -> None:
    boot.begin_run()
    gone = NOTE + "exit 1\n"
    late = 'info) [ "$(grep -c "^docker info" "$FAKE_VM/calls")" -ge 3 ] ;;\n'
    image = f"image) exit {int(not held)} ;;\n"
    engine = DOCKER.replace("case $1 in\n", f"case $1 in\n{late}{image}")
    boot.shims = {"nvidia-smi": gone, "nvidia-ctk": gone, "docker": engine}
    vm = boot.run(driver="install")
    assert list(vm.guest_attributes["rooflaunch"]) == ["booted"]
    pulled = [] if held else ["docker login", "docker pull"]
    assert boot.words() == [*["docker info"] * 3, "docker image inspect", *pulled, "docker ps", "docker run"]
    assert "the run had begun when the VM was stopped: saving its results\n" in boot.log()


def test_second_boot_of_a_sweep_waits_for_the_driver_with_which_it_goes_on(boot: Boot) -> None:
    boot.begin_run()
    boot.shims = {"nvidia-smi": NOTE + '[ "$(grep -c "^nvidia-smi" "$FAKE_VM/calls")" -ge 3 ]\n'}
    boot.run(driver="install", task={"job": "night", "number": 1, "runs": []})
    assert boot.words()[:4] == [*["nvidia-smi "] * 3, "docker info"]
    assert boot.words()[-1] == "docker run"


def test_the_deletion_is_repeated_until_it_works(boot: Boot) -> None:
    boot.compute.delete_fails(2)
    boot.compute.burst(403, 2, match="DELETE")
    boot.run(driver="none")
    assert boot.compute.count("DELETE") == 5


def test_a_bucket_that_does_not_answer_keeps_no_vm_alive(boot: Boot) -> None:
    boot.storage_url = "http://127.0.0.1:9"
    boot.run(driver="none")


def test_boot_and_agent_mean_the_same_mark() -> None:
    assert (boot_program.STARTED, gcp_boot.HOST_FACTS_FILE) == (agent_home.STARTED, home.FILE)


def test_the_vms_own_python_may_be_old(tmp_path: Path) -> None:
    text = program_text(BOOT)
    ast.parse(text, feature_version=(3, 8))
    loaded = {alias.name for node in ast.walk(ast.parse(text)) for alias in getattr(node, "names", [])}
    assert "UTC" not in loaded, "of Python 3.11"
    found = [path for version in range(8, 11) if (path := shutil.which(f"python3.{version}"))]
    # A version manager has names on PATH for what it would not start.
    old = next((path for path in found if not subprocess.run([path, "-c", ""], check=False).returncode), None)
    if old is None:
        pytest.skip("no Python 3.8 to 3.10 on PATH")
    program = tmp_path / "boot.py"
    program.write_text(text)
    done = subprocess.run([old, "-W", "error", str(program)], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "IndexError: list index out of range", "it wants its folder, and no more"
