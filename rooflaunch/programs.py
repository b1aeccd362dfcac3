"""`launch`, `analyze` and `python -m rooflaunch`: each finds our packages, whatever a folder of PYTHONPATH holds."""

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def load(*packages: str) -> None:
    """Import these packages of ours; their modules are found by the packages' own path from here on."""
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
