"""`analyze fetch` against the real fake-gcs-server, over HTTP, in processes of its own where it gets killed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from analysis.commands.fetch import run_fetch
from tests.waiting import until
from tests.workload.storage.bundles import STEPS, content_of, make_bundle
from tests.workload.storage.gcs_server import BUCKET, GcsServer, Relay
from workload.contract import bundle
from workload.contract.errors import BundleError, ExitCode, ToolError, UsageError
from workload.storage import fetch
from workload.storage import gcs as bucket
from workload.storage.address import parse_source
from workload.storage.store import Patience, UnreachableError

pytestmark = [pytest.mark.world, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
MEBIBYTE = 1 << 20
# The door without what else it loads; the last line of stderr is the process's largest memory, in kB
# (`ru_maxrss` would count the test's own process, from before the exec).
DOOR = """
import pathlib, re, sys, typer
from analysis.commands.fetch import run_fetch
from workload.contract.errors import RooflaunchError
app = typer.Typer()
app.command()(run_fetch)
try:
    code = typer.main.get_command(app).main(sys.argv[1:], standalone_mode=False)
except RooflaunchError as error:
    print(error.report(), file=sys.stderr)
    code = error.exit_code
status = pathlib.Path("/proc/self/status")
print(re.search("VmHWM:\\s+(\\d+)", status.read_text())[1] if status.exists() else 0, file=sys.stderr)
sys.exit(code)
"""
Make = Callable[..., Path]


@pytest.fixture
def server(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> GcsServer:
    """One server for all tests of this file; each test uses a prefix of its own."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    return server


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W", "-", request.node.name)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A real, complete bundle; its log.txt has `size` bytes that do not repeat."""

    def make(index: int = 0, *, size: int = 20) -> Path:
        files = {"steps.csv": STEPS, "telemetry.csv": b"t_s\n", "log.txt": os.urandom(size), "ncu/kernels.csv": b"ID\n"}
        return make_bundle(tmp_path / "made", f"20261121T142530Z-local-cpu-resnet18-b16-fp32-{index:06x}", files)

    return make


def start(url: str, *arguments: str, limit: str = "") -> subprocess.Popen[str]:
    environment = os.environ | {"STORAGE_EMULATOR_HOST": url}
    return subprocess.Popen(
        [sys.executable, "-c", limit + DOOR, *arguments],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_200_bundles_in_parallel(server: GcsServer, prefix: str, make: Make, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda index: server.put_folder(make(index), f"{prefix}/"), range(200)))
    source = parse_source(f"gs://{BUCKET}/{prefix}")
    downloads = []
    for here in (0, 200):
        before = len(server.downloads())
        opened = bucket.connect(BUCKET, prefix=source.prefix, jobs=8)
        report = fetch.fetch(opened, source, tmp_path / "many", jobs=8)
        assert (len(report.outcomes), report.count(fetch.FetchState.SKIPPED), report.error) == (200, here, None)
        downloads.append(len(server.downloads()) - before)
    assert downloads[0] > 200
    assert downloads[1] == 0
    for folder in (tmp_path / "many").iterdir():
        assert content_of(folder) == content_of(tmp_path / "made" / folder.name)


