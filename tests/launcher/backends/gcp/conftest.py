import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.backends.gcp import answers
from launcher.backends.gcp import compute as border
from launcher.backends.gcp import plan as planning
from launcher.backends.gcp.compute import Compute
from launcher.images import contents
from tests.launcher.backends.gcp.canned_cloud import Clouds, clouds_on
from tests.launcher.backends.gcp.command_world import Done, Launch, World
from tests.launcher.backends.gcp.fake_compute import Clock, FakeCompute
from tests.launcher.backends.gcp.gcp_plans import BOOT, GUEST, SCRIPT, SHUTDOWN
from tests.workload.storage.gcs_server import GcsServer, running


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """One bucket for all; launches have names of their own."""
    with running(tmp_path_factory.mktemp("gcs") / "gcs.log") as found:
        yield found


@pytest.fixture
def clouds(gcs: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clouds:
    """Worlds to launch in, each a context manager."""
    return clouds_on(gcs, tmp_path, monkeypatch)


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Launch:
    """`launch(world, *words)`, in a folder of its own, and outside any git repository."""
    monkeypatch.chdir(tmp_path)
    # The commit is part of an image's name, and asks git.
    monkeypatch.setattr(contents, "current_commit", lambda: "")

    def run(world: World, *words: str) -> Done:
        world.meet(monkeypatch)
        monkeypatch.setattr(sys, "argv", ["launch", *words])
        with world.busy():
            code = main()
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCompute]:
    with FakeCompute(page_size=2) as fake:
        monkeypatch.setenv(answers.ENDPOINT_VARIABLE, fake.url)
        yield fake


@pytest.fixture
def compute(fake: FakeCompute, clock: Clock) -> Compute:
    assert fake.url
    return border.connect("test-project", sleep=clock.sleep, monotonic=clock.now)


@pytest.fixture
def made_up_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up text for the programs of a VM: a plan can have it only from these files."""
    (tmp_path / "startup.sh").write_text(SCRIPT)
    (tmp_path / "boot.py").write_text(BOOT)
    (tmp_path / "guest.py").write_text(GUEST)
    (tmp_path / "shutdown.sh").write_text(SHUTDOWN)
    monkeypatch.setattr(planning, "PROGRAM_FOLDER", tmp_path)
