"""Facts of the machine, reported by remote.py, to choose a runtime and for `launch doctor`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from launcher.backends.ssh.machines import SshMachines
from launcher.images import contents
from launcher.images.build import NEEDED_BYTES as BUILD_BYTES
from launcher.machine.runtime import CPU_FLAVOUR
from launcher.protocol.checks import Check, CheckPart
from workload.contract.errors import ToolError
from workload.contract.text import counted

# Oldest Python that runs our code.
LEAST_PYTHON = (3, 11)
PACKAGES = ("torch", "torchvision", "numpy", "psutil")
USUAL_PYTHON = "python3"
# Disk space for a run: our code has 2 MB, and a bundle with a profile 100 MB, stored twice until the job has ended.
NEEDED_BYTES = 10**9


@dataclass(frozen=True, kw_only=True)
class Site:
    """Facts of a machine. `python`: path, version and packages of one Python; `images`: ids of images by flavour."""

    host: str
    root: str
    is_writable: bool
    has_code: bool
    free_bytes: int
    cpus: int
    user: str
    gpus: tuple[tuple[str, ...], ...]
    docker: Mapping[str, Any]
    images: Mapping[str, str]
    python: Mapping[str, Any]

    def __str__(self) -> str:
        gpus = ", ".join(gpu[0] for gpu in self.gpus) or "no NVIDIA GPU"
        return f"{self.host}, {counted(self.cpus, 'CPU')}, {gpus}, {self.free_bytes / 1e9:.0f} GB free"

    @property
    def flavour(self) -> str:
        """Flavour of image for the first GPU, empty if no flavour supports this GPU; without a GPU, the CPU flavour."""
        if not self.gpus:
            return CPU_FLAVOUR
        major, _, minor = self.gpus[0][1].partition(".")
        flavour = contents.flavour_for((int(major), int(minor))) if (major + minor).isdigit() else None
        return flavour.name if flavour else ""

    @property
    def python_shown(self) -> str:
        """Text such as `/usr/bin/python3 3.11.2 with torch 2.5.1`."""
        version = ".".join(map(str, self.python.get("version", ())))
        return f"{self.python.get('path', '')} {version} with torch {self.python.get('torch') or 'missing'}"

    def why_no_process(self) -> str:
        """Reason why the machine's Python cannot run the trainer; empty if it can."""
        if error := self.python.get("error"):
            return f"the machine's Python cannot be used: {error}"
        if tuple(self.python["version"][:2]) < LEAST_PYTHON:
            return f"{self.python_shown}: Python {'.'.join(map(str, LEAST_PYTHON))} or newer is needed"
        missing = [name for name in PACKAGES if not self.python.get(name)]
        return f"{self.python['path']} lacks {', '.join(missing)}" if missing else ""

    def why_no_container(self, *, with_gpu: bool) -> str:
        """Reason why the machine's Docker engine cannot run the trainer; empty if it can."""
        if not self.docker["version"]:
            refused = "the machine's Docker engine refuses our user, or does not answer"
            return refused if self.docker["is_installed"] else "the machine has no Docker"
        if with_gpu and not self.docker["has_gpus"]:
            return "the machine's Docker engine cannot give containers access to the GPU"
        return "" if self.flavour else f"no image has code for the GPU {self.gpus[0][0]}"


PYTHON_CURE = (
    "--python with the path of a Python that has these packages, or install them: pip install torch torchvision "
    "numpy psutil"
)


@cache
def inputs_by_flavour() -> Mapping[str, str]:
    """Value of an image's label `rooflaunch.inputs` if the image fits this code, by flavour."""
    return {name: contents.make_recipe(flavour).inputs_hash for name, flavour in contents.load_flavours().items()}


def look_at(machines: SshMachines, *, python: str = USUAL_PYTHON, code: str = "none") -> Site:
    """Request all facts from the machine at once; `code`: version of our code whose presence is reported."""
    inputs = inputs_by_flavour()
    labels = [[f"{contents.FLAVOUR_LABEL}={name}", f"{contents.INPUTS_LABEL}={text}"] for name, text in inputs.items()]
    answer = machines.ask("facts", python=python, code=code, labels=labels)
    return Site(
        host=str(answer["host"]),
        root=str(answer["root"]),
        is_writable=bool(answer["is_writable"]),
        has_code=bool(answer["has_code"]),
        free_bytes=int(answer["free_bytes"]),
        cpus=int(answer["cpus"] or 0),
        user=str(answer["user"]),
        gpus=tuple(tuple(map(str, gpu)) for gpu in answer["gpus"]),
        docker=answer["docker"],
        images=dict(zip(inputs, answer["docker"]["images"], strict=False)),
        python=answer["site"],
    )


def checks(machines: SshMachines) -> Iterator[Check]:
    """Checks for `launch doctor ssh`."""
    part = CheckPart("ssh")
    try:
        site = look_at(machines)
    except ToolError as error:
        yield part.failed("connection", error)
        return
    yield part.ok("connection", f"{machines.place} answers: {site}")
    if not site.is_writable:
        yield part.problem("disk", f"{site.root} is not writable", "ask the machine's owner for a folder")
    elif site.free_bytes < NEEDED_BYTES:
        yield part.problem("disk", f"{site.free_bytes / 1e6:.0f} MB free in {site.root}", "free a GB in this folder")
    else:
        yield part.ok(
            "disk", f"{site.free_bytes / 1e9:.0f} GB free in {site.root}; a build needs {BUILD_BYTES // 10**9}"
        )
    for name, capability, driver, memory in site.gpus:
        yield part.ok("GPU", f"{name}, compute capability {capability}, driver {driver}, {memory}")
    if not site.gpus:
        yield part.note("GPU", "nvidia-smi shows no GPU: runs use the CPU")
    no_process, no_container = site.why_no_process(), site.why_no_container(with_gpu=bool(site.gpus))
    # A process or a container is enough, so only the lack of both is a problem.
    missing = part.problem if no_process and no_container else part.note
    yield missing("process", no_process, PYTHON_CURE) if no_process else part.ok("process", site.python_shown)
    if no_container:
        yield missing("container", no_container, "install Docker on the machine, or --runtime process")
    else:
        built = (
            "has the image for this code" if site.images.get(site.flavour) else "will build the image at the first run"
        )
        yield part.ok("container", f"Docker {site.docker['version']} {built}")
    if running := [job.name for job in machines.look()]:
        cure = "jobs are not queued here: launch again when the running job has ended"
        yield part.note("jobs", f"runs now: {', '.join(running)}", cure)
    else:
        yield part.ok("jobs", "none runs")
