"""The README's runs: their tables are those that the runs print, and its picture shows the first session."""

import json
import re
import tomllib
from html import escape
from pathlib import Path

import pytest
import vl_convert

from analysis.figures import style
from docs import five_steps, recording
from launcher.run_table import render
from tests.docs import pages
from workload.contract.bundle import Bundle

MOST_WORDS = 700


def tables() -> list[str]:
    """Tables that the recorded runs print, in the order of README."""
    records = json.loads(recording.RUNS.read_text(encoding="utf-8"))
    folder = Path("results")
    return [render([Bundle(path=folder / each["run_id"], document=each, files=(), contents={})]) for each in records]


def test_the_tables_of_the_runs() -> None:
    first, *others = (each for each in pages.commands("README.md") if each.shown)
    full, *rest = (table.splitlines() for table in tables())
    assert list(first.shown) == full, "make recording"
    assert [list(each.shown) for each in others] == [recording.shortened(table) for table in rest], "make recording"
    assert len(others) == 1
    drawn = recording.PICTURE.read_text(encoding="utf-8")
    assert [word for word in escape(" ".join((first.text, *first.shown))).split() if word not in drawn] == []
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", ""), "no font or script from another host"


def test_the_blocks_that_are_recorded_are_those_with_output() -> None:
    readme = recording.README.read_text(encoding="utf-8")
    found = [block[2] for block in recording.BLOCK.finditer(readme)]
    assert found == [command.text for command in pages.commands("README.md") if command.shown]


def test_readme_is_short() -> None:
    assert len(recording.README.read_text(encoding="utf-8").split()) <= MOST_WORDS


def test_docs_start_explains_the_lines_of_the_table() -> None:
    printed = re.findall(r"^  (\S+(?: \S+)?)  ", tables()[0], re.MULTILINE)
    page = (pages.ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    explained = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    # Some lines are those of other runs, for example on a busy machine.
    assert [line for line in explained if line in printed] == [line for line in printed if line != "next"]


@pytest.mark.parametrize(("name", "theme"), [("five-steps", style.PAPER), ("five-steps-dark", style.DARK)])
def test_the_picture_of_five_steps_is_drawn_from_its_figures(name: str, theme: dict[str, object]) -> None:
    facts = tomllib.loads((pages.ROOT / "docs/five_steps.toml").read_text(encoding="utf-8"))
    drawn = vl_convert.vegalite_to_svg(json.dumps(five_steps.drawing(facts, theme)))
    assert (pages.ROOT / f"docs/images/{name}.svg").read_text(encoding="utf-8") == drawn, "make picture"
