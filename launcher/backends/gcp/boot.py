"""Prepare a VM for its run and start the run's container: driver, Docker, NVIDIA toolkit, image.

The launcher puts this file into the VM's metadata, and startup.sh runs it with the VM's own Python: 3.8 or newer,
standard library only. The parameters come from the metadata server. Commands are lists, printed before they run.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

METADATA_HOST = "metadata.google.internal"
ASK_LIMIT_S = 10
ASK_TRIES, ASK_AGAIN_S = 5, 1
# Id of the image's user, who owns the run's folder.
USER = 1000
SOCKET = Path("/var/run/docker.sock")
# Exit code for startup.sh: the machine restarts, and the boot starts over.
RESTARTS = 64
FAILED = 4
# File that the agent (launcher/agent/home.py) creates in the launch's folder before the run begins.
STARTED = "started"
# Name under which the agent imports guest.py (`FILE` of launcher/agent/host_facts.py). Images do not contain guest.py,
# so this program reads its text from the VM's metadata.
HOST_FACTS_FILE = "landlord.py"
# A driver that is part of the VM image works within a minute.
DRIVER_TRIES, DRIVER_AGAIN_S = 60, 5
# A Docker engine that starts with the machine may start later than this script.
DOCKER_TRIES, DOCKER_AGAIN_S = 12, 5
PULL_TRIES, PULL_AGAIN_S = 3, 10
RESTART_LIMIT_S = 300
# Package servers and downloads fail temporarily: a step is tried again after 5, 10, 20 and 40 seconds.
STEP_TRIES, STEP_AGAIN_S = 5, 5
# The installer's version decides the driver's version: v1.9.1 with the branch `lts` installs driver 580.159.04.
INSTALLER_VERSION = "v1.9.1"
RELEASES = "https://github.com/GoogleCloudPlatform/compute-gpu-installation/releases/download"
INSTALLERS = (
    f"https://storage.googleapis.com/compute-gpu-installation-us/installer/{INSTALLER_VERSION}/cuda_installer.pyz",
    f"{RELEASES}/cuda-installer-{INSTALLER_VERSION}/cuda_installer.pyz",
)
# Repository mode would install the open kernel module, which a V100 cannot use.
INSTALL = ("install_driver", "--installation-mode", "binary", "--installation-branch", "lts")
TOOLKIT = "https://nvidia.github.io/libnvidia-container"
TOOLKIT_KEY = Path("/etc/apt/nvidia.asc")
TOOLKIT_LIST = Path("/etc/apt/sources.list.d/nvidia-toolkit.list")
INSTALLER_PATH = Path("/opt/installer.pyz")
# Registries that accept the VM's own token. The token is sent to no other registry.
GOOGLES = (".pkg.dev", ".gcr.io")
# Variables by which a test redirects requests.
ENDPOINTS = ("GCE_METADATA_HOST", "STORAGE_EMULATOR_HOST", "ROOFLAUNCH_COMPUTE_ENDPOINT")


class Boot:
    """Steps from one boot of this VM to the end of its run. `home`: the launch's folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        host = os.environ.get("GCE_METADATA_HOST") or METADATA_HOST
        self.metadata = f"http://{host}/computeMetadata/v1/instance"
        self.installing = False
        self.agent_runs = False

    def run(self) -> int:
        """Prepare the VM and run the agent to its end; return the exit code for startup.sh."""
        signal.signal(signal.SIGTERM, self.on_term)
        os.chown(self.home, USER, USER)
        self.enter("booted")
        driver, image = self.attribute("driver"), self.attribute("image")
        if (self.home / STARTED).exists():
            is_task = bool(json.loads(self.attribute("request")).get("task"))
            return self.save(image, with_gpu=driver != "none" and is_task)
        if driver == "install" and not works("nvidia-smi"):
            self.install_driver()
        if driver != "none" and not self.driver_answers():
            fail("the driver does not answer")
        self.enter("driver_ready")
        self.get_docker(with_gpu=driver != "none")
        self.enter("docker_ready")
        self.pull(image)
        self.enter("image_pulled")
        # If the first agent fails, a second one saves the results of the first.
        return 0 if any(self.agent(image) for _ in range(2)) else FAILED

    def save(self, image: str, *, with_gpu: bool) -> int:
        """Let the agent save the results after the cloud has restarted a VM that was stopped during its run.

        In a sweep, the agent then also does the missing runs, on the GPU. The agent saves the results even if the GPU
        does not work.
        """
        print("the run had begun when the VM was stopped: saving its results", flush=True)
        if with_gpu:
            self.driver_answers()
        self.await_docker()
        if not works("docker", "image", "inspect", "-f", "{{.Id}}", image):
            self.pull(image)
        return 0 if any(self.agent(image) for _ in range(2)) else FAILED

    def on_term(self, *_: object) -> None:
        """Handle SIGTERM at shutdown: pass it to a running agent, which uploads its results; else end the boot."""
        if self.installing:
            sys.exit(RESTARTS)
        if not self.agent_runs:
            sys.exit(128 + signal.SIGTERM)
        subprocess.Popen(["docker", "kill", "-s", "TERM", self.home.name])

    # The metadata server.

    def attribute(self, name: str) -> str:
        """Value of the VM's metadata attribute `rooflaunch-NAME`, which the launcher has set."""
        return self.ask(f"attributes/rooflaunch-{name}")

    def ask(self, key: str, *, put: str | None = None) -> str:
        """Read a metadata key of this instance; with `put`, write this value instead.

        Ends the boot if the server fails.
        """
        method, content = ("GET", None) if put is None else ("PUT", put.encode())
        request = urllib.request.Request(  # noqa: S310 - ours
            f"{self.metadata}/{key}", headers={"Metadata-Flavor": "Google"}, method=method, data=content
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for left in reversed(range(ASK_TRIES)):
            try:
                with opener.open(request, timeout=ASK_LIMIT_S) as answer:
                    return str(answer.read().decode()).strip()
            except OSError as error:
                if not left:
                    fail(f"the metadata server does not answer for {key}: {error}")
            time.sleep(ASK_AGAIN_S)
        raise AssertionError("the last try either returns or ends the boot")

    def enter(self, phase: str) -> None:
        """Report a phase as reached: on the serial port, in the file `phases`, and as a guest attribute."""
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        print(f"rooflaunch: phase {phase} {at}", flush=True)
        with (self.home / "phases").open("a", encoding="utf-8") as lines:
            lines.write(f"{phase} {at}\n")
        try:
            self.ask(f"guest-attributes/rooflaunch/{phase}", put=at)
        except SystemExit:
            print("guest attributes cannot be written", flush=True)  # a project can disable guest attributes

    # Preparation of the run.

    def install_driver(self) -> None:
        """Install the driver with Google's installer, which restarts the machine; the boot then starts over."""
        self.installing = True
        download(INSTALLER_PATH, *INSTALLERS)
        # The installer continues where an earlier try was interrupted.
        persist("the driver's installer failed", lambda: works("python3", str(INSTALLER_PATH), *INSTALL))
        # The installer has ordered a restart, so wait for it. If the driver needs no restart, nvidia-smi works.
        until_s = time.monotonic() + RESTART_LIMIT_S
        while not works("nvidia-smi") and time.monotonic() < until_s:
            time.sleep(DRIVER_AGAIN_S)
        self.installing = False

    def driver_answers(self) -> bool:
        """Wait until nvidia-smi works; return False if it still fails after `DRIVER_TRIES` tries."""
        return succeeds(lambda: works("nvidia-smi"), DRIVER_TRIES, DRIVER_AGAIN_S)

    def get_docker(self, *, with_gpu: bool) -> None:
        """Install Docker and, with `with_gpu`, the NVIDIA toolkit if missing, and wait until the engine answers."""
        if not shutil.which("docker"):
            install("docker.io")
        if with_gpu and "nvidia" not in output("docker", "info", "--format", "{{json .Runtimes}}"):
            if not shutil.which("nvidia-ctk"):
                download(TOOLKIT_KEY, f"{TOOLKIT}/gpgkey")
                source = f"deb [signed-by={TOOLKIT_KEY}] {TOOLKIT}/stable/deb/$(ARCH) /\n"
                TOOLKIT_LIST.write_text(source, encoding="utf-8")
                install("nvidia-container-toolkit")
            require("nvidia-ctk", "runtime", "configure", "--runtime=docker")
            require("systemctl", "restart", "docker")
        self.await_docker()

    def await_docker(self) -> None:
        """Wait until the Docker engine answers; end the boot if it does not."""
        words = ("docker", "info", "--format", "Docker {{.ServerVersion}}")
        if not succeeds(lambda: works(*words), DOCKER_TRIES, DOCKER_AGAIN_S):
            fail("the Docker engine does not answer")

    def pull(self, image: str) -> None:
        """Pull the image by its digest, with the VM's own token for Google's registries. The token is not kept."""
        registry = image.partition("/")[0]
        with tempfile.TemporaryDirectory() as folder:
            os.environ["DOCKER_CONFIG"] = folder
            if registry.endswith(GOOGLES) or registry == "gcr.io":
                token = json.loads(self.ask("service-accounts/default/token"))["access_token"]
                login = ("docker", "login", "-u", "oauth2accesstoken", "--password-stdin", f"https://{registry}")
                run(*login, input=token.encode())
            pulled = succeeds(lambda: works("docker", "pull", "-q", image), PULL_TRIES, PULL_AGAIN_S)
            del os.environ["DOCKER_CONFIG"]
        if not pulled:
            fail(f"the image '{image}' cannot be pulled")

    def agent(self, image: str) -> bool:
        """Run the agent (launcher/agent in the image) to its end; return whether its exit code was 0."""
        home, name = str(self.home), self.home.name
        (self.home / HOST_FACTS_FILE).write_text(self.attribute("guest"), encoding="utf-8")
        containers = output("docker", "ps", "-aqf", f"volume={home}", "-f", f"volume={home}/results").split()
        if containers:
            run("docker", "rm", "-f", *containers)
        words = ["docker", "run", "--rm", "--name", name, "-u", f"{USER}:{USER}", "-v", f"{SOCKET}:{SOCKET}"]
        if SOCKET.exists():
            words += ["--group-add", str(SOCKET.stat().st_gid)]
        words += ["-v", "/:/host:ro", "-v", f"{home}:{home}", "--network", "host", "--read-only", "--tmpfs", "/tmp"]  # noqa: S108 - in the container
        words += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--stop-timeout", "25"]
        words += [word for variable in ENDPOINTS for word in ("-e", variable)]
        self.agent_runs = True
        ended_well = works(*words, "--entrypoint", "python", image, "-m", "launcher.agent", home, "/host")
        self.agent_runs = False
        return ended_well


def run(*words: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    """Print a command and run it. `more`: further arguments of `subprocess.run`."""
    print(" ".join(map(shlex.quote, words)), flush=True)
    try:
        return subprocess.run(words, check=False, **more)
    except FileNotFoundError:
        print(f"{words[0]} is not there", flush=True)
        return subprocess.CompletedProcess(words, 127, b"")


def works(*words: str) -> bool:
    """Whether a command exits with 0."""
    return run(*words).returncode == 0


def output(*words: str) -> str:
    """Standard output of a command."""
    return str(run(*words, stdout=subprocess.PIPE).stdout.decode(errors="replace"))


def require(*words: str) -> None:
    """Run a command; end the boot if the command fails."""
    if not works(*words):
        fail(f"{words[0]} failed")


def install(package: str) -> None:
    """Install a package with apt-get, waiting while another process uses apt. Ends the boot if every try fails."""
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"

    def step() -> bool:
        works("apt-get", "-qy", "update")
        return works("apt-get", "-qy", "-o", "DPkg::Lock::Timeout=300", "install", package)

    persist(f"apt-get cannot install {package}", step)


def download(path: Path, *urls: str) -> None:
    """Download a file to `path` with curl, from the first of `urls` that works. Ends the boot if every try fails."""
    get = ("curl", "-fsSL", "--max-time", "300", "-o", str(path))
    persist(f"{urls[0]} cannot be downloaded", lambda: any(works(*get, url) for url in urls))


def persist(why: str, step: Callable[[], bool]) -> None:
    """Repeat a failing step after longer and longer pauses. If every try fails, end the boot with the error `why`."""
    if not succeeds(step, STEP_TRIES, STEP_AGAIN_S, growth=2):
        fail(why)


def succeeds(step: Callable[[], bool], tries: int, pause_s: float, growth: int = 1) -> bool:
    """Whether a step succeeds in one of `tries` tries. Each pause is `growth` times as long as the previous pause."""
    for number in range(tries):
        if number:
            time.sleep(pause_s * growth ** (number - 1))
        if step():
            return True
    return False


def fail(why: str) -> NoReturn:
    """End the boot; startup.sh uploads the output and deletes the VM."""
    print(f"error: {why}", flush=True)
    sys.exit(FAILED)


if __name__ == "__main__":
    sys.exit(Boot(Path(sys.argv[1])).run())
