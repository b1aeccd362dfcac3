"""The border to Nsight Compute's `ncu`: where it is, which one fits the GPU, and what it knows. It needs no GPU."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workload.environment.machine import run_tool
from workload.profile.metrics import table
from workload.profile.status import ProfileError, unavailable

# `--query-metrics` takes 0.2 s, and some seconds the first time on a cold disk.
ANSWER_LIMIT_S = 60.0
# Where NVIDIA's installers and the CUDA toolkit put it, relative to the root of the file system.
PLACES = (
    "opt/nvidia/nsight-compute/*/ncu",
    "usr/local/NVIDIA-Nsight-Compute*/ncu",
    "usr/local/cuda*/bin/ncu",
    "usr/lib/nsight-compute/ncu",
)
INSTALL = (
    "install Nsight Compute (apt install nsight-compute, or developer.nvidia.com/nsight-compute) and put ncu on PATH"
)


def ask(argv: Sequence[str]) -> str | None:
    """What the tool prints to stdout, whatever its exit status; None where it does not start, answer or print."""
    return run_tool(*argv, limit_s=ANSWER_LIMIT_S)


@dataclass(frozen=True, kw_only=True)
class Ncu:
    """One installed ncu."""

    path: Path
    ask: Callable[[Sequence[str]], str | None] = ask

    def version(self) -> str | None:
        """`2024.1.1.0`."""
        match = re.search(r"^Version (\d[\d.]*)", self._answer("--version"), re.MULTILINE)
        return match[1] if match else None

    def chips(self) -> frozenset[str]:
        """The chips that it can profile, `ad104`."""
        return frozenset(re.findall(r"\b[a-z]{2}\d{2}[0-9a-z]\b", self._answer("--list-chips")))

    def has_option(self, option: str) -> bool:
        """Whether `ncu --help` lists it."""
        return re.search(rf"^\s*{re.escape(option)}(?![\w-])", self._answer("--help"), re.MULTILINE) is not None

    def metrics(self, chip: str | None) -> frozenset[str]:
        """The base names that it knows of a chip, or of the GPU in this machine; empty where it does not answer."""
        of_chip = ("--chip", chip) if chip else ()
        text = self._answer("--query-metrics", *of_chip)
        return frozenset(re.findall(r"^([a-z][a-z0-9_]*__[a-z0-9_]+)\s", text, re.MULTILINE))

    def _answer(self, *words: str) -> str:
        return self.ask([str(self.path), *words]) or ""


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """An ncu that knows this GPU, and its metrics: those of the GPU itself, or else of a `chip` of its kind."""

    ncu: Ncu
    version: str | None
    chip: str | None
    metrics: frozenset[str]


def find(environ: Mapping[str, str], root: Path = Path("/")) -> list[Path]:
    """Every ncu: the one on PATH first, then the installed ones, newest first."""
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


def choose(candidates: Sequence[Ncu], capability: str) -> Fitting:
    """The first that can profile a GPU of this compute capability. Raises `ProfileError` with what is wrong."""
    row = table().rows.get(capability)
    for ncu in candidates:
        fitting = _fitting(ncu, row.chips if row else None)
        if fitting:
            return fitting
    if not candidates:
        raise no_ncu()
    raise _unfit(candidates[0], capability)


def no_ncu() -> ProfileError:
    """Neither on PATH nor where installers put it."""
    places = ", ".join(f"/{place}" for place in PLACES)
    return unavailable(f"no ncu found on PATH or at {places}", hint=f"{INSTALL}; or --profile torch, which needs none")


def _fitting(ncu: Ncu, chips: Sequence[str] | None) -> Fitting | None:
    """Chips of one kind differ: ncu is asked about the GPU in the machine first. `chips` is None if none are listed."""
    known = ncu.chips()
    chip = next((chip for chip in chips or () if chip in known), None)
    if chips and chip is None:
        return None
    if own := ncu.metrics(None):
        return Fitting(ncu=ncu, version=ncu.version(), chip=None, metrics=own)
    of_chip = ncu.metrics(chip) if chip else None
    return Fitting(ncu=ncu, version=ncu.version(), chip=chip, metrics=of_chip) if of_chip else None


def _unfit(ncu: Ncu, capability: str) -> ProfileError:
    version, known = ncu.version(), ncu.chips()
    name = f"ncu {version or 'of unknown version'} at {ncu.path}"
    if not known:
        return unavailable(f"{name} does not answer --list-chips", hint=INSTALL)
    served = [_number(row.capability) for row in table().rows.values() if known & set(row.chips)]
    if served and _number(capability) < min(served):
        cure = "Nsight Compute 2024.3 to 2025.3 profiles a V100" if capability == "7.0" else "an older Nsight Compute"
        return unavailable(f"{name} is too new for compute capability {capability}", hint=f"{cure}; or --profile torch")
    return unavailable(
        f"{name} is too old for compute capability {capability}", hint=f"a newer Nsight Compute: {INSTALL}"
    )


def _number(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))
