"""Collects all facts of a run's hardware and software that could explain a difference between runs.

Only `software_facts` needs torch: a thread collects the other sections while torch is imported.
"""

import fnmatch
import importlib.metadata
import platform
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from workload import __version__
from workload.contract.operating_system import packaged_commit
from workload.environment.cloud import cloud_facts, slurm_facts
from workload.environment.host import container_facts, host_facts, storage_facts
from workload.environment.machine import HostSystem

# Folder of the running code.
CODE = Path(__file__).parents[2]

# Variables that change speed. Only these are recorded: bundles are shared, and other variables may hold credentials.
SPEED_VARIABLES = (
    "OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS", "ACCELERATE_NEW_LAPACK", "NUMEXPR_NUM_THREADS", "ATEN_CPU_CAPABILITY", "ONEDNN_*",
    "DNNL_*", "PYTORCH_ALLOC_CONF", "PYTORCH_*_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTORCH_ENABLE_MPS_FALLBACK", "PYTORCH_MPS_*_WATERMARK_RATIO", "PYTORCH_NVML_BASED_CUDA_CHECK", "TORCH_CUDNN_*",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_BLAS_PREFER_CUBLASLT", "TORCHINDUCTOR_MAX_AUTOTUNE*",
    "TORCH_COMPILE_DISABLE", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE", "CUDNN_*LOG*", "NVIDIA_TF32_OVERRIDE", "NVIDIA_VISIBLE_DEVICES", "LD_PRELOAD",
    "MALLOC_*", "TCMALLOC_*", "PYTHONOPTIMIZE", "PYTHONFAULTHANDLER",
)  # fmt: skip

# File with name and version, by the ending of the folder (or, for the oldest kind, the file) that an installer made.
METADATA = {".dist-info": "METADATA", ".egg-info": "PKG-INFO"}
# Name and version stand in the first lines; the rest is a description of any length.
HEAD_BYTES = 2048
NAME = re.compile(rb"^Name:[ \t]*([A-Za-z0-9._-]{1,200})\s*$", re.MULTILINE)
VERSION = re.compile(rb"^Version:[ \t]*([A-Za-z0-9.!+_-]{1,100})\s*$", re.MULTILINE)


def facts_without_torch(machine: HostSystem) -> dict[str, object]:
    """Facts of the software that need no torch: the commit of this code, and the installed packages."""
    return {**commit_facts(machine, CODE), "packages": installed_packages()}


def software_facts(machine: HostSystem, known: Mapping[str, object] | None = None) -> dict[str, object]:
    """Facts of the software; `known`: `facts_without_torch`, if they are collected already."""
    import torch  # noqa: PLC0415 - takes seconds, and `facts_without_torch` does not need it

    return {
        "rooflaunch": __version__,
        **(known or facts_without_torch(machine)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": version("torchvision"),
        "cuda_build": torch.version.cuda,
        "cudnn": _cudnn(),
        **_build_facts(torch.__config__.show()),
        "variables": speed_variables(machine.environ),
        "colab": machine.environ.get("COLAB_RELEASE_TAG"),
    }


def speed_variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(environ.items())
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in SPEED_VARIABLES)
    }


def commit_facts(machine: HostSystem, folder: Path) -> dict[str, object]:
    """Commit of the code in `folder`, and whether the trainer differs from it.

    In an image or a wheel: the commit from which it was built, and True if it was built from changed files, else None.
    Both are None if unknown.
    """
    # Ask git only in a checkout of this project: an installed copy may lie in another project's repository.
    if (folder / ".git").exists():
        commit, dirty = checked_out(machine, folder, "--", "workload")
        if commit:
            return {"commit": commit, "commit_dirty": dirty}
    built_from = machine.environ.get("ROOFLAUNCH_COMMIT") or packaged_commit() or None
    if built_from is None or not built_from.endswith("-dirty"):
        return {"commit": built_from, "commit_dirty": None}
    return {"commit": built_from.removesuffix("-dirty"), "commit_dirty": True}


def checked_out(machine: HostSystem, folder: Path, *options: str) -> tuple[str | None, bool | None]:
    """Commit of the git repository that holds `folder`, and whether files differ from it; both None without one.

    `options`: more words for `git status`.
    """
    status = machine.tool(
        "git", "--no-optional-locks", "-C", str(folder), "status", "--porcelain=v2", "--branch", *options
    )
    match = re.search(r"^# branch\.oid ([0-9a-f]{40,64})$", status or "", re.MULTILINE)
    if status is None or match is None:
        return None, None
    return match[1], any(not line.startswith("#") for line in status.splitlines())


