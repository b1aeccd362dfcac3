"""The README's first run: its table is the one that a run prints, and its picture shows the same session."""

import json
import re
import tomllib
from html import escape
from pathlib import Path

import pytest
import vl_convert

from analysis.figures import style
from docs import five_steps
from launcher.run_table import render
from tests.docs import pages
from workload.contract.bundle import Bundle

RUN = Path(__file__).with_name("recorded_run.json")
PICTURE = pages.ROOT / "docs/images/recording.svg"


def test_the_table_of_the_first_run() -> None:
    record = json.loads(RUN.read_text(encoding="utf-8"))
    first = next(each for each in pages.commands("README.md") if each.shown)
    bundle = Bundle(path=Path("results") / record["run_id"], document=record, files=(), contents={})
    assert "\n".join(first.shown) == render([bundle]), "make recording"
    drawn = PICTURE.read_text(encoding="utf-8")
    assert [word for word in escape(" ".join((first.text, *first.shown))).split() if word not in drawn] == []
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", ""), "no font or script from another host"


def test_docs_start_explains_the_lines_of_the_table() -> None:
    record = json.loads(RUN.read_text(encoding="utf-8"))
    table = render([Bundle(path=Path("results") / record["run_id"], document=record, files=(), contents={})])
    printed = re.findall(r"^  (\S+(?: \S+)?)  ", table, re.MULTILINE)
    page = (pages.ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    explained = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    # Some lines are those of other runs, for example on a busy machine.
    assert [line for line in explained if line in printed] == [line for line in printed if line != "next"]


@pytest.mark.parametrize(("name", "theme"), [("five-steps", style.PAPER), ("five-steps-dark", style.DARK)])
def test_the_picture_of_five_steps_is_drawn_from_its_figures(name: str, theme: dict[str, object]) -> None:
    facts = tomllib.loads((pages.ROOT / "docs/five_steps.toml").read_text(encoding="utf-8"))
    drawn = vl_convert.vegalite_to_svg(json.dumps(five_steps.drawing(facts, theme)))
    assert (pages.ROOT / f"docs/images/{name}.svg").read_text(encoding="utf-8") == drawn, "make picture"
