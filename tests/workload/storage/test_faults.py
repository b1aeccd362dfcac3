"""Uploads and fetches through a proxy that spoils a request, or each from then on: whole or absent, never half."""

import json
import os
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.workload.storage import gcs_server, s3_server, strict_s3
from tests.workload.storage.bundles import content_of, make_bundle
from tests.workload.storage.faulty_proxy import Fault, FaultyProxy, Sent
from tests.workload.storage.gcs_server import GcsServer
from tests.workload.storage.strict_s3 import LARGE_BYTES, StrictS3
from workload.contract import bundle
from workload.contract.errors import ExitCode, RooflaunchError
from workload.storage import fetch, gcs, inventory, s3
from workload.storage.address import parse_source
from workload.storage.fetch import FetchReport, FetchState
from workload.storage.store import Patience, Store

pytestmark = [pytest.mark.world, pytest.mark.night(part="faults")]

# Long enough for a few repetitions, also on a busy machine, and no test waits for it but where every answer is spoiled.
IMPATIENT = Patience(first_answer_s=10.0, first_retry_s=2.0, retry_s=2.0, connect_s=2.0, read_s=2.0)
GRAIN_BYTES = 256 * 1024
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
# fake-gcs-server 1.54 keeps a chunk twice that is sent again; Cloud Storage does not: test_upload.py has one like it.
KEPT_TWICE = {("gcs", fault, 4) for fault in (Fault.REPLY_LOST, Fault.REPLY_BREAKS, Fault.REPLY_CUT)}
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
    """A bucket behind the proxy; `large_bytes`: of a file that is sent in pieces; `held`: objects below a prefix."""

    kind: str
    proxy: FaultyProxy
    store: Store
    address: str
    large_bytes: int
    held: Callable[[str], dict[str, bytes]]

    def stored(self, folder: Path) -> dict[str, bytes]:
        """Files of a run, asked past the proxy."""
        prefix = f"runs/{folder.name}/"
        return {name.removeprefix(prefix): content for name, content in self.held(prefix).items()}

    def is_whole(self, folder: Path) -> bool:
        """Whether a run is whole. Without a manifest nobody counts it."""
        there = self.stored(folder)
        if bundle.MANIFEST in there:
            assert there == content_of(folder)
        return bundle.MANIFEST in there

    def bring(self, folder: Path, output: Path) -> FetchReport:
        return fetch.fetch(self.store, parse_source(f"{self.address}/runs/{folder.name}"), output, jobs=1)

    def kinds(self) -> list[str]:
        """Requests that came to the proxy."""
        return [kind_of(sent) for sent in self.proxy.served]


def kind_of(sent: Sent) -> str:
    words = (sent.query.get("uploadType"), *({"uploads", "partNumber"} & sent.query.keys()))
    return " ".join([sent.method, *filter(None, words)])


@pytest.fixture(params=["gcs", "s3"])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """A failed request is repeated at once."""
    if request.param == "gcs":
        from google.cloud.storage import blob, retry

        monkeypatch.setattr(retry, "DEFAULT_RETRY", retry.DEFAULT_RETRY.with_delay(initial=0.01, maximum=0.02))
        monkeypatch.setattr(blob, "_MAX_MULTIPART_SIZE", GRAIN_BYTES)
        monkeypatch.setattr(gcs, "CHUNK_BYTES", 2 * GRAIN_BYTES)
        server: GcsServer = request.getfixturevalue("server")
        with FaultyProxy(server) as proxy:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
            yield Cloud(
                kind="gcs",
                proxy=proxy,
                store=gcs.connect(gcs_server.BUCKET, prefix="runs/", patience=IMPATIENT),
                address=f"gs://{gcs_server.BUCKET}",
                large_bytes=3 * GRAIN_BYTES,
                held=lambda prefix: held_by(server, prefix),
            )
        return
    strict: StrictS3 = request.getfixturevalue("small_parts")
    with FaultyProxy(strict) as proxy:
        s3_server.meet(proxy.url, request.getfixturevalue("strict_session"), monkeypatch)
        yield Cloud(
            kind="s3",
            proxy=proxy,
            store=s3.connect(strict_s3.BUCKET, prefix="runs/", patience=IMPATIENT),
            address=f"s3://{strict_s3.BUCKET}",
            large_bytes=LARGE_BYTES,
            held=lambda prefix: {
                name: object_.content for name, object_ in strict.objects.items() if name.startswith(prefix)
            },
        )


Make = Callable[[str], Path]


@pytest.fixture
def make(cloud: Cloud, tmp_path: Path) -> Make:
    """A bundle whose log.txt is sent in pieces, and the rest at one go."""
    log, numbers = os.urandom(cloud.large_bytes), iter(range(10_000))

    def make(name: str) -> Path:
        run_id = f"{abs(hash((str(tmp_path), name))):x}-{next(numbers):06x}"
        files = {"steps.csv": b"step,phase\n" + b"0,measured\n" * 20, "log.txt": log}
        made = make_bundle(tmp_path / "made", run_id, files)
        cloud.proxy.spoil(None)
        return made

    return make


def held_by(server: GcsServer, prefix: str) -> dict[str, bytes]:
    base = f"{server.url}/storage/v1/b/{gcs_server.BUCKET}/o"
    names = [item["name"] for item in json.loads(got(f"{base}?prefix={prefix}")).get("items", [])]
    download = base.replace("/storage/", "/download/storage/")
    return {name: got(f"{download}/{name.replace('/', '%2F')}?alt=media") for name in names}


def got(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=100) as answer:
        return bytes(answer.read())


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
    inventory.upload(cloud.store, make("first"))
    assert cloud.kinds() == UPLOADS[cloud.kind]
    for at, request in enumerate(UPLOADS[cloud.kind]):
        folder = make(f"{fault} at {at}")
        cloud.proxy.spoil(fault, at)
        error = error_of(lambda folder=folder: inventory.upload(cloud.store, folder))  # type: ignore[misc]
        assert cloud.proxy.spoiled == 1, at
        whole = cloud.is_whole(folder)
        assert whole or error, "what is said to be there is there"
        if fault in PASSING and (cloud.kind, fault, at) not in KEPT_TWICE:
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
    folder = make(f"{fault} from {at}")
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
    folder = make(str(fault))
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
