"""Every command that a hint, a cure, a help text or the report prints is one that its program accepts."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests import sources
from tests.docs import grammar
from tests.docs.printed import ROOT, Text, commands, texts


@cache
def _named() -> list[tuple[Text, str]]:
    return [(text, command) for text in texts() for command in commands(text.text)]


def test_commands_in_messages_are_accepted() -> None:
    refused = []
    for text, command in _named():
        try:
            grammar.check_in_prose(command)
        except grammar.RefusedError as error:
            refused.append(f"{text.path}:{text.line}: {command}\n    {error}")
    assert not refused, "\n".join(refused)


def test_the_search_for_commands_sees_them() -> None:
    """A regular expression that finds nothing would pass too."""
    named = {command for _, command in _named()}
    assert len(named) > 100
    assert {"launch doctor docker", "gcloud auth application-default login", "docker login"} <= named


CASES = {
    "launch night --resume repeats what did not complete": "launch has no command night",
    "launch night repeats it": "launch has no command night",
    "launch sweep night.toml --resume": "No such option",
    "launch local --profile": "requires an argument",
    "launch local --profil ncu": "No such option",
    "launch local --precision fp8": "precision must be one of",
    "launch gcp --zone Z": "Missing option",
    "analyze kernels results --row kernels": "is not one of",
    "python -m workload profle BUNDLE": "invalid choice",
    "python -m workload.bundles results/*": "no module ['workload.bundles']",
    "gcloud auth login-again": "not in foreign_tools.toml",
    "gcloud auth login --user me": "no option --user",
    "pip install 'rooflaunch[gpu]'": "rooflaunch has no extra gpu",
    "docker run --shm=2g": "no option --shm",
}


@pytest.mark.parametrize(("command", "why"), CASES.items())
def test_a_command_that_would_be_refused_is_refused_here(command: str, why: str) -> None:
    with pytest.raises(grammar.RefusedError, match=re.escape(why)):
        grammar.check_in_prose(command)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run again; launch sweep --resume repeats it", ["launch sweep --resume repeats it"]),
        ("docker login, then launch build --push again", ["docker login", "launch build --push again"]),
        ("no VM of a launch in X", []),
        ("launch local --runtime docker --memory 8g", ["launch local --runtime docker --memory 8g"]),
        ("docker run --user $(id -u):$(id -g)", ["docker run --user $(id -u):$(id -g)"]),
        ("python -m workload train … --profile X", ["python -m workload train --profile X"]),
    ],
)
def test_where_a_command_ends(text: str, expected: list[str]) -> None:
    assert list(commands(text)) == expected


def test_options_in_hints_exist() -> None:
    """A hint may be an option alone: `--batch-size 32`."""
    known = grammar.every_option()
    unknown = []
    for path in sources.modules():
        for line, hint in _hints(sources.tree(path)):
            # What stands behind -- is a script's own.
            ours = re.sub(r"(?<![\w-])-- .*", "", hint)
            options = re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", ours)
            unknown += [f"{path.relative_to(ROOT)}:{line}: {option}" for option in options if option not in known]
    assert not unknown, "\n".join(unknown)


def _hints(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in ("hint", "cure"):
            for value in ast.walk(node.value):
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.lineno, value.value
