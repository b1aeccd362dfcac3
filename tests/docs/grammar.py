"""Check whether a program would accept a command line: with our programs' real parsers, and tables for others."""

import argparse
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer.main

from analysis.app import app as analyze
from launcher.cli.app import app as launch
from tests.docs import foreign
from tests.docs.foreign import RefusedError
from workload import cli
from workload.contract.errors import RooflaunchError
from workload.contract.spec import options

ROOT = Path(__file__).parents[2]
PROGRAMS = {"launch": typer.main.get_command(launch), "analyze": typer.main.get_command(analyze)}
RUN_OPTIONS = {option.name: option for option in options()}
TRAINER = ("python", "-m", "workload")
MODULES = (
    "rooflaunch",
    "workload",
    "workload.bundle",
    "launcher",
    "analysis",
    "docs.build_site",
    "build",
    "pip",
    "pytest",
    "venv",
    "ensurepip",
)
# Placeholder of a value that the reader fills in: RUN, BUNDLE, gs://BUCKET/PREFIX, …
PLACEHOLDER = re.compile(r"[A-Z][A-Z_/.]*|<.*>|…")


def check(line: str) -> None:
    """Raise `RefusedError` unless the program accepts this line, without its redirection."""
    words = shlex.split(re.sub(r"\$\([^)]*\)", "X", line))
    while words and (re.fullmatch(r"[A-Z_]+=.*", words[0]) or words[0] == "sudo"):
        words = words[1:]
    if not words:
        raise RefusedError("no command")
    program = words[0].removeprefix(".venv/bin/")
    if program in PROGRAMS:
        _check_our_program(program, words[1:])
    elif program in ("python", "python3"):
        _check_python(words[1:])
    elif program in foreign.TOOLS:
        foreign.check(program, words[1:])
    else:
        raise RefusedError(f"no grammar for {program}: add it to foreign_tools.toml")


def check_in_prose(text: str) -> None:
    """Raise `RefusedError` unless the program accepts the first words of `text`, a command within a sentence.

    The words after them, which are the rest of the sentence, must not be options.
    """
    try:
        words = shlex.split(re.sub(r"\$\([^)]*\)", "X", text))
    except ValueError:  # an apostrophe
        words = text.split()
    refusal: RefusedError | None = None
    with_verb = {"launch": 2, "analyze": 2, "python": 4, "pip": 3}.get(words[0].removeprefix(".venv/bin/"), 1)
    for length in range(len(words), min(with_verb, len(words)) - 1, -1):
        try:
            check(shlex.join(words[:length]))
        except RefusedError as error:
            refusal = refusal or error
        else:
            return
        if words[length - 1].startswith("-"):
            break
    raise refusal or RefusedError("no command")


def _check_our_program(program: str, words: Sequence[str]) -> None:
    command = PROGRAMS[program]
    commands: dict[str, Any] = getattr(command, "commands", {})
    if words and words[0] in commands:
        command, words = commands[words[0]], words[1:]
    elif words and not words[0].startswith("-"):
        raise RefusedError(f"{program} has no command {words[0]}; it has {', '.join(sorted(commands))}")
    if not words:
        return  # the text only names the command
    if words[0].endswith("-completion") and words[0] in {name for option in command.params for name in option.opts}:
        return  # parsing would install the completion
    try:
        context = command.make_context(program, list(words), resilient_parsing=False)
    except typer.Exit:  # --help, --version
        return
    except typer.TyperException as error:
        raise RefusedError(error.format_message()) from error
    except RooflaunchError as error:
        raise RefusedError(str(error)) from error
    _check_values(context.params)


def _check_values(values: dict[str, Any]) -> None:
    """Check the values of run options, which the programs' parsers take as any text."""
    for name, value in values.items():
        if name in RUN_OPTIONS and isinstance(value, str) and not PLACEHOLDER.fullmatch(value):
            try:
                RUN_OPTIONS[name].parse(value)
            except RooflaunchError as error:
                raise RefusedError(str(error)) from error


def _check_python(words: Sequence[str]) -> None:
    if not words or words[0] != "-m":
        if not (words and (ROOT / words[0]).is_file()):
            raise RefusedError(f"no such script: {words[:1]}")
        return
    if len(words) == 1 or words[1] not in MODULES:
        raise RefusedError(f"no module {words[1:2]} to run")
    if words[1] not in ("rooflaunch", "workload"):
        return
    if not words[2:]:
        return  # the text only names the program
    try:
        parsed = cli.parse(list(words[2:]))
    except SystemExit:  # --help, --version
        return
    except RooflaunchError as error:
        raise RefusedError(str(error)) from error
    _check_values(vars(parsed))


def every_option() -> set[str]:
    """Options of all commands of our programs and of the others."""
    known = {"--help"}
    for program in PROGRAMS.values():
        for command in getattr(program, "commands", {}).values():
            for parameter in command.params:
                known |= {*parameter.opts, *parameter.secondary_opts}
    for parser in (cli._parser(), *_subparsers(cli._parser())):
        known |= {name for action in parser._actions for name in action.option_strings}
    for tool in foreign.TOOLS.values():
        for group in (*tool["commands"].values(), tool["everywhere"]):
            known |= {option.rstrip("=") for option in group}
    return known


def _subparsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    [commands] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return list(commands.choices.values())
