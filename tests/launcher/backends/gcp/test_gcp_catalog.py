"""Today's price list: asked page by page, kept for a day, and never waited for long."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import requests

from launcher.backends.gcp import price_list
from launcher.backends.gcp.price_list import PriceLookup
from launcher.backends.gcp.services import Services
from tests.launcher.backends.gcp.canned_prices import SKUS
from tests.launcher.backends.gcp.fake_rest import disabled, refused
from workload.contract.errors import ToolError

NOW_S = 1795262400.0  # 2026-11-21T12:00:00Z
DAY_S = 24 * 3600


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "rooflaunch" / "gcp-prices.json"


class Answer:
    def __init__(self, status: int, document: Any) -> None:
        self.status_code, self.text, self._document = status, "", document

    def json(self) -> Any:
        if isinstance(self._document, Exception):
            raise self._document
        return self._document


class Pages:
    """Cloud Billing with its list in pages; `instead` is answered in its place."""

    def __init__(self, *pages: list[dict[str, Any]], instead: tuple[int, Any] | Exception | None = None) -> None:
        self.pages, self.instead, self.asked = pages, instead, list[str]()

    def request(self, method: str, url: str, *, json: Any = None, timeout: float) -> Answer:
        assert (method, json) == ("GET", None)
        assert 0 < timeout <= 15
        self.asked.append(url)
        if isinstance(self.instead, Exception):
            raise self.instead
        if self.instead:
            return Answer(*self.instead)
        return Answer(200, page(self.pages, url))


def page(pages: tuple[list[dict[str, Any]], ...], url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    query = {key: value for key, (value,) in parse_qs(parts.query).items()}
    assert parts.path == "/v1/services/6F81-5844-456A/skus"
    assert (query["currencyCode"], query["pageSize"]) == ("USD", "5000")
    number = int(query.get("pageToken", "0"))
    # The last page's token is empty, as the service has it.
    return {"skus": pages[number], "nextPageToken": str(number + 1) if number + 1 < len(pages) else ""}


def current(session: Pages, *, now_s: float = NOW_S, wait_s: float = 10.0) -> PriceLookup:
    def connect(project: str) -> Services:
        return Services(project, session)

    return price_list.current("my-project", now_s=now_s, wait_s=wait_s, connect=connect)


def test_every_page_is_read_and_kept_for_a_day(cache: Path) -> None:
    session = Pages(SKUS[:3], SKUS[3:10], SKUS[10:])
    found = current(session)
    assert found.prices is not None
    assert (found.prices.read, len(found.prices.skus), found.why) == ("2026-11-21", 14, "")
    assert len(session.asked) == 3
    assert session.asked[0].startswith("https://cloudbilling.googleapis.com/v1/services/6F81-5844-456A/skus?")
    assert current(session, now_s=NOW_S + DAY_S) == found
    assert price_list.cached(NOW_S + DAY_S) == found
    assert len(session.asked) == 3, "nobody is asked within a day"
    assert price_list.cached(NOW_S + DAY_S + 1) == PriceLookup()
    assert price_list.cached(NOW_S - 1) == PriceLookup(), "a file of the future is of another clock"
    later = current(session, now_s=NOW_S + DAY_S + 1)
    assert later.prices is not None
    assert (later.prices.read, len(session.asked)) == ("2026-11-22", 6)
    assert [path.name for path in cache.parent.iterdir()] == [cache.name], "no half-written file is left"


@pytest.mark.parametrize(
    ("instead", "why", "hint"),
    [
        (
            disabled("cloudbilling.googleapis.com"),
            "cloudbilling.googleapis.com is not enabled in project 'my-project'",
            "gcloud services enable cloudbilling.googleapis.com --project my-project",
        ),
        (
            refused(),
            "cloudbilling.googleapis.com: Permission denied",
            "ask the owner of project 'my-project', or change the account: gcloud auth application-default login",
        ),
        (refused("broken", 500), "cloudbilling.googleapis.com: broken", "run again; then report it"),
        (
            requests.ConnectionError("no route"),
            "cloudbilling.googleapis.com cannot be reached: no route",
            "check the network and its proxy (curl -I https://cloudbilling.googleapis.com), then run again",
        ),
        ((200, {"skus": []}), "Google's price list has no SKU of the kinds that are known here", ""),
        ((404, {}), "Google's price list has no SKU of the kinds that are known here", ""),
    ],
    ids=["not enabled", "refused", "broken", "no network", "empty", "not there"],
)
def test_a_list_that_cannot_be_read_is_said_to_be(instead: Any, why: str, hint: str, cache: Path) -> None:
    assert current(Pages(instead=instead)) == PriceLookup(why=why, hint=hint)
    assert not cache.exists()


def test_without_credentials_there_is_none() -> None:
    def connect(_: str) -> Services:
        raise ToolError("no usable credentials for Google Cloud: none", hint="log in")

    found = price_list.current("my-project", now_s=NOW_S, wait_s=10.0, connect=connect)
    assert found == PriceLookup(why="no usable credentials for Google Cloud: none", hint="log in")


def test_with_another_cloud_google_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFLAUNCH_COMPUTE_ENDPOINT", "http://127.0.0.1:9")
    session = Pages(SKUS)
    assert current(session) == PriceLookup(why="ROOFLAUNCH_COMPUTE_ENDPOINT is set, so Google's price list is not used")
    assert session.asked == []


def test_a_slow_list_holds_nobody_up_and_serves_the_next() -> None:
    answers = threading.Event()

    class Slow(Pages):
        def request(self, *words: Any, **named: Any) -> Answer:
            answers.wait(60)
            return super().request(*words, **named)

    assert current(Slow(SKUS), wait_s=0.01) == PriceLookup(why="Google's price list did not arrive within 0.01 s")
    asking = [thread for thread in threading.enumerate() if thread.name == "prices"]
    assert all(thread.daemon for thread in asking), "it keeps no command from ending"
    answers.set()
    for thread in asking:
        thread.join(60)
    assert price_list.cached(NOW_S).prices is not None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        json.dumps({"schema": 2, "read_s": NOW_S, "skus": []}),
        json.dumps({"schema": 1, "read_s": "x", "skus": []}),
        json.dumps({"schema": 1, "read_s": NOW_S, "skus": [{"usd": 1}]}),
        json.dumps({"schema": 1, "read_s": NOW_S, "skus": 3}),
        json.dumps({"schema": 1, "read_s": NOW_S, "skus": [], "more": "x" * 4_000_000}),
    ],
    ids=["empty", "half", "list", "null", "nothing", "newer", "no time", "half a sku", "no list", "huge"],
)
def test_a_damaged_file_is_none(content: str, cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text(content)
    assert price_list.cached(NOW_S) == PriceLookup()


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert current(Pages(SKUS)).prices is not None
    assert price_list.cached(NOW_S) == PriceLookup()


@pytest.fixture
def server() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert "Authorization" not in self.headers
            content = json.dumps(page((SKUS[:7], SKUS[7:]), self.path)).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_address[1]}"
        http.shutdown()


@pytest.mark.world
def test_the_endpoint_of_a_test_is_asked_without_credentials(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(price_list.ENDPOINT_VARIABLE, f"{server}/")
    monkeypatch.setenv("ROOFLAUNCH_COMPUTE_ENDPOINT", "http://127.0.0.1:9")
    found = price_list.current("my-project", now_s=NOW_S, wait_s=30.0)
    assert found.prices is not None
    assert len(found.prices.skus) == 14
