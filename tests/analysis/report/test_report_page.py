"""The report as one page of HTML: it asks nobody, runs nothing of others, and can be read aloud."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import analysis
from analysis.report import html, template
from analysis.report.compose import compose
from analysis.report.content import Report
from analysis.report.evidence import gather
from benchmarks.synthetic_bundles import make
from tests.analysis.report.report_bundles import HOSTILE
from workload.contract.text import printable


class Page(HTMLParser):
    """Elements, attributes and texts as a browser's parser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.contents: dict[str, list[str]] = {}
        self.open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open = tag
        self.contents.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        self.open = "" if tag == self.open else self.open

    def handle_data(self, data: str) -> None:
        if self.open:
            self.contents[self.open][-1] += data

    def attributes(self, name: str) -> list[str | None]:
        return [attributes[name] for _, attributes in self.elements if name in attributes]


@pytest.fixture(scope="module")
def page(report: Report) -> Page:
    return Page(html.render(report))


def test_the_page_asks_nobody_for_anything(page: Page) -> None:
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"iframe", "img", "object", "embed", "form", "base"}
    assert page.attributes("src") == []
    assert [href for href in page.attributes("href") if not (href or "").startswith("#")] == ["data:,"]
    assert "@import" not in page.contents["style"][0]
    assert "url(" not in page.contents["style"][0]


def test_the_policy_runs_two_scripts_and_one_style(page: Page) -> None:
    (policy,) = page.attributes("content")[:1]
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    types = [attributes.get("type") for tag, attributes in page.elements if tag == "script"]
    assert types == ["application/json", "application/json", None, None]
    inline = [*page.contents["script"][2:], *page.contents["style"]]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in inline]
    assert [f"'sha256-{each}'" in policy for each in hashes] == [True, True, True]


def test_headings_and_pictures_can_be_read_aloud(page: Page, report: Report) -> None:
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    charts = [attributes for _, attributes in page.elements if "data-figure" in attributes]
    assert [chart["data-figure"] for chart in charts] == [figure.name for figure in report.figures()]
    assert all(chart["aria-label"] for chart in charts)
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    html_tag = page.elements[0]
    assert html_tag == ("html", {"lang": "en"})


def test_hostile_texts_stay_texts(hostile_report: Report) -> None:
    text = html.render(hostile_report)
    found = Page(text)
    assert not {tag for tag, _ in found.elements} & {"img", "a:script", "iframe"}
    assert sum(tag == "script" for tag, _ in found.elements) == 4
    assert not [name for _, attributes in found.elements for name in attributes if name.startswith("on")]
    assert printable(HOSTILE) in "".join(found.contents["td"])
    assert "49" not in [cell.strip() for cell in found.contents["td"]], "a template was evaluated"
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", text)
    for name in json.loads(found.contents["script"][1]):
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"complexity__bytes_per_step_lower": 1e-300, "complexity__bytes_per_step_upper": 1e-300},
        {"complexity__train_flop_per_step": 1e300, "complexity__train_flop_per_image": 1e300},
        {"timing__measured_s": 1.2, "timing__step_s": {"median": 1e-12, "p5": 1e-12, "p95": 1e12}},
        {"ceilings__flop_per_s": {"fp32": {"median": None}}, "cost": {"usd_per_h": 0.0}},
        {"timing": {}, "complexity": {}, "bound": None, "environment": {}, "spec": {"model": "m", "batch_size": 1}},
    ],
    ids=["no bytes", "all FLOP", "no time", "no ceiling, no price", "nothing"],
)
def test_absurd_figures_are_no_crash_and_no_axis(tmp_path: Path, changes: dict[str, Any]) -> None:
    for number in (1, 2, 3):
        make(tmp_path, number, **changes)
    found = compose(gather(analysis.load(tmp_path)))
    text = html.render(found)
    specs = json.loads(Page(text).contents["script"][1])
    numbers = [
        float(each) for each in re.findall(r"(?<=[:,\[])-?[0-9.]+(?:e[+-]?[0-9]+)?(?=[,}\]])", json.dumps(specs))
    ]
    assert all(abs(each) < 1e31 for each in numbers)
    assert template.as_markdown(found, figures=None)


@pytest.mark.slow
def test_a_text_of_any_length_keeps_the_page_small(tmp_path: Path) -> None:
    for number in (1, 2):
        make(tmp_path, number, error="x" * 10**4, notes=["y" * 10**4], environment__host={"os": "z" * 10**4})
    text = html.render(compose(gather(analysis.load(tmp_path))))
    assert "z" * 5000 + "… (5000" in text
    assert len(text) < 2_000_000


@given(st.text(max_size=60))
def test_a_json_block_never_ends_early(text: str) -> None:
    block = str(html.json_block({"name": text}))
    assert not set("<>&") & set(block)
    assert json.loads(block) == {"name": text}


def test_code_that_would_end_its_block_is_refused() -> None:
    with pytest.raises(ValueError, match="the inlined code contains </script or a comment, which would end its block"):
        html._raw("a = '</SCRIPT>'", "</script")
