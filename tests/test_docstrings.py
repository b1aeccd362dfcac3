"""Docstrings begin with a noun or a verb, so that they can be read without the code."""

import ast
import re

import pytest

from tests.sources import ROOT, modules, tree

# A first line that begins with one of these has no subject, or one that only the code names.
NO_BEGINNING = (
    *("Of", "As", "Those", "That", "It", "It's", "They", "What", "Whoever", "Who", "The same", "So", "By", "In the"),
    *("Also", "One", "Which", "Whose", "Nothing", "All that"),
)
ODD = re.compile(rf"({'|'.join(NO_BEGINNING)})\b|.*(\bwhoever\b|\bof which\b|\bwhich (it|they) has\b)", re.IGNORECASE)
OWNERS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def is_odd(docstring: str) -> bool:
    return bool(ODD.match(docstring.partition("\n")[0]))


@pytest.mark.slow  # parses all of the code
def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    odd = [
        f"{path.relative_to(ROOT)}:{node.body[0].lineno}: {text}"
        for path in modules()
        for node in ast.walk(tree(path))
        if isinstance(node, OWNERS) and (text := ast.get_docstring(node)) and is_odd(text)
    ]
    assert odd == []


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("Of the draft what the plan takes over.", True),
        ("Whoever asked has ended.", True),
        ("Blocks of which two are needed.", True),
        ("Fields of the draft that the plan overrides.", False),
        ("Offers of a zone.", False),
        ("Runs.\n\nOf a script too.", False),
    ],
)
def test_which_docstrings_are_odd(docstring: str, expected: bool) -> None:
    assert is_odd(docstring) == expected
