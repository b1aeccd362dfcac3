"""Uploads to the real fake-gcs-server, over HTTP, in processes of their own where they get killed."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.workload.storage import gcs_server
from tests.workload.storage.gcs_server import BUCKET, GcsServer, Relay
from workload.contract import bundle
from workload.contract.checksum import crc32c_of
from workload.contract.errors import BundleError
from workload.storage import fetch, upload
from workload.storage import gcs as bucket
from workload.storage.address import parse_source
from workload.storage.fetch import FetchState
from workload.storage.gcs import Bucket

pytestmark = pytest.mark.world

ROOT = Path(__file__).parents[3]
MEBIBYTE = 1 << 20
# The last line is the process's largest memory, in kB (`ru_maxrss` would count the test's own, from before the exec).
SCRIPT = f"""
import pathlib, re, sys
from workload.storage import upload
from workload.storage import gcs as bucket
found = upload.upload(bucket.connect("{BUCKET}", prefix="runs/"), pathlib.Path(sys.argv[1]))
status = pathlib.Path("/proc/self/status")
print(found.files, found.bytes)
print(re.search("VmHWM:\\\\s+(\\\\d+)", status.read_text())[1] if status.exists() else 0)
"""
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def _running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    with gcs_server.running(tmp_path_factory.mktemp("gcs") / "log") as server:
        yield server


@pytest.fixture
def server(_running: GcsServer, monkeypatch: pytest.MonkeyPatch) -> GcsServer:
    """One server for all tests of this file, run ids never repeat; a failed request is repeated at once."""
    from google.cloud.storage import retry

    monkeypatch.setattr(retry, "DEFAULT_RETRY", retry.DEFAULT_RETRY.with_delay(initial=0.02, maximum=0.1))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", _running.url)
    return _running


@pytest.fixture
def opened(server: GcsServer) -> Bucket:
    assert server.url == os.environ["STORAGE_EMULATOR_HOST"]
    return bucket.connect(BUCKET, prefix="runs/", jobs=8)


@pytest.fixture
def make(tmp_path: Path, request: pytest.FixtureRequest) -> Make:
    """A real, complete bundle; its log.txt has `size` bytes that do not repeat."""

    def make_bundle(index: int = 0, *, size: int = 20) -> Path:
        folder = bundle.create(tmp_path / "made", f"{re.sub(r'[^a-z0-9]+', '-', request.node.name)}-{index:06x}")
        bundle.write_document(folder, {"run_id": folder.name, "status": "completed", "index": index})
        (folder / "steps.csv").write_text("step,phase\n" + f"{index},measured\n" * 100)
        (folder / "log.txt").write_bytes(os.urandom(size))
        (folder / "empty.txt").touch()
        (folder / "ncu").mkdir()
        (folder / "ncu" / "kernels.csv").write_text("ID\n")
        bundle.seal(folder)
        return folder

    return make_bundle


def content_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def bring(opened: Bucket, folder: Path, output: Path) -> fetch.FetchedRun:
    """Fetch the run of this folder by its id."""
    source = parse_source(f"gs://{BUCKET}/runs/{folder.name}")
    (outcome,) = fetch.fetch(opened, source, output, incomplete=True).outcomes
    return outcome


def start(url: str, folder: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"STORAGE_EMULATOR_HOST": url}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder)], cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE
    )


def test_what_is_uploaded_is_fetched(opened: Bucket, make: Make, tmp_path: Path) -> None:
    folder = make(size=12 * MEBIBYTE)
    assert upload.upload(opened, folder).files == 6
    assert upload.upload(opened, folder) == upload.Uploaded(run_id=folder.name, files=0, bytes=0)
    assert bring(opened, folder, tmp_path / "results").state is FetchState.FETCHED
    assert content_of(tmp_path / "results" / folder.name) == content_of(folder)


@pytest.mark.slow
def test_many_bundles_at_a_time(opened: Bucket, make: Make, tmp_path: Path) -> None:
    folders = [make(index) for index in range(40)]
    began_s = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        assert {each.files for each in pool.map(lambda folder: upload.upload(opened, folder), folders)} == {6}
    print(f"40 bundles of 6 files in {time.perf_counter() - began_s:.2f} s")
    report = fetch.fetch(opened, parse_source(f"gs://{BUCKET}/runs"), tmp_path / "results")
    assert report.error is None
    for folder in folders:
        assert content_of(tmp_path / "results" / folder.name) == content_of(folder)


@pytest.mark.parametrize("limit", [3 * MEBIBYTE, 9 * MEBIBYTE], ids=["first-chunk", "second-chunk"])
def test_a_broken_connection_goes_unnoticed(
    limit: int, server: GcsServer, opened: Bucket, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(size=12 * MEBIBYTE)
    with Relay(server, limit_bytes=limit, breaks=True, of_uploads=True) as relay:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", relay.url)
        upload.upload(bucket.connect(BUCKET, prefix="runs/"), folder)
        assert relay.reached.is_set()
    assert bring(opened, folder, tmp_path / "results").state is FetchState.FETCHED
    assert content_of(tmp_path / "results" / folder.name) == content_of(folder)


@pytest.mark.slow
def test_killed_and_repeated(server: GcsServer, opened: Bucket, make: Make, tmp_path: Path) -> None:
    folder = make(size=12 * MEBIBYTE)
    with Relay(server, limit_bytes=9 * MEBIBYTE, of_uploads=True) as relay, start(relay.url, folder) as killed:
        assert relay.reached.wait(60)
        killed.send_signal(signal.SIGKILL)
        assert killed.wait(60) == -signal.SIGKILL
    assert bring(opened, folder, tmp_path / "partial").state is FetchState.INCOMPLETE
    with pytest.raises(BundleError):
        bundle.read(tmp_path / "partial" / folder.name)
    found = upload.upload(opened, folder)
    assert found.files == 2, "log.txt, which had begun, and the manifest"
    assert bring(opened, folder, tmp_path / "results").state is FetchState.FETCHED
    assert content_of(tmp_path / "results" / folder.name) == content_of(folder)


@pytest.mark.slow
def test_memory_stays_flat(server: GcsServer, make: Make) -> None:
    peak_kb = {}
    for size in (20, 40 * MEBIBYTE):
        with start(server.url, make(size, size=size)) as process:
            out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        peak_kb[size] = int(out.splitlines()[-1])
    print(peak_kb)
    # One chunk of 8 MiB, and what the layers below hold of it.
    assert peak_kb[40 * MEBIBYTE] - peak_kb[20] < 30_000


def test_an_object_is_made_once(opened: Bucket, make: Make) -> None:
    folder = make()
    name = f"launches/{folder.name}/result.json"
    assert opened.read(name) is None
    assert opened.write(name, b"1", if_absent=True) is True
    assert opened.write(name, b"2", if_absent=True) is False
    assert opened.read(name) == b"1"
    assert folder.name in opened.folders("launches/")
    path = folder / "steps.csv"
    with path.open("rb") as content:
        checksum = crc32c_of(content)
    with pytest.raises(BundleError, match=rf"^another '{name}' is in bucket '{BUCKET}' already$"):
        opened.upload(name, path, crc32c=checksum)
    assert opened.read(name) == b"1"
