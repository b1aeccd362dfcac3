"""Uploads to the real fake-gcs-server, over HTTP, in processes of their own where they get killed."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workload.storage.bundles import STEPS, content_of, make_bundle
from tests.workload.storage.gcs_server import BUCKET, GcsServer, Relay
from workload.contract import bundle
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


@pytest.fixture
def server(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> GcsServer:
    """One server for all tests of this file, run ids never repeat; a failed request is repeated at once."""
    from google.cloud.storage import retry

    monkeypatch.setattr(retry, "DEFAULT_RETRY", retry.DEFAULT_RETRY.with_delay(initial=0.02, maximum=0.1))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    return server


@pytest.fixture
def opened(server: GcsServer) -> Bucket:
    assert server.url == os.environ["STORAGE_EMULATOR_HOST"]
    return bucket.connect(BUCKET, prefix="runs/", jobs=8)


@pytest.fixture
def make(tmp_path: Path, request: pytest.FixtureRequest) -> Make:
    """A real, complete bundle; its log.txt has `size` bytes that do not repeat."""

    def make(index: int = 0, *, size: int = 20) -> Path:
        run_id = f"{re.sub(r'[^a-z0-9]+', '-', request.node.name)}-{index:06x}"
        files = {"steps.csv": STEPS, "log.txt": os.urandom(size), "empty.txt": b"", "ncu/kernels.csv": b"ID\n"}
        return make_bundle(tmp_path / "made", run_id, files)

    return make


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
        assert killed.wait() == -signal.SIGKILL
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
            out, _ = process.communicate()
        assert process.returncode == 0
        peak_kb[size] = int(out.splitlines()[-1])
    print(peak_kb)
    # One chunk of 8 MiB, and what the layers below hold of it.
    assert peak_kb[40 * MEBIBYTE] - peak_kb[20] < 30_000
