"""Sides of a duel: options, commits or images, each made into the plan of one local run.

A side runs our trainer, or the user's own script. Commits of rooflaunch, or of the repository that contains the script,
are exported into temporary folders, so that edits made during a duel do not change its sides.
"""

import itertools
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.duel import LEFT_OUT, SEPARATOR
from launcher.duel.contest import VARIANTS, Pair, Side
from launcher.machine import local, runtime
from launcher.machine.containers import ContainerLimits
from launcher.machine.local import LocalPlan
from launcher.machine.runtime import Choice, Workplace, choose
from launcher.script import local_script
from launcher.script.options import HereOptions, changes_before
from launcher.typer_options import run_options_of_side
from launcher.values import Runtime
from workload.contract import script_words as scripts
from workload.contract.errors import ToolError, UsageError
from workload.contract.script_words import line_of, main_file, script_name
from workload.contract.spec import GPU_MIN_SECONDS, Device, Resolved, RunSpec, resolve
from workload.contract.text import counted, did_you_mean, si
from workload.contract.trainer import Context
from workload.environment import gpu_index
from workload.environment.cloud import outside_facts

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
        main_file(words, where, line_of("launch", "duel"))
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
    if code.anywhere:
        names = _git(root, "ls-tree", "-r", "-z", "--name-only", tree).split("\0")
        has_code = any(f"/{name}".endswith(tuple(f"/{main}" for main in code.main)) for name in names)
    else:
        has_code = bool(_git(root, "ls-tree", tree, "--", *code.main))
    if not has_code:
        raise UsageError(f"'{name}' of {root} has no {code.name}", hint=code.hint)
    part = f"{tree}:{code.path}" if code.path else f"{tree}^{{tree}}"
    # Export files as `git checkout` does. `git archive` may leave files out (attribute export-ignore).
    _git(root, "read-tree", "--empty", index=index)
    _git(root, "read-tree", *([f"--prefix={code.path}/"] if code.path else []), part, index=index)
    _git(root, "checkout-index", "--all", f"--prefix={folder}/", index=index)
    folder.mkdir(exist_ok=True)
    return Export(label=label, commit=commit, tree=_git(root, "rev-parse", part), folder=folder)


def _linked(root: Path, folders: Sequence[Path]) -> tuple[str, ...]:
    """Link the files of `root` that git ignores into each of `folders`, except caches and virtual environments.

    Returns the names of the links.
    """
    ignored = _git(root, "ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z").split("\0")
    # git also lists the content of a folder that ignores itself.
    listed = tuple(name for name in ignored if name.endswith("/"))
    below = {name for name in ignored for folder in listed if name.startswith(folder) and name != folder}
    links = []
    for name in ignored:
        # Programs make caches and virtual environments again if they are missing.
        path = root / name
        is_cache = path.suffix in (".pyc", ".pyo") or bool({*path.parts} & {*CACHES}) or (path / "pyvenv.cfg").exists()
        if name and not is_cache and name not in below:
            links.append(name)
    for folder in folders:
        for name in links:
            link = folder / name.rstrip("/")
            if not os.path.lexists(link):
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(root / name)
    return tuple(links)


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


EXAMPLE = "launch duel -- --precision fp32 --- --precision bf16"
SCRIPT_EXAMPLE = "launch duel -- train.py --lr 0.1 --- train.py --lr 0.2"
# A plan names at most this many files that git ignores.
SHOWN_LINKS = 4
# Seconds that a segment measures. A process takes seconds to start, so a shorter segment would mostly be its start.
SEGMENT_S = GPU_MIN_SECONDS


@dataclass(frozen=True, kw_only=True)
class Request:
    """Command line of a duel. `shared`: run options of both sides. `data`: folder of a script's data.

    `gpu_index`: the GPU for both sides, as nvidia-smi counts; None for CUDA's own choice. `keeps_losses`: keep the
    first losses of scripts; done anyway if a side has a change.

    `words`: everything after `--`: the words of A, `---`, and the words of B, where each side has run options, or a
    script with its arguments, behind its own `launcher.script.options.SIDE_OPTIONS`. If commits or images are compared,
    `words` is one script for both sides.
    """

    shared: Mapping[str, object]
    words: tuple[str, ...]
    commits: tuple[str, str] | None
    images: tuple[str, str] | None
    output: Path
    data: str | None = None
    gpu_index: int | None = None
    keeps_losses: bool = False


