"""sdist and wheel, built and installed for real: their files, their commit, and what works with and without extras."""

import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from launcher.images.contents import AGENT_FILES
from tests.docs import pages
from workload import __version__
from workload.contract.errors import ExitCode
from workload.environment.collect import commit_facts
from workload.environment.machine import HostSystem

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.world
SCRIPT = ("--include", "shapes.py", "--", "shapes.py")
SSH = ("launch", "ssh", "--host", "me@box", "--python", "~/torch/bin/python")
SLURM = ("launch", "slurm", "--host", "me@login")
TRAINER = "-m pip install 'rooflaunch[trainer] @ file://"
# README's runs whose screens it shows.
SCREENS = [command for command in pages.commands("README.md") if command.shown]


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=folder)


def installed(requirement: str, folder: Path, *linked: str) -> Path:
    """Install into a new environment in `folder` as a user does; returns its folder of programs.

    `linked`: packages that are linked from this environment with all they need, because they have gigabytes. The
    links are beside `site-packages`, because pip replaces files there through a link.
    """
    venv.create(folder)
    [packages] = folder.glob("lib/python*/site-packages")
    links = folder / "linked"
    links.mkdir()
    (packages / "linked.pth").write_text(f"{links}\n")
    for top in {file.parts[0] for name in with_their_needs(linked) for file in distribution(name).files or ()}:
        source = Path(str(distribution("torch").locate_file(top)))
        if top not in ("..", "__pycache__") and source.exists():
            (links / top).symlink_to(source)
    into = ("--python", str(folder / "bin/python"), "install", "--quiet", "--disable-pip-version-check", requirement)
    done = run(sys.executable, "-m", "pip", *into, folder=folder)
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def with_their_needs(names: Iterable[str]) -> set[str]:
    """These installed packages, and those that they need on this platform with the extras that are asked for."""
    found: set[tuple[str, str]] = set()
    waiting = [(name, "") for name in names]
    while waiting:
        name, extra = wanted = waiting.pop()
        if wanted not in found:
            found.add(wanted)
            for need in map(Requirement, distribution(name).requires or ()):
                if not need.marker or need.marker.evaluate({"extra": extra}):
                    waiting += [(need.name, extra) for extra in ("", *need.extras)]
    return {name for name, _ in found}


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of programs of an environment with the wheel and its requirements, but no extra."""
    return installed(str(wheel), tmp_path_factory.mktemp("bare"))


@pytest.fixture
def measuring(wheel: Path, tmp_path: Path) -> Path:
    """Folder of programs of an environment that measures and analyses."""
    return installed(f"rooflaunch[trainer,analysis] @ {wheel.as_uri()}", tmp_path / "installed", "torchvision")


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that was built from the sdist: both made by the command of CONTRIBUTING."""
    pytest.importorskip("build", reason="make setup installs it")
    folder = tmp_path_factory.mktemp("dist")
    built = run(sys.executable, "-m", "build", "--outdir", str(folder), folder=ROOT)
    assert built.returncode == 0, built.stderr
    [sdist], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.mark.slow
