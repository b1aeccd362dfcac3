"""Files of the user's folder that are sent with a script: packed into one archive here, unpacked on any machine.

The archive has the files that git tracks below the current folder, so that the script runs by the same relative paths
as here. Ignored files are never sent.

scripts/<sha256>.tar.gz   regular files only, by their path below the user's folder
"""

import fnmatch
import gzip
import hashlib
import importlib.util
import io
import json
import shlex
import shutil
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from launcher.machine.runtime import Workplace
from launcher.protocol.records import MAX_ARCHIVE_BYTES, MAX_COUNT, NO_VARIABLES, Request, variables_object
from launcher.values import shown
from workload.contract.errors import BundleError, ToolError, UsageError
from workload.contract.operating_system import crc32c_of
from workload.contract.script_words import DATA, DATA_EXAMPLE, Line, main_file
from workload.contract.text import si
from workload.storage.address import is_bucket, open_store, parse_address
from workload.storage.store import Store, StoredObject, why_unsafe

SHOWN_FILES = 3
MOST_UNPACKED_BYTES = 1_000_000_000


def archive_object(sha256: str) -> str:
    """Name of an archive in a store."""
    return f"scripts/{sha256}.tar.gz"


@dataclass(frozen=True, kw_only=True)
class ScriptFiles:
    """Archive and its contents. `commit`: commit of the user's folder, with `-dirty` if tracked files differ from it.

    `data`: address of the script's data, for the machine. `variables`: environment variables of the user that the
    script gets. `requirements`: packages to install into the image. `notes`: remarks on the script for the plan.
    """

    content: bytes = field(repr=False)
    files: tuple[str, ...]
    commit: str = ""
    data: str = ""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    requirements: bytes = b""
    notes: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        """SHA-256 of the archive in hex; equal files give equal archives."""
        return hashlib.sha256(self.content).hexdigest()

    def facts(self) -> dict[str, Any]:
        """Description of the archive for a request."""
        return {
            "sha256": self.sha256,
            "files": len(self.files),
            "bytes": len(self.content),
            "commit": self.commit,
            "data": self.data,
            "env": list(self.variables),
            "requirements": hashlib.sha256(self.requirements).hexdigest() if self.requirements else "",
        }

    def why_not(self, folder: Path, below: str) -> str:
        """Reason why a path below `folder` is not sent; empty if the path, or a file below it, is sent."""
        if below == "." or any(name == below or name.startswith(f"{below}/") for name in self.files):
            return ""
        ignored = _git(folder, "check-ignore", "--", below)
        return "git ignores it" if ignored else "git does not track it, and no --include names it"

    def send(self, store: Store, launch: str) -> None:
        """Write the archive, unless the store has the archive, then the environment variables for the launch.

        The launch's request must be in the store already.
        """
        name = archive_object(self.sha256)
        if not any(listed.name == name for listed in store.objects(name)):
            store.write(name, self.content, if_absent=True)
        if self.variables:
            content = json.dumps({"values": dict(self.variables)}).encode()
            store.write(variables_object(launch), content, is_private=True)


def place_of_data(text: str | None, words: Sequence[str], *, is_fresh: bool) -> str:
    """Check the value of `--data` for another machine, and return the value; empty without the option.

    Raises `UsageError` for data that the machine cannot have. `is_fresh`: the machine is created for the launch.
    """
    if text is None:
        if any(DATA in word for word in words):
            raise UsageError(
                f"{DATA} in the script's arguments stands for its data, but --data is missing",
                hint=f"--data {DATA_EXAMPLE}",
            )
        return ""
    if is_bucket(text):
        parse_address(text)
        if not any(DATA in word for word in words):
            raise UsageError(
                f"the script's arguments do not contain {DATA}, and the folder to which '{text}' is copied "
                "is not known in advance",
                hint=f"write {DATA} in place of its path in the arguments after --",
            )
        return text
    if is_fresh:
        raise UsageError(f"a new machine has no folder '{text}'", hint=f"--data {DATA_EXAMPLE}")
    if not text.startswith("/") or not text.isprintable():
        raise UsageError(
            f"--data must be {DATA_EXAMPLE} or a full path there; got '{text}'", hint="--data /data/photos"
        )
    return text


def relative_words(words: Sequence[str], folder: Path, line: Line) -> tuple[str, ...]:
    """The script's path, relative to `folder`, and its arguments; the words of `-m MODULE` are unchanged.

    `line`: returns the user's command with other words for the script. Raises `UsageError` if the script is missing or
    outside of `folder`.
    """
    path = main_file(words, folder, line)
    if path is None:
        module = words[1].replace(".", "/")
        if not any((folder / f"{module}{end}").is_file() for end in (".py", "/__main__.py")):
            raise UsageError(
                f"no module '{words[1]}' below {folder}", hint=f"cd to the module's folder, then {line(words)}"
            )
        return tuple(words)
    try:
        below = path.resolve().relative_to(folder.resolve())
    except ValueError:
        raise UsageError(
            f"'{words[0]}' is outside of this folder, {folder}, and only files in this folder are sent",
            hint=f"cd {shlex.quote(str(path.resolve().parent))}, then {line([path.name, *words[1:]])}",
        ) from None
    return (below.as_posix(), *words[1:])


