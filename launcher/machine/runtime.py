"""Choice between process and container for a local run, with the reason; the command for a user's own script.

A run's model, data, profiler and output folder are checked here before anything is started or paid for.
"""

import difflib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from launcher import docker_engine
from launcher.docker_engine import Engine, Image
from launcher.values import CPU_FLAVOUR, HERE_COMMANDS, Runtime
from workload.contract import changes, vocabulary
from workload.contract.errors import ToolError, UsageError
from workload.contract.script_words import DATA, without_secrets
from workload.contract.spec import CIFAR10, IMAGENETTE, SYNTHETIC, Device, Profile, RunSpec, arguments
from workload.contract.trainer import Context
from workload.environment.machine import run_tool

TOOLKIT = "install the NVIDIA Container Toolkit: docs.nvidia.com/datacenter/cloud-native/container-toolkit"
# Flavour if no tool tells which GPU the machine has.
USUAL_FLAVOUR = "cuda"
NO_MPS = "a container cannot reach Apple's GPU"
OWN_PACKAGES = "a script's packages are in this Python"
SEVERAL = "several devices need no container"
NO_COMPILER = "--compile needs a C++ compiler, which the images do not contain"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Chosen runtime. `why`: the reason for the choice.

    With the runtime `docker`, `engine` and `image` are set, and `gpus` tells whether the container gets the GPUs.
    """

    runtime: Runtime
    why: str
    engine: Engine | None = None
    image: Image | None = None
    gpus: bool = False


def choose(
    requested: Runtime,
    spec: RunSpec,
    *,
    image: str | None = None,
    flavour: str | None = None,
    gpu_index: int | None = None,
) -> Choice:
    """Runtime for `spec`. `image` or `flavour` ask for a container. `gpu_index`: the GPU to use; None: the first one.

    Raises `UsageError` if a container cannot do what the spec asks for, `ToolError` if Docker was asked for and
    something is missing.
    """
    if requested is Runtime.PROCESS:
        return Choice(runtime=Runtime.PROCESS, why="asked for")
    if requested is Runtime.DOCKER or image or flavour:
        if platform.system() == "Windows":
            raise UsageError(
                "a container has no folder of Windows; got --runtime docker, --image or --flavour",
                hint="--runtime process, or work inside WSL2",
            )
        return _container(spec, image, flavour, gpu_index)
    if obstacle := _obstacle(spec):
        return Choice(runtime=Runtime.PROCESS, why=obstacle)
    try:
        return _container(spec, None, None, gpu_index)
    except ToolError as error:
        return Choice(runtime=Runtime.PROCESS, why=f"{error}; to use it: {error.hint}")


def gpu_capability(index: int | None = None) -> tuple[int, int] | None:
    """Compute capability (major, minor) of the GPU with this index, or of the first GPU; None without a driver."""
    chosen = () if index is None else (f"--id={index}",)
    printed = run_tool("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", *chosen)
    found = re.match(r"(\d+)\.(\d+)", printed or "")
    return (int(found[1]), int(found[2])) if found else None


def _obstacle(spec: RunSpec) -> str | None:
    if platform.system() != "Linux":
        return f"containers run in a virtual machine on {platform.system()}"
    if spec.device is Device.MPS:
        return NO_MPS
    if spec.compile:
        return NO_COMPILER
    if spec.script or spec.devices > 1:
        return OWN_PACKAGES if spec.script else SEVERAL
    if not docker_engine.socket_exists():
        return "no Docker engine here"
    return None


def _container(spec: RunSpec, image: str | None, flavour: str | None, gpu_index: int | None) -> Choice:
    if spec.device is Device.MPS:
        raise UsageError(f"{NO_MPS}; got --mps", hint="--runtime process")
    if spec.compile:
        raise UsageError(f"{NO_COMPILER}; a container was requested", hint="--runtime process")
    engine = docker_engine.connect()
    capability = gpu_capability(gpu_index) if spec.device is not Device.CPU else None
    with_gpu = engine.has_gpus and (
        spec.device is Device.CUDA or (spec.device is Device.AUTO and capability is not None)
    )
    left_out = capability is not None and not image and not flavour
    if not with_gpu and (spec.device is Device.CUDA or left_out):
        raise ToolError("the Docker engine cannot give containers access to the GPU", hint=TOOLKIT)
    if spec.device is Device.CUDA and flavour == CPU_FLAVOUR:
        raise UsageError("flavour cpu has no CUDA; got --cuda", hint="--flavour cuda, or --cpu")
    if image:
        named = engine.image(image)
        if named is None:
            raise ToolError(f"the engine has no image '{image}'", hint=f"docker pull {image}, or launch build")
        return Choice(runtime=Runtime.DOCKER, why="an image was named", engine=engine, image=named, gpus=with_gpu)
    name = flavour or (_flavour_for(capability) if with_gpu else CPU_FLAVOUR)
    from launcher.images import contents  # noqa: PLC0415 - no part of an image, where the agent is told which one to take

    row = contents.require_flavour(name)
    # A GPU runs no code for a later capability. For an earlier one the flavour may have more code than it lists.
    oldest = min((tuple(map(int, code.split("."))) for code in row.capabilities), default=(0, 0))
    if with_gpu and capability and capability < oldest:
        found, least = (".".join(map(str, pair)) for pair in (capability, oldest))
        raise UsageError(
            f"flavour {name} has code for compute capability {least} and later; this machine's GPU has {found}",
            hint=f"--flavour {_flavour_for(capability)}",
        )
    recipe = contents.make_recipe(row)
    labelled = engine.images({contents.FLAVOUR_LABEL: name, contents.INPUTS_LABEL: recipe.inputs_hash})
    # An image built for a VM would run here by emulation, and the emulation would be measured.
    matching = [image for image in labelled if image.architecture in ("", engine.architecture or image.architecture)]
    if not matching:
        raise ToolError(f"no image of flavour {name} is built for this code", hint=f"launch build --flavour {name}")
    return Choice(
        runtime=Runtime.DOCKER,
        why=f"Docker {engine.version} has the image for this code, flavour {name}",
        engine=engine,
        image=matching[0],
        gpus=with_gpu and name != CPU_FLAVOUR,
    )


def _flavour_for(capability: tuple[int, int] | None) -> str:
    if capability is None:
        return USUAL_FLAVOUR
    from launcher.images import contents  # noqa: PLC0415 - see above

    flavour = contents.flavour_for(capability)
    if flavour is None:
        major, minor = capability
        raise ToolError(
            f"no image flavour has code for compute capability {major}.{minor}",
            hint="--runtime process with a torch build that supports the GPU",
        )
    return flavour.name


# No module of a user has this name. With -P, Python does not search the working folder for modules; neither does
# `python train.py`.
SCRIPT_TRAINER = ("-P", "-m", "rooflaunch")
# Variables by which --cpu keeps a script off the GPU; the script chooses its device itself.
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Where a script runs. `folder`: its working folder. `data`: value of `{data}` in its arguments.

    `commit`: commit of the user's folder, if `folder` is a copy of it. `variables`: the user's variables that the
    script gets, if it does not inherit the user's environment.
    """

    folder: Path
    data: str = ""
    commit: str = ""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    def require(self, words: Sequence[str]) -> None:
        """Raise `UsageError` if the arguments ask for data and no data was named."""
        if any(DATA in word for word in words) and not self.data:
            raise UsageError(
                f"{DATA} in the script's arguments stands for its data, but --data is missing", hint="--data PATH"
            )


