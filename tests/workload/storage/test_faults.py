"""Uploads and fetches through a proxy that spoils a request, or each from then on: whole or absent, never half."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.workload.storage import s3_server, strict_gcs, strict_s3
from tests.workload.storage.bundles import content_of, make_bundle
from tests.workload.storage.faulty_proxy import Fault, FaultyProxy, Sent
from workload.contract import bundle
from workload.contract.errors import ExitCode, RooflaunchError
from workload.storage import fetch, gcs, inventory, s3
from workload.storage.address import parse_source
from workload.storage.fetch import FetchReport, FetchState
from workload.storage.store import Patience, Store

pytestmark = [pytest.mark.world, pytest.mark.night(part="faults")]

# Long enough for a few repetitions, also on a busy machine, and no test waits for it but where every answer is spoiled.
IMPATIENT = Patience(first_answer_s=10.0, first_retry_s=2.0, retry_s=2.0, connect_s=2.0, read_s=2.0)
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
# The list of what is there, two small files, the large one in pieces, and the manifest.
UPLOADS = {
    "gcs": ["GET", *["POST multipart"] * 2, "POST resumable", "PUT resumable", "PUT resumable", "POST multipart"],
    "s3": ["GET", *["PUT"] * 2, "POST uploads", *["PUT partNumber"] * 3, "POST", "PUT"],
}
FETCHES = {"gcs": ["GET"] * 5, "s3": ["GET", "GET", "HEAD", *["GET"] * 3]}
FAULTS = pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """A bucket behind the proxy; `large_bytes`: size of a file that is sent in pieces."""

    kind: str
    server: Any
    proxy: FaultyProxy
    store: Store
    large_bytes: int

    def stored(self, folder: Path) -> dict[str, bytes]:
        """Files of a run, past the proxy."""
        prefix = f"runs/{folder.name}/"
        held = self.server.objects.items()
        return {name.removeprefix(prefix): bytes(each.content) for name, each in held if name.startswith(prefix)}

    def is_whole(self, folder: Path) -> bool:
        """Whether a run is whole. Without a manifest nobody counts it."""
        there = self.stored(folder)
        if bundle.MANIFEST in there:
            assert there == content_of(folder)
        return bundle.MANIFEST in there

    def bring(self, folder: Path, output: Path) -> FetchReport:
        source = parse_source(f"gs://{strict_gcs.BUCKET}/runs/{folder.name}")
        return fetch.fetch(self.store, source, output, jobs=1)

    def kinds(self) -> list[str]:
        """Requests that came to the proxy."""
        return [kind_of(sent) for sent in self.proxy.served]


def kind_of(sent: Sent) -> str:
    words = (sent.query.get("uploadType"), *({"uploads", "partNumber"} & sent.query.keys()))
    return " ".join([sent.method, *filter(None, words)])


@pytest.fixture(params=["gcs", "s3"])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    kind = request.param
    server = request.getfixturevalue("strict_gcs" if kind == "gcs" else "small_parts")
    with FaultyProxy(server) as proxy:
        if kind == "gcs":
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        else:
            s3_server.meet(proxy.url, request.getfixturevalue("strict_session"), monkeypatch)
        connect = gcs.connect if kind == "gcs" else s3.connect
        store = connect(strict_gcs.BUCKET, prefix="runs/", patience=IMPATIENT)
        large_bytes = 3 * strict_gcs.GRAIN_BYTES if kind == "gcs" else strict_s3.LARGE_BYTES
        yield Cloud(kind=kind, server=server, proxy=proxy, store=store, large_bytes=large_bytes)


Make = Callable[[], Path]


@pytest.fixture
def make(cloud: Cloud, tmp_path: Path) -> Make:
    """A bundle whose log.txt is sent in pieces, and the rest at one go."""
    log, numbers = os.urandom(cloud.large_bytes), iter(range(10_000))

    def make() -> Path:
        files = {"steps.csv": b"step,phase\n" + b"0,measured\n" * 20, "log.txt": log}
        made = make_bundle(tmp_path / "made", f"run-{next(numbers):06x}", files)
        cloud.proxy.spoil(None)
        return made

    return make


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
        words = ("<html", "slow down", "IncompleteRead", "HTTPConnectionPool")
        assert not any(word in str(ended) for word in words), str(ended)
    return ended


@FAULTS
def test_an_upload_is_whole_or_absent_and_the_next_one_finishes_it(
    fault: Fault, cloud: Cloud, make: Make, tmp_path: Path
) -> None:
    inventory.upload(cloud.store, make())
    assert cloud.kinds() == UPLOADS[cloud.kind]
    for at, request in enumerate(UPLOADS[cloud.kind]):
        folder = make()
        cloud.proxy.spoil(fault, at)
        error = error_of(lambda folder=folder: inventory.upload(cloud.store, folder))  # type: ignore[misc]
        assert cloud.proxy.spoiled == 1, at
        whole = cloud.is_whole(folder)
        assert whole or error, "what is said to be there is there"
        if fault in PASSING:
            assert error is None, f"{request}, request {at}: {error.report()}"
        cloud.proxy.spoil(None)
        assert bool(cloud.bring(folder, tmp_path / "before").count(FetchState.FETCHED)) is whole
        inventory.upload(cloud.store, folder)
        assert cloud.stored(folder) == content_of(folder)


@FAULTS
@pytest.mark.parametrize("at", [0, 3, -1], ids=["list", "large file", "manifest"])
def test_a_bucket_that_stays_so_ends_an_upload_with_an_error(fault: Fault, at: int, cloud: Cloud, make: Make) -> None:
    if fault is Fault.REPLY_DRIPS:
        pytest.skip("it harms nothing")
    folder = make()
    cloud.proxy.spoil(fault, at % len(UPLOADS[cloud.kind]), for_ever=True)
    error = error_of(lambda: inventory.upload(cloud.store, folder))
    assert cloud.proxy.spoiled
    whole = cloud.is_whole(folder)
    assert error is not None or (whole and cloud.kind == "s3"), "of Cloud Storage it cannot know that all is there"
    cloud.proxy.spoil(None)
    inventory.upload(cloud.store, folder)
    assert cloud.stored(folder) == content_of(folder)


@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for ever"])
@FAULTS
def test_a_fetch_is_whole_or_absent_and_the_next_one_finishes_it(
    for_ever: bool, fault: Fault, cloud: Cloud, make: Make, tmp_path: Path
) -> None:
    folder = make()
    inventory.upload(cloud.store, folder)
    cloud.proxy.spoil(None)
    cloud.bring(folder, tmp_path / "reference")
    assert cloud.kinds() == FETCHES[cloud.kind]
    # The list, the manifest and the first file.
    for at in (0, 1, 2 if cloud.kind == "gcs" else 3) if for_ever else range(len(FETCHES[cloud.kind])):
        output = tmp_path / f"results-{at}"
        cloud.proxy.spoil(fault, at, for_ever=for_ever)
        reports: list[FetchReport] = []
        error = error_of(lambda output=output, reports=reports: reports.append(cloud.bring(folder, output)))  # type: ignore[misc]
        assert cloud.proxy.spoiled
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
        cloud.proxy.spoil(None)
        assert cloud.bring(folder, output).error is None
        assert content_of(output / folder.name) == content_of(folder)