@contextmanager
def prepared(request: Request, environment: Mapping[str, str]) -> Iterator[Pair]:
    """Prepare the sides; their code may be in a temporary folder until the context ends.

    Raises `UsageError` or `ToolError`.
    """
    # If commits or images are compared, the words are one script for both sides.
    is_shared = is_script(request.words) and SEPARATOR not in request.words and bool(request.commits or request.images)
    named_kinds = (bool(request.words) and not is_shared, request.commits is not None, request.images is not None)
    if sum(named_kinds) == 0:
        raise UsageError("a duel needs two sides: options, commits or images", hint=EXAMPLE)
    if sum(named_kinds) > 1:
        raise UsageError(
            "a duel compares either options, or commits, or images", hint="put options of both sides before --"
        )
    words_of_b = request.words[request.words.index(SEPARATOR) + 1 :] if SEPARATOR in request.words else ()
    if request.data is not None and not (is_script(request.words) or is_script(words_of_b)):
        raise UsageError("--data is only for your own script", hint=f"leave --data out, or {SCRIPT_EXAMPLE}")
    if request.gpu_index is not None:
        gpu_index.require(request.gpu_index, gpu_index.listed(), environment)
        request = replace(request, shared={"device": Device.CUDA, **request.shared})
    if is_shared and (own := changes_before(request.words))[0]:
        shared = {**request.shared, **run_options_of_side(own[0], "both", without=LEFT_OUT)}
        request = replace(request, words=tuple(own[1]), shared=shared)
    if request.commits and request.words:
        code = code_of_script(request.words, Path.cwd())
        with exported(request.commits, Path.cwd(), code) as exports:
            yield _pair_of_script_commits(request, environment, exports)
    elif request.commits:
        with exported(request.commits, Path.cwd()) as exports:
            yield _pair_of_commits(request, environment, exports)
    elif request.images:
        yield _pair_of_images(request, environment, request.images)
    else:
        yield _pair_of_words(request, environment)


def is_script(words: Sequence[str]) -> bool:
    """Whether command-line words name a script with its arguments, rather than options other than `--change`."""
    script = changes_before(words)[1]
    return bool(script) and (script[0] == "-m" or not script[0].startswith("-"))


def _pair(labels: Sequence[str], plans: Sequence[LocalPlan], **facts: Any) -> Pair:
    sides = zip(VARIANTS, labels, plans, strict=True)
    a, b = (Side(variant=variant, label=label, plan=plan) for variant, label, plan in sides)
    return Pair(a=a, b=b, **facts)


def _pair_of_words(request: Request, environment: Mapping[str, str]) -> Pair:
    choice, words = Choice(runtime=Runtime.PROCESS, why="a duel of options"), request.words
    if words.count(SEPARATOR) != 1:
        raise UsageError(
            f"exactly one {SEPARATOR} must separate the arguments of A and B; got {words.count(SEPARATOR)} in "
            f"'{shlex.join(words)}'",
            hint=SCRIPT_EXAMPLE if is_script(words) else EXAMPLE,
        )
    middle = words.index(SEPARATOR)
    a_words, b_words = words[:middle], words[middle + 1 :]
    if is_script(a_words) != is_script(b_words):
        script, options_only = ("A", a_words), ("B", b_words)
        if is_script(b_words):
            script, options_only = options_only, script
        raise UsageError(
            f"{script[0]} is the script '{scripts.script_name(changes_before(script[1])[1])}', but {options_only[0]} "
            f"is '{shlex.join(options_only[1])}', which is not a script",
            hint=SCRIPT_EXAMPLE,
        )
    labels, resolved, workplaces = [], [], list[Workplace | None]()
    for variant, words in zip(VARIANTS, (a_words, b_words), strict=True):
        typed, argv = changes_before(words) if is_script(words) else (words, [])
        own = run_options_of_side(typed, variant, without=LEFT_OUT)
        if argv and "change" in own and "change" in request.shared:
            own["change"] = [*_texts(request.shared["change"]), *_texts(own["change"])]
        resolved.append(_resolved({**request.shared, **own}, environment, script=argv))
        spec = resolved[-1].spec
        others = [f"--{name} {own[name]}" for name in ("devices", "machines") if name in own]
        added = ", ".join([*others, *([spec.change] if spec.change else [])])
        label = scripts.command_line(argv) + (f", with {added}" if added else "")
        labels.append(label if argv else shlex.join(words) or "no options of its own")
        workplaces.append(_workplace(request, argv, environment) if argv else None)
    # Both sides keep their losses, if one of them has a change; a device has as many CPUs on both.
    context = Context(
        keeps_losses=request.keeps_losses or any(each.spec.change for each in resolved),
        cpu_shares=max(each.spec.devices for each in resolved),
    )
    plans = [
        _plan(request, each, choice, workplace=workplace, context=context)
        for each, workplace in zip(resolved, workplaces, strict=True)
    ]
    return _pair(labels, plans, are_equal=plans[0].spec == plans[1].spec)


