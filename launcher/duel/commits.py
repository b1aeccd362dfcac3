"""Commits exported into temporary folders, so that edits made during a duel do not change its sides.

The commits are of rooflaunch, or of the repository that contains the user's own script.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from workload.contract.errors import ToolError, UsageError
from workload.contract.script_words import main_file, script_name
from workload.contract.text import counted, did_you_mean, si

# Folder of our trainer's code.
TRAINER = "workload"
WORKING_TREE = "."
SHORT = 10
# Most bytes in files that git neither tracks nor ignores. A larger total is data, which git would copy.
MOST_NEW_BYTES = 50_000_000
# Ignored files that programs recreate if they are missing, and that two sides must not share.
CACHES = ("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints")


@dataclass(frozen=True, kw_only=True)
class Code:
    """Part of a repository that a side runs.

    `path`: path below the repository's root, empty for the whole repository. `main`: paths of files; a commit must have
    at least one of these files, below the root or, with `anywhere`, below any folder. `name`, `hint`: texts for an
    error if every file is missing.
    """

    path: str
    main: tuple[str, ...]
    name: str
    hint: str
    anywhere: bool = False


@dataclass(frozen=True, kw_only=True)
class Export:
    """Exported commit. `commit`: hash, with `-dirty` if the working tree differs; `tree`: git's hash of the code.

    `folder`: copy of the repository's root.
    """

    label: str
    commit: str
    tree: str
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Exports:
    """Commits of both sides. `links`: ignored files and folders of `root` that both sides use without a copy."""

    a: Export
    b: Export
    root: Path
    links: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


TRAINERS = Code(
    path=TRAINER,
    main=(f"{TRAINER}/__main__.py",),
    name=f"{TRAINER}/__main__.py: it is not a commit of rooflaunch",
    hint="launch duel --commit main HEAD, in a checkout of rooflaunch; for a script of your own add -- train.py",
)


def code_of_script(words: Sequence[str], where: Path) -> Code:
    """Code to export for a script: the whole repository of the folder `where`. Raises `UsageError` or `ToolError`."""
    example = "launch duel --commit main HEAD -- train.py"
    root = _root(where, f"cd to the script's repository, then {example}")
    if not words[0].endswith(".py"):  # a script's file may exist only in the commits
        main_file(words, where, example=example, python=f"this Python, {sys.executable}")
    hint = f"a commit that has the file; git log --oneline -- {script_name(words)}"
    if words[0] == "-m":
        module = words[1].replace(".", "/")
        files = (f"{module}.py", f"{module}/__main__.py")
        return Code(path="", main=files, name=f"module '{words[1]}'", hint=hint, anywhere=True)
    path = Path(os.path.normpath(where.resolve() / words[0]))
    if not path.is_relative_to(root):
        raise UsageError(
            f"'{words[0]}' is outside of the repository {root}",
            hint=f"cd {path.parent}, then {example.replace('train.py', path.name)}",
        )
    below = path.relative_to(root).as_posix()
    return Code(path="", main=(below,), name=f"script '{below}'", hint=hint)


@contextmanager
def exported(names: tuple[str, str], where: Path, code: Code = TRAINERS) -> Iterator[Exports]:
    """Export both commits of the git repository that contains `where`. Raises `UsageError` or `ToolError`."""
    root = _root(where, "run launch duel in a checkout of rooflaunch; for a script of your own add -- train.py")
    with tempfile.TemporaryDirectory(prefix="rooflaunch-duel-") as text:
        # Folder names of equal length: the size of the environment shifts the stack, which measurably changes speed.
        a, b = (_export(root, name, Path(text) / variant, code) for name, variant in zip(names, "AB", strict=True))
        links = () if code.path else _linked(root, (a.folder, b.folder))
        changed, warnings = _git(root, "status", "--porcelain", "--", code.path or ".").splitlines(), []
        if changed and WORKING_TREE not in names:
            files = counted(len(changed), "file") + (f" of {code.path}/" if code.path else "")
            warnings.append(
                f"{files} changed since the last commit, in neither side (to compare them: --commit HEAD .)"
            )
        yield Exports(a=a, b=b, root=root, links=links, warnings=tuple(warnings))


def _export(root: Path, name: str, folder: Path, code: Code) -> Export:
    index = folder.with_suffix(".index")
    tree, commit, label = _working_tree(root, index, code) if name == WORKING_TREE else _commit(root, name)
    if not _has(root, tree, code):
        raise UsageError(f"'{name}' of {root} has no {code.name}", hint=code.hint)
    part = f"{tree}:{code.path}" if code.path else f"{tree}^{{tree}}"
    # Export files as `git checkout` does. `git archive` may leave files out (attribute export-ignore).
    _git(root, "read-tree", "--empty", index=index)
    _git(root, "read-tree", *([f"--prefix={code.path}/"] if code.path else []), part, index=index)
    _git(root, "checkout-index", "--all", f"--prefix={folder}/", index=index)
    folder.mkdir(exist_ok=True)
    return Export(label=label, commit=commit, tree=_git(root, "rev-parse", part), folder=folder)


def _has(root: Path, tree: str, code: Code) -> bool:
    if not code.anywhere:
        return bool(_git(root, "ls-tree", tree, "--", *code.main))
    names = _git(root, "ls-tree", "-r", "-z", "--name-only", tree).split("\0")
    return any(f"/{name}".endswith(tuple(f"/{main}" for main in code.main)) for name in names)


def _linked(root: Path, folders: Sequence[Path]) -> tuple[str, ...]:
    """Link the files of `root` that git ignores into each of `folders`, except caches and virtual environments.

    Returns the names of the links.
    """
    ignored = _git(root, "ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z").split("\0")
    # git also lists the content of a folder that ignores itself.
    listed = tuple(name for name in ignored if name.endswith("/"))
    below = {name for name in ignored for folder in listed if name.startswith(folder) and name != folder}
    links = [name for name in ignored if name and not _is_cache(root / name) and name not in below]
    for folder in folders:
        for name in links:
            link = folder / name.rstrip("/")
            if not os.path.lexists(link):
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(root / name)
    return tuple(links)


def _is_cache(path: Path) -> bool:
    """Whether a path is a cache or a virtual environment, which programs make again if it is missing."""
    parts = PurePosixPath(path).parts
    return path.suffix in (".pyc", ".pyo") or bool(set(parts) & set(CACHES)) or (path / "pyvenv.cfg").exists()


def _root(where: Path, hint: str) -> Path:
    outside = UsageError(f"{where} is in no git repository", hint=hint)
    return Path(_git(where, "rev-parse", "--show-toplevel", refused=outside))


def _commit(root: Path, name: str) -> tuple[str, str, str]:
    """(tree, commit, label) of the commit that the user calls `name`; tree and commit are hashes."""
    known = _git(root, "for-each-ref", "--format=%(refname:short)").split()
    hint = did_you_mean(name, known, after=" ") + "git fetch brings others"
    unknown = UsageError(f"{root} has no commit '{name}'", hint=hint)
    commit = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}", refused=unknown)
    subject = _git(root, "log", "-1", "--format=%s", commit)
    return commit, commit, f"{name} ({commit[:SHORT]} {subject})"


def _working_tree(root: Path, index: Path, code: Code) -> tuple[str, str, str]:
    """(tree, commit, label) of the working tree without ignored files; tree and commit are hashes.

    `-dirty` is added to the commit's hash if the working tree differs from the commit.
    """
    _require_small(root, code)
    _git(root, "read-tree", "HEAD", index=index)
    _git(root, "add", "--all", "--", code.path or ".", index=index)
    tree = _git(root, "write-tree", index=index)
    head = _git(root, "rev-parse", "HEAD")
    is_changed = tree != _git(root, "rev-parse", "HEAD^{tree}")
    label = f"the working tree ({head[:SHORT]}{' and changes' if is_changed else ''})"
    return tree, f"{head}-dirty" if is_changed else head, label


def _require_small(root: Path, code: Code) -> None:
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", code.path or ".").split("\0")
    sizes = {name: (root / name).lstat().st_size for name in new if name}
    if sum(sizes.values()) > MOST_NEW_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise UsageError(
            f"files of {root} that git neither tracks nor ignores have {si(sum(sizes.values()), 'B')}; at most"
            f" {si(MOST_NEW_BYTES, 'B')} are allowed; the largest is {largest}",
            hint="add data to .gitignore: both sides then use the original files",
        )


def _git(root: Path, *words: str, index: Path | None = None, refused: UsageError | None = None) -> str:
    """Output of git. If git fails, raises `refused` or, without `refused`, a `ToolError` with git's message."""
    environment = {**os.environ, **({"GIT_INDEX_FILE": str(index)} if index else {})}
    try:
        done = subprocess.run(["git", *words], cwd=root, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolError(f"git cannot be run: {error.strerror}", hint="install git") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise refused or ToolError(f"git {words[0]} failed: {lines[-1]}", hint=f"git status in {root}")
    return done.stdout.strip()
