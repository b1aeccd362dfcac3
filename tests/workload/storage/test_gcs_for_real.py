"""Uploads and fetches with the real fake-gcs-server, over HTTP, in processes that are interrupted or measured."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.commands.fetch import run_fetch
from tests.workload.storage.bundles import STEPS, content_of, make_bundle
from tests.workload.storage.gcs_server import BUCKET, GcsServer, Relay
from workload.contract import bundle
from workload.contract.errors import BundleError, ExitCode
from workload.storage import fetch, inventory
from workload.storage import gcs as bucket
from workload.storage.address import parse_source
from workload.storage.fetch import FetchState

pytestmark = [pytest.mark.world, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
MEBIBYTE = 1 << 20
# The last line is the process's largest memory, in kB (`ru_maxrss` would count the test's own, from before the exec).
PEAK = """
status = pathlib.Path("/proc/self/status")
print(re.search("VmHWM:\\\\s+(\\\\d+)", status.read_text())[1] if status.exists() else 0)
"""
UPLOAD = f"""
import pathlib, re, sys
from workload.storage import inventory
from workload.storage import gcs as bucket
inventory.upload(bucket.connect("{BUCKET}", prefix="runs/"), pathlib.Path(sys.argv[1]))
{PEAK}"""
FETCH = f"""
import pathlib, re, sys, typer
from analysis.commands.fetch import run_fetch
from workload.contract.errors import RooflaunchError
app = typer.Typer()
app.command()(run_fetch)
try:
    code = typer.main.get_command(app).main(sys.argv[1:], standalone_mode=False)
except RooflaunchError as error:
    print(error.report(), file=sys.stderr)
    sys.exit(error.exit_code)
{PEAK}"""
Make = Callable[..., Path]


@pytest.fixture
def server(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> GcsServer:
    """One server for all tests of this file, run ids never repeat."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    return server


@pytest.fixture
def make(tmp_path: Path, request: pytest.FixtureRequest) -> Make:
    """A real, complete bundle; its log.txt has `size` bytes that do not repeat."""

    def make(*, size: int = 20) -> Path:
        run_id = f"{re.sub(r'[^a-z0-9]+', '-', request.node.name)}-{size:06x}"
        files = {"steps.csv": STEPS, "log.txt": os.urandom(size), "ncu/kernels.csv": b"ID\n"}
        return make_bundle(tmp_path / "made", run_id, files)

    return make


def start(program: str, url: str, *words: str) -> subprocess.Popen[str]:
    environment = os.environ | {"STORAGE_EMULATOR_HOST": url}
    command = [sys.executable, "-c", program, *words]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def peak_kb(program: str, url: str, *words: str) -> int:
    with start(program, url, *words) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    return int(out.splitlines()[-1])


def test_an_upload_that_is_killed_within_a_file_leaves_an_incomplete_run(
    server: GcsServer, make: Make, tmp_path: Path
) -> None:
    folder = make(size=12 * MEBIBYTE)
    opened, source = bucket.connect(BUCKET, prefix="runs/"), parse_source(f"gs://{BUCKET}/runs/{folder.name}")
    with (
        Relay(server, limit_bytes=9 * MEBIBYTE, of_uploads=True) as relay,
        start(UPLOAD, relay.url, str(folder)) as killed,
    ):
        assert relay.reached.wait(60)
        killed.send_signal(signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
    (outcome,) = fetch.fetch(opened, source, tmp_path / "partial", incomplete=True).outcomes
    assert outcome.state is FetchState.INCOMPLETE
    with pytest.raises(BundleError):
        bundle.read(tmp_path / "partial" / folder.name)
    assert inventory.upload(opened, folder).files == 2, "log.txt, which had begun, and the manifest"
    fetch.fetch(opened, source, tmp_path / "results")
    assert content_of(tmp_path / "results" / folder.name) == content_of(folder)


def test_ctrl_c_does_not_wait_for_the_network(server: GcsServer, make: Make, tmp_path: Path) -> None:
    folder = make(size=3 * MEBIBYTE)
    inventory.upload(bucket.connect(BUCKET, prefix="runs/"), folder)
    address, output = f"gs://{BUCKET}/runs/{folder.name}", tmp_path / "results"
    with (
        Relay(server, limit_bytes=2 * MEBIBYTE) as relay,
        start(FETCH, relay.url, address, "-o", str(output)) as stopped,
    ):
        assert relay.reached.wait(60)
        stopped.send_signal(signal.SIGINT)
        # The relay keeps the connection open, and silent, until it is closed itself.
        out, err = stopped.communicate()
    assert (stopped.returncode, out) == (ExitCode.INTERRUPTED, "")
    assert err.splitlines()[:2] == [
        "error: interrupted by Ctrl-C",
        "hint: the same command continues where it stopped",
    ]
    assert run_fetch(source=address, output=output) == ExitCode.DONE


def test_memory_stays_flat(server: GcsServer, make: Make, tmp_path: Path) -> None:
    sent, fetched = [], []
    for size in (20, 40 * MEBIBYTE):
        folder = make(size=size)
        sent.append(peak_kb(UPLOAD, server.url, str(folder)))
        address = f"gs://{BUCKET}/runs/{folder.name}"
        fetched.append(peak_kb(FETCH, server.url, address, "-o", str(tmp_path / "results")))
    # One chunk of 8 MiB, and what the layers below hold of it.
    assert sent[1] - sent[0] < 30_000, sent
    assert fetched[1] - fetched[0] < 16_000, fetched
