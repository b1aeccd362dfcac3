"""The two sides of a duel: options, commits or images, each made into the plan of one local run."""

import difflib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from launcher import models
from launcher.duel import LEFT_OUT, commits
from launcher.duel.commits import Export
from launcher.kinds import Runtime
from launcher.machine import local
from launcher.machine.containers import ContainerLimits
from launcher.machine.local import LocalPlan
from launcher.machine.runtime import Choice, choose
from workload.contract.errors import UsageError
from workload.contract.spec import GPU_MIN_SECONDS, Device, Option, Resolved, RunSpec, options, resolve
from workload.environment.outside import outside_facts

Variant = Literal["A", "B"]
VARIANTS: tuple[Variant, Variant] = ("A", "B")
BETWEEN = "---"
EXAMPLE = "launch duel -- --precision fp32 --- --precision bf16"
# A segment's process takes seconds to start: one that measures for less time would mostly start.
SEGMENT_S = GPU_MIN_SECONDS


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was typed. `shared`: run options of both; `words`: those of one, with `---` between A's and B's."""

    shared: Mapping[str, object]
    words: tuple[str, ...]
    commits: tuple[str, str] | None
    images: tuple[str, str] | None
    output: Path


@dataclass(frozen=True, kw_only=True)
class Side:
    """`label`: what it is, as it was asked for; `plan`: one segment of it."""

    variant: Variant
    label: str
    plan: LocalPlan


@dataclass(frozen=True, kw_only=True)
class Pair:
    """`are_equal`: A and B are the same program with the same options. `warnings`: sentences on what they are not."""

    a: Side
    b: Side
    are_equal: bool
    warnings: tuple[str, ...] = ()

    def side(self, variant: str) -> Side:
        """That of A or B."""
        return self.a if variant == "A" else self.b


@contextmanager
def prepared(request: Request, environment: Mapping[str, str]) -> Iterator[Pair]:
    """The sides, as long as their code lies in a temporary folder. Raises `UsageError` or `ToolError`."""
    asked = [bool(request.words), request.commits is not None, request.images is not None]
    if sum(asked) == 0:
        raise UsageError("a duel needs two sides: options, commits or images", hint=EXAMPLE)
    if sum(asked) > 1:
        raise UsageError(
            "a duel compares options, commits or images, one of the three", hint="options of both stand before --"
        )
    if request.commits:
        with commits.exported(request.commits, Path.cwd()) as (exports, warnings):
            yield _of_commits(request, environment, exports, warnings)
    elif request.images:
        yield _of_images(request, environment, request.images)
    else:
        yield _of_options(request, environment)


def _of_options(request: Request, environment: Mapping[str, str]) -> Pair:
    choice = Choice(runtime=Runtime.PROCESS, why="a duel of options")
    sides = []
    for variant, words in zip(VARIANTS, split(request.words), strict=True):
        resolved = _resolved({**request.shared, **parse(words, variant)}, environment)
        plan = _plan(request, resolved, choice)
        sides.append(Side(variant=variant, label=shlex.join(words) or "no options of its own", plan=plan))
    a, b = sides
    return Pair(a=a, b=b, are_equal=a.plan.spec == b.plan.spec)


def _of_commits(
    request: Request, environment: Mapping[str, str], exports: tuple[Export, Export], warnings: tuple[str, ...]
) -> Pair:
    plain = _plan(
        request, _resolved(request.shared, environment), Choice(runtime=Runtime.PROCESS, why="a duel of commits")
    )
    python_path = [path for path in (environment.get("PYTHONPATH"),) if path]
    sides = [
        Side(
            variant=variant,
            label=export.label,
            plan=replace(
                plain,
                command=(
                    "env",
                    # Python would look in the working folder first.
                    "PYTHONSAFEPATH=1",
                    f"PYTHONPATH={os.pathsep.join((str(export.folder), *python_path))}",
                    f"ROOFLAUNCH_COMMIT={export.commit}",
                    *plain.command,
                ),
            ),
        )
        for variant, export in zip(VARIANTS, exports, strict=True)
    ]
    a, b = sides
    return Pair(a=a, b=b, are_equal=exports[0].commit == exports[1].commit, warnings=warnings)


def _of_images(request: Request, environment: Mapping[str, str], names: tuple[str, str]) -> Pair:
    resolved, sides = _resolved(request.shared, environment), []
    choices = [choose(Runtime.DOCKER, resolved.spec, image=name) for name in names]
    outside = outside_facts()
    for variant, name, choice in zip(VARIANTS, names, choices, strict=True):
        plan = _plan(request, resolved, choice, outside=outside)
        assert choice.image is not None
        sides.append(Side(variant=variant, label=f"{name} ({choice.image.id[:19]})", plan=plan))
    a, b = sides
    images = [side.plan.choice.image for side in sides]
    return Pair(a=a, b=b, are_equal=images[0] == images[1])


def _plan(request: Request, resolved: Resolved, choice: Choice, **more: Any) -> LocalPlan:
    return local.make_plan(resolved, choice, output=request.output, limits=ContainerLimits(), **more)


def _resolved(given: Mapping[str, object], environment: Mapping[str, str]) -> Resolved:
    """With what a segment is unless the user says otherwise: 3 s and no ceilings, which nobody compares."""
    resolved = resolve(given, environment, Path.cwd())
    models.require(resolved.spec.model)
    plain = RunSpec()
    changes: dict[str, Any] = {name: getattr(plain, name) for name in LEFT_OUT}
    if "ceilings" not in resolved.origin:
        changes |= {"ceilings": False, "fresh_ceilings": False}
    if resolved.spec.min_seconds is None:
        changes["min_seconds"] = SEGMENT_S
    origin = {name: source for name, source in resolved.origin.items() if name not in LEFT_OUT}
    return Resolved(spec=replace(resolved.spec, **changes), origin=origin)


# --- the options of one side


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of A and those of B."""
    if words.count(BETWEEN) != 1:
        raise UsageError(
            f"one {BETWEEN} stands between the options of A and those of B; got {words.count(BETWEEN)} of them in"
            f" '{shlex.join(words)}'",
            hint=EXAMPLE,
        )
    middle = list(words).index(BETWEEN)
    return list(words[:middle]), list(words[middle + 1 :])


def parse(words: Sequence[str], variant: str) -> dict[str, object]:
    """Run options by field name; values stay text, which `resolve` checks. Raises `UsageError`."""
    switches: dict[str, tuple[str, object]] = {
        f"--{device}": ("device", device) for device in Device if device is not Device.AUTO
    }
    valued: dict[str, Option] = {}
    for option in options():
        if option.kind is bool:
            switches |= {option.flag: (option.name, True), option.off_flag: (option.name, False)}
        else:
            valued[option.flag] = option
    given: dict[str, object] = {}
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if flag[2:].removeprefix("no-").replace("-", "_") in LEFT_OUT:
            raise UsageError(
                f"a duel repeats its runs by itself and profiles none; got {flag} of {variant}",
                hint=f"leave {flag} out; --max-segments limits the runs",
            )
        if flag in switches and not equals:
            name, given[name] = switches[flag][0], switches[flag][1]
        elif flag in valued:
            taken = value if equals else next(rest, None)
            if taken is None:
                raise UsageError(f"{flag} of {variant} needs a value", hint=f"{flag} {valued[flag].example}")
            given[valued[flag].name] = taken
        else:
            near = difflib.get_close_matches(flag, [*switches, *valued], n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"'{word}' of {variant} is no run option", hint=f"{meant}launch local --help lists all")
    return given
