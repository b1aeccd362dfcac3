"""The page in a real browser: figures drawn, tooltips, filter, print, dark, no error and no request."""

import re
import shutil
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.report import html
from analysis.report.compose import compose
from analysis.report.evidence import gather
from tests.analysis.report.report_bundles import hostile, matrix
from tests.waiting import until

pytestmark = pytest.mark.world
# A picture below this size, in pixels, is a legend without a chart.
LEAST_WIDTH, LEAST_HEIGHT = 200, 60


class Visit:
    """A page, with its console messages and its requests."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.on("request", lambda request: self.asked.append(request.url))
        self.address = path.as_uri()
        page.goto(self.address)
        page.wait_for_selector("html[data-charts=drawn]", state="attached")

    def chart(self, name: str) -> Any:
        return self.page.locator(f'[data-figure="{name}"]')


def example(folder: Path) -> Path:
    """The report of `analyze example`."""
    return Path(shutil.copytree(Path(str(resources.files("analysis") / "example")), folder))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, fill in (("plain", matrix), ("hostile", hostile), ("example", example)):
        evidence = gather(analysis.load(fill(folder / name)))
        found[name] = folder / f"{name}.html"
        found[name].write_text(html.render(compose(evidence)))
    return found


@pytest.fixture
def visit(browser: Any, pages: dict[str, Path]) -> Iterator[Any]:
    contexts = []

    def go(name: str, **options: Any) -> Visit:
        context = browser.new_context(**options)
        context.set_default_timeout(100_000)
        contexts.append(context)
        return Visit(context.new_page(), pages[name])

    yield go
    for context in contexts:
        context.close()


@pytest.mark.parametrize("name", ["plain", "hostile", "example"])
def test_every_figure_is_drawn_without_a_word_or_a_request(visit: Any, name: str) -> None:
    seen = visit(name)
    sizes = seen.page.evaluate(
        "[...document.querySelectorAll('[data-figure]')].map(chart => {"
        " const svg = chart.querySelector('svg'); const box = svg && svg.getBoundingClientRect();"
        " return [chart.dataset.figure, box && box.width, box && box.height,"
        " svg && svg.querySelectorAll('.role-mark path, .role-mark line').length]; })"
    )
    assert len(sizes) >= (1 if name == "hostile" else 5)
    for figure, width, height, marks in sizes:
        assert width >= LEAST_WIDTH, figure
        assert height >= LEAST_HEIGHT, figure
        assert marks > 0, figure
    assert seen.said == []
    assert seen.asked == [seen.address]
    assert seen.page.title() == "Training throughput, and what limits it · rooflaunch"
    assert seen.page.evaluate("document.querySelectorAll('img, iframe').length") == 0


def _hover(chart: Any) -> str:
    """Text of the tooltip of the chart's last point."""
    page = chart.page
    chart.scroll_into_view_if_needed()
    box = chart.locator(".mark-symbol.role-mark path").last.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2 - 3, box["y"] + box["height"] / 2)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#vg-tooltip-element.visible")
    return str(page.locator("#vg-tooltip-element").inner_text())


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        ("throughput_env-gcp-t4-us-central1-a", ("place", "gcp-t4-us-central1-a", "images/s", "bar from")),
        ("roofline_gcp-t4-us-central1-a", ("FLOP and bytes", "modelled", "attained", "TFLOP/s", "of the roof")),
        ("throughput_comparison", ("place", "images/s", "runs")),
    ],
)
def test_a_tooltip_tells_the_figures(visit: Any, figure: str, expected: tuple[str, ...]) -> None:
    seen = visit("plain", viewport={"width": 1200, "height": 900})
    said = _hover(seen.chart(figure))
    for words in expected:
        assert words in said
    assert seen.said == []


def _opacities(chart: Any) -> list[float]:
    """Opacity of each point of the chart, in document order."""
    found = chart.locator(".mark-symbol.role-mark path").evaluate_all(
        "paths => paths.map(path => Number(path.getAttribute('opacity') ?? 1))"
    )
    return [float(value) for value in found]


def test_a_click_on_the_legend_fades_the_rest_and_another_brings_it_back(visit: Any) -> None:
    seen = visit("plain", viewport={"width": 1200, "height": 900})
    chart = seen.chart("throughput_env-gcp-t4-us-central1-a")
    chart.scroll_into_view_if_needed()
    assert set(_opacities(chart)) == {1.0}
    entry = chart.locator(".role-legend-entry text", has_text=re.compile("^resnet18$"))
    entry.click()
    until(lambda: set(_opacities(chart)) == {0.08, 1.0}, "nothing fades")
    faded = _opacities(chart)
    assert faded.count(1.0) == len(faded) / 2
    entry.click(modifiers=["Shift"])
    until(lambda: set(_opacities(chart)) == {1.0}, "it stays faded")
    assert seen.said == []


def test_dark_and_light_differ_and_text_stands_out(visit: Any) -> None:
    inks = {}
    for scheme in ("light", "dark"):
        seen = visit("plain", color_scheme=scheme)
        inks[scheme] = seen.page.evaluate(
            "[getComputedStyle(document.body).backgroundColor,"
            " getComputedStyle(document.querySelector('.role-axis-label text')).fill,"
            " getComputedStyle(document.querySelector('.role-axis-title text, .role-title text')).fill]"
        )
    assert inks["light"] == ["rgb(255, 255, 255)", "rgb(27, 31, 36)", "rgb(27, 31, 36)"]
    assert inks["dark"] == ["rgb(20, 24, 29)", "rgb(228, 232, 236)", "rgb(228, 232, 236)"]


