"""The trainer in a container: description of the container, how it is followed, and what its end means."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher import values
from launcher.docker_engine import Container, ContainerEnd, Engine
from launcher.machine import runtime
from launcher.machine.runtime import Choice, Workplace
from launcher.machine.watcher import Trainers, Watcher
from workload import __version__
from workload.contract.errors import ExitCode, OutOfDeviceMemoryError, RooflaunchError, RunFailedError
from workload.contract.operating_system import SIGKILL
from workload.contract.process import handled_by, interruption
from workload.contract.spec import CIFAR10, IMAGENETTE, SYNTHETIC, RunSpec
from workload.environment import gpu_index as gpu_indices

RUN_LABEL = "rooflaunch.run"
# Variables of the caller that change what is computed or where. The container gets no other variable of the caller.
FORWARDED = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "NVIDIA_TF32_OVERRIDE"),
)
DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
# Signals that end a trainer. A container's exit code is 128 + signal; 130 is the trainer's own code for Ctrl-C.
KILLED_BY = {128 + 4: "SIGILL", 128 + 6: "SIGABRT", 128 + 7: "SIGBUS", 128 + SIGKILL: "SIGKILL", 128 + 11: "SIGSEGV"}


@dataclass(frozen=True, kw_only=True)
class ContainerLimits:
    """Limits of the container. A limit of None allows as much as the machine has. `shm_bytes`: for each device."""

    shm_bytes: int = values.DEFAULT_SHM_BYTES
    memory_bytes: int | None = None
    cpus: float | None = None


def place_paths(spec: RunSpec) -> RunSpec:
    """The spec with absolute paths: a folder is mounted in the container at its path on the host."""
    if spec.dataset in (CIFAR10, IMAGENETTE):
        return replace(spec, data_dir=_absolute(spec.data_dir))
    return spec if spec.dataset == SYNTHETIC else replace(spec, dataset=_absolute(spec.dataset))


def describe(
    choice: Choice,
    spec: RunSpec,
    *,
    output: Path,
    command: Sequence[str],
    limits: ContainerLimits,
    gpu_index: int | None = None,
) -> Container:
    """Container for our trainer. `command`: the trainer's arguments; `spec`: a spec with absolute paths.

    `gpu_index`: the only GPU for the container. CUDA counts it as 0 there, so no variable of the caller may choose one.
    """
    assert choice.image is not None
    assert choice.engine is not None
    readable, writable = _folders(spec)
    without = () if gpu_index is None else gpu_indices.VARIABLES
    return Container(
        image=choice.image.id,
        command=tuple(command),
        user=choice.engine.caller,
        environment={name: os.environ[name] for name in FORWARDED if name in os.environ and name not in without},
        writable=(str(output.absolute()), *writable),
        readable=readable,
        network="bridge" if spec.download else "none",
        gpus=choice.gpus,
        gpu_index=gpu_index,
        # Each rank has data workers of its own, and NCCL's buffers for GPUs that cannot reach each other directly.
        shm_bytes=limits.shm_bytes * spec.devices,
        memory_bytes=limits.memory_bytes,
        cpus=limits.cpus,
        labels={RUN_LABEL: __version__},
    )


def for_script(trainer: Container, spec: RunSpec, workplace: Workplace) -> Container:
    """Container for a user's own script: in the user's folder, which is writable, and with a network.

    The data is mounted at its own path, read-only.
    """
    return replace(
        trainer,
        entrypoint=("python", *runtime.SCRIPT_TRAINER),
        folder=str(workplace.folder),
        environment={**trainer.environment, **runtime.script_variables(spec)},
        variables=workplace.variables,
        writable=(*trainer.writable, str(workplace.folder)),
        readable=(*trainer.readable, *filter(None, [workplace.data])),
        network="bridge",
    )


def for_profile(timing: Container, command: Sequence[str], *, restricted: bool) -> Container:
    """Container of the profile pass, like `timing`, the container of the timing run.

    `restricted`: add CAP_SYS_ADMIN, because the driver restricts counters. Docker gives capabilities to root only.
    setpriv passes CAP_SYS_ADMIN on to the caller, so that files belong to the caller.
    """
    pass_two = replace(timing, command=tuple(command))
    if not restricted:
        return pass_two
    user, _, group = timing.user.partition(":")
    become = ("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups")
    keep = ("--inh-caps=-all,+sys_admin", "--ambient-caps=-all,+sys_admin", "--bounding-set=-all,+sys_admin")
    return replace(
        pass_two,
        user="0:0",
        capabilities=("SYS_ADMIN", "SETUID", "SETGID", "SETPCAP"),
        entrypoint=(*become, *keep, *(timing.entrypoint or ("python", "-m", "workload"))),
    )


def counters_restricted(parameters: Path = DRIVER_PARAMETERS) -> bool:
    """Whether the driver restricts GPU counters to administrators (`RmProfilingAdminOnly`); False without a driver."""
    try:
        lines = parameters.read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return any(line.replace(" ", "") == "RmProfilingAdminOnly:1" for line in lines)


def follow(
    engine: Engine, container: Container, *, on_line: Callable[[str], None], watcher: Watcher | None = None
) -> ContainerEnd:
    """Run a container to its end. `on_line` gets each line of stdout; stderr goes to our stderr or to the watcher.

    Ctrl-C, SIGTERM and a closed terminal are passed on to the trainer, which seals its bundle; repeated signals become
    SIGKILL. A watcher handles signals itself.
    """
    if watcher is not None:
        with engine.started(container) as started:
            watcher.on_started(started)
            try:
                return started.follow(on_stdout=on_line, on_stderr=watcher.on_message)
            finally:
                watcher.on_ended()
    trainers = Trainers()
    with handled_by(trainers.pass_on), engine.started(container) as started:
        trainers.started(started)
        ended = started.follow(on_stdout=on_line, on_stderr=lambda line: print(line, file=sys.stderr, flush=True))
    return replace(ended, signal=trainers.signals[0] if trainers.signals else None)


def explain(ended: ContainerEnd, limits: ContainerLimits) -> RooflaunchError | None:
    """Error of a container that was stopped, killed, or crashed.

    None if the trainer ended by itself: then the trainer has sealed its bundle and printed its own error.
    """
    if ended.signal is not None and ended.exit_code != ExitCode.INTERRUPTED:
        return interruption(ended.signal)
    # If memory runs out, the kernel may kill only a data worker, and the run goes on.
    if ended.out_of_memory and ended.exit_code != ExitCode.DONE:
        where = (
            "because memory ran out"
            if limits.memory_bytes is None
            else f"at the container's limit of {values.text(limits.memory_bytes)} of memory"
        )
        return OutOfDeviceMemoryError(
            f"the run was killed {where}", hint="a smaller --batch-size, fewer --workers, or more --memory"
        )
    if name := KILLED_BY.get(ended.exit_code):
        return RunFailedError(
            f"the trainer was killed by {name}", hint="run again; `docker events` shows what stopped the container"
        )
    return None


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _folders(spec: RunSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Folders to mount read-only, and folders to mount writable. A missing folder is left to the trainer to report."""
    if spec.dataset == SYNTHETIC:
        return (), ()
    path = spec.data_dir if spec.dataset in (CIFAR10, IMAGENETTE) else spec.dataset
    if spec.download:
        return (), (path,)
    return ((path,), ()) if Path(path).is_dir() else ((), ())