def _texts(typed: object) -> list[str]:
    return [str(each) for each in typed] if isinstance(typed, list | tuple) else [str(typed)]


def _workplace(request: Request, words: Sequence[str], environment: Mapping[str, str]) -> Workplace:
    a = tuple(itertools.takewhile(lambda word: word != SEPARATOR, request.words))
    sides = [changes_before(side) for side in (a, request.words[len(a) + 1 :])]

    def line(meant: Sequence[str]) -> str:
        both = [[*own, *(meant if side == list(words) else side)] for own, side in sides]
        return line_of("launch", "duel")([*both[0], SEPARATOR, *both[1]])

    workplace = local_script.workplace_of(words, HereOptions(data=request.data), Path.cwd(), environment, line)
    workplace.require(words)
    return workplace


def _pair_of_script_commits(request: Request, environment: Mapping[str, str], exports: Exports) -> Pair:
    subfolder = Path.cwd().resolve().relative_to(exports.root.resolve())
    data = local_script.folder_of_data(request.data)
    words = tuple(request.words)
    if words[0] != "-m" and Path(words[0]).is_absolute():
        # A relative path names the script in each of the copies.
        words = (os.path.relpath(Path(words[0]).resolve(), Path.cwd().resolve()), *words[1:])
    resolved = _resolved(request.shared, environment, script=words)
    choice = Choice(runtime=Runtime.PROCESS, why="a duel of commits")
    # The sides run in temporary folders, so the path must be absolute.
    request = replace(request, output=request.output.absolute())
    plans = []
    for export in (exports.a, exports.b):
        folder = export.folder / subfolder
        folder.mkdir(parents=True, exist_ok=True)
        if not folder.resolve().is_relative_to(export.folder.resolve()):
            raise UsageError(
                f"{Path.cwd()} is ignored by git, so no commit contains this folder",
                hint=f"cd {exports.root}, then run the same command",
            )
        workplace = Workplace(
            folder=folder, data=data, commit=export.commit, variables=_imports(exports.root, export.folder, environment)
        )
        workplace.require(words)
        plans.append(_plan(request, resolved, choice, workplace=workplace))
    copies = "in a copy of each commit: files written there are deleted at the end"
    facts = [("script", f"{scripts.command_line(words)}, {copies}")]
    if data:
        facts.append(("data", f"{scripts.DATA} is {data}, used in place by both sides"))
    if exports.links:
        more = len(exports.links) - SHOWN_LINKS
        named = ", ".join(exports.links[:SHOWN_LINKS]) + (f" and {more} more" if more > 0 else "")
        facts.append(("links", f"{named}: ignored by git, used in place in {exports.root} by both sides"))
    return _pair_of_code(exports, plans, tuple(facts))


def _pair_of_code(exports: Exports, plans: Sequence[LocalPlan], facts: tuple[tuple[str, str], ...] = ()) -> Pair:
    return _pair(
        (exports.a.label, exports.b.label),
        plans,
        are_equal=exports.a.tree == exports.b.tree,
        compares_code=True,
        warnings=exports.warnings,
        facts=facts,
    )


