"""Providers of machines: one package for each kind of place, looked up here by name and imported when it is used."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from workload.contract.errors import UsageError

if TYPE_CHECKING:
    from launcher.protocol.backend import Backend

# A backend's name, as in `launch NAME` and in run.json -> its package (see `launcher.protocol.backend`).
BACKENDS: Mapping[str, str] = {
    "gcp": "launcher.backends.gcp",
    "ssh": "launcher.backends.ssh",
    "batch": "launcher.backends.batch",
    "slurm": "launcher.backends.slurm",
    # Last, because `--region` and `--bucket` without a backend's name belong to the first backend that has the option.
    "aws": "launcher.backends.aws",
}


def load(name: str) -> "Backend":
    """Import and return the backend of this name. Raises `UsageError` if there is none."""
    if name not in BACKENDS:
        raise UsageError(f"there is no backend '{name}'", hint=f"one of {', '.join(BACKENDS)}")
    backend: Backend = importlib.import_module(f"{BACKENDS[name]}.backend").backend
    return backend