def pack(words: Sequence[str], folder: Path, *, include: Sequence[str] = ()) -> ScriptFiles:
    """Pack the folder's files for the script of `words`. Raises `UsageError` for files that cannot be sent."""
    listed = _listed(folder, include)
    names = [name for name in listed if (folder / name).is_file()]
    for name in names:
        if reason := why_unsafe(name):
            raise UsageError(f"the file {name!r} cannot be sent: {reason}", hint="give it another name")
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise UsageError(
                f"'{name}' is a link out of {folder}, and only files in this folder are sent",
                hint="replace it by a copy",
            )
    require_script(words, names, include)
    if len(names) > MAX_COUNT:
        raise UsageError(
            f"the folder is too large to be sent: {len(names)} files, at most {MAX_COUNT}",
            hint="--include '*.py' sends fewer files; use --data for data",
        )
    sizes = {name: (folder / name).stat().st_size for name in names}
    if sum(sizes.values()) > MOST_UNPACKED_BYTES:
        raise _too_large(sizes, f"{si(sum(sizes.values()), 'B')}, at most {si(MOST_UNPACKED_BYTES, 'B')}")
    content = _archive(folder, names)
    if len(content) > MAX_ARCHIVE_BYTES:
        raise _too_large(sizes, f"{si(len(content), 'B')} compressed, at most {si(MAX_ARCHIVE_BYTES, 'B')}")
    return ScriptFiles(content=content, files=tuple(names), commit=_commit(folder))


def _listed(folder: Path, include: Sequence[str]) -> list[str]:
    """Sorted names of the files below the folder that git tracks.

    With `include`: names that match one of these patterns, except files that git ignores. Raises `UsageError` if there
    is neither git nor a pattern.
    """
    listed = names_in_git(folder)
    if listed is None and not include:
        raise UsageError(
            f"{folder} is in no git repository, so it is unknown which of its files to send", hint="--include '*.py'"
        )
    if listed is not None:
        names = [*listed, *(names_in_git(folder, others=True) or () if include else ())]
    else:
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        names = [name for name in names if not any(part.startswith(".") for part in name.split("/"))]
    chosen = [name for name in names if not include or any(fnmatch.fnmatchcase(name, glob) for glob in include)]
    return sorted(set(chosen))


def names_in_git(folder: Path, *, others: bool = False) -> list[str] | None:
    """Names of the files below the folder that git tracks; None without git.

    `others`: instead the files that git neither tracks nor ignores.
    """
    which = ("--others", "--exclude-standard") if others else ("--cached",)
    listed = _git(folder, "ls-files", "-z", *which)
    return None if listed is None else [name for name in listed.split("\0") if name]


def require_script(words: Sequence[str], names: Sequence[str], include: Sequence[str]) -> None:
    """Raise `UsageError` if the script is not among the files that are sent."""
    module = words[1].replace(".", "/") if words[0] == "-m" else ""
    wanted = (f"{module}.py", f"{module}/__main__.py") if module else (words[0],)
    if any(name in names for name in wanted):
        return
    if include:
        raise UsageError(f"no --include names the script, '{wanted[0]}'", hint=f"add --include '{wanted[0]}'")
    raise UsageError(
        f"git does not track '{wanted[0]}', and only tracked files are sent",
        hint=f"git add {wanted[0]}, or --include '*.py'",
    )


def module_spec(name: str, folder: Path, *, is_local: bool = False) -> ModuleSpec | None:
    """Specification of the module `name`; None if the module is not found.

    Searches `folder` and, unless `is_local`, Python's own search path.
    """
    top, *rest = name.split(".")
    try:
        spec = PathFinder.find_spec(top, [str(folder)]) or (None if is_local else importlib.util.find_spec(top))
    except ValueError:  # an empty name, or a loaded module that came from no file
        return None
    for part in rest:
        top = f"{top}.{part}"
        locations = spec.submodule_search_locations if spec else None
        spec = PathFinder.find_spec(top, locations) if locations is not None else None
    return spec


def _too_large(sizes: dict[str, int], total: str) -> UsageError:
    largest = sorted(sizes, key=lambda name: sizes[name], reverse=True)[:SHOWN_FILES]
    text = ", ".join(f"{shown(name)} ({si(sizes[name], 'B')})" for name in largest)
    return UsageError(
        f"the folder is too large to be sent: {total}; the largest files are {text}",
        hint="--include '*.py' sends fewer files; use --data for data",
    )


