"""Finds `ncu`, the command-line tool of Nsight Compute, on this machine. Standard library only."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

# Places where NVIDIA's installers and the CUDA toolkit put ncu, relative to the root of the file system.
NCU_PLACES = (
    "opt/nvidia/nsight-compute/*/ncu",
    "usr/local/NVIDIA-Nsight-Compute*/ncu",
    "usr/local/cuda*/bin/ncu",
    "usr/lib/nsight-compute/ncu",
)


def installed_ncus(environ: Mapping[str, str], root: Path = Path("/")) -> list[Path]:
    """Every installed ncu: the one on PATH first, then the others, newest first."""
    on_path = [Path(folder) / "ncu" for folder in environ.get("PATH", "").split(os.pathsep) if folder]
    installed = sorted((path for place in NCU_PLACES for path in root.glob(place)), key=_ncu_version, reverse=True)
    programs = [path for path in (*on_path, *installed) if os.access(path, os.X_OK) and path.is_file()]
    unique = {path.resolve(): path for path in reversed(programs)}
    return [path for path in programs if unique[path.resolve()] is path]


def _ncu_version(path: Path) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", str(path))]
