"""The site of docs/: its order, its links, no other host, and how its pages look in a browser."""

import http.server
import itertools
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cache, partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs import build_site, commands
from tests.docs import pages
from workload.contract.errors import ExitCode

DOCS = pages.ROOT / "docs"
# Written by programs: `wc -w` counts what people write.
GENERATED = {"false-alarms", "glossary"}
MOST_WORDS_OF_A_GUIDE, MOST_WORDS = 900, 13_500
WIDTHS = (1400, 390)
BACKGROUND = {"light": "rgb(255, 255, 255)", "dark": "rgb(11, 12, 15)"}
# What is wider than the window, beside what scrolls in a box of its own.
CUT = """() => {
  const scrolls = box => box && box !== document.documentElement && (
    ['auto', 'scroll'].includes(getComputedStyle(box).overflowX) || scrolls(box.parentElement));
  const parts = ['table', 'pre', 'img', 'p', 'h1', 'code'].map(part => `article ${part}`).join();
  const wide = [...document.querySelectorAll(parts)]
    .filter(item => item.getBoundingClientRect().right > innerWidth && !scrolls(item))
    .map(item => `${item.tagName} ${item.textContent.slice(0, 60)}`);
  return document.documentElement.scrollWidth > innerWidth ? ['the page scrolls sideways', ...wide] : wide;
}"""


@cache
def nav() -> dict[str, list[str]]:
    """Names of the pages by heading, in the order of the site; the first page is README.md."""
    table = yaml.safe_load((pages.ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return {
        title: [name.removesuffix(".md").replace("index", "README") for name in names]
        for part in table["nav"]
        for title, names in part.items()
    }


@cache
def order() -> list[str]:
    return list(itertools.chain.from_iterable(nav().values()))


def text(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def test_every_page_has_its_place_in_the_order() -> None:
    assert sorted(order()) == sorted(path.stem for path in DOCS.glob("*.md")), "mkdocs.yml: nav"


def test_the_list_of_pages_has_the_order_of_the_site() -> None:
    links = re.findall(r"^(?:- |  ).*", text("README"), re.MULTILINE)
    assert ["README", *re.findall(r"\]\(([\w-]+)\.md\)", "\n".join(links))] == order(), "docs/README.md"


@pytest.mark.parametrize("name", order())
def test_a_page_ends_with_a_next_page(name: str) -> None:
    """The last paragraph links to another page."""
    paragraph = text(name).rstrip().rpartition("\n\n")[2]
    others = set(re.findall(r"\]\(([\w-]+)\.md[)#]", paragraph)) - {name}
    where = f"docs/{name}.md:{text(name).count(chr(10))}"
    assert others & set(order()), f"{where}: the last paragraph names no next page: {paragraph}"


def test_the_pages_are_short() -> None:
    counts = {name: len(text(name).split()) for name in order() if name not in GENERATED}
    assert sum(counts.values()) <= MOST_WORDS, f"docs/ has {sum(counts.values())} words: {counts}"
    guides = {name: counts[name] for name in (*nav()["Start"], *nav()["Guides"])}
    assert {name: count for name, count in guides.items() if count > MOST_WORDS_OF_A_GUIDE} == {}


def test_every_exit_code_is_on_the_page_of_commands() -> None:
    assert re.findall(r"^\| (\d+) \|", text("commands"), re.MULTILINE) == [str(code.value) for code in ExitCode]


def test_every_option_is_documented() -> None:
    assert re.findall(r"^\| `(.*)` \|  \|$", commands.reference(), re.MULTILINE) == [], "they have no help"


class Page(HTMLParser):
    """What a page of the site links, what it loads, and the ids in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.loads += [values[name] for name in ("src", "srcset") if name in values]
        if tag == "link" and values.get("rel") not in ("prev", "next", "canonical"):
            self.loads.append(values["href"])


@pytest.fixture(scope="module")
def site() -> Path:
    """The site as `make docs` builds it."""
    done = subprocess.run(
        [sys.executable, "-m", "docs.build_site"], cwd=pages.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return build_site.SITE


@pytest.mark.slow
@pytest.mark.world
def test_the_site_has_no_dead_link_and_loads_nothing_from_another_host(site: Path) -> None:
    parsed = {path: Page(path) for path in site.glob("*.html") if path.name != "404.html"}
    assert {path.stem.replace("index", "README") for path in parsed} == set(order())
    dead = []
    for path, page in parsed.items():
        for link in page.links:
            file, _, anchor = link.partition("#")
            if not re.match(r"\w+:", link):
                target = (path.parent / file).resolve() if file else path
                known = parsed[target].ids if target in parsed else set()
                if not target.is_file() or (anchor and target in parsed and anchor not in known):
                    dead.append(f"{path.stem}: {link}")
        dead += [
            f"{path.stem} loads {url}" for url in page.loads if not (path.parent / re.split("[?#]", url)[0]).is_file()
        ]
    assert not dead, "\n".join(dead)


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Address of a server of the site: a search needs one."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("scheme", BACKGROUND)
def test_nothing_is_cut_and_nothing_scrolls_sideways(browser: Any, address: str, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme)
    page, asked, said, cut = context.new_page(), list[str](), list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    for name in order():
        page.goto(f"{address}/{name.replace('README', 'index')}.html")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == BACKGROUND[scheme], name
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            cut += [f"{name}, {width} pixels: {what}" for what in page.evaluate(CUT)]
    context.close()
    assert not cut, "\n".join(cut)
    assert not [url for url in asked if not url.startswith(address)]
    assert not said


def test_the_button_of_the_theme_changes_the_picture(browser: Any, address: str) -> None:
    context = browser.new_context(color_scheme="light")
    page = context.new_page()
    page.goto(f"{address}/analysing.html")
    shown = "[...document.querySelectorAll('article img')].filter(image => image.offsetWidth).map(image => image.src)"
    assert page.evaluate(shown) == [f"{address}/images/five-steps.svg#only-light"]
    page.get_by_title("dark").click()
    assert page.evaluate(shown) == [f"{address}/images/five-steps-dark.svg#only-dark"]
    context.close()


def test_a_search_finds_an_option_that_only_the_site_lists(browser: Any, address: str) -> None:
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{address}/index.html")
    page.locator(".md-search__button").click()
    page.get_by_placeholder("Search").fill("same-within")
    page.get_by_text("launch duel", exact=True).first.wait_for(timeout=100_000)
    page.close()
    assert not [url for url in asked if not url.startswith((address, "data:", "blob:"))]


# Last in this file: the site is another one afterwards.
@pytest.mark.parametrize("address", ["gcp.md#no-such-heading", "no-such-page.md"])
@pytest.mark.slow
@pytest.mark.world
def test_a_dead_link_ends_the_build_with_its_line(
    address: str, site: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert site.is_dir()
    monkeypatch.setattr(build_site, "staged", lambda text, _: text.replace("(gcp.md)", f"({address})"))
    code = build_site.main()
    said = re.sub(r"\x1b\[[\d;]*m", "", "".join(capfd.readouterr()))
    assert code != 0
    assert re.search(r"index\.md:\d+:\d+", said), said
