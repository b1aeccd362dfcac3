"""Checks of a run's model, data, profiler and output folder before anything is started or paid for."""

import difflib
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from workload.contract import vocabulary
from workload.contract.errors import ToolError, UsageError
from workload.contract.spec import CIFAR10, IMAGENETTE, SYNTHETIC, Device, Profile, RunSpec

DATA_SETS = (SYNTHETIC, CIFAR10, IMAGENETTE)
TRACES = "--profile torch, which traces on any device"


def torchvision_version() -> str | None:
    """Version of the installed torchvision, found without importing it; None if it is not installed."""
    try:
        return importlib.metadata.version("torchvision").partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def installed() -> list[str]:
    """Models of the installed torchvision, listed in a process of its own because the import takes seconds."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "workload", "models"], capture_output=True, text=True, check=False
    )
    return done.stdout.split()


def require(
    name: str,
    *,
    version: Callable[[], str | None] = torchvision_version,
    installed: Callable[[], list[str]] = installed,
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