def _archive(folder: Path, names: Sequence[str]) -> bytes:
    """Archive of the named files. Equal files give equal bytes, because times and owners are left out."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        for name in names:
            content = (folder / name).read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755 if (folder / name).stat().st_mode & 0o100 else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _commit(folder: Path) -> str:
    head = (_git(folder, "rev-parse", "HEAD") or "").strip()
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".")
    return f"{head}-dirty" if head and changed else head


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *words],
            capture_output=True,
            check=False,
            encoding=sys.getfilesystemencoding(),
            errors="surrogateescape",
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ToolError(f"git is not running: {error.strerror}", hint="--include '*.py'") from error
    return done.stdout if done.returncode == 0 else None


# The functions below run on the machine that runs the script.


def unpack(request: Request, store: Store, home: Path) -> Workplace:
    """Unpack the script's files into the launch's folder `home` and return the script's workplace.

    A second start keeps the files as the first start left them.
    Raises `BundleError` if the archive is missing or damaged.
    """
    folder, wanted = home / "script", str(request.script["sha256"])
    if not folder.exists():
        content = store.read(archive_object(wanted), most_bytes=MAX_ARCHIVE_BYTES)
        if content is None or hashlib.sha256(content).hexdigest() != wanted:
            what = "missing" if content is None else "damaged"
            address = store.locate(archive_object(wanted))
            raise BundleError(f"the script's archive is {what}: {address}", hint="launch again")
        new = folder.with_name("script.new")
        shutil.rmtree(new, ignore_errors=True)
        _extract(content, new)
        new.rename(folder)
    return Workplace(
        folder=folder,
        commit=str(request.script.get("commit", "")),
        variables=variables_in(request, store) if request.script.get("env") else {},
    )


def copy_archive(request: Request, source: Store, target: Store) -> None:
    """Copy the launch's archive to the store of another machine, unless that has it."""
    name = archive_object(str(request.script["sha256"]))
    if not any(listed.name == name for listed in target.objects(name)):
        target.write(name, source.read(name, most_bytes=MAX_ARCHIVE_BYTES) or b"", if_absent=True)


def variables_in(request: Request, store: Store) -> dict[str, str]:
    """Values of the variables that `--env` names, which the launch left in the store.

    Raises `BundleError` if one is missing.
    """
    try:
        values = json.loads(store.read(variables_object(request.name)) or NO_VARIABLES)["values"]
        return {name: str(values[name]) for name in request.script["env"]}
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError("the variables of the script are not in the store", hint="launch again") from error


def fetch_data(address: str, folder: Path, *, is_over: Callable[[], bool]) -> None:
    """Copy the data at `address` into `folder`, except files that `folder` already has with the same size.

    `is_over`: called before each file; copying stops if `is_over` returns True.
    """
    store, number = open_store(address, jobs=3), 0
    for listed in store.objects(""):
        if is_over():
            return
        if listed.name.endswith("/"):  # placeholder object for a folder in a bucket
            continue
        number += 1
        if reason := listed.problem or why_unsafe(listed.name):
            raise BundleError(f"{listed.name!r} of {address} cannot be copied: {reason}", hint="give it another name")
        path = folder / listed.name
        if path.exists() and path.stat().st_size == listed.bytes:
            continue
        try:
            _copy(store, listed, path)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ToolError(
                f"{listed.name!r} of {address} cannot be written here: {reason}", hint="less data"
            ) from error
    if not number:
        raise UsageError(f"no data at {address}", hint="name a place with objects: --data ADDRESS")


def _copy(store: Store, listed: StoredObject, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with part.open("w+b") as target:
        store.download(listed, target)
        target.seek(0)
        if listed.crc32c and crc32c_of(target) != listed.crc32c:
            raise BundleError(f"{listed.name!r} arrived damaged from {store}", hint="launch again")
    part.rename(path)


def _extract(content: bytes, folder: Path) -> None:
    """Unpack regular files one by one. Links, devices and unsafe paths are refused.

    No file is written outside of `folder`.
    """
    folder.mkdir(parents=True)
    bytes_left = MOST_UNPACKED_BYTES
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            for entry in archive:
                bytes_left -= entry.size
                what = "" if entry.isreg() and entry.size >= 0 else "not a regular file"
                size = "" if bytes_left >= 0 else f"more than {MOST_UNPACKED_BYTES} bytes"
                if reason := why_unsafe(entry.name) or what or size:
                    raise BundleError(f"{entry.name!r} in the script's archive: {reason}", hint="launch again")
                path = folder / entry.name
                path.parent.mkdir(parents=True, exist_ok=True)
                source = archive.extractfile(entry)
                assert source is not None
                with path.open("xb") as target:
                    shutil.copyfileobj(source, target)
                path.chmod(entry.mode & 0o755)
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError) as error:
        raise BundleError(f"the script's archive cannot be unpacked: {error}", hint="launch again") from error
