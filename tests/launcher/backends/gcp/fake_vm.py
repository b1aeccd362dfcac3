"""The inside of a fake VM: really runs the start-up script, as a guest agent does, in processes of this machine.

What would change this machine is replaced by shims on its PATH, which note how they were called.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from launcher.protocol.records import Request
from tests.launcher.backends.gcp.compute_bodies import plain_body
from tests.launcher.backends.gcp.fake_compute import FakeCompute, Vm
from tests.launcher.backends.gcp.fake_metadata import FakeMetadata
from tests.workload.storage.gcs_server import BUCKET
from workload.contract.spec import resolve

PROJECT, ZONE = "proj-1", "us-central1-a"

HOMES = Path("/var/lib/rooflaunch")
# Between the notice of a preemption and the end.
GRACE_S = 30.0
LOOK_EVERY_S = 0.05
STOPPED = "TERMINATED"

NOTE = '#!/bin/bash\necho "${0##*/} $*" >>"$FAKE_VM/calls"\n'
REFUSED = NOTE + 'echo "${0##*/} is not for this machine" >&2; exit 9\n'
# `login` keeps what it was given; an image that the engine holds is not asked of a registry; and the engine of this
# machine has no GPUs to give, whatever the VM has.
DOCKER = (
    NOTE
    + """