def version(package: str) -> str | None:
    """Version of an installed package; None if it is absent."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cudnn() -> int | None:
    """Version of cuDNN in torch's form: 91900 is 9.19.0; None if unavailable."""
    import torch  # noqa: PLC0415 - see `software_facts`

    try:
        number: int | None = torch.backends.cudnn.version()
    except RuntimeError:
        # torch was built for another version of cuDNN than the installed one.
        return None
    return number


def _build_facts(text: str) -> dict[str, object]:
    """Facts in `text`, torch's description of its build, that affect the speed on a CPU."""
    patterns = {
        "blas": r"\bBLAS_INFO=(\w+)",
        "mkl": r"(?:oneAPI )?Math Kernel Library Version (\S+)",
        "onednn": r"MKL-DNN v(\S+)",
        "openmp": r"OpenMP (\d+)",
        "cpu_capability": r"CPU capability usage: (.+)",
    }
    matches = {name: re.search(pattern, text) for name, pattern in patterns.items()}
    return {name: match[1].strip() if match else None for name, match in matches.items()}


def installed_packages(folders: Sequence[str] | None = None) -> list[str]:
    """`name==version` of each package in these folders, by default those from which this process imports.

    Of two packages with one name, the first is imported. Only name and version are read: neither the address that a
    package came from nor the path of an editable one. This takes some milliseconds for a hundred packages, a tenth of
    what `importlib.metadata` takes, which parses the whole description.
    """
    found: dict[str, str] = {}
    for name, version in (pair for folder in folders or sys.path for pair in _in(folder)):
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), f"{name}=={version}")
    return [found[name] for name in sorted(found)]


def _in(folder: str) -> Iterator[tuple[str, str]]:
    try:
        entries = [path for path in Path(folder).iterdir() if path.suffix in METADATA]
    except OSError:
        return
    for entry in entries:
        for path in (entry / METADATA[entry.suffix], entry):
            try:
                with path.open("rb") as text:
                    head = text.read(HEAD_BYTES)
            except OSError:
                continue
            name, version = NAME.search(head), VERSION.search(head)
            if name and version:
                yield name[1].decode(), version[1].decode()
            break


# Facts by section. The section `software` has only what needs no torch; None: the section does not apply.
Sections = Mapping[str, Mapping[str, object] | None]


def host_sections(machine: HostSystem) -> Sections:
    """Collect the sections. Child processes and a request to a metadata server may take up to four seconds together."""
    return {
        "host": host_facts(machine),
        "software": facts_without_torch(machine),
        "cloud": cloud_facts(machine),
        "container": container_facts(machine),
        "slurm": slurm_facts(machine),
    }


class SectionsBeside:
    """Sections that a thread collects from now on."""

    def __init__(self, machine: HostSystem | None = None) -> None:
        self._machine = machine or HostSystem()
        self._sections: Sections | None = None
        self._thread = threading.Thread(target=self._collect, name="environment", daemon=True)
        self._thread.start()

    def wait(self) -> Sections:
        """Sections, once the thread has ended. If it failed, they are collected again here, and its error is raised."""
        self._thread.join()
        return self._sections or host_sections(self._machine)

    def _collect(self) -> None:
        with suppress(Exception):
            self._sections = host_sections(self._machine)


def collect(
    *,
    device: Mapping[str, object],
    dataset_path: Path | None = None,
    machine: HostSystem | None = None,
    outside: Mapping[str, Mapping[str, object]] | None = None,
    known: Sections | None = None,
) -> dict[str, object]:
    """Sections of run.json's `environment`; `device`: facts by `device_facts`.

    None stands for a fact that cannot be read, and for a section that does not apply: `cloud` off a cloud's VMs,
    `container` outside of containers, `slurm` outside of a job. `outside`: facts that a launcher read on the host,
    with priority over facts read here. `known`: sections of `host_sections`, if they are collected already.
    """
    machine = machine or HostSystem()
    known = known or host_sections(machine)
    storage = None if dataset_path is None else storage_facts(machine, dataset_path)
    sections = {
        "host": {**(known["host"] or {}), "dataset_storage": storage},
        "device": device,
        "software": software_facts(machine, known["software"]),
        "cloud": known["cloud"],
        "container": known["container"],
        "slurm": known["slurm"],
    }
    merged: dict[str, dict[str, object] | None] = {}
    for name, section in sections.items():
        seen = {fact: value for fact, value in (outside or {}).get(name, {}).items() if value is not None}
        merged[name] = {**(section or {}), **seen} if section is not None or seen else None
    cloud, device_found = merged["cloud"], merged["device"] or {}
    if cloud and cloud.get("provider") == "ec2":
        # EC2 does not tell the host, so the GPU in it stands for the host.
        host = cloud.get("physical_host") or device_found.get("serial") or device_found.get("uuid")
        merged["cloud"] = {**cloud, "physical_host": host}
    return {**merged}
