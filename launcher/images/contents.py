"""Content of an image, and the names derived from it. Reads files, never asks the engine."""

import hashlib
import io
import re
import subprocess
import tarfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from workload import __version__
from workload.contract.errors import ToolError, UsageError
from workload.contract.operating_system import packaged_commit

REPOSITORY = "rooflaunch"
TABLE = "docker/images.toml"
DOCKERFILE = "docker/Dockerfile"
OWN_FILES = (DOCKERFILE, "docker/requirements.txt")
CODE_SUFFIXES = frozenset({".py", ".toml"})
# Facts about devices, prices and units: an image has them, but a new row changes neither what a run measures nor what
# an image is called. So a running sweep keeps the keys of its runs when a GPU is added.
DATA_ROWS = frozenset(f"workload/contract/{name}.toml" for name in ("big_o", "ncu_units", "peaks", "prices"))
# Modules of the launcher that a rented machine runs; no backend is among them. A change of any other module makes
# no new image, so that runs before and after it can be pooled. docker/Dockerfile names the same files; a test
# compares them.
AGENT_FOLDERS = {
    "": ("__init__", "docker_engine", "values"),
    "protocol/": ("__init__", "records"),
    "machine/": ("__init__", "containers", "local", "runtime", "task", "watcher"),
    "script/": ("__init__", "files"),
    "duel/": ("__init__", "contest", "decision", "referee"),
    "tune/": ("__init__", "bounds", "candidates", "duels", "evidence", "patch", "report", "session", "tune"),
    "agent/": ("__init__", "__main__", "agent", "further", "home", "lease"),
}
AGENT_MODULES = tuple(f"{folder}{name}" for folder, names in AGENT_FOLDERS.items() for name in names)
# Packages of the trainer; a script starts the trainer under the name `rooflaunch`.
TRAINER_PACKAGES = ("rooflaunch", "workload")
# The part of `workload` that only `launch` and `analyze` use: needs scipy, which no image has.
STATISTICS = "workload/stats"
AGENT_FILES = tuple(f"launcher/{name}.py" for name in AGENT_MODULES)
# Labels of our images, in addition to those of the OCI image specification.
INPUTS_LABEL = "rooflaunch.inputs"
FLAVOUR_LABEL = "rooflaunch.flavour"
BASE_LABEL = "rooflaunch.base"
UNPINNED = "unpinned"
HASH_DIGITS = 12
# All machine types of `launch gcp` are x86-64; a program of another architecture fails at its first instruction.
VM_ARCHITECTURE = "amd64"
VM_PLATFORM = f"linux/{VM_ARCHITECTURE}"
# Value of `--wheel-index` that keeps the base image's own setting of pip.
PIP_DEFAULT = "pip"


@dataclass(frozen=True, kw_only=True)
class Flavour:
    """Flavour of our image, from a row of images.toml. `capabilities`: compute capabilities, written as `8.9`.

    Versions are written as the software's makers write them.
    """

    name: str
    summary: str
    base: str
    digest: str
    torch: str
    torchvision: str
    index: str
    capabilities: tuple[str, ...]
    driver: str | None = None
    driver_below: str | None = None
    ncu: str | None = None
    ncu_url: str | None = None
    ncu_sha256: str | None = None

    @property
    def pinned_base(self) -> str:
        """Base image, with its digest if known."""
        return f"{self.base}@{self.digest}" if self.digest else self.base

    @property
    def versions(self) -> dict[str, str]:
        """Versions and hashes that, apart from the base image, decide the content of the image."""
        return {
            "TORCH_VERSION": self.torch,
            "TORCHVISION_VERSION": self.torchvision,
            "NCU_SHA256": self.ncu_sha256 or "",
            "CAPABILITIES": " ".join(self.capabilities),
        }


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All inputs of a build. The same recipe gives the same image, so the tag contains a hash of all inputs.

    `files`: content by name inside the build context. `base_id`: the local image that `base` stands for, if any.
    `commit`: commit of the files. `platform`: `linux/amd64`, or empty for the engine's own.
    """

    flavour: Flavour
    base: str
    base_digest: str
    index: str
    base_id: str = ""
    commit: str = ""
    platform: str = ""
    files: Mapping[str, bytes] = field(repr=False)

    @cached_property
    def inputs_hash(self) -> str:
        """Hash of our code and the versions, without base, index and commit: the label of an image for this code."""
        hashes = {
            name: hashlib.sha256(content).hexdigest() for name, content in self.files.items() if name not in DATA_ROWS
        }
        return _hash(*_pairs(hashes), *_pairs(self.flavour.versions))

    @property
    def tag(self) -> str:
        """Name of the image, as `rooflaunch:cpu-0123456789ab`."""
        source = (self.base, self.base_digest, self.base_id, self.index, self.flavour.ncu_url or "")
        content = _hash(self.inputs_hash, *source, self.commit, *filter(None, [self.platform]))
        return f"{REPOSITORY}:{self.flavour.name}-{content[:HASH_DIGITS]}"

    def build_args(self) -> dict[str, str]:
        """Values of the Dockerfile's build arguments, by name."""
        return {
            **self.flavour.versions,
            "BASE_IMAGE": f"{self.base}@{self.base_digest}" if self.base_digest else self.base,
            "BASE_DIGEST": self.base_digest,
            "TORCH_INDEX": "" if self.index == PIP_DEFAULT else self.index,
            "NCU_URL": self.flavour.ncu_url or "",
            "FLAVOUR": self.flavour.name,
            "VERSION": __version__,
            "COMMIT": self.commit,
        }

    def context(self) -> bytes:
        """Build context: a tar of the files."""
        return tar_of(self.files)


