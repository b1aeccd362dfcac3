"""Google's price list: a VM's price by hand, and nothing that only looks alike; asked page by page, kept for a day."""

import copy
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import requests

from launcher.backends.gcp import gpus, price_list
from launcher.backends.gcp.options import Options
from launcher.backends.gcp.price_list import PriceLookup, Sku
from launcher.backends.gcp.services import Services
from launcher.protocol.records import Price
from tests.launcher.backends.gcp.canned_prices import ADDRESS, CORE, DISK, GPU, GPU_SPOT, RAM, SKUS, price_list_of, sku
from tests.launcher.backends.gcp.fake_rest import disabled, refused
from tests.ports import Answering, Fake
from workload.contract.errors import ToolError

T4 = gpus.require("t4")
MACHINE = T4.machine_types["n1-standard-4"]
HERE, THERE = "us-central1", "europe-west4"
# Where a part of the list has its unit, and its price.
EXPRESSION = ("pricingInfo", -1, "pricingExpression")
AMOUNT = (*EXPRESSION, "tieredRates", -1, "unitPrice")


def price(documents: Any, *, region: str = HERE, spot: bool = False, count: int = 1, **beside: Any) -> Price | None:
    options = Options(gpu="t4", spot=spot, **beside)
    return price_list_of(documents).price(T4, MACHINE, count, region, options)


def replaced(part: dict[str, Any], path: tuple[Any, ...] = (), value: Any = None) -> list[dict[str, Any]]:
    """The list with another value at a path in this part; without a path the list lacks the part."""
    others = [document for document in SKUS if document is not part]
    if not path:
        return others
    other = copy.deepcopy(part)
    place: Any = other
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return [*others, other]


@pytest.mark.parametrize(
    ("asked", "vm", "disk", "address"),
    [
        # 0.35 + 4 x 0.031611 + 15 x 0.004237; 100 x 0.10 / 672; the free hours are not counted on.
        ({}, 0.539999, 0.0148810, 0.005),
        ({"count": 2}, 0.889999, 0.0148810, 0.005),
        ({"disk_gb": 200, "external_ip": False}, 0.539999, 0.0297619, 0.0),
        # 0.21 + 4 x 0.0105 + 15 x 0.0014.
        ({"spot": True}, 0.273, 0.0148810, 0.0025),
        # 0.48 + 4 x 0.0348 + 15 x 0.00466; 100 x 0.11 / 672.
        ({"region": THERE}, 0.6891, 0.0163690, 0.005),
    ],
    ids=["on demand", "two GPUs", "no address", "spot", "another region"],
)
def test_a_price_by_hand(asked: dict[str, Any], vm: float, disk: float, address: float) -> None:
    found = price(SKUS, **asked)
    assert found is not None
    assert (found.usd_per_h, found.disk_usd_per_h, found.address_usd_per_h) == (
        pytest.approx(vm, abs=1e-9),
        pytest.approx(disk, abs=1e-7),
        address,
    )
    assert (found.source, found.read) == ("Google's price list", "2026-11-21")


@pytest.mark.parametrize("part", [GPU, CORE, RAM, DISK, ADDRESS], ids=lambda part: part["description"])
def test_a_part_that_is_missing_makes_the_price_unknown(part: dict[str, Any]) -> None:
    assert price(replaced(part)) is None


@pytest.mark.parametrize("part", [GPU, CORE, RAM, DISK, ADDRESS], ids=lambda part: part["description"])
def test_a_part_that_is_there_with_two_prices_makes_it_unknown(part: dict[str, Any]) -> None:
    assert price([*SKUS, {**part, "skuId": "FFFF"}]) == price(SKUS), "the same price twice is one"
    assert price([part, *replaced(part, (*AMOUNT, "nanos"), 1000)]) is None


def test_a_region_that_the_list_lacks_is_unknown() -> None:
    assert price(SKUS, region="asia-east1") is None
    assert price(SKUS, region=THERE, spot=True) is None


