"""`launch doctor`: check one by one what a run needs from this machine."""

import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from launcher import docker_engine
from launcher.docker_engine import Engine
from launcher.images import build, contents
from launcher.machine import containers, runtime
from launcher.protocol import backend
from launcher.protocol.backend import Check, Health
from launcher.values import DoctorPart
from workload.contract.errors import ExitCode, ToolError
from workload.contract.text import counted
from workload.environment import gpu_index
from workload.environment.machine import WITHOUT_COUNTERS, hosting_service, installed_ncus, run_tool

NO_GPU = "nvidia-smi shows no GPU"
GPU_FIELDS = ("name", "compute_cap", "driver_version", "memory.total")
UNLOCK = (
    "write 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' to a file in /etc/modprobe.d/, then reboot; "
    "or --runtime docker, which asks for CAP_SYS_ADMIN in the profile pass alone"
)

DOCKER, GPU = backend.CheckPart(DoctorPart.DOCKER), backend.CheckPart(DoctorPart.GPU)


@dataclass(frozen=True, kw_only=True)
class SeenGpu:
    """A GPU as nvidia-smi shows it, which counts from 0. `capability`: (major, minor)."""

    index: int
    name: str
    capability: tuple[int, int]
    driver: str
    memory: str


def examine(
    parts: Sequence[str], *, named: bool = True, checks_of: Callable[[str], Iterable[Check]] = lambda _: ()
) -> list[Check]:
    """Checks of these parts, in order. A part ends early if a failed check makes the next ones impossible.

    `named`: whether the user named the parts; if not, a missing GPU is no problem. `checks_of`: returns the checks of a
    backend.
    """
    checks: list[Check] = []
    for part in dict.fromkeys(parts):
        match part:
            case DoctorPart.DOCKER:
                checks += _docker_checks()
            case DoctorPart.GPU:
                checks += _gpu_checks(needed=named)
            case backend:
                checks += checks_of(backend)
    return checks


