"""Common parts of the typer programs `launch` and `analyze`: help that fits the terminal, -h, --version, short errors.

The trainer works without typer, and does not use this module.
"""

import difflib
import inspect
import itertools
import os
import re
import shlex
import sys
from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from workload import __version__
from workload.contract.errors import ExitCode, UsageError
from workload.contract.invocation import OPTION_WIDTH, TWO_COLUMNS_FROM, Group, paragraph, width, wrapped
from workload.contract.spec import parse_amount
from workload.contract.tables import TableFormat

if TYPE_CHECKING:
    Formatter: Any
else:
    Formatter = typer.Context.formatter_class


class HelpText(Formatter):  # type: ignore[misc] # typer has no public name for it
    """Typer's layout of help. Examples name the program as the user started it; one column if two do not fit."""

    def write_text(self, text: str) -> None:
        """Write paragraphs; examples, which stand below the options, keep their line breaks."""
        indent = " " * self.current_indent
        self.write("\n\n".join("\n".join(paragraph(each, self.width, indent)) for each in text.split("\n\n")) + "\n")

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = OPTION_WIDTH, col_spacing: int = 2) -> None:
        """Write options or commands with their descriptions."""
        indent, is_narrow = " " * self.current_indent, self.width < TWO_COLUMNS_FROM
        room = min(max(len(name) for name, _ in rows), col_max)
        margin = indent + " " * (4 if is_narrow else room + col_spacing)
        for name, meaning in rows:
            lines = wrapped(meaning, self.width, margin)
            if lines and not is_narrow and len(name) <= room:
                lines[0] = (indent + name).ljust(len(margin)) + lines[0].lstrip()
            else:
                lines = [*wrapped(name, self.width, indent), *lines]
            self.write("".join(f"{line}\n" for line in lines))


class GroupedCommand(TyperCommand):
    """A command whose help lists its options below headings: `Group.FIRST`, then the `rich_help_panel` of each option.

    `first`: names of the most used options, in order. Arguments stand before them.
    """

    first: Sequence[str] = ()

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Parts of the line `Usage:` after the command's name."""
        names = [
            f"{each.metavar}" if each.required else f"[{each.metavar}]"
            for each in self.get_params(ctx)
            if each.param_type_name == "argument"
        ]
        return ["[OPTIONS]", *names]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options in groups."""
        for heading, rows in self.rows_by_heading(ctx).items():
            with formatter.section(heading):
                formatter.write_dl(rows)

    def rows_by_heading(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """Rows of the help, name and description, by heading; a heading without options is left out."""
        rows: dict[str, dict[str, tuple[str, str]]] = {group: {} for group in Group}
        for parameter in self.get_params(ctx):
            is_first = parameter.param_type_name == "argument" or parameter.name in self.first
            heading = Group.FIRST if is_first else getattr(parameter, "rich_help_panel", None) or Group.OUTPUT
            if (row := self.help_row(parameter, ctx)) is not None:
                rows[heading][parameter.name] = row
        order = {name: number for number, name in enumerate(self.first)}
        first = sorted(rows[Group.FIRST].items(), key=lambda row: order.get(row[0], -1))
        found = {**rows, Group.FIRST: dict(first)}
        return {heading: list(below.values()) for heading, below in found.items() if below}

    def help_row(self, parameter: Any, ctx: Any) -> tuple[str, str] | None:
        """Name and description of an option, None if hidden. `--[no-]compile` names a switch."""
        row: tuple[str, str] | None = parameter.get_help_record(ctx)
        if row is None or parameter.name == "help":
            return None
        name, text = row
        if parameter.param_type_name == "argument":
            return parameter.metavar, EXTRA.sub(_facts, text)
        long = next(name for name in parameter.opts if name.startswith("--"))
        off = f"--no-{long[2:]}"
        if parameter.secondary_opts == [off]:
            name = name.replace(f"{long} / {off}", f"--[no-]{long[2:]}")
            text = text.replace(f"[default: {long[2:]}", "[default: on")
        return name, EXTRA.sub(_facts, text)


# Typer's facts on an option at the end of its text: `[default: 1; x>=1]`, `[required]`.
EXTRA = re.compile(r"  \[((?:default|env var|required|x|[\d.]+<=x).*)\]$")


def _facts(found: re.Match[str]) -> str:
    """Text in place of Typer's facts, as in all our help texts: a default is `(1)`, a range is left out."""
    facts = [fact.removeprefix("default: ") for fact in found[1].split("; ")]
    shown = [fact.strip("()") for fact in facts if not re.match(r"x[<>]|[\d.]+<", fact)]
    return f" ({', '.join(shown)})" if shown else ""


def grouped(*first: str, kind: type[GroupedCommand] = GroupedCommand) -> type[GroupedCommand]:
    """Class for a command whose most used options are `first`, by parameter name."""
    return type(kind.__name__, (kind,), {"first": first})