def _imports(root: Path, folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variable PYTHONPATH for the copy `folder` of the repository `root`; {} if PYTHONPATH would be empty.

    Paths inside the repository, for example of editable installs, are replaced by paths inside the copy.
    """
    ours = Path(scripts.__file__).parents[2]
    python_path = list(filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)))
    # The first entry is the folder of the program that runs now.
    installed = [path for path in map(Path, sys.path[1:]) if not path.is_relative_to(sys.prefix) and path != ours]
    below = [str(path) for path in installed if path.is_absolute() and path.is_relative_to(root)]
    moved = [
        str(folder / Path(path).relative_to(root)) if Path(path).is_relative_to(root) and Path(path) != ours else path
        for path in dict.fromkeys((*python_path, *below))
    ]
    return {"PYTHONPATH": os.pathsep.join(moved)} if moved else {}


def _pair_of_commits(request: Request, environment: Mapping[str, str], exports: Exports) -> Pair:
    choice = Choice(runtime=Runtime.PROCESS, why="a duel of commits")
    plain = _plan(request, _resolved(request.shared, environment), choice)
    python_path = [path for path in (environment.get("PYTHONPATH"),) if path]
    plans = []
    for export in (exports.a, exports.b):
        variables = (
            # Python would look in the working folder first.
            "PYTHONSAFEPATH=1",
            f"PYTHONPATH={os.pathsep.join((str(export.folder), *python_path))}",
            f"ROOFLAUNCH_COMMIT={export.commit}",
        )
        plans.append(replace(plain, command=("env", *variables, *plain.command)))
    return _pair_of_code(exports, plans)


def _pair_of_images(request: Request, environment: Mapping[str, str], names: tuple[str, str]) -> Pair:
    words = request.words
    resolved = _resolved(request.shared, environment, script=words)
    workplace = _workplace(request, words, environment) if words else None
    if words:
        local_script.require_visible(words, Path.cwd())
    choices = [choose(Runtime.DOCKER, resolved.spec, image=name) for name in names]
    outside = outside_facts()
    plans = [_plan(request, resolved, choice, outside=outside, workplace=workplace) for choice in choices]
    ids = [choice.image.id if choice.image else "" for choice in choices]
    labels = [f"{name} ({image_id[:19]})" for name, image_id in zip(names, ids, strict=True)]
    return _pair(labels, plans, are_equal=choices[0].image == choices[1].image)


def plan_of_script(
    request: Request,
    workplace: Workplace,
    environment: Mapping[str, str],
    *,
    change: str | None,
    ceilings: bool = False,
) -> LocalPlan:
    """Plan of one run of the script `request.words`, as a side runs it, with a change made from outside or none.

    `ceilings`: measure the machine's ceilings too. The bundle keeps the script's first losses.
    """
    typed = {**request.shared, **({"change": change} if change else {}), **({"ceilings": True} if ceilings else {})}
    resolved = _resolved(typed, environment, script=request.words)
    choice = Choice(runtime=Runtime.PROCESS, why="a tuning")
    return _plan(request, resolved, choice, workplace=workplace, context=Context(keeps_losses=True))


def _plan(
    request: Request, resolved: Resolved, choice: Choice, *, workplace: Workplace | None = None, **more: Any
) -> LocalPlan:
    plan = local.make_plan(
        resolved,
        choice,
        output=request.output,
        limits=ContainerLimits(),
        workplace=workplace,
        gpu_index=request.gpu_index,
        **more,
    )
    if workplace and resolved.spec.script and choice.runtime is Runtime.PROCESS:
        local_script.require_module(resolved.spec.script, workplace.folder)
        if request.gpu_index is None:
            local_script.require_gpu(resolved.spec)
    return plan


def _resolved(typed: Mapping[str, object], environment: Mapping[str, str], *, script: Sequence[str] = ()) -> Resolved:
    """Run options with a duel's defaults: segments of 3 s, and no ceilings, which a duel does not compare."""
    resolved = resolve(typed, environment, Path.cwd(), script=script)
    runtime.require_one_machine(resolved.spec, "duel")
    runtime.require_model(resolved.spec.model)
    plain = RunSpec()
    changes: dict[str, Any] = {name: getattr(plain, name) for name in LEFT_OUT}
    if "ceilings" not in resolved.origin:
        changes |= {"ceilings": False, "fresh_ceilings": False}
    if resolved.spec.min_seconds is None:
        changes["min_seconds"] = SEGMENT_S
    origin = {name: source for name, source in resolved.origin.items() if name not in LEFT_OUT}
    return Resolved(spec=replace(resolved.spec, **changes), origin=origin)