def render(checks: Sequence[Check]) -> str:
    """Text with a line per check, followed by a line with the check's cure, if any."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.state:<8} {check.name:<{width}}  {check.found}")
        lines += [f"{'':<8} {'':<{width}}  -> {check.cure}"] if check.cure else []
    return "\n".join(lines)


def exit_code(checks: Sequence[Check]) -> ExitCode:
    """Exit code of `launch doctor`: 4 if there is a problem, else 0."""
    return ExitCode.TOOL if any(check.state is Health.PROBLEM for check in checks) else ExitCode.DONE


def _docker_checks() -> Iterator[Check]:
    try:
        engine = docker_engine.connect()
    except ToolError as error:
        yield DOCKER.failed("engine", error)
        return
    version = tuple(int(number) for number in re.findall(r"\d+", engine.version)[:2])
    wanted = ".".join(f"{number:02}" for number in docker_engine.MIN_VERSION)
    if version < docker_engine.MIN_VERSION:
        yield DOCKER.problem("engine", f"Docker {engine.version}; {wanted} is needed", "upgrade Docker")
    else:
        rootless = ", rootless" if engine.rootless else ""
        memory = f"{engine.memory_bytes / 1e9:.1f} GB of memory"
        yield DOCKER.ok("engine", f"Docker {engine.version}{rootless}; {engine.cpus} CPUs, {memory}")
    if engine.has_gpus:
        yield DOCKER.ok("GPUs", "containers can use NVIDIA GPUs")
    elif _gpus():
        yield DOCKER.problem("GPUs", "this machine has a GPU, but containers cannot use it", runtime.TOOLKIT)
    else:
        yield DOCKER.note("GPUs", "no NVIDIA runtime, and no GPU here that would need it")
    if (free := engine.free_bytes()) is None:
        yield DOCKER.note("disk", f"{engine.root_folder} is not visible from here")
    else:
        space, needed = f"{free / 1e9:.1f} GB free in {engine.root_folder}", build.NEEDED_BYTES
        is_enough = free >= needed
        problem = f"{space}; a build needs {needed / 1e9:.0f} GB"
        yield DOCKER.ok("disk", space) if is_enough else DOCKER.problem("disk", problem, "docker system prune")
    yield from _image_checks(engine)
    # Containers of a launcher that was killed.
    if names := [name for name, _ in engine.containers(containers.RUN_LABEL)]:
        yield DOCKER.note("containers", f"of earlier runs: {', '.join(names)}", f"docker rm -f {' '.join(names)}")
    else:
        yield DOCKER.ok("containers", "none left over")


def _image_checks(engine: Engine) -> Iterator[Check]:
    for name, flavour in contents.load_flavours().items():
        recipe = contents.make_recipe(flavour)
        held = engine.images({contents.FLAVOUR_LABEL: name})
        current = [image for image in held if image.labels.get(contents.INPUTS_LABEL) == recipe.inputs_hash]
        subject = f"image {name}"
        if current:
            base = current[0].labels.get(contents.BASE_LABEL, contents.UNPINNED)
            base_text = "the base has no digest" if base == contents.UNPINNED else f"base {base}"
            yield DOCKER.ok(subject, f"{current[0].name}; {base_text}")
        else:
            state = "built from other code" if held else "not built"
            yield DOCKER.note(subject, state, f"launch build --flavour {name}")
        if not flavour.digest:
            yield DOCKER.note(
                f"base of {name}", f"{flavour.base} has no digest", f"launch build --flavour {name} --pin"
            )


def _gpu_checks(*, needed: bool) -> Iterator[Check]:
    gpus, service = _gpus(), hosting_service()
    if not gpus and not needed:
        yield GPU.note("driver", NO_GPU, "without a GPU, runs use the CPU; otherwise: launch doctor gpu")
        return
    if not gpus:
        driver = "install NVIDIA's driver" if platform.system() == "Linux" else "use a machine with an NVIDIA GPU"
        cure = service.gpu if service else driver
        yield GPU.problem("driver", NO_GPU, f"{cure}; --cpu needs none")
        return
    for gpu in gpus:
        yield GPU.ok(f"GPU {gpu.index}", f"{gpu.name}, compute capability {_dotted(gpu.capability)}, {gpu.memory}")
    if len(gpus) > 1:
        found = f"{counted(len(gpus), 'GPU')}: a run uses one of them, the fastest if none is chosen"
        yield GPU.note("choice", found, "launch local --gpu-index 1")
    if service is None:
        # One driver serves all GPUs of a machine; each kind of GPU has its own requirement.
        kinds = {gpu.capability: gpu for gpu in reversed(gpus)}.values()
        yield from (_driver_check(gpu, "driver" if len(kinds) == 1 else f"driver for {gpu.name}") for gpu in kinds)
    else:
        # No image runs there, so no image's requirement counts.
        yield GPU.ok("driver", gpus[0].driver)
        yield GPU.note("clocks", f"cannot be fixed on {service.name}", "nothing: each run records its clocks")
    if containers.counters_restricted():
        cure = WITHOUT_COUNTERS if service else UNLOCK
        yield GPU.note("counters", "for administrators only (RmProfilingAdminOnly: 1)", cure)
    else:
        yield GPU.ok("counters", "open to every user")
    if run_tool("pgrep", "-x", "nv-hostengine"):
        cure = "while --profile ncu runs: sudo systemctl stop nvidia-dcgm, or dcgmi profile --pause"
        yield GPU.note("DCGM", "nv-hostengine is running and may block the counters", cure)
    else:
        yield GPU.ok("DCGM", "is not running")
    yield _ncu_check()


def _driver_check(gpu: SeenGpu, name: str) -> Check:
    flavour = contents.flavour_for(gpu.capability)
    if flavour is None:
        wanted = f"{gpu.name} has compute capability {_dotted(gpu.capability)}: no image flavour has code for it"
        return GPU.problem(name, wanted, "--runtime process with a torch build that supports the GPU")
    drivers = f"{gpu.driver}; flavour {flavour.name} needs {flavour.driver}"
    if flavour.driver and _numbers(gpu.driver) < _numbers(flavour.driver):
        return GPU.problem(name, drivers, f"install driver {flavour.driver} or newer")
    if flavour.driver_below and _numbers(gpu.driver) >= _numbers(flavour.driver_below):
        return GPU.problem(name, f"{drivers}, below {flavour.driver_below}", "install driver branch 580")
    return GPU.ok(name, drivers)


def _ncu_check() -> Check:
    # A profile tries it first.
    path = next(map(str, installed_ncus(os.environ)), None)
    if path is None:
        cure = "install Nsight Compute, or --runtime docker: flavours cuda and volta contain it"
        return GPU.note("ncu", "not on this machine", cure)
    version = re.search(r"Version (\S+)", run_tool(path, "--version") or "")
    if version is None:
        return GPU.problem("ncu", f"{path} does not tell its version", "install Nsight Compute again")
    return GPU.ok("ncu", f"{version[1]} ({path})")


def _gpus() -> list[SeenGpu]:
    query = f"--query-gpu={','.join(GPU_FIELDS)}"
    printed = run_tool("nvidia-smi", query, "--format=csv,noheader", limit_s=gpu_index.LIST_LIMIT_S) or ""
    rows = [[cell.strip() for cell in line.split(",")] for line in printed.splitlines()]
    listed = enumerate(row for row in rows if len(row) == len(GPU_FIELDS))
    gpus = []
    for index, (name, capability, driver, memory) in listed:
        if re.fullmatch(r"\d+\.\d+", capability):
            major, minor = _numbers(capability)
            gpus.append(SeenGpu(index=index, name=name, capability=(major, minor), driver=driver, memory=memory))
    return gpus


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
