"""Commands in texts: those that our code prints, read from its syntax trees and data files."""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests import sources
from tests.sources import PACKAGES, ROOT

# Replacements of expressions in an f-string, if X, the usual one, is no value that the command takes.
PLACEHOLDERS = {"verb": "down", "SERVICE.note()": ""}
# `launch` and `docker` are also words of prose: "a launch", "the docker package". The words before and after them in
# prose are listed here, so that a command that does not exist is not taken for prose.
NOUN_BEFORE = re.compile(
    r"(\b(a|an|the|of|each|every|no|one|first|kernel|1|package|flavour)|--runtime|[=|])[ ]?$", re.IGNORECASE
)
PROSE_AFTER = {
    "launch": frozenset({"again", "lacks", "needs"}),
    "analyze": frozenset({"needs"}),
    "docker": frozenset({"is"}),
    "ncu": frozenset(),
    "pip": frozenset({"uses"}),
}
PROGRAMS = (
    "launch|analyze|python3? -m|gcloud|terraform|docker|pip|dcgmi|ncu|nvidia-smi|systemctl|usermod|git lfs|apt install"
    "|aws(?= (?:configure|ecr|s3|s3api|service-quotas|ssm|sso|sts)\\b)"
)
START = re.compile(rf"(?<![\w/.:'\"-])(?:\.venv/bin/)?(?P<program>{PROGRAMS})(?= [^ ])")
# End of a command in a sentence, or of the sentence; a dot by itself is a folder.
END = re.compile(r"[;`\n#|>]|(?<! )[,:.)]( |<|$)|\)[,;.]| - | && | \(|  ")


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text that may be printed, with placeholders for its expressions."""

    path: str
    line: int
    text: str


def texts() -> Iterator[Text]:
    """Every text of the three packages but docstrings, and the values of their data files."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix == ".py":
                yield from of_module(name, sources.tree(path))
            elif path.suffix == ".toml":
                table = tomllib.loads(path.read_text(encoding="utf-8"))
                yield from (Text(path=name, line=0, text=text) for text in _of_table(table))
            elif path.suffix == ".html":
                yield Text(path=name, line=0, text=path.read_text(encoding="utf-8"))


def of_module(name: str, tree: ast.Module) -> Iterator[Text]:
    unprinted: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            unprinted.add(id(node.value))  # a docstring
        if isinstance(node, ast.JoinedStr):
            unprinted |= {id(value) for value in node.values}
            text = "".join(map(_piece, node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in unprinted:
            text = node.value
        else:
            continue
        yield Text(path=name, line=node.lineno, text=text)


def _piece(value: ast.expr) -> str:
    if isinstance(value, ast.Constant):
        return str(value.value)
    assert isinstance(value, ast.FormattedValue)
    return PLACEHOLDERS.get(ast.unparse(value.value), "X")


def _of_table(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for item in value.values():
                yield from _of_table(item)
        case list():
            for item in value:
                yield from _of_table(item)


def commands(text: str) -> Iterator[str]:
    """Commands that a text names, each up to the first sign that the sentence goes on."""
    text, place = text.replace(" …", ""), 0
    while match := START.search(text, place):
        place = match.end()
        after = re.match(r" +([\w-]+)", text[place:])
        if after and after[1] in PROSE_AFTER.get(match["program"], ()):
            continue
        if match["program"] in PROSE_AFTER and NOUN_BEFORE.search(text[: match.start()]):
            continue
        end = END.search(text, place)
        place = end.start() if end else len(text)
        command = text[match.start() : place]
        yield command + ")" * (command.count("(") - command.count(")"))
