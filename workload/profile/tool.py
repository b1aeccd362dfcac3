"""Interface to Nsight Compute's `ncu`: chooses one that fits the GPU, and lists its metrics. Needs no GPU."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from workload.environment.machine import NCU_PLACES, run_tool
from workload.profile.metrics import table
from workload.profile.status import ProfileError, unavailable

# `--query-metrics` takes 0.2 s, and some seconds the first time on a cold disk.
ANSWER_LIMIT_S = 60.0
INSTALL = (
    "install Nsight Compute (apt install nsight-compute, or developer.nvidia.com/nsight-compute) and put ncu on PATH"
)


def ask(argv: Sequence[str]) -> str | None:
    """Output of the command, for any exit status; None if it does not start, ends too late or prints nothing."""
    return run_tool(*argv, limit_s=ANSWER_LIMIT_S)


@dataclass(frozen=True, kw_only=True)
class Ncu:
    """An installed ncu."""

    path: Path
    ask: Callable[[Sequence[str]], str | None] = ask

    def version(self) -> str | None:
        """Version such as `2024.1.1.0`; None if ncu does not answer."""
        match = re.search(r"^Version (\d[\d.]*)", self._answer("--version"), re.MULTILINE)
        return match[1] if match else None

    def chips(self) -> frozenset[str]:
        """Names of the chips that this ncu can profile, such as `ad104`."""
        return frozenset(re.findall(r"\b[a-z]{2}\d{2}[0-9a-z]\b", self._answer("--list-chips")))

    def has_option(self, option: str) -> bool:
        """Whether `ncu --help` lists the option."""
        return re.search(rf"^\s*{re.escape(option)}(?![\w-])", self._answer("--help"), re.MULTILINE) is not None

    def metrics(self, chip: str | None) -> frozenset[str]:
        """Base names of the metrics of a chip, or of the GPU in this machine; empty if ncu does not answer."""
        of_chip = ("--chip", chip) if chip else ()
        text = self._answer("--query-metrics", *of_chip)
        return frozenset(re.findall(r"^([a-z][a-z0-9_]*__[a-z0-9_]+)\s", text, re.MULTILINE))

    def full_names(self, bases: Collection[str], chip: str | None) -> frozenset[str]:
        """Names with suffixes (`dram__bytes.sum`) of metrics with these base names; empty if ncu does not list them."""
        of_chip = ("--chip", chip) if chip else ()
        words = ("--query-metrics", "--query-metrics-mode", "suffix", *of_chip, "--metrics", ",".join(sorted(bases)))
        text = self._answer(*words) if bases else ""
        return frozenset(re.findall(r"^([a-z][a-z0-9_]*__[a-z0-9_.]+)\s", text, re.MULTILINE))

    def _answer(self, *words: str) -> str:
        return self.ask([str(self.path), *words]) or ""


@dataclass(frozen=True, kw_only=True)
class Fitting:
    """An ncu that can profile this GPU. `metrics`: metrics of this GPU or, if unknown, of a similar `chip`."""

    ncu: Ncu
    version: str | None
    chip: str | None
    metrics: frozenset[str]


def choose(candidates: Sequence[Ncu], capability: str) -> Fitting:
    """First ncu that can profile a GPU of this compute capability.

    Raises `ProfileError` with the reason if none can.
    """
    row = table().rows.get(capability)
    for ncu in candidates:
        fitting = _fitting(ncu, row.chips if row else None)
        if fitting:
            return fitting
    if not candidates:
        raise no_ncu()
    raise _unfit(candidates[0], capability)


def no_ncu() -> ProfileError:
    """Error for a machine that has ncu neither on PATH nor in a folder of NVIDIA's installers."""
    places = ", ".join(f"/{place}" for place in NCU_PLACES)
    return unavailable(
        f"no ncu found on PATH or at {places}", hint=f"{INSTALL}; or --profile torch, which does not need ncu"
    )


def _fitting(ncu: Ncu, chips: Sequence[str] | None) -> Fitting | None:
    """`ncu` with its metrics for the GPU; None if `ncu` cannot profile the GPU.

    `chips`: chips of the GPU's kind, None if metrics.toml lists none. Chips of one kind differ, so ncu is asked about
    the GPU in the machine first.
    """
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
        # docs.nvidia.com/nsight-compute/2020.1/ReleaseNotes: "Removed support for the Pascal SM 6.x GPU architecture"
        cure = "Nsight Compute 2024.3 to 2025.3 profiles a V100; or --profile torch"
        if capability != "7.0":
            cure = "--profile torch: no Nsight Compute since 2020.1 profiles GPUs before the V100"
        return unavailable(f"{name} is too new for compute capability {capability}", hint=cure)
    return unavailable(
        f"{name} is too old for compute capability {capability}", hint=f"a newer Nsight Compute: {INSTALL}"
    )


def _number(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))
