"""Common parts of the typer programs `launch` and `analyze`: help that fits the terminal, -h, --version, short errors.

The trainer works without typer, and does not use this module.
"""

import difflib
import inspect
import itertools
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workload import __version__
from workload.contract.errors import ExitCode, UsageError
from workload.contract.invocation import as_typed
from workload.contract.text import NARROWEST, NO_BREAK

# Wider lines of text are hard to read.
WIDEST_HELP = 100
# On a narrower terminal an option's description stands below the option instead of beside it.
TWO_COLUMNS_FROM = 64
NO_REWRAP = "\b"

if TYPE_CHECKING:
    Formatter: Any
else:
    Formatter = typer.Context.formatter_class


class HelpText(Formatter):  # type: ignore[misc] # typer has no public name for it
    """Typer's layout of help. Examples name the program as the user started it; one column if two do not fit."""

    def write_text(self, text: str) -> None:
        """Write a paragraph; examples, which stand below the options, keep their line breaks."""
        if not text.startswith(NO_REWRAP):
            super().write_text(text)
            return
        for line in as_typed(text.removeprefix(NO_REWRAP).strip("\n")).splitlines():
            indent = " " * (self.current_indent + len(line) - len(line.lstrip()))
            lines = _wrapped(line, self.width, indent) if line[:1] != " " else _continued(line, self.width, indent)
            self.write("".join(f"{part}\n" for part in lines or [""]))

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write options or commands with their descriptions."""
        if self.width >= TWO_COLUMNS_FROM:
            super().write_dl(rows, col_max, col_spacing)
            return
        indent = " " * self.current_indent
        for name, meaning in rows:
            lines = _wrapped(name, self.width, indent) + _wrapped(meaning, self.width, indent + " " * 4)
            self.write("".join(f"{line}\n" for line in lines))


def _wrapped(text: str, width: int, indent: str, later_indent: str | None = None) -> list[str]:
    """Lines of at most `width` characters; a longer word has a line of its own."""
    later_indent = indent if later_indent is None else later_indent
    lines = textwrap.wrap(
        text.strip(),
        width,
        initial_indent=indent,
        subsequent_indent=later_indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(NO_BREAK, " ") for line in lines]


def _continued(command: str, width: int, indent: str) -> list[str]:
    """Break a long command into lines with backslashes, as a shell reads it; options stay with their values."""
    line = indent + command.strip()
    if len(line) <= width:
        return [line]
    kept = re.sub(r"(?<= )(--?[a-z-]+) (?=[^-])", rf"\1{NO_BREAK}", command)
    *lines, last = _wrapped(kept, width - len(" \\"), indent, indent + " " * 4)
    return [*(f"{line} \\" for line in lines), last]


class HelpContext(typer.Context):
    """Context of a command, with `HelpText` for its help."""

    formatter_class = HelpText


def show_version(wanted: bool) -> None:
    """Callback of `--version`: print the version and exit."""
    if wanted:
        print(f"rooflaunch {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", help="print the version", is_eager=True, callback=show_version, show_default=False)
]
WideOption = Annotated[
    bool,
    typer.Option(
        "--wide",
        help="show every column, not only those that fit the terminal (without a terminal: COLUMNS or 100 characters)",
        show_default=False,
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
    width = min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST_HELP)
    settings = {"terminal_width": width, "help_option_names": ["-h", "--help"]}
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
        return UsageError(plain_message(error, sys.argv), hint=f"{path} --help")
    options = context.command.get_params(context)
    flags = {flag.lstrip("-"): flag for option in options for flag in (*option.opts, *option.secondary_opts)}
    near = difflib.get_close_matches(str(wrong).lstrip("-"), flags, n=1)
    meant = f"did you mean {flags[near[0]]}? " if near else ""
    return UsageError(error.message, hint=f"{meant}{path} --help lists all")
