"""Unit tests touch nothing outside their process; a test marked `world` may."""

import atexit
import gc
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import hypothesis_profiles  # noqa: F401 - loads the profile `day`
import pytest

from analysis import figures
from analysis.loading.processes import Sharing
from tests import sshd
from workload.contract import invocation
from workload.contract.operating_system import SIGNALS

IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if IS_WORKER:
    # Two workers whose OpenMP threads spin for the same cores slow each other down tenfold.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Freeing all of torch object by object takes a worker up to ten seconds: it ends without, after all other handlers.
    atexit.register(os._exit, 0)


# A shell that runs the tests in the background ignores SIGINT in them, and nohup SIGHUP: their children would too.
for number in (SIGNALS[0], SIGNALS[2]):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


# Whoever asks for these fixtures needs what they start.
MARKED_BY_FIXTURE = {"cluster": "server", "sshd_machine": "server", "browser": "browser", "base_image": "docker"}


# Markers that a file has, in whichever tests.
LONGEST_FIRST: tuple[set[str], ...] = ({"server"}, {"slow", "world"}, {"browser"}, {"slow"}, set())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-golden", action="store_true", help="write the golden files anew; read `git diff` then")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: `text` is that of the committed file `golden/NAME` beside the test."""

    def compare(name: str, text: str) -> None:
        path = request.path.parent / "golden" / name
        if request.config.getoption("--refresh-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text.encode())
        assert path.exists(), f"no golden file {name}; write it with --refresh-golden"
        assert text == path.read_bytes().decode()

    return compare


@pytest.hookimpl(tryfirst=True)  # before pytest itself selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for fixture in MARKED_BY_FIXTURE.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(MARKED_BY_FIXTURE[fixture])
    # Files with long tests begin first, so that no process ends with one of them alone.
    names = defaultdict[Path, set[str]](set)
    for item in items:
        names[item.path] |= {mark.name for mark in item.iter_markers()}
    items.sort(key=lambda item: next(place for place, long in enumerate(LONGEST_FIRST) if long <= names[item.path]))


def pytest_collection_finish() -> None:
    """Thousands of collected tests live until the end: the garbage collector need not look at them again and again."""
    gc.freeze()


def pytest_unconfigure() -> None:
    if not IS_WORKER:
        gc.unfreeze()  # else libraries of torch report at exit what was not collected


def _forbid(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        pytest.fail(f"a unit test must not {what}; mark it `world` if it has to")

    return refuse


# Signals too: a fixture of their own costs two seconds of thousands of tests.
@pytest.fixture(autouse=True)
def closed_world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Network, processes and sleeping raise, and nothing of the developer's own or of the test before leaks in."""
    for name in [name for name in os.environ if name.startswith(("ROOFLAUNCH_", "SLURM_")) or name == "COLUMNS"]:
        monkeypatch.delenv(name)
    if not request.node.get_closest_marker("world"):
        monkeypatch.setattr(socket.socket, "connect", _forbid("use the network"))
        monkeypatch.setattr(subprocess, "Popen", _forbid("start a process"))
        monkeypatch.setattr(time, "sleep", _forbid("sleep"))
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    # A door that ran in this process leaves signals without effect, as its own end needs.
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def plain_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name our commands as where they are on PATH, whatever this machine's PATH and installation are."""
    call = invocation.Call(started="launch", python="", scripts="", path="", folder="")
    monkeypatch.setattr(invocation, "this_call", lambda: call)
    monkeypatch.setattr(invocation, "_is_on_path", lambda *_: True)
    monkeypatch.setattr(invocation, "_installing", lambda plain, _: plain)


@pytest.fixture(autouse=True, scope="session")
def nothing_flushed() -> Iterator[None]:
    """Files of tests need not survive a power cut: os.fsync waits for the disk, 4 ms a file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def libraries_made_here() -> Iterator[None]:
    """A page's libraries are made by the test's process, and not by another one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "begin_libraries", lambda: Sharing(figures._libraries, [None], others=0))
        yield


@pytest.fixture(scope="session")
def sshd_machine() -> Iterator[sshd.Machine]:
    """The machine that tests of ssh log in to; `machine` of their folders cleans it for each test."""
    with sshd.running() as machine:
        yield machine


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our wheel, built as its user builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    words = ("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(Path(__file__).parents[1]))
    built = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
    if built.returncode and "hatchling" in built.stderr:
        pytest.skip("no network: pip cannot get hatchling, which builds the wheel")
    assert built.returncode == 0, built.stderr
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, which draws our pages."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no chromium found (apt-get install chromium)")
    quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
    with sync_api.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=chromium, args=["--headless", "--no-sandbox", "--disable-gpu", *quiet], timeout=200_000
        )
        yield started
        started.close()


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """Log records of `workload` from level INFO on, and warnings of every logger.

    pytest's own `caplog` is switched off: for each test it attaches two handlers to every logger of torch.
    """
    records: list[logging.LogRecord] = []
    handler, root, ours = logging.Handler(), logging.getLogger(), logging.getLogger("workload")
    handler.emit = records.append  # type: ignore[assignment, method-assign]
    level, propagates = ours.level, ours.propagate
    ours.setLevel(logging.INFO)
    ours.propagate = True
    root.addHandler(handler)
    yield records
    root.removeHandler(handler)
    ours.setLevel(level)
    ours.propagate = propagates


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of 24 real JPEGs of two classes, 80 x 60 pixels."""
    from PIL import Image

    folder = tmp_path / "images"
    for index in range(24):
        path = folder / ("cat", "dog")[index % 2] / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((80, 60), 40 + index).convert("RGB").save(path, quality=90)
    return folder
