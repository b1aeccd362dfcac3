"""Uploads to S3 and fetches through a proxy that spoils one request or all that follow: whole or absent, never half."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workload.storage.bundles import content_of, make_bundle
from tests.workload.storage.faulty_proxy import Fault, FaultyProxy
from tests.workload.storage.s3_server import meet
from tests.workload.storage.strict_s3 import BUCKET, LARGE_BYTES, StrictS3
from workload.contract import bundle
from workload.contract.errors import ExitCode, RooflaunchError
from workload.storage import fetch, s3, upload
from workload.storage.address import parse_source
from workload.storage.fetch import FetchReport, FetchState
from workload.storage.s3 import Bucket
from workload.storage.store import Patience

pytestmark = [pytest.mark.world, pytest.mark.night(part="faults")]

# Long enough for a second attempt on a busy machine; a test waits for it where every answer is spoiled.
IMPATIENT = Patience(first_answer_s=10.0, first_retry_s=1.0, retry_s=1.0, connect_s=2.0, read_s=2.0)
# Faults that one repetition cures: they go unnoticed, wherever they come.
PASSING = (
    Fault.BUSY,
    Fault.THROTTLED,
    Fault.BREAKS_ON_THE_WAY,
    Fault.REPLY_LOST,
    Fault.REPLY_BREAKS,
    Fault.REPLY_CUT,
    Fault.REPLY_DRIPS,
)
# How an upload or a fetch may end where a fault does not pass.
CODES = {ExitCode.TOOL, ExitCode.BAD_BUNDLE}
Make = Callable[[str], Path]


@pytest.fixture
def proxy(small_parts: StrictS3, strict_session: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    with FaultyProxy(small_parts).running() as running:
        meet(running.url, strict_session, monkeypatch)
        yield running


@pytest.fixture
def opened(proxy: FaultyProxy) -> Bucket:
    found = s3.connect(BUCKET, prefix="runs/", patience=IMPATIENT)
    proxy.spoil(None)
    return found


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A bundle whose log.txt is sent in three parts, and the rest at one go."""
    log, numbers = os.urandom(LARGE_BYTES), iter(range(10_000))

    def make(name: str) -> Path:
        run_id = f"{abs(hash((str(tmp_path), name))):x}-{next(numbers):06x}"
        return make_bundle(tmp_path / "made", run_id, {"steps.csv": b"step,phase\n" * 20, "log.txt": log})

    return make


def stored(server: StrictS3, folder: Path) -> dict[str, bytes]:
    """What the server holds of a run."""
    prefix = f"runs/{folder.name}/"
    return {name.removeprefix(prefix): held.content for name, held in server.objects.items() if name.startswith(prefix)}


def is_whole(server: StrictS3, folder: Path) -> bool:
    """Whether it is whole. Without a manifest nobody counts it."""
    there = stored(server, folder)
    if bundle.MANIFEST in there:
        assert there == content_of(folder)
    return bundle.MANIFEST in there


def bring(opened: Bucket, folder: Path, output: Path) -> FetchReport:
    return fetch.fetch(opened, parse_source(f"s3://{BUCKET}/runs/{folder.name}"), output, jobs=1)


def error_of(work: Callable[[], object]) -> RooflaunchError | None:
    """How it ended, if not well; any other exception is a traceback for somebody, and fails the test."""
    ended: RooflaunchError | None = None
    try:
        work()
    except RooflaunchError as error:
        ended = error
    if ended is not None:
        assert ended.exit_code in CODES, ended.report()
        assert ended.hint
        assert str(ended).isprintable()
        assert not any(word in str(ended) for word in ("<html", "IncompleteRead", "HTTPConnectionPool")), str(ended)
    return ended


UPLOAD = [
    "GET",  # the list of what is there
    *["PUT"] * 2,
    "POST uploads",
    *["PUT partNumber"] * 3,
    "POST",
    "PUT",  # the manifest
]


def kind(method: str, query: dict[str, str]) -> str:
    return " ".join([method, *({"uploads", "partNumber"} & query.keys())])


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
def test_an_upload_is_whole_or_absent_and_the_next_one_finishes_it(
    fault: Fault, small_parts: StrictS3, proxy: FaultyProxy, opened: Bucket, make: Make
) -> None:
    upload.upload(opened, make("first"))
    assert [kind(sent.method, sent.query) for sent in proxy.served] == UPLOAD
    for at in range(len(UPLOAD)):
        folder = make(f"{fault} at {at}")
        proxy.spoil(fault, at)
        error = error_of(lambda folder=folder: upload.upload(opened, folder))  # type: ignore[misc]
        assert proxy.spoiled == 1, at
        assert is_whole(small_parts, folder) or error, "what is said to be there is there"
        if fault in PASSING:
            assert error is None, f"{UPLOAD[at]}, request {at}: {error.report()}"
        proxy.spoil(None)
        upload.upload(opened, folder)
        assert stored(small_parts, folder) == content_of(folder)


@pytest.mark.parametrize(
    "fault", [fault for fault in Fault if fault is not Fault.REPLY_DRIPS], ids=lambda fault: fault.name.lower()
)
@pytest.mark.parametrize("at", [0, 3, 8], ids=["list", "large file", "manifest"])
def test_a_bucket_that_stays_so_ends_an_upload_with_an_error(
    fault: Fault, at: int, small_parts: StrictS3, proxy: FaultyProxy, opened: Bucket, make: Make
) -> None:
    folder = make(f"{fault} from {at}")
    proxy.spoil(fault, at, for_ever=True)
    error = error_of(lambda: upload.upload(opened, folder))
    whole = is_whole(small_parts, folder)
    assert error is not None or whole
    assert proxy.spoiled
    proxy.spoil(None)
    upload.upload(opened, folder)
    assert stored(small_parts, folder) == content_of(folder)


FETCH = ["GET", "GET", "HEAD", *["GET"] * 3]


@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
def test_a_fetch_is_whole_or_absent_and_the_next_one_finishes_it(
    for_ever: bool, fault: Fault, proxy: FaultyProxy, opened: Bucket, make: Make, tmp_path: Path
) -> None:
    folder = make(str(fault))
    upload.upload(opened, folder)
    proxy.spoil(None)
    bring(opened, folder, tmp_path / "reference")
    assert [sent.method for sent in proxy.served] == FETCH
    for at in (0, 1, 3) if for_ever else range(len(FETCH)):
        output = tmp_path / f"results-{at}"
        proxy.spoil(fault, at, for_ever=for_ever)
        reports: list[FetchReport] = []
        error = error_of(lambda output=output, reports=reports: reports.append(bring(opened, folder, output)))  # type: ignore[misc]
        assert proxy.spoiled
        error = error or (reports[0].error if reports else None)
        states = [outcome.state for outcome in reports[0].outcomes] if reports else []
        whole = (output / folder.name / bundle.MANIFEST).exists()
        assert whole is (states == [FetchState.FETCHED])
        if whole:
            assert content_of(output / folder.name) == content_of(folder)
        else:
            assert error or [outcome.reason for outcome in reports[0].outcomes]
        if fault in PASSING and not for_ever:
            assert whole, f"request {at}: {error.report() if error else reports[0].outcomes}"
        proxy.spoil(None)
        assert bring(opened, folder, output).error is None
        assert content_of(output / folder.name) == content_of(folder)
