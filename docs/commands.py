"""The reference of all commands with their options, as `--help` lists them, for the site that `make docs` builds."""

import argparse
import re
from collections.abc import Iterator, Sequence
from typing import Any

import typer.main

from analysis.app import app as analyze
from launcher.cli.app import app as launch
from workload import cli

Rows = dict[str, list[tuple[str, str]]]


def reference() -> str:
    """A section in Markdown for each command of the three programs."""
    return "".join([*_typer("launch", launch), *_typer("analyze", analyze), *_trainer()])


def _typer(program: str, app: typer.Typer) -> Iterator[str]:
    commands: dict[str, Any] = getattr(typer.main.get_command(app), "commands", {})
    for name, command in commands.items():
        if not command.hidden:
            context = command.context_class(command, info_name=f"{program} {name}")
            yield from _section(f"{program} {name}", command.help, command.rows_by_heading(context), command.epilog)


def _trainer() -> Iterator[str]:
    parser = cli._parser()  # noqa: SLF001 - it has no public name
    [commands] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001
    for listed in commands._choices_actions:  # noqa: SLF001 - those that the help lists
        command = commands.choices[listed.dest]
        yield from _section(command.prog, command.description, dict(_argparse(command)), command.epilog)


def _argparse(command: argparse.ArgumentParser) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Options of a command of argparse by heading."""
    shown = command.formatter_class(prog=command.prog)
    for group in command._action_groups:  # noqa: SLF001 - as argparse's own help
        actions = [action for action in group._group_actions if action.help is not argparse.SUPPRESS]  # noqa: SLF001
        names = [shown._format_action_invocation(each) for each in actions]  # noqa: SLF001
        texts = [shown._expand_help(each) if each.help else "" for each in actions]  # noqa: SLF001
        rows = list(zip(names, texts, strict=True))
        yield str(group.title), [row for row in rows if row[0] != "-h, --help"]


def _section(title: str, text: str | None, rows: Rows, epilog: str | None) -> Iterator[str]:
    yield f"\n## {title}\n\n{' '.join(str(text).split())}\n"
    for heading, below in rows.items():
        if below:
            yield f"\n**{heading}**\n\n| option | meaning |\n|---|---|\n"
            yield from (f"| {_code(name)} | {_plain(meaning)} |\n" for name, meaning in below)
    if epilog:
        examples = re.sub(r"\A[\b\s]*(?:[Ee]xamples:\n)?", "", epilog).rstrip()
        yield f"\nExamples:\n\n```\n{_without_margin(examples.splitlines())}\n```\n"


def _without_margin(lines: Sequence[str]) -> str:
    return "\n".join(line.removeprefix("  ") for line in lines if line != "\b")


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def _plain(text: str) -> str:
    """A sentence for a cell of a table: what Markdown would read as markup is quoted."""
    quoted = re.sub(r"(?<![\w`])(--?[a-z][\w-]*|<[^>]*>|\S*[*_<>{}\[\]]\S*)", r"`\1`", " ".join(text.split()))
    return quoted.replace("|", "\\|")
