"""One word for one thing: pages, help texts, messages, tables and the report use none of the words that are gone."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import sources
from tests.docs import printed

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "analysis/report/glossary.toml", *sorted((ROOT / "docs").glob("*.md"))]
# Pages with other people's words, and pages made of texts that are searched where they are written.
OTHER_PAGES = {"published-mistakes.md"}
# A course's template prescribes its words.
OTHER_FILES = {ROOT / "analysis/report/template.py"}


class Gone(NamedTuple):
    """A word that is gone: a pattern for it, what to write instead, and a pattern for where it stays."""

    pattern: str
    instead: str
    stays: str = "$^"


GONE = (
    Gone(
        "environments?",
        "place: where a run ran",
        r"(?i)environment[ -](?:variables?|\(facts)|(?:virtual|python|conda) environments?|environment with PyTorch"
        r"|(?:its|an|the|own) environment\b(?! of)|, environment,",
    ),
    Gone(r"(?:between|known|one|each|two|several|slow|\d+) hosts?", "machine", r"one host key|known hosts"),
    Gone("hosts (?:and|that|differ|vary|in)", "machines", "jump hosts"),
    Gone("computers?", "machine, or VM for a rented one"),
    Gone("experiments?|trials?|replicates?|repetitions?", "run, or repeat", r"(?i)free.trial"),
    Gone("(?:compute|memory|bandwidth|input|overhead)[- ]bound", "limited by compute, by memory, …"),
    Gone("(?:a|its|what|which) bound|bottlenecks?", "limit"),
    Gone("budgets?", "limit: time limit, cost limit"),
    Gone("segments?", "run (of a duel)", r"map segment|most segments"),
    Gone("preemptible", "spot", r"Spot Preemptible"),
    Gone("(?:sweep|matrix)(?:'s)? files?", "matrix"),
    Gone("results? folders? of bundles|result folders?", "results folder"),
)


def gone_in(text: str) -> Iterator[str]:
    """Words of a text that are gone, with what to write instead."""
    for word in GONE:
        kept = re.sub(word.stays, lambda found: "_" * len(found[0]), text)
        for found in re.finditer(rf"(?i)(?<![\w/.@-])(?:{word.pattern})(?![\w/.@-]\w)\b", kept):
            yield f"'{found[0]}': {word.instead}"


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Lines of a page with their numbers, without code and addresses."""
    is_code = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+", "", line)


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """Texts of a module with their lines, and headings, which may be single words; placeholders become `X`."""
    tree = sources.tree(file)
    yield from ((text.line, text.text) for text in printed.of_module(file.name, tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in ("heading", "title") and isinstance(node.value, ast.Constant):
            yield node.value.lineno, f"{node.value.value} "


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in OTHER_PAGES], ids=lambda page: page.name)
def test_a_page_has_no_word_that_is_gone(page: Path) -> None:
    found = [f"{page.name}:{number}: {word}" for number, line in prose(page) for word in gone_in(line)]
    assert found == []


@pytest.mark.parametrize("package", ["launcher", "analysis", "workload"])
def test_messages_tables_and_the_report_have_no_word_that_is_gone(package: str) -> None:
    files = [file for file in sorted((ROOT / package).rglob("*.py")) if file not in OTHER_FILES]
    found = [
        f"{file.relative_to(ROOT)}:{line}: {word}"
        for file in files
        for line, text in texts(file)
        if " " in text
        for word in gone_in(text)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Fastest environment: t4", ["'environment': place: where a run ran"]),
        ("set the environment variable X in a virtual environment", []),
        ("the variance between hosts", ["'between hosts': machine"]),
        ("the host name, and --host", []),
        ("a lower bound, but a bound too", ["'a bound': limit"]),
        ("memory-bound", ["'memory-bound': limited by compute, by memory, …"]),
        ("within the budget", ["'budget': limit: time limit, cost limit"]),
    ],
)  # fmt: skip
def test_the_search_sees_them(text: str, words: list[str]) -> None:
    assert list(gone_in(text)) == words
