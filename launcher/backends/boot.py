"""Prepare a rented machine for its run and start the run's container: Docker, NVIDIA toolkit, driver, image, agent.

A cloud's own boot.py subclasses `Boot`. The launcher joins the two files to one program (`program_text` of
shared_plan.py), which runs with the machine's own Python: 3.8 or newer, standard library only. Commands are lists,
printed before they run.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

ASK_LIMIT_S = 10
ASK_TRIES, ASK_AGAIN_S = 5, 1
# Id of the image's user, who owns the run's folder.
USER = 1000
SOCKET = Path("/var/run/docker.sock")
FAILED = 4
# File that the agent (launcher/agent/home.py) creates in the launch's folder before the run begins.
STARTED = "started"
# A driver that is part of the VM image works within a minute.
DRIVER_TRIES, DRIVER_AGAIN_S = 60, 5
# A Docker engine that starts with the machine may start later than this program.
DOCKER_TRIES, DOCKER_AGAIN_S = 12, 5
PULL_TRIES, PULL_AGAIN_S = 3, 10
# Package servers and downloads fail temporarily: a step is tried again after 5, 10, 20 and 40 seconds.
STEP_TRIES, STEP_AGAIN_S = 5, 5
TOOLKIT = "https://nvidia.github.io/libnvidia-container"
TOOLKIT_KEY = Path("/etc/apt/nvidia.asc")
TOOLKIT_LIST = Path("/etc/apt/sources.list.d/nvidia-toolkit.list")


class Boot:
    """Steps from one boot of this machine to the end of its run. `home`: the launch's folder."""

    # Environment variables of the agent: NAME=VALUE, or NAME alone for a variable of this process.
    variables: tuple[str, ...] = ()

    def __init__(self, home: Path) -> None:
        self.home = home
        self.agent_runs = False

    # What a cloud's own class adds.

    def parameter(self, name: str) -> str:
        """Value that the launcher has set: `image`, or `driver` (`none`: not needed)."""
        raise NotImplementedError

    def is_task(self) -> bool:
        """Whether the launch has a sweep's runs: a second boot does the missing ones."""
        raise NotImplementedError

    def report(self, phase: str, at: str) -> None:
        """Publish that a phase was reached, where the launcher can see it before the agent runs."""
        raise NotImplementedError

    def login(self, registry: str) -> tuple[str, str] | None:
        """User and password for a registry of this cloud; None for any other registry, which gets no credential."""
        raise NotImplementedError

    def install_driver(self) -> None:
        """Install the GPU's driver if the VM image lacks it."""

    def before_agent(self) -> None:
        """Wait for what must be there before any run starts. The agent imports guest.py in the launch's folder."""

    # The steps.

    def run(self) -> int:
        """Prepare the machine and run the agent to its end; return the exit code for startup.sh."""
        signal.signal(signal.SIGTERM, self.on_term)
        os.chown(self.home, USER, USER)  # type: ignore[attr-defined,unused-ignore]
        self.enter("booted")
        driver, image = self.parameter("driver"), self.parameter("image")
        if (self.home / STARTED).exists():
            return self.save(image, with_gpu=driver != "none" and self.is_task())
        if driver == "install" and not works("nvidia-smi"):
            self.install_driver()
        if driver != "none" and not self.driver_answers():
            fail("the driver does not answer")
        self.enter("driver_ready")
        self.get_docker(with_gpu=driver != "none")
        self.enter("docker_ready")
        self.pull(image)
        self.enter("image_pulled")
        return self.work(image)

    def save(self, image: str, *, with_gpu: bool) -> int:
        """Let the agent save the results after the cloud has restarted a machine that was stopped during its run.

        In a sweep, the agent then also does the missing runs, on the GPU. The agent saves the results even if the GPU
        does not work.
        """
        print("the run had begun when the VM was stopped: saving its results", flush=True)
        if with_gpu:
            self.driver_answers()
        self.await_docker()
        if not works("docker", "image", "inspect", "-f", "{{.Id}}", image):
            self.pull(image)
        return self.work(image)

    def work(self, image: str) -> int:
        """Run the agent. If it fails, a second one saves the results of the first; if both fail, return `FAILED`."""
        self.before_agent()
        return 0 if any(self.agent(image) for _ in range(2)) else FAILED

    def on_term(self, *_: object) -> None:
        """Handle SIGTERM at shutdown: pass it to a running agent, which uploads its results; else end the boot."""
        if not self.agent_runs:
            sys.exit(128 + signal.SIGTERM)
        subprocess.Popen(["docker", "kill", "-s", "TERM", self.home.name])

    def enter(self, phase: str) -> None:
        """Report a phase as reached: in the output, in the file `phases`, and where the cloud's launcher looks."""
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        print(f"rooflaunch: phase {phase} {at}", flush=True)
        with (self.home / "phases").open("a", encoding="utf-8") as lines:
            lines.write(f"{phase} {at}\n")
        self.report(phase, at)

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
        """Pull the image by its digest. Docker keeps no credential: its configuration is a folder for this step."""
        registry = image.partition("/")[0]
        with tempfile.TemporaryDirectory() as folder:
            os.environ["DOCKER_CONFIG"] = folder
            credential = self.login(registry)
            if credential:
                user, password = credential
                login = ("docker", "login", "-u", user, "--password-stdin", f"https://{registry}")
                run(*login, input=password.encode())
            pulled = succeeds(lambda: works("docker", "pull", "-q", image), PULL_TRIES, PULL_AGAIN_S)
            del os.environ["DOCKER_CONFIG"]
        if not pulled:
            fail(f"the image '{image}' cannot be pulled")

    def agent(self, image: str) -> bool:
        """Run the agent (launcher/agent in the image) to its end; return whether its exit code was 0."""
        home, name = str(self.home), self.home.name
        containers = output("docker", "ps", "-aqf", f"volume={home}", "-f", f"volume={home}/results").split()
        if containers:
            run("docker", "rm", "-f", *containers)
        words = ["docker", "run", "--rm", "--name", name, "-u", f"{USER}:{USER}", "-v", f"{SOCKET}:{SOCKET}"]
        if SOCKET.exists():
            words += ["--group-add", str(SOCKET.stat().st_gid)]
        words += ["-v", "/:/host:ro", "-v", f"{home}:{home}", "--network", "host", "--read-only", "--tmpfs", "/tmp"]  # noqa: S108 - in the container
        words += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--stop-timeout", "25"]
        words += [word for variable in self.variables for word in ("-e", variable)]
        self.agent_runs = True
        ended_well = works(*words, "--entrypoint", "python", image, "-m", "launcher.agent", home, "/host")
        self.agent_runs = False
        return ended_well


def request(url: str, *, method: str = "GET", headers: Mapping[str, str], content: bytes | None = None) -> bytes:
    """Send one HTTP request, through no proxy; return the answer's content. Raises `OSError`."""
    sent = urllib.request.Request(url, headers=dict(headers), method=method, data=content)  # noqa: S310 - ours
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(sent, timeout=ASK_LIMIT_S) as answer:
        return bytes(answer.read())


def persistently(ask: Callable[[], bytes], what: str) -> bytes:
    """Ask a server up to `ASK_TRIES` times and return its answer. If all tries fail, end the boot with error `what`."""
    for left in reversed(range(ASK_TRIES)):
        try:
            return ask()
        except OSError as error:
            if not left:
                fail(f"{what}: {error}")
        time.sleep(ASK_AGAIN_S)
    raise AssertionError("the last try either returns or ends the boot")


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
    """End the boot; startup.sh uploads the output and ends the machine."""
    print(f"error: {why}", flush=True)
    sys.exit(FAILED)
