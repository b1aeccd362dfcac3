"""The wheel, built and installed for real: its files, its commit, and what works with no extra installed."""

import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.images.contents import AGENT_FILES
from workload import __version__
from workload.contract.errors import ExitCode
from workload.environment.collect import commit_facts
from workload.environment.machine import HostSystem

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.world


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder)


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of programs of an environment with the wheel and its requirements, but no extra."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder)
    into = ("--python", str(folder / "bin/python"), "install", "--quiet", "--disable-pip-version-check", str(wheel))
    installed = run(sys.executable, "-m", "pip", *into, folder=folder)
    assert installed.returncode == 0, installed.stderr
    return folder / "bin"


@pytest.mark.slow
def test_the_wheel_has_its_commit_its_links_and_all_that_builds_an_image(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        commit = archive.read("workload/commit.txt").decode().strip()
        metadata = archive.read(f"rooflaunch-{__version__}.dist-info/METADATA").decode()
    head = run("git", "rev-parse", "HEAD", folder=ROOT).stdout.strip()
    assert commit in (head, f"{head}-dirty")
    assert "Project-URL: Repository, https://" in metadata
    needed = {"rooflaunch/__init__.py", "rooflaunch/__main__.py", "launcher/image/docker/Dockerfile"}
    assert {*AGENT_FILES, *needed, "launcher/image/docker/images.toml"} <= names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        pytest.param(["launch", "--help"], 0, "local", id="help"),
        pytest.param(["launch", "--version"], 0, __version__, id="version"),
        pytest.param(["launch", "local", "--cpu", "--dry-run", "--runtime", "process"], 0, "resnet18", id="a plan"),
        pytest.param(["launch", "gcp", "--gpu", "t4", "--project", "p-1-2-3", "--dry-run"], 0, "n1", id="a VM's plan"),
        pytest.param(
            ["launch", "status", "--project", "p-1-2-3"],
            ExitCode.TOOL,
            "-m pip install 'rooflaunch[gcp] @ file://",
            id="no client",
        ),
        pytest.param(
            ["analyze", "summary", "x"], ExitCode.TOOL, "-m pip install 'rooflaunch[analysis] @ file://", id="no pandas"
        ),
        pytest.param(
            ["analyze", "gpu-truth", "x"],
            ExitCode.USAGE,
            "gpu-truth is part of the repository, not of the installed package",
            id="no evidence of GPUs",
        ),
        pytest.param(
            ["python", "-m", "workload", "gpu-truth"],
            ExitCode.USAGE,
            "gpu-truth is part of the repository, not of the installed package",
            id="no collector",
        ),
    ],
)
def test_without_extras_the_launcher_works(bare: Path, tmp_path: Path, words: list[str], code: int, text: str) -> None:
    done = run(str(bare / words[0]), *words[1:], folder=tmp_path)
    assert done.returncode == code, done.stdout + done.stderr
    assert text in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_installed_trainer_says_the_wheels_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tmp_path / "commit.txt"
    monkeypatch.setattr("workload.contract.operating_system.COMMIT_FILE", written)
    assert commit_facts(HostSystem(environ={}), tmp_path) == {"commit": None, "commit_dirty": None}
    written.write_text("ab12-dirty\n")
    assert commit_facts(HostSystem(environ={}), tmp_path) == {"commit": "ab12", "commit_dirty": True}
    written.write_text("ab12\n")
    assert commit_facts(HostSystem(environ={}), tmp_path) == {"commit": "ab12", "commit_dirty": None}
