"""Sides of a duel: options, commits or images, each made into the plan of one local run.

A side runs our trainer, or the user's own script.
"""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from launcher import models
from launcher.duel import LEFT_OUT, commits
from launcher.duel.commits import Exports
from launcher.kinds import Runtime
from launcher.machine import local
from launcher.machine.containers import ContainerLimits
from launcher.machine.local import LocalPlan
from launcher.machine.runtime import Choice, choose
from launcher.machine.script_process import Workplace
from launcher.script import local_script
from launcher.script.command import HereOptions
from launcher.typer_options import run_options_of_side
from workload.contract import script_words as scripts
from workload.contract.errors import UsageError
from workload.contract.spec import GPU_MIN_SECONDS, Device, Resolved, RunSpec, resolve
from workload.environment import gpu_index
from workload.environment.cloud import outside_facts

Variant = Literal["A", "B"]
VARIANTS: tuple[Variant, Variant] = ("A", "B")
SEPARATOR = "---"
EXAMPLE = "launch duel -- --precision fp32 --- --precision bf16"
SCRIPT_EXAMPLE = "launch duel -- train.py --lr 0.1 --- train.py --lr 0.2"
# A plan names at most this many files that git ignores.
SHOWN_LINKS = 4
# Seconds that a segment measures. A process takes seconds to start, so a shorter segment would mostly be its start.
SEGMENT_S = GPU_MIN_SECONDS


@dataclass(frozen=True, kw_only=True)
class Request:
    """Command line of a duel. `shared`: run options of both sides. `data`: folder of a script's data.

    `gpu_index`: the GPU for both sides, as nvidia-smi counts; None for CUDA's own choice.

    `words`: everything after `--`: the words of A, `---`, and the words of B, where each side has run options, or a
    script with its arguments. If commits or images are compared, `words` is one script for both sides.
    """

    shared: Mapping[str, object]
    words: tuple[str, ...]
    commits: tuple[str, str] | None
    images: tuple[str, str] | None
    output: Path
    data: str | None = None
    gpu_index: int | None = None


@dataclass(frozen=True, kw_only=True)
class Side:
    """Side of a duel; `label`: name for the user; `plan`: plan of one segment."""

    variant: Variant
    label: str
    plan: LocalPlan


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Sides of a duel. `are_equal`: A and B are the same program with the same options.

    `compares_code`: the sides are commits. `warnings`: sentences on doubts. `facts`: further lines of the plan, each
    with its label.
    """

    a: Side
    b: Side
    are_equal: bool
    compares_code: bool = False
    warnings: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()

    @property
    def run_s(self) -> float:
        """Seconds that a run measures, averaged over both sides."""
        return fmean(side.plan.spec.min_seconds or 0.0 for side in (self.a, self.b))

    def side(self, variant: str) -> Side:
        """Side A or B."""
        return self.a if variant == "A" else self.b


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
    if request.commits and request.words:
        code = commits.code_of_script(request.words, Path.cwd())
        with commits.exported(request.commits, Path.cwd(), code) as exports:
            yield _pair_of_script_commits(request, environment, exports)
    elif request.commits:
        with commits.exported(request.commits, Path.cwd()) as exports:
            yield _pair_of_commits(request, environment, exports)
    elif request.images:
        yield _pair_of_images(request, environment, request.images)
    else:
        yield _pair_of_words(request, environment)


def is_script(words: Sequence[str]) -> bool:
    """Whether command-line words name a script with its arguments, rather than options."""
    return bool(words) and (words[0] == "-m" or not words[0].startswith("-"))


def _pair(labels: Sequence[str], plans: Sequence[LocalPlan], **facts: Any) -> Pair:
    """Pair of the sides with these labels and plans. `facts`: the other fields of `Pair`."""
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
            f"{script[0]} is the script '{scripts.script_name(script[1])}', but {options_only[0]} is "
            f"'{shlex.join(options_only[1])}', which is not a script",
            hint=SCRIPT_EXAMPLE,
        )
    labels, plans = [], []
    for variant, words in zip(VARIANTS, (a_words, b_words), strict=True):
        if is_script(words):
            labels.append(scripts.command_line(words))
            resolved = _resolved(request.shared, environment, script=words)
            plans.append(_plan(request, resolved, choice, workplace=_workplace(request, words, environment)))
        else:
            labels.append(shlex.join(words) or "no options of its own")
            own = run_options_of_side(words, variant, without=LEFT_OUT)
            resolved = _resolved({**request.shared, **own}, environment)
            plans.append(_plan(request, resolved, choice))
    devices = [plan.spec.devices for plan in plans]
    if len(set(devices)) > 1:  # a duel compares times of one device's step
        raise UsageError(
            f"a duel needs the same number of devices on both sides; got --devices {' and '.join(map(str, devices))}",
            hint="launch sweep with devices = [1, 2] in [matrix]; analyze compare --by devices compares them",
        )
    return _pair(labels, plans, are_equal=plans[0].spec == plans[1].spec)


def _workplace(request: Request, words: Sequence[str], environment: Mapping[str, str]) -> Workplace:
    workplace = local_script.workplace_of(
        words, HereOptions(data=request.data), Path.cwd(), environment, example=SCRIPT_EXAMPLE
    )
    workplace.require(words)
    return workplace


def _pair_of_script_commits(request: Request, environment: Mapping[str, str], exports: Exports) -> Pair:
    """Pair of one script at two commits, each in a copy of the user's folder."""
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
    models.require(resolved.spec.model)
    plain = RunSpec()
    changes: dict[str, Any] = {name: getattr(plain, name) for name in LEFT_OUT}
    if "ceilings" not in resolved.origin:
        changes |= {"ceilings": False, "fresh_ceilings": False}
    if resolved.spec.min_seconds is None:
        changes["min_seconds"] = SEGMENT_S
    origin = {name: source for name, source in resolved.origin.items() if name not in LEFT_OUT}
    return Resolved(spec=replace(resolved.spec, **changes), origin=origin)
