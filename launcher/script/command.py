"""Command line `launch … -- train.py ARGS`: words after `--`, and options of a script.

Imports little, because `launch --help` loads this module.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from launcher.choice import choice, flag_of
from workload.contract.errors import UsageError
from workload.contract.invocation import Group, as_typed
from workload.contract.program import GroupedCommand
from workload.contract.script_words import DATA, DATA_EXAMPLE
from workload.contract.spec import options

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- train.py ARGS", help="a training script of your own, or -m MODULE", show_default=False),
]


# Variables that belong to the machine on which a script runs.
OF_THE_MACHINE = frozenset({"HOME", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "SHELL", "USER"})


@dataclass(frozen=True, kw_only=True)
class HereOptions:
    """Options of a script on this machine."""

    data: str | None = choice(
        f"the script's data; {DATA} in its arguments becomes this folder", default=None, metavar="PATH"
    )
    env: tuple[str, ...] = choice(
        "environment variable that a script in a container gets; repeatable", default=(), metavar="NAME"
    )
    requirements: str | None = choice(
        "more packages for a container, a requirements file of pip", default=None, metavar="FILE"
    )


@dataclass(frozen=True, kw_only=True)
class ThereOptions:
    """Options of a script on another machine."""

    data: str | None = choice(
        f"the script's data, {DATA_EXAMPLE} or a folder there; {DATA} in its arguments becomes its path",
        default=None,
        metavar="PATH",
    )
    env: tuple[str, ...] = choice(
        "environment variable that the script gets; readable in the launch's store until the launch has "
        "ended; repeatable",
        default=(),
        metavar="NAME",
    )
    requirements: str | None = choice(
        "more packages for the image, a requirements file of pip; built as a layer here, and pushed",
        default=None,
        metavar="FILE",
    )
    include: tuple[str, ...] = choice(
        "send these files of the script's folder, not all that git tracks; files that git ignores are never "
        "sent; repeatable",
        default=(),
        metavar="GLOB",
    )


DEVICES = ("cpu", "cuda", "mps")
OFF_SWITCHES = {option.name for option in options() if option.default is False}
RUN_OPTIONS = {*DEVICES, *(option.name for option in options())}


class ScriptCommand(GroupedCommand):
    """A command whose line may end in `-- train.py ARGS`; the words after `--` belong to the script."""

    example = "-- train.py --lr 0.1"
    # The run options are many, and the same for every command: the help of `launch local` alone lists them.
    lists_run_options = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before `--` as usual; the words after `--` become the parameter `words`."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        separator = args.index("--") if "--" in args else len(args)
        options, script = args[:separator], args[separator + 1 :]
        at = next((number for number, word in enumerate(options) if word.endswith(".py")), None)
        if separator == len(args) and at is not None:
            line = shlex.join([*options[:at], "--", *options[at:]])
            raise UsageError(f"'{options[at]}' must stand after --", hint=f"{ctx.command_path} {line}")
        if separator < len(args) and not script:
            raise UsageError("no script after --", hint=f"{ctx.command_path} {self.example}")
        rest = super().parse_args(ctx, options)
        if stray := ctx.params.get("words"):
            expanded = "put * in quotes, so that the shell does not replace it: --include '*.py'"
            hint = expanded if script else f"{ctx.command_path} --help"
            raise UsageError(f"Got unexpected extra argument(s) ({' '.join(stray)})", hint=hint)
        ctx.params["words"] = script
        return rest

    def rows_by_heading(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """Rows of the help by heading; that of the model's options says that a script refuses them."""
        rows = super().rows_by_heading(ctx)
        if not self.lists_run_options:
            rows[Group.FIRST].append(("run options", as_typed("launch local --help")))
        return {heading + ", without a script" * (heading == Group.MODEL): below for heading, below in rows.items()}

    def help_row(self, parameter: Any, ctx: Any) -> tuple[str, str] | None:
        """Name and description of an option; the devices share a row."""
        if not self.lists_run_options and parameter.name in RUN_OPTIONS and parameter.name not in self.first:
            return None
        if parameter.name in DEVICES:
            names = ", ".join(f"--{device}" for device in DEVICES)
            return (names, "device to compute on (the best one found)") if parameter.name == DEVICES[0] else None
        row = super().help_row(parameter, ctx)
        # If a switch is off by default, `--no-…` only overrides a file or an environment variable: not shown.
        return (parameter.opts[0], row[1]) if row and parameter.name in OFF_SWITCHES else row


def variables_of(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The named variables with their values.

    Raises `UsageError` for a variable that is unset, or that the machine sets itself.
    """
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(
                f"--env takes only the name of a variable that is set here; got '{name}'", hint="--env HF_TOKEN"
            )
        if name in OF_THE_MACHINE or name.startswith("ROOFLAUNCH_"):
            raise UsageError(f"{name} is set by the machine itself; got --env {name}", hint=f"leave --env {name} out")
        if name not in environment:
            raise UsageError(f"--env {name}: this variable is not set here", hint=f"export {name}=VALUE")
    return {name: environment[name] for name in names}


def refuse_without_script(options: Any, words: list[str] | None) -> None:
    """Raise `UsageError` for an option of a script if there is no script."""
    for item in fields(options):
        if not words and getattr(options, item.name):
            flag = flag_of(item)
            raise UsageError(f"{flag} is only for your own script", hint=f"leave {flag} out, or add -- train.py")