def script_command(
    spec: RunSpec, workplace: Workplace, *, output: Path, context: Context, gpu: Sequence[str] = ()
) -> tuple[str, ...]:
    """Arguments for `python -m rooflaunch`, which then measures the user's script. `gpu`: words that choose a GPU."""
    data = ("--data", workplace.data) if workplace.data else ()
    options = ("script", *arguments(spec), *gpu, *data, "-o", str(output), "--context", context.to_argument())
    return (*options, "--", *spec.script)


def script_profile_words(spec: RunSpec, workplace: Workplace) -> tuple[str, ...]:
    """Arguments for `python -m rooflaunch profile BUNDLE`.

    Secrets and the data folder are among the arguments, because the bundle contains neither.
    """
    return (*(("--data", workplace.data) if workplace.data else ()), "--", *spec.script)


def script_variables(spec: RunSpec) -> dict[str, str]:
    """Variables that the script gets in addition to the user's own."""
    return {**(NO_GPU if spec.device is Device.CPU else {}), **changes.variables(spec.change)}


def shown_words(words: Sequence[str]) -> list[str]:
    """Command for printing, without the secrets in the script's arguments, which follow the first `--`."""
    at = list(words).index("--") + 1 if "--" in words else len(words)
    return [*words[:at], *without_secrets(words[at:])]


