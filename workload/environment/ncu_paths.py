"""Places of Nsight Compute's command line, `ncu`, on this machine. Standard library only."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

# Places where NVIDIA's installers and the CUDA toolkit put ncu, relative to the root of the file system.
PLACES = (
    "opt/nvidia/nsight-compute/*/ncu",
    "usr/local/NVIDIA-Nsight-Compute*/ncu",
    "usr/local/cuda*/bin/ncu",
    "usr/lib/nsight-compute/ncu",
)


def find(environ: Mapping[str, str], root: Path = Path("/")) -> list[Path]:
    """Every installed ncu: the one on PATH first, then the others, newest first."""
    found = [path for path in (*_on_path(environ), *_installed(root)) if os.access(path, os.X_OK) and path.is_file()]
    unique = {path.resolve(): path for path in reversed(found)}
    return [path for path in found if unique[path.resolve()] is path]


def _on_path(environ: Mapping[str, str]) -> Iterator[Path]:
    for folder in environ.get("PATH", "").split(os.pathsep):
        if folder:
            yield Path(folder) / "ncu"


def _installed(root: Path) -> list[Path]:
    paths = [path for place in PLACES for path in root.glob(place)]
    return sorted(paths, key=lambda path: [int(digits) for digits in re.findall(r"\d+", str(path))], reverse=True)
