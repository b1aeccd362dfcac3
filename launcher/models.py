"""Whether a run's model exists, before anything is started or paid for."""

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable

from workload.contract import classifiers


def torchvision_version() -> str | None:
    """Of this installation, without importing it."""
    try:
        return importlib.metadata.version("torchvision").partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def installed() -> list[str]:
    """What torchvision here has, asked in a process of its own: importing it takes seconds."""
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
    """`UsageError` for a model that neither the list nor another version of torchvision here has."""
    if name in classifiers.NAMES:
        return
    here = version()
    known = installed() if here not in (None, classifiers.VERSION) else []
    if name not in known:
        raise classifiers.unknown(name, known or classifiers.NAMES)