def test_killed_and_continued(server: GcsServer, prefix: str, make: Make, tmp_path: Path) -> None:
    small, large = make(0), make(1, size=3 * MEBIBYTE)
    server.put_folder(small, f"{prefix}/")
    server.put_folder(large, f"{prefix}/")
    output = tmp_path / "results"
    arguments = [f"gs://{BUCKET}/{prefix}", "-o", str(output), "--at-a-time", "1"]
    with Relay(server, limit_bytes=2 * MEBIBYTE) as relay, start(relay.url, *arguments) as killed:
        assert relay.reached.wait(60)
        until(lambda: piece_bytes(output) > MEBIBYTE)
        killed.send_signal(signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
    bundle.read(output / small.name)
    with pytest.raises(BundleError):
        bundle.read(output / large.name)
    assert "MANIFEST.json" not in content_of(output / large.name)
    before = len(server.downloads())
    assert run_fetch(source=arguments[0], output=output) == ExitCode.DONE
    assert content_of(output / large.name) == content_of(large)
    again = [(name.rpartition("/")[2], status) for name, status, _ in server.downloads()[before:]]
    assert ("log.txt", 200) in again
    assert small.name not in {name.rpartition("/")[0] for name, _ in again}, "a complete run is not downloaded again"


def piece_bytes(output: Path) -> int:
    return sum(path.stat().st_size for path in output.glob("*/.fetch/*"))


def test_ctrl_c_does_not_wait_for_the_network(server: GcsServer, prefix: str, make: Make, tmp_path: Path) -> None:
    server.put_folder(make(size=3 * MEBIBYTE), f"{prefix}/")
    output = tmp_path / "results"
    with (
        Relay(server, limit_bytes=2 * MEBIBYTE) as relay,
        start(relay.url, f"gs://{BUCKET}/{prefix}", "-o", str(output)) as stopped,
    ):
        assert relay.reached.wait(60)
        stopped.send_signal(signal.SIGINT)
        # The relay keeps the connection open, and silent, until it is closed itself.
        out, err = stopped.communicate()
    assert stopped.returncode == ExitCode.INTERRUPTED
    assert out == ""
    assert err.splitlines()[:2] == [
        "error: interrupted by Ctrl-C",
        "hint: the same command continues where it stopped",
    ]
    assert run_fetch(source=f"gs://{BUCKET}/{prefix}", output=output) == ExitCode.DONE


def test_a_broken_connection_goes_unnoticed(
    server: GcsServer, prefix: str, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(size=3 * MEBIBYTE)
    server.put_folder(folder, f"{prefix}/")
    with Relay(server, limit_bytes=2 * MEBIBYTE, breaks=True) as relay:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", relay.url)
        assert run_fetch(source=f"gs://{BUCKET}/{prefix}", output=tmp_path / "results") == ExitCode.DONE
        assert relay.reached.is_set()
    assert content_of(tmp_path / "results" / folder.name) == content_of(folder)


def test_memory_stays_flat(server: GcsServer, prefix: str, make: Make, tmp_path: Path) -> None:
    peak_kb = {}
    for size in (20, 64 * MEBIBYTE):
        server.put_folder(make(size, size=size), f"{prefix}/{size}/")
        with start(server.url, f"gs://{BUCKET}/{prefix}/{size}", "-o", str(tmp_path / "results")) as process:
            _, err = process.communicate()
        assert process.returncode == 0
        peak_kb[size] = int(err.splitlines()[-1])
    print(peak_kb)
    assert peak_kb[64 * MEBIBYTE] - peak_kb[20] < 16_000


@pytest.mark.usefixtures("server")
def test_a_bucket_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        run_fetch(source="gs://no-such-bucket/x", output=tmp_path)
    assert caught.value.report() == (
        "error: bucket 'no-such-bucket' does not exist\nhint: gcloud storage ls (STORAGE_EMULATOR_HOST is set)"
    )


def test_an_unreachable_bucket_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        urls = [f"http://127.0.0.1:{each.getsockname()[1]}" for each in (silent, closed)]
        processes = [start(url, "gs://some-bucket/x", "-o", str(tmp_path)) for url in urls]
        said = []
        for process in reversed(processes):
            with process:
                said.append(process.communicate()[1].splitlines()[:2])
            assert process.returncode == ExitCode.TOOL
    hint = "hint: start the server at this address, or unset STORAGE_EMULATOR_HOST"
    assert said == [
        [f"error: bucket 'some-bucket' cannot be reached at {urls[1]}: Connection refused", hint],
        [f"error: bucket 'some-bucket' cannot be reached at {urls[0]}: no answer within 8 s", hint],
    ]


def test_a_token_that_never_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        account = {
            "type": "service_account",
            "client_email": "me@example.invalid",
            "private_key": key.decode(),
            "token_uri": f"http://127.0.0.1:{silent.getsockname()[1]}/token",
        }
        (tmp_path / "key.json").write_text(json.dumps(account))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
        with pytest.raises(UnreachableError, match=r": no answer within 1 s$"):
            bucket.connect("some-bucket", prefix="", patience=Patience(first_answer_s=1))


def test_without_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(ToolError) as caught:
        bucket.connect("some-bucket", prefix="")
    lines = caught.value.report().splitlines()
    assert lines[0].startswith("error: no usable credentials for Google Cloud: Your default credentials were not found")
    assert lines[1:] == ["hint: gcloud auth application-default login"]


def test_an_output_that_cannot_be_written(server: GcsServer, prefix: str, make: Make, tmp_path: Path) -> None:
    server.put_folder(make(), f"{prefix}/")
    (tmp_path / "file").write_text("")
    output = tmp_path / "file" / "results"
    with pytest.raises(UsageError, match=f"^output folder '{output}' cannot be written: Not a directory$"):
        run_fetch(source=f"gs://{BUCKET}/{prefix}", output=output)


def test_the_command_loads_no_google_module_before_it_runs() -> None:
    heavy = ("google", "requests", "urllib3", "workload.storage.gcs", "workload.storage.fetch", "pandas")
    code = f"import sys, analysis.commands.fetch; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
