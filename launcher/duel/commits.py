"""Commits of this code, laid out in temporary folders, so that nothing that is edited meanwhile gets into a duel."""

import difflib
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from workload.contract.errors import ToolError, UsageError

# What a trainer is made of.
CODE = "workload"
WORKING_TREE = "."
SHORT = 10


@dataclass(frozen=True, kw_only=True)
class Export:
    """`commit`: its hash, `-dirty` where the working tree differs from it; `folder` holds its `workload/`."""

    label: str
    commit: str
    folder: Path


@contextmanager
def exported(asked: tuple[str, str], where: Path) -> Iterator[tuple[tuple[Export, Export], tuple[str, ...]]]:
    """Both, from the git repository that `where` is in, and warnings. Raises `UsageError` or `ToolError`."""
    root = Path(_git(where, "rev-parse", "--show-toplevel", refused=_no_checkout(where)))
    with tempfile.TemporaryDirectory(prefix="rooflaunch-duel-") as text:
        # Names of one length: the size of the environment moves the stack, and that can be measured.
        a, b = (_export(root, name, Path(text) / variant) for name, variant in zip(asked, "AB", strict=True))
        changed = _git(root, "status", "--porcelain", "--", CODE).splitlines()
        warnings: tuple[str, ...] = ()
        if changed and WORKING_TREE not in asked:
            files = "1 file" if len(changed) == 1 else f"{len(changed)} files"
            warnings = (
                f"{files} of {CODE}/ changed since the last commit: in neither side (--commit HEAD . has them)",
            )
        yield (a, b), warnings


def _export(root: Path, name: str, folder: Path) -> Export:
    tree, commit, label = _working_tree(root, folder) if name == WORKING_TREE else _commit(root, name)
    if not _git(root, "ls-tree", tree, "--", f"{CODE}/__main__.py"):
        raise UsageError(
            f"'{name}' of {root} has no {CODE}/__main__.py: it is no commit of rooflaunch",
            hint="launch duel --commit main HEAD, in a checkout of rooflaunch",
        )
    folder.mkdir(exist_ok=True)
    packed = folder / "code.tar"
    _git(root, "archive", "--format=tar", f"--output={packed}", tree, CODE)
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    packed.unlink()
    return Export(label=label, commit=commit, folder=folder)


def _commit(root: Path, name: str) -> tuple[str, str, str]:
    """Its tree, its hash, and how it is shown."""
    known = _git(root, "for-each-ref", "--format=%(refname:short)").split()
    near = difflib.get_close_matches(name, known, n=1)
    unknown = UsageError(
        f"{root} has no commit '{name}'", hint=f"{f'did you mean {near[0]}? ' if near else ''}git fetch brings others"
    )
    commit = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}", refused=unknown)
    subject = _git(root, "log", "-1", "--format=%s", commit)
    return commit, commit, f"{name} ({commit[:SHORT]} {subject})"


def _working_tree(root: Path, folder: Path) -> tuple[str, str, str]:
    """As `_commit`, with what is changed and what is new, but not what git ignores."""
    folder.mkdir()
    index = folder / "index"
    _git(root, "read-tree", "HEAD", index=index)
    _git(root, "add", "--all", "--", CODE, index=index)
    tree = _git(root, "write-tree", index=index)
    index.unlink()
    head = _git(root, "rev-parse", "HEAD")
    is_changed = tree != _git(root, "rev-parse", "HEAD^{tree}")
    label = f"the working tree ({head[:SHORT]}{' and changes' if is_changed else ''})"
    return tree, f"{head}-dirty" if is_changed else head, label


def _no_checkout(where: Path) -> UsageError:
    return UsageError(f"{where} is in no git repository", hint="run launch duel in a checkout of rooflaunch")


def _git(root: Path, *words: str, index: Path | None = None, refused: UsageError | None = None) -> str:
    """What git prints; raises `refused`, else a `ToolError` with what git says."""
    environment = {**os.environ, **({"GIT_INDEX_FILE": str(index)} if index else {})}
    try:
        done = subprocess.run(["git", *words], cwd=root, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolError(f"git cannot be run: {error.strerror}", hint="install git") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise refused or ToolError(f"git {words[0]} failed: {lines[-1]}", hint=f"git status in {root}")
    return done.stdout.strip()