# A row as high as this on a phone is a blank with one tall cell out of sight.
HIGHEST_ROW = 260


@pytest.mark.parametrize(("name", "width"), [("plain", 360), ("plain", 390), ("example", 390)])
def test_a_phone_scrolls_down_only_and_has_no_blanks(visit: Any, name: str, width: int) -> None:
    seen = visit(name, viewport={"width": width, "height": 740}, has_touch=True, is_mobile=True)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    rows = seen.page.locator("tbody tr").evaluate_all("all => all.map(row => row.getBoundingClientRect().height)")
    assert max(rows) <= HIGHEST_ROW
    widths = seen.page.locator("[data-figure] svg").evaluate_all(
        "all => all.map(svg => svg.getBoundingClientRect().width)"
    )
    assert max(widths) <= width
    sizes = seen.page.locator(".role-axis-label text").evaluate_all(
        "all => all.map(text => text.getScreenCTM().a * parseFloat(getComputedStyle(text).fontSize))"
    )
    assert min(sizes) >= 9


def test_a_table_wider_than_the_page_says_so_until_its_end_is_in_sight(visit: Any) -> None:
    seen = visit("plain", viewport={"width": 390, "height": 800})
    frames = seen.page.locator("#measurements .frame")
    assert (
        frames.evaluate_all(
            "all => all.map(each => [each.firstElementChild.scrollWidth > each.firstElementChild.clientWidth,"
            " each.hasAttribute('data-wide'), each.hasAttribute('data-end')])"
        )
        == [[True, True, False]] * frames.count()
    )
    cue = "getComputedStyle(document.querySelector('#measurements .frame'), '::before').content"
    assert "scrolls sideways" in seen.page.evaluate(cue)
    frames.first.locator(".scroll").evaluate("box => { box.scrollLeft = box.scrollWidth; }")
    seen.page.wait_for_selector("#measurements .frame[data-wide][data-end]", state="attached")
    # Its caption stays in sight.
    box = frames.first.locator("caption span").bounding_box()
    assert 0 <= box["x"] < box["x"] + box["width"] <= 390
    wide = visit("plain", viewport={"width": 1400, "height": 900})
    assert wide.page.locator("#measurements .frame").last.get_attribute("data-wide") is None


HIGHEST_PAGE = 6000


def test_the_answer_is_on_the_first_screen_and_the_page_is_short(visit: Any) -> None:
    seen = visit("example", viewport={"width": 1400, "height": 900})
    answer = seen.page.locator("#answer ol")
    box = answer.bounding_box()
    assert box["y"] + box["height"] < 900
    assert answer.locator("li").count() == 5
    said = answer.inner_text()
    assert re.search(r"bf16 is 1\.\d+ x as fast as fp32", said)
    assert "with batch size 16: " in said
    assert seen.chart("roofline_combined").bounding_box()["y"] < 900
    assert seen.page.evaluate("document.documentElement.scrollHeight") <= HIGHEST_PAGE


def test_a_link_opens_the_section_that_it_leads_to(visit: Any) -> None:
    seen = visit("plain", viewport={"width": 1400, "height": 900})
    audit = seen.page.locator("#audit > details")
    assert audit.get_attribute("open") is None
    assert not seen.page.locator("#audit h3").first.is_visible()
    seen.page.click("nav a[href='#audit']")
    seen.page.wait_for_selector("#audit > details[open]")
    assert seen.page.locator("#audit h3").first.is_visible()


def test_paper_is_light_whole_and_unfolded(visit: Any, tmp_path: Path) -> None:
    seen = visit("plain", color_scheme="dark", viewport={"width": 1200, "height": 900})
    seen.page.emulate_media(media="print", color_scheme="dark")
    ink = seen.page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.querySelector('nav')).display]"
    )
    assert ink == ["rgb(27, 31, 36)", "none"]
    seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert seen.page.evaluate("document.querySelectorAll('details.folded:not([open])').length") == 0
    seen.page.evaluate("dispatchEvent(new Event('afterprint'))")
    folded = seen.page.evaluate("document.querySelectorAll('details.folded[open]').length")
    assert folded == 0
    seen.page.pdf(path=str(tmp_path / "report.pdf"), format="A4")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    # Folded sections are printed even if no script opens them.
    heights = seen.page.locator("main details.folded").evaluate_all("all => all.map(each => each.scrollHeight)")
    assert len(heights) > 5
    assert min(heights) > 60
    assert seen.said == []


def test_a_narrower_window_draws_again(visit: Any) -> None:
    seen = visit("plain", viewport={"width": 1200, "height": 900})
    chart = seen.chart("throughput_comparison")
    before = chart.locator("svg").bounding_box()["width"]
    seen.page.set_viewport_size({"width": 500, "height": 900})
    seen.page.wait_for_function(
        "document.querySelector('[data-figure=throughput_comparison] svg').getBoundingClientRect().width < 490"
    )
    assert chart.locator("svg").bounding_box()["width"] < before
    assert chart.locator("svg").count() == 1
    assert seen.said == []