case $1 in
login) cat >"$FAKE_VM/password"; echo "Login Succeeded"; exit ;;
pull) "$REAL_DOCKER" image inspect "${@: -1}" >/dev/null 2>&1 && exit ;;
info) "$REAL_DOCKER" "$@" && echo nvidia; exit ;;
run) shift; words=(run)
  while (($#)); do if [[ $1 == --gpus ]]; then shift 2; else words+=("$1"); shift; fi; done
  set -- "${words[@]}" ;;
esac
exec "$REAL_DOCKER" "$@"
"""
)
# The machine's Python runs boot.py, and an installer of drivers only where a test says how.
PYTHON = '#!/bin/bash\ncase $1 in */boot.py) exec "$REAL_PYTHON" "$@" ;; esac\n'
SHIMS: Mapping[str, str] = {
    "nvidia-smi": NOTE + "echo 'fake GPU'\n",
    "docker": DOCKER,
    "python3": PYTHON + REFUSED,
    **dict.fromkeys(("apt-get", "systemctl", "nvidia-ctk", "shutdown", "reboot", "poweroff", "halt", "init"), REFUSED),
}


def guest(
    storage_url: str,
    compute_url: str,
    folder: Path,
    *,
    shims: Mapping[str, str] | None = None,
    inside: tuple[str, ...] = (),
    grace_s: float = GRACE_S,
) -> Callable[[Vm], None]:
    """What FakeCompute calls for a VM that runs. `folder` is for the shims and their notes, a folder a VM.

    `shims`: other programs instead of SHIMS, by name, or none if empty; `inside`: a command that the shell is run by.
    """

    def run(vm: Vm) -> None:
        own = folder / vm.name
        programs = own / "bin"
        programs.mkdir(parents=True, exist_ok=True)  # it may be a second boot
        programs_there = {name: text for name, text in (SHIMS | (shims or {})).items() if text}
        for name, text in programs_there.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        script = own / "startup-script"
        script.write_text(vm.metadata["startup-script"])
        with FakeMetadata(vm) as metadata:
            environment = {
                "PATH": f"{programs}:{os.environ['PATH']}",
                "HOME": str(own),
                "FAKE_VM": str(own),
                "REAL_DOCKER": shutil.which("docker") or "docker",
                "REAL_PYTHON": sys.executable,
                "GCE_METADATA_HOST": metadata.host,
                "STORAGE_EMULATOR_HOST": storage_url,
                "ROOFLAUNCH_COMPUTE_ENDPOINT": compute_url,
            }
            try:
                while not vm.gone.is_set():
                    with _started(vm, [*inside, "bash", str(script)], environment, own) as process:
                        _await_end(vm, process, grace_s, lambda: _shut_down(vm, inside, environment, own, grace_s))
                    # It may be stopped, which its disk survives, and started again.
                    remove_containers(HOMES / vm.name)
                    while vm.status == STOPPED and not vm.gone.wait(LOOK_EVERY_S):
                        pass
            finally:
                _clean(vm)

    return run


@contextmanager
def _started(
    vm: Vm, command: list[str], environment: Mapping[str, str], folder: Path
) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )

    def copy() -> None:
        for line in process.stdout or ():
            vm.write_serial(line)

    reader = threading.Thread(target=copy, daemon=True)
    reader.start()
    try:
        yield process
    finally:
        # The machine is gone, and every process with it; a script that ended by itself may have left none.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join(60)


def _shut_down(vm: Vm, inside: tuple[str, ...], environment: Mapping[str, str], folder: Path, limit_s: float) -> None:
    """What the guest agent does as the machine goes down; the start-up script gets no signal of it."""
    if text := vm.metadata.get("shutdown-script"):
        script = folder / "shutdown-script"
        script.write_text(text)
        with suppress(subprocess.TimeoutExpired):
            subprocess.run([*inside, "bash", str(script)], env=environment, cwd=folder, timeout=limit_s, check=False)


def _await_end(vm: Vm, process: "subprocess.Popen[str]", grace_s: float, shut_down: Callable[[], None]) -> None:
    told = False
    while not vm.gone.wait(LOOK_EVERY_S) and vm.status != STOPPED:
        if process.poll() is not None:
            vm.write_serial(f"startup-script exit status {process.returncode}\n")
            vm.gone.wait()
        elif vm.preempted and not told:
            told = True
            shut_down()
            vm.gone.wait(grace_s)


def _clean(vm: Vm) -> None:
    remove_containers(HOMES / vm.name)
    shutil.rmtree(HOMES / vm.name, ignore_errors=True)


def remove_containers(home: Path) -> None:
    """Remove all containers that have a launch's folder, or the folder of its results."""
    if docker := shutil.which("docker"):
        filters = [word for volume in (home, home / "results") for word in ("--filter", f"volume={volume}")]
        listed = subprocess.run(
            [docker, "ps", "--all", "--quiet", *filters], capture_output=True, text=True, check=False
        ).stdout.split()
        if listed:
            subprocess.run([docker, "rm", "--force", *listed], capture_output=True, check=False)


def make_request(name: str, image: str, spec: Mapping[str, object], **changes: object) -> Request:
    """What a launcher would ask of a spot VM with a T4 in us-central1-a."""
    resolved = resolve({**spec}, {}, None)
    plain: dict[str, Any] = {
        "name": name,
        "backend": "gcp",
        "launched_at": "2026-11-21T10:00:00.000Z",
        "store": f"gs://{BUCKET}",
        "place": "gcp-t4",
        "runtime": "docker",
        "gpu": "t4",
        "gpu_count": 1,
        "machine_type": "n1-standard-4",
        "spot": True,
        "zones": [ZONE],
        "image": image,
        "options": {
            "project": PROJECT,
            "flavour": "cpu",
            "vm_image": "ubuntu-os-accelerator-images/ubuntu-accelerator-2204-amd64-with-nvidia-580",
        },
        "limit_s": 3600,
        "spec": resolved.spec.to_json(),
        "spec_origin": dict(resolved.origin),
        "prices": {"us-central1": {"usd_per_h": 0.36, "source": "a test", "read": "2026-11-20"}},
    }
    return Request(**plain | changes)


def insert(compute: FakeCompute, request: Request, *, programs: Mapping[str, str], driver: str = "none") -> Vm:
    """Ask the fake for a VM over HTTP, as the launcher does, without the launcher."""
    body = plain_body(request.name, ZONE)
    body["labels"] = {"rooflaunch": "launch", "rooflaunch-limit": str(request.limit_s)}
    body["scheduling"]["maxRunDuration"] = {"seconds": str(request.limit_s)}
    body["scheduling"]["provisioningModel"] = "SPOT"
    items = {
        **programs,
        "rooflaunch-request": request.to_bytes().decode(),
        "rooflaunch-image": request.image,
        "rooflaunch-bucket": BUCKET,
        "rooflaunch-driver": driver,
    }
    body["metadata"]["items"] += [{"key": key, "value": value} for key, value in items.items()]
    where = f"{compute.url}/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances?requestId={uuid.uuid4()}"
    asked = urllib.request.Request(where, data=json.dumps(body).encode(), method="POST")
    # Its first request has the fake import the client's messages: many seconds on a busy machine.
    with urllib.request.urlopen(asked, timeout=100) as answer:
        assert answer.status == 200
    return compute.vm(request.name)