def test_a_spot_price_above_the_usual_one_is_bad_data() -> None:
    as_dear, dearer = (replaced(GPU_SPOT, (*AMOUNT, "nanos"), nanos) for nanos in (476_999_000, 477_000_000))
    assert price(as_dear, spot=True) is not None, "0.476999 + 0.063 is the usual price to the digit"
    assert price(dearer, spot=True) is None


def test_what_is_not_made_of_skus_here_has_no_price() -> None:
    """Machines with local disks of their own, and the 80 GB A100, whose name has that of the other in it."""
    there = sku("0020", "Nvidia Tesla A100 80GB GPU running in Americas", 3.9, group="GPU")
    found = price_list_of([*SKUS, there])
    for name in ("a100-80gb", "h100", "h200"):
        gpu = gpus.require(name)
        machine = gpu.machine_types[gpu.default_machine_type]
        assert found.listed(gpu, machine, machine.gpus[0], HERE) is None
    assert "0020" not in {each.sku_id for each in found.skus}


def test_a_row_has_both_prices_or_the_one_that_is_known() -> None:
    here, there = (price_list_of(SKUS).listed(T4, MACHINE, 1, region) for region in (HERE, THERE))
    assert here is not None
    assert there is not None
    assert (here.usd_per_h, here.usd_per_h_spot) == (pytest.approx(0.539999), pytest.approx(0.273))
    assert (there.usd_per_h, there.usd_per_h_spot) == (pytest.approx(0.6891), None)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((*AMOUNT, "currencyCode"), "JPY"),
        ((*EXPRESSION, "usageUnit"), "mo"),
        ((*AMOUNT, "nanos"), 0),
        ((*AMOUNT, "nanos"), "many"),
        (("pricingInfo",), []),
        (("category",), None),
        (("serviceRegions",), [1]),
    ],
    ids=["in yen", "by the month", "free", "words", "no price", "no category", "numbers"],
)
def test_a_sku_of_another_form_is_passed_over(path: tuple[Any, ...], value: Any) -> None:
    assert price(replaced(GPU, path, value)) is None


@pytest.mark.parametrize("document", [None, [], "x", 1, {}, {"category": []}, {"pricingInfo": {}}])
def test_what_is_no_sku_is_passed_over(document: Any) -> None:
    assert price([document, *SKUS]) == price(SKUS)


def test_of_a_timeline_the_last_price_counts() -> None:
    dollar = replaced(GPU, AMOUNT, {"currencyCode": "USD", "units": "1", "nanos": 0})[-1]["pricingInfo"]
    found = price(replaced(GPU, ("pricingInfo",), [*GPU["pricingInfo"], *dollar]))
    assert found is not None
    assert found.usd_per_h == pytest.approx(1.189999)


def test_only_what_is_a_part_of_a_price_is_kept() -> None:
    kept = price_list_of(SKUS).skus
    assert all(isinstance(each, Sku) for each in kept)
    assert {each.sku_id for each in kept}.isdisjoint(f"00{number}" for number in range(10, 19))
    assert len(kept) == 14


# The list of today.


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
            "ask the owner of project 'my-project', or use another account: gcloud auth application-default login",
        ),
        (
            refused("broken", 500),
            "cloudbilling.googleapis.com: broken",
            "run again; if the error stays, report it as a bug",
        ),
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
    class Handler(Answering):
        def do_GET(self) -> None:
            assert "Authorization" not in self.headers
            self.send(200, json.dumps(page((SKUS[:7], SKUS[7:]), self.path)))

    with Fake(Handler) as http:
        yield http.url


@pytest.mark.world
def test_the_endpoint_of_a_test_is_asked_without_credentials(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(price_list.ENDPOINT_VARIABLE, f"{server}/")
    monkeypatch.setenv("ROOFLAUNCH_COMPUTE_ENDPOINT", "http://127.0.0.1:9")
    found = price_list.current("my-project", now_s=NOW_S, wait_s=30.0)
    assert found.prices is not None
    assert len(found.prices.skus) == 14
