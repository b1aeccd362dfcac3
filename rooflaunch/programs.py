"""Entry points of the commands. They import our packages even if PYTHONPATH has others of the same names."""

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def load(*packages: str) -> None:
    """Import our packages from the folder of this file.

    Later imports of their modules follow the packages' own path.
    """
    sys.path.insert(0, str(ROOT))
    try:
        for name in packages:
            importlib.import_module(name)
    finally:
        del sys.path[0]


def launch() -> int:
    """Run `launch` with the arguments of this process; returns its exit code."""
    load("launcher", "workload")
    from launcher.__main__ import main  # noqa: PLC0415 - see `load`

    return main()


def analyze() -> int:
    """Run `analyze` with the arguments of this process; returns its exit code."""
    load("analysis", "workload")
    from analysis.__main__ import main  # noqa: PLC0415 - see `load`

    return main()


def trainer() -> int:
    """Run a command of `python -m workload` with the arguments of this process; returns its exit code."""
    load("workload")
    from workload.__main__ import enter  # noqa: PLC0415 - see `load`

    return enter()