class HelpContext(typer.Context):
    """Context of a command, with `HelpText` for its help."""

    formatter_class = HelpText


def show_version(wanted: bool) -> None:
    """Callback of `--version`: print the version and exit."""
    if wanted:
        print(f"rooflaunch {__version__}")
        raise typer.Exit


def option(names: str, text: str, group: Group, **more: Any) -> Any:
    """Option of a typer command below a heading of its help, for example `option("-f --follow", …)`.

    `more`: arguments of `typer.Option`. The default is shown only with `show_default=True`.
    """
    return typer.Option(*names.split(), help=text, rich_help_panel=group, **{"show_default": False, **more})


VersionOption = Annotated[
    bool, option("--version", "print the version", Group.OUTPUT, is_eager=True, callback=show_version)
]
WideOption = Annotated[bool, option("--wide", "show every column, not only those that fit the terminal", Group.OUTPUT)]
FormatOption = Annotated[
    TableFormat, option("--format", "format of stdout", Group.OUTPUT, metavar="|".join(TableFormat), show_default=True)
]
SamplesOption = Annotated[
    int | None,
    option(
        "--samples",
        "tell time and cost of so many images, samples or tokens: 50000, 1.28M or 1B (one epoch)",
        Group.RESULTS,
        metavar="N",
        parser=parse_amount,
    ),
]


def help_unless_called(context: typer.Context) -> None:
    """Print the program's help if the user gave no command, which is not an error."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def _used(app: typer.Typer, name: str) -> frozenset[str]:
    """Names of the commands whose options the program `name` needs: all if the shell completes a line, else one."""
    names = [info.name or "" for info in app.registered_commands]
    if f"_{name.upper()}_COMPLETE" in os.environ:
        return frozenset(names)
    return frozenset([word for word in sys.argv[1:] if word in names][:1])


def _without_options(info: Any) -> Any:
    """Copy of a command's declaration that keeps only its name and its help text."""
    light = copy(info)
    light.help, light.callback = info.help or inspect.getdoc(info.callback), lambda: None
    return light


@cache
def _command(app: typer.Typer, used: frozenset[str]) -> Any:
    """Command group of `app` with our help texts; only the commands `used` have options, which take time to make."""
    light = copy(app)
    light.registered_commands = [
        info if info.name in used else _without_options(info) for info in app.registered_commands
    ]
    command: Any = typer.main.get_command(light)
    for each in (command, *command.commands.values()):
        each.context_class = HelpContext
        # Without a `short_help`, typer cuts the help text to fit beside the command's name.
        each.short_help = " ".join((each.help or "").split("\n\n")[0].split())
    return command


def run(app: typer.Typer, name: str) -> int:
    """Run the program with this process's arguments and return its exit code. Raises `UsageError` for bad arguments."""
    command = _command(app, _used(app, name))
    settings = {"terminal_width": width(), "help_option_names": ["-h", "--help"]}
    try:
        # Not `app()`: it replaces the process's excepthook by one that hides parts of a bug's traceback.
        return int(command.main(prog_name=name, standalone_mode=False, **settings) or ExitCode.DONE)
    except typer.TyperException as error:
        raise _explained(error, name, command) from error


# Beginnings and ends of typer's type errors that mean nothing to a user.
NOISE = re.compile(r"Value error, |Input (?=should)|, unable to parse string as an? \w+")


def plain_message(error: Any, typed: Sequence[str]) -> str:
    """Typer's message without technical terms of the library; a typed value that the message lacks is added."""
    message: str = NOISE.sub("", error.format_message())
    flags = getattr(getattr(error, "param", None), "opts", ())
    values = [value for flag, value in itertools.pairwise(typed) if flag in flags]
    return f"{message}; got '{values[-1]}'" if values and values[-1] not in message else message


def _explained(error: Any, name: str, command: Any) -> UsageError:
    """Convert typer's error to a `UsageError`, whose hint names the command's help and, if known, a similar option."""
    context, wrong = getattr(error, "ctx", None), getattr(error, "option_name", None)
    # Typer's error for an option without a value has no context.
    path = (
        context.command_path
        if context
        else " ".join([name, *(word for word in sys.argv[1:2] if word in command.commands)])
    )
    if context is None or not hasattr(error, "possibilities"):
        is_script = path == "launch" and "".join(sys.argv[1:2]).endswith(".py")
        hint = f"launch local -- {shlex.join(sys.argv[1:])}" if is_script else f"{path} --help"
        return UsageError(plain_message(error, sys.argv), hint=hint)
    options = context.command.get_params(context)
    flags = {flag.lstrip("-"): flag for option in options for flag in (*option.opts, *option.secondary_opts)}
    near = difflib.get_close_matches(str(wrong).lstrip("-"), flags, n=1)
    meant = f"did you mean {flags[near[0]]}? " if near else ""
    return UsageError(error.message, hint=f"{meant}{path} --help lists all")
