"""Uploads and fetches through a proxy that spoils a request, or each from then on: whole or absent, never half."""

import json
import os
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.workload.storage.bundles import content_of, make_bundle
from tests.workload.storage.faulty_proxy import Fault, FaultyProxy
from tests.workload.storage.gcs_server import BUCKET, GcsServer
from workload.contract import bundle
from workload.contract.errors import ExitCode, RooflaunchError
from workload.storage import fetch, upload
from workload.storage import gcs as bucket
from workload.storage.address import parse_source
from workload.storage.fetch import FetchReport, FetchState
from workload.storage.gcs import Bucket
from workload.storage.store import Patience

pytestmark = [pytest.mark.world, pytest.mark.night(part="faults")]

# Long enough for a few repetitions, and no test waits for it but where every answer is spoiled.
# Time for a second try on a busy machine too.
IMPATIENT = Patience(first_answer_s=5.0, first_retry_s=2.0, retry_s=2.0, connect_s=2.0, read_s=2.0)
GRAIN_BYTES = 256 * 1024
# Faults that one repetition cures: of an upload they go unnoticed, wherever they come.
PASSING = (
    Fault.BUSY,
    Fault.THROTTLED,
    Fault.BREAKS_ON_THE_WAY,
    Fault.REPLY_LOST,
    Fault.REPLY_BREAKS,
    Fault.REPLY_CUT,
    Fault.REPLY_DRIPS,
)
# fake-gcs-server 1.54 keeps a chunk twice that is sent again; Cloud Storage does not: test_upload.py has one like it.
KEPT_TWICE = {(fault, 4) for fault in (Fault.REPLY_LOST, Fault.REPLY_BREAKS, Fault.REPLY_CUT)}
# How an upload or a fetch may end where a fault does not pass.
CODES = {ExitCode.TOOL, ExitCode.BAD_BUNDLE}


@pytest.fixture
def proxy(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A failed request is repeated at once, and 256 kB are much."""
    from google.cloud.storage import blob, retry

    monkeypatch.setattr(retry, "DEFAULT_RETRY", retry.DEFAULT_RETRY.with_delay(initial=0.01, maximum=0.02))
    monkeypatch.setattr(blob, "_MAX_MULTIPART_SIZE", GRAIN_BYTES)
    monkeypatch.setattr(bucket, "CHUNK_BYTES", 2 * GRAIN_BYTES)
    with FaultyProxy(server).running() as running:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        yield running


@pytest.fixture
def opened(proxy: FaultyProxy) -> Bucket:
    found = bucket.connect(BUCKET, prefix="runs/", patience=IMPATIENT)
    proxy.spoil(None)
    return found


Make = Callable[[str], Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A bundle whose log.txt is sent in two chunks, and the rest at one go."""
    log = os.urandom(3 * GRAIN_BYTES)
    numbers = iter(range(10_000))

    def make(name: str) -> Path:
        run_id = f"{abs(hash((str(tmp_path), name))):x}-{next(numbers):06x}"
        files = {"steps.csv": b"step,phase\n" + b"0,measured\n" * 20, "log.txt": log}
        return make_bundle(tmp_path / "made", run_id, files)

    return make


def stored(server: GcsServer, folder: Path) -> dict[str, bytes]:
    """What the server holds of a run, asked past the proxy."""
    listed = json.loads(got(f"{server.url}/storage/v1/b/{BUCKET}/o?prefix=runs/{folder.name}/"))
    names = [item["name"] for item in listed.get("items", [])]
    base = f"{server.url}/download/storage/v1/b/{BUCKET}/o"
    quoted = {name: name.replace("/", "%2F") for name in names}
    return {name.rpartition("/")[2]: got(f"{base}/{quoted[name]}?alt=media") for name in names}


def got(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return bytes(answer.read())


def bring(opened: Bucket, folder: Path, output: Path) -> FetchReport:
    return fetch.fetch(opened, parse_source(f"gs://{BUCKET}/runs/{folder.name}"), output, jobs=1)


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
        assert not any(word in str(ended) for word in ("<html", "slow down", "IncompleteRead")), str(ended)
    return ended


def is_whole_or_absent(server: GcsServer, folder: Path) -> bool:
    """Whether it is whole. Without a manifest nobody counts it."""
    there, wanted = stored(server, folder), content_of(folder)
    if bundle.MANIFEST in there:
        assert there == wanted
    return bundle.MANIFEST in there


def requests_of_an_upload(opened: Bucket, proxy: FaultyProxy, folder: Path) -> list[str]:
    proxy.spoil(None)
    upload.upload(opened, folder)
    return [f"{sent.method} {sent.query.get('uploadType', '')}".strip() for sent in proxy.served]


UPLOAD = ["GET", *["POST multipart"] * 2, "POST resumable", "PUT resumable", "PUT resumable", "POST multipart"]


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
def test_an_upload_is_whole_or_absent_and_the_next_one_finishes_it(
    fault: Fault, server: GcsServer, proxy: FaultyProxy, opened: Bucket, make: Make, tmp_path: Path
) -> None:
    assert requests_of_an_upload(opened, proxy, make("first")) == UPLOAD
    for at in range(len(UPLOAD)):
        folder = make(f"{fault} at {at}")
        proxy.spoil(fault, at)
        error = error_of(lambda folder=folder: upload.upload(opened, folder))  # type: ignore[misc]
        assert proxy.spoiled == 1, at
        whole = is_whole_or_absent(server, folder)
        assert whole or error, "what is said to be there is there"
        if fault in PASSING and (fault, at) not in KEPT_TWICE:
            assert error is None, f"{UPLOAD[at]}, request {at}: {error.report()}"
        proxy.spoil(None)
        assert bool(bring(opened, folder, tmp_path / "before").count(FetchState.FETCHED)) is whole
        upload.upload(opened, folder)
        assert stored(server, folder) == content_of(folder)


@pytest.mark.parametrize(
    "fault", [fault for fault in Fault if fault is not Fault.REPLY_DRIPS], ids=lambda fault: fault.name.lower()
)
@pytest.mark.parametrize("at", [0, 3, 6], ids=["list", "large file", "manifest"])
def test_a_bucket_that_stays_so_ends_an_upload_with_an_error(
    fault: Fault, at: int, server: GcsServer, proxy: FaultyProxy, opened: Bucket, make: Make
) -> None:
    folder = make(f"{fault} from {at}")
    proxy.spoil(fault, at, for_ever=True)
    error = error_of(lambda: upload.upload(opened, folder))
    assert error is not None, "it cannot know that all is there"
    assert proxy.spoiled
    is_whole_or_absent(server, folder)
    proxy.spoil(None)
    upload.upload(opened, folder)
    assert stored(server, folder) == content_of(folder)


FETCH = ["list", "MANIFEST.json", "log.txt", "run.json", "steps.csv"]


@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
def test_a_fetch_is_whole_or_absent_and_the_next_one_finishes_it(
    for_ever: bool, fault: Fault, proxy: FaultyProxy, opened: Bucket, make: Make, tmp_path: Path
) -> None:
    folder = make(str(fault))
    upload.upload(opened, folder)
    proxy.spoil(None)
    bring(opened, folder, tmp_path / "reference")
    count = len(proxy.served)
    assert count == len(FETCH), [sent.path for sent in proxy.served]
    for at in (0, 1, 2) if for_ever else range(count):
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
        again = bring(opened, folder, output)
        assert again.error is None
        assert content_of(output / folder.name) == content_of(folder)