DATA_SETS = (SYNTHETIC, CIFAR10, IMAGENETTE)
TRACES = "--profile torch, which traces on any device"


def torchvision_version() -> str | None:
    """Version of the installed torchvision, found without importing it; None if it is not installed."""
    try:
        return importlib.metadata.version("torchvision").partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_models() -> list[str]:
    """Models of the installed torchvision, listed in a process of its own because the import takes seconds."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "workload", "models"], capture_output=True, text=True, check=False
    )
    return done.stdout.split()


def require_model(
    name: str,
    *,
    version: Callable[[], str | None] = torchvision_version,
    installed: Callable[[], list[str]] = installed_models,
) -> None:
    """Raise `UsageError` if torchvision has no model `name`.

    Our list has the models of one torchvision version. Models of another version installed here are known too.
    """
    if name in vocabulary.MODELS:
        return
    known = installed() if version() not in (None, vocabulary.TORCHVISION) else []
    if name not in known:
        raise vocabulary.unknown_model(name, known or vocabulary.MODELS)


def require_data(spec: RunSpec, *, is_here: bool) -> None:
    """Raise `UsageError` for a data set that is neither a known name nor a folder.

    With `is_here` the folder must exist. A folder on another machine cannot be checked: any absolute path is accepted.
    """
    path = Path(spec.dataset).expanduser()
    if spec.dataset in DATA_SETS or (path.is_dir() if is_here else path.is_absolute()):
        return
    near = difflib.get_close_matches(spec.dataset, DATA_SETS, n=1)
    folder = "a folder" if is_here else "an absolute path"
    raise UsageError(
        f"data set '{spec.dataset}' is neither {folder} nor one of {', '.join(DATA_SETS)}",
        hint=f"--dataset {near[0]}" if near else "--dataset FOLDER, with images in FOLDER/<class>/<image>.jpg",
    )


def require_profile(spec: RunSpec, capability: Callable[[], object] | None = None) -> None:
    """Raise `UsageError` or `ToolError` for --profile ncu without an NVIDIA GPU, before time is spent on the run.

    `capability`: returns the compute capability of this machine's GPU, or None; given only for a run on this machine.
    """
    if spec.profile is not Profile.NCU:
        return
    if spec.device in (Device.CPU, Device.MPS):
        raise UsageError(f"--profile ncu needs an NVIDIA GPU; the device is '{spec.device}'", hint=TRACES)
    if capability and capability() is None:
        raise ToolError("nvidia-smi shows no GPU here; got --profile ncu", hint=f"{TRACES}; launch doctor gpu")


def require_one_machine(spec: RunSpec, command: str) -> None:
    """Raise `UsageError` if the run needs several machines. `command`: the word after `launch`, for the message.

    In a job of Slurm, a run that starts here may use all the job's nodes; the trainer checks their number.
    """
    if spec.machines > 1 and not (command in HERE_COMMANDS and "SLURM_JOB_NODELIST" in os.environ):
        raise UsageError(
            f"a run of launch {command} has one machine; got --machines {spec.machines}",
            hint=f"--devices for several GPUs of one machine, or launch slurm --machines {spec.machines}, or "
            "launch ssh --host A --host B",
        )


def require_folder(output: Path) -> Path:
    """Return `output`. Raises `UsageError` if `output` is a file, or cannot be created or written; creates nothing."""
    existing = next((path for path in (output, *output.parents) if path.exists()), None)
    if existing is not None and not existing.is_dir():
        raise UsageError(f"output folder '{output}' cannot be written: '{existing}' is a file", hint="-o FOLDER")
    if existing is not None and not os.access(existing, os.W_OK | os.X_OK):
        raise UsageError(
            f"output folder '{output}' cannot be written: you may not write to '{existing}'",
            hint="-o FOLDER, with a folder that you may write",
        )
    return output