def test_the_wheel_has_its_commit_its_links_and_all_that_builds_an_image(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        commit = archive.read("workload/commit.txt").decode().strip()
        metadata = archive.read(f"rooflaunch-{__version__}.dist-info/METADATA").decode()
    head = run("git", "rev-parse", "HEAD", folder=ROOT).stdout.strip()
    assert commit in (head, f"{head}-dirty")
    assert "Project-URL: Repository, https://" in metadata
    assert "\nLicense-File: LICENSE\n" in metadata
    # The description is read on a package index, which has none of the files that README links.
    description = metadata.partition("\n\n")[2]
    assert "github.com/rooflaunch/rooflaunch/raw/main/docs/images/recording.svg" in description
    assert not re.findall(r"\]\((?!https?://)[^)]*\)|(?:src|srcset)=\"(?!https?://)", description)
    needed = {"rooflaunch/__init__.py", "rooflaunch/__main__.py", "launcher/image/docker/Dockerfile"}
    assert {*AGENT_FILES, *needed, "launcher/image/docker/images.toml"} <= names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


@pytest.mark.slow
def test_a_wheel_from_the_sdist_equals_one_from_the_checkout(archives: tuple[Path, Path], wheel: Path) -> None:
    sdist, rebuilt = archives
    assert rebuilt.name == wheel.name
    assert rebuilt.read_bytes() == wheel.read_bytes()
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = run("git", "ls-files", folder=ROOT).stdout.splitlines()
    assert names == {name for name in tracked if (ROOT / name).is_file()} | {"PKG-INFO", "workload/commit.txt"}


@pytest.mark.slow
def test_with_its_extras_the_wheel_measures_and_analyses_the_scripts_of_readme(measuring: Path, tmp_path: Path) -> None:
    scripts = [command.text.rpartition(" -- ")[2] for command in SCREENS]
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for script in scripts:
        measured = run(str(measuring / "launch"), "local", "--cpu", "--", script, folder=tmp_path)
        assert measured.returncode == 0, measured.stdout + measured.stderr
    summary = run(str(measuring / "analyze"), "summary", "results", folder=tmp_path)
    assert summary.returncode == 0, summary.stderr
    assert all(Path(script).name in summary.stdout for script in scripts), summary.stdout
    report = run(str(measuring / "analyze"), "report", "results", folder=tmp_path)
    assert report.returncode == 0, report.stderr
    assert (tmp_path / "report.html").stat().st_size > 100_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        pytest.param(["launch", "--help"], 0, "local", id="help"),
        pytest.param(["launch", "--version"], 0, __version__, id="version"),
        pytest.param(["launch", "local", "--cpu", "--dry-run", "--runtime", "process"], 0, "resnet18", id="a plan"),
        pytest.param(["launch", "gcp", "--gpu", "t4", "--project", "p-1-2-3", "--dry-run"], 0, "n1", id="a VM's plan"),
        pytest.param(["launch", "gpus"], 0, "g4dn.xlarge", id="GPUs to rent"),
        pytest.param([*SSH, "--dry-run", *SCRIPT], 0, "1 file", id="a script's plan for a machine with ssh"),
        pytest.param([*SLURM, "--dry-run", *SCRIPT], 0, "1 file", id="a script's plan for a cluster"),
        pytest.param(["launch", "aws", "--gpu", "t4", "--dry-run", *SCRIPT], 0, "g4dn", id="a script's plan for AWS"),
        pytest.param(["launch", "local", "--cpu", *SCRIPT[2:]], ExitCode.RUN_FAILED, TRAINER, id="no torch"),
        pytest.param(["python", "-m", "rooflaunch", "script", *SCRIPT[2:]], 1, TRAINER, id="a script without torch"),
        pytest.param(
            ["launch", "local", "--cpu", "--runtime", "process"], ExitCode.TOOL, TRAINER, id="a trainer without torch"
        ),
        pytest.param(["analyze", "--help"], 0, "report", id="help of analyze"),
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
    shutil.copy(ROOT / "examples/shapes.py", tmp_path)
    done = run(str(bare / words[0]), *words[1:], folder=tmp_path)
    assert done.returncode == code, done.stdout + done.stderr
    assert text in done.stdout + done.stderr
    # A script that lacks torch shows its own traceback.
    assert "Traceback" not in done.stderr or "shapes.py" in words


@pytest.mark.slow
def test_an_installed_trainer_says_the_wheels_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tmp_path / "commit.txt"
    monkeypatch.setattr("workload.contract.operating_system.COMMIT_FILE", written)
    assert commit_facts(HostSystem(environ={}), tmp_path) == {"commit": None, "commit_dirty": None}
    written.write_text("ab12-dirty\n")
    assert commit_facts(HostSystem(environ={}), tmp_path) == {"commit": "ab12", "commit_dirty": True}
    written.write_text("ab12\n")
    assert commit_facts(HostSystem(environ={}), tmp_path) == {"commit": "ab12", "commit_dirty": None}