def tar_of(files: Mapping[str, bytes]) -> bytes:
    """Uncompressed tar, byte for byte the same for the same files; `files`: content by name."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def load_flavours(path: Path | None = None) -> dict[str, Flavour]:
    """Flavours in images.toml, by name. Raises `ToolError` if the installation lacks the file."""
    table = tomllib.loads((path or table_path()).read_text(encoding="utf-8"))
    rows = {name: {**row, "capabilities": tuple(row["capabilities"])} for name, row in table.items()}
    return {name: Flavour(name=name, **row) for name, row in rows.items()}


def require_flavour(name: str) -> Flavour:
    """Flavour with this name, from images.toml. Raises `UsageError` for an unknown name."""
    known = load_flavours()
    if name not in known:
        raise UsageError(f"flavour must be one of {', '.join(known)}; got '{name}'", hint="--flavour cpu")
    return known[name]


def flavour_for(capability: tuple[int, int]) -> Flavour | None:
    """Flavour with code for this compute capability: same major version, minor version not later.

    None if there is none.
    """
    rows = load_flavours().values()
    for row in rows:
        for code in row.capabilities:
            major, _, minor = code.partition(".")
            if int(major) == capability[0] and int(minor) <= capability[1]:
                return row
    return None


def table_path() -> Path:
    """Path of images.toml, which `--pin` writes."""
    return _root() / TABLE


def make_recipe(
    flavour: Flavour,
    *,
    base: str | None = None,
    base_id: str = "",
    index: str | None = None,
    commit: str = "",
    platform: str = "",
) -> Recipe:
    """Recipe of a flavour with this installation's code; `base` and `index` replace those of the flavour."""
    return Recipe(
        flavour=flavour,
        base=base or flavour.base,
        base_digest="" if base else flavour.digest,
        base_id=base_id,
        index=index or flavour.index,
        commit=commit,
        platform=platform,
        files={name: (_root() / name).read_bytes() for name in OWN_FILES} | agent_code(),
    )


def write_digest(path: Path, flavour: str, digest: str) -> None:
    """Write `digest` into the row of `flavour`; change nothing else in the file."""
    text = path.read_text(encoding="utf-8")
    row = re.compile(rf'(^\[{re.escape(flavour)}\]$.*?^digest = )"[^"\n]*"', re.MULTILINE | re.DOTALL)
    path.write_text(row.sub(rf'\g<1>"{digest}"', text, count=1), encoding="utf-8")


def current_commit() -> str:
    """Last commit that changed the code of an image, with `-dirty` if the files have changed since.

    An installed wheel has no git history, so the commit is the one from which the wheel was built.
    """
    root = _root()
    if not (root / ".git").exists():
        return packaged_commit()
    excluded = (f":(exclude){name}" for name in (*sorted(DATA_ROWS), STATISTICS))
    paths = [*TRAINER_PACKAGES, *OWN_FILES, *AGENT_FILES, *excluded]
    commit = _git(root, "log", "-1", "--format=%H", "--", *paths)
    changed = _git(root, "status", "--porcelain", "--", *paths)
    return f"{commit}-dirty" if commit and changed else commit


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _root() -> Path:
    launcher = Path(__file__).resolve().parents[1]
    for root in (launcher.parent, launcher / "image"):
        if (root / TABLE).is_file():
            return root
    raise ToolError(
        f"this installation lacks {TABLE}, which defines how images are built", hint="install rooflaunch again"
    )


def requirements() -> str:
    """Text of docker/requirements.txt: the packages that every image has besides torch and torchvision."""
    return (_root() / OWN_FILES[1]).read_text(encoding="utf-8")


@cache
def agent_code() -> dict[str, bytes]:
    """Files that a rented machine runs, the agent and the trainer, by path from the repository's root. Read once.

    With the packages of docker/requirements.txt and torch these files are all that `python -m launcher.agent` needs.
    """
    root = Path(__file__).resolve().parents[2]
    paths = [root / name for name in AGENT_FILES]
    for package in TRAINER_PACKAGES:
        paths += [
            path
            for path in sorted((root / package).rglob("*"))
            if path.suffix in CODE_SUFFIXES and path.is_file() and path.parent != root / STATISTICS
        ]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def _pairs(values: Mapping[str, str]) -> Iterator[str]:
    return (f"{name}={value}" for name, value in sorted(values.items()))


def _hash(*words: str) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()
