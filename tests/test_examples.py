"""The script of examples/, and its notebooks: generated from their scripts, and executed from top to bottom."""

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from workload.cli import TRAINER_PACKAGES
from workload.contract import bundle
from workload.environment import machine

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
NOTEBOOKS = ["analysis", "colab", "kaggle"]
WIDEST = 20
COLAB_PACKAGES = Path(__file__).with_name("colab_packages.toml").read_text(encoding="utf-8")
# Little work in place of the defaults, which are for a GPU.
SMALL = {
    "ROOFLAUNCH_MODEL": "squeezenet1_1",
    "ROOFLAUNCH_IMAGE_SIZE": "64",
    "ROOFLAUNCH_WARMUP": "1",
    "ROOFLAUNCH_ITERATIONS": "3",
    "ROOFLAUNCH_CEILINGS": "false",
}
# Stand-ins for Colab's own modules: each writes a line to the file `asked`.
COLAB = """
from pathlib import Path

class Module:
    def __init__(self, name):
        self.name = name
    def __getattr__(self, function):
        def ask(*words):
            with Path("asked").open("a") as file:
                print(self.name, function, *words, file=file)
        return ask

auth, drive, files = map(Module, ("auth", "drive", "files"))
"""


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_its_script(name: str) -> None:
    script, notebook = jupytext.read(EXAMPLES / f"{name}.py"), nbformat.read(EXAMPLES / f"{name}.ipynb", 4)
    cells = [[(cell.cell_type, cell.source) for cell in each.cells] for each in (script, notebook)]
    assert cells[0] == cells[1], f"jupytext --to ipynb examples/{name}.py"
    assert not any(cell.get("outputs") for cell in notebook.cells)


def figures_of(script: str, words: tuple[str, ...], line: str) -> list[float]:
    """Figures that an example prints when it runs alone. Every line that it prints has to match the pattern `line`."""
    command = [sys.executable, EXAMPLES / script, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    found = re.findall(rf"^{line}$", done.stdout, re.MULTILINE)
    assert len(found) == len(done.stdout.splitlines()) > 1
    return [float(figure) for figure in found]


@pytest.mark.world
@pytest.mark.parametrize(
    ("words", "least"),
    [(("--images", "512", "--epochs", "2"), 0.0), pytest.param((), 0.9, marks=pytest.mark.slow)],
    ids=["small", "as it is"],
)
def test_the_script_learns_to_tell_shapes_apart(words: tuple[str, ...], least: float) -> None:
    """Without learning, it would name one of four right."""
    accuracies = figures_of("shapes.py", words, r"epoch \d+: accuracy ([\d.]+)%")
    assert accuracies[-1] / 100 > least


@pytest.mark.world
@pytest.mark.parametrize(
    ("words", "most"),
    [
        (("--steps", "120", "--batch-size", "8", "--block-size", "32"), 2.8),
        pytest.param((), 1.0, marks=pytest.mark.slow),
    ],
    ids=["small", "as it is"],
)
def test_the_language_model_learns_its_own_file(words: tuple[str, ...], most: float) -> None:
    """Knowing only how often each character occurs, it would have a loss of 3.4 nats."""
    losses = figures_of("chars.py", words, r"step \d+: loss ([\d.]+)")
    assert losses[-1] < most < losses[0]


@pytest.mark.slow
@pytest.mark.world
def test_the_notebook_of_an_analysis_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(EXAMPLES / "analysis.ipynb", 4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output.data for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    figures = [data for data in shown if "image/svg+xml" in data]
    tables = [data["text/html"] for data in shown if "text/html" in data]
    assert len(figures) == 2
    assert len(tables) == 5
    # Before them stand at most two columns of the index.
    assert all(table.partition("</thead>")[0].count("<th>") <= WIDEST + 2 for table in tables)
    assert (tmp_path / "report.html").stat().st_size > 100_000


class Hosted:
    """A hosted machine: a kernel in an environment of its own, which sees this environment's packages as its own."""

    def __init__(self, root: Path, service: machine.Service) -> None:
        self.content, self.root = root / "content", root
        for name in ("content", "tmp", "kernels/hosted"):
            (root / name).mkdir(parents=True)
        venv.create(root / "env")
        [self.packages] = (root / "env/lib").glob("python*/site-packages")
        (self.packages / "here.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
        environment = {
            "PATH": f"{root / 'env/bin'}:{os.environ['PATH']}",
            "TMPDIR": str(root / "tmp"),
            "PIP_NO_INDEX": "1",  # whatever this installs is there already
            "DOCKER_HOST": "unix:///nowhere",
            service.variable: "test",
        }
        kernel = {
            "argv": [str(root / "env/bin/python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": "hosted",
            "language": "python",
            "env": environment | SMALL,
        }
        (root / "kernels/hosted/kernel.json").write_text(json.dumps(kernel))

    def execute(self, notebook: nbformat.NotebookNode) -> str:
        """Run the notebook cell by cell; return all that its cells printed."""
        where = {"metadata": {"path": str(self.content)}}
        client = NotebookClient(notebook, timeout=600, kernel_name="hosted", resources=where)
        with client.setup_kernel():
            for index, cell in enumerate(notebook.cells):
                client.execute_cell(cell, index)
        printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
        (self.root / "printed").write_text(printed)
        return printed.replace("\r\n", "\n")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Hosted:
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    return Hosted(tmp_path, next(service for service in machine.SERVICES if service.name == request.param))


def changed(notebook: nbformat.NotebookNode, old: str, new: str) -> None:
    """Replace a text that is in exactly one cell."""
    [cell] = [cell for cell in notebook.cells if old in cell.source]
    cell.source = cell.source.replace(old, new)


def assert_measured(printed: str, notebook: nbformat.NotebookNode, cure: str) -> None:
    """The machine has no GPU, and every cell did its work all the same."""
    assert f"nvidia-smi shows no GPU -> {cure}; --cpu needs none" in " ".join(printed.split())
    rates = re.findall(r"^  (images|samples)/s +\S+ +\(one run: no interval\)$", printed, re.MULTILINE)
    assert rates == ["images", "samples"]
    assert re.search(r"^sweep +sweep: 2 configurations, 3 blocks, 1 place: 6 runs, 0 done$", printed, re.MULTILINE)
    assert re.search(r"^script +a step = 1 backward pass and 1 SGD step", printed, re.MULTILINE)
    assert "error:" not in printed
    assert "\033[2A" not in printed, "a notebook cannot move the cursor"
    figures = [output for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    assert ["image/png" in figure.data for figure in figures] == [True]


@pytest.mark.slow
@pytest.mark.world
@pytest.mark.timeout(900)
@pytest.mark.parametrize("host", ["Colab"], indirect=True)
def test_the_notebook_of_colab_runs(host: Hosted, wheel: Path) -> None:
    module = host.packages / "google/colab"
    module.mkdir(parents=True)
    (module / "__init__.py").write_text(COLAB)
    (host.root / "env/bin/gcloud").write_text('#!/bin/sh\necho gcloud "$@" >> asked\n')
    (host.root / "env/bin/gcloud").chmod(0o700)
    (host.content / wheel.name).write_bytes(wheel.read_bytes())
    notebook = nbformat.read(EXAMPLES / "colab.ipynb", 4)
    [gpu] = [service.gpu for service in machine.SERVICES if service.name == "Colab"]
    for place in ("gs://bucket/folder", str(host.root / "drive")):
        setting, copying = (cell.copy() for cell in notebook.cells[-2:])
        notebook.cells += [setting, copying]
        setting.source = f"KEEP = {place!r}"
    assert_measured(host.execute(notebook), notebook, gpu)
    runs = [bundle.read(folder).record for folder in sorted((host.content / "results").glob("*-local-*"))]
    assert [run.status for run in runs] == ["completed"] * 8
    assert {run.environment.software.colab for run in runs} == {"test"}
    assert sorted(path.name for path in (host.root / "drive").iterdir()) == sorted(
        path.name for path in (host.content / "results").iterdir()
    )
    assert (host.content / "asked").read_text().splitlines() == [
        f"files download {host.content / 'results.zip'}",
        "auth authenticate_user",
        "gcloud storage cp --recursive results gs://bucket/folder",
        "drive mount /content/drive",
    ]


@pytest.mark.slow
@pytest.mark.world
@pytest.mark.timeout(900)
@pytest.mark.parametrize("host", ["Kaggle"], indirect=True)
def test_the_notebook_of_kaggle_runs(host: Hosted, wheel: Path) -> None:
    uploaded = host.root / "input/datasets/user/rooflaunch-wheel"
    uploaded.mkdir(parents=True)
    (uploaded / wheel.name).write_bytes(wheel.read_bytes())
    notebook = nbformat.read(EXAMPLES / "kaggle.ipynb", 4)
    changed(notebook, "/kaggle/input", str(host.root / "input"))
    [gpu] = [service.gpu for service in machine.SERVICES if service.name == "Kaggle"]
    assert_measured(host.execute(notebook), notebook, gpu)
    assert {path.name for path in host.content.iterdir()} >= {"report.html", "results.zip", "figures"}
    with zipfile.ZipFile(host.content / "results.zip") as archive:
        assert sum(name.endswith(f"/{bundle.MANIFEST}") for name in archive.namelist()) == 8


@pytest.mark.slow
@pytest.mark.world
@pytest.mark.parametrize("host", ["Colab"], indirect=True)
def test_a_notebook_without_the_wheel(host: Hosted) -> None:
    notebook = nbformat.read(EXAMPLES / "colab.ipynb", 4)
    with pytest.raises(CellExecutionError, match=rf"no rooflaunch-\*\.whl in {host.content}: put the wheel there"):
        host.execute(notebook)


def needs(extra: str, packages: Mapping[str, str]) -> set[str]:
    """Requirements of ours, with this extra, that these packages do not meet."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"].get(extra, ())]
    found = [Requirement(line) for line in lines]
    assert Version(tomllib.loads(COLAB_PACKAGES)["python"]) in SpecifierSet(project["requires-python"])
    return {each.name for each in found if each.name not in packages or packages[each.name] not in each.specifier}


def test_the_install_leaves_the_packages_of_colab_alone() -> None:
    """What is measured: the trainer's packages are there. `launch` adds what a script hardly uses."""
    packages = tomllib.loads(COLAB_PACKAGES)["packages"]
    assert set(TRAINER_PACKAGES) <= set(packages)
    assert needs("", packages) == {"docker", "typer"}
    # So `analyze` has an environment of its own.
    assert needs("analysis", packages) == {"docker", "typer", "pandas", "pyarrow", "altair", "vl-convert-python"}
    assert not needs("trainer", packages) & {"torch", "torchvision", "numpy"}


def test_the_settings_of_a_kaggle_notebook() -> None:
    """Fields and their values by docs/kernels_metadata.md and docs/kernels.md of Kaggle/kaggle-cli a430f0b."""
    settings = json.loads((EXAMPLES / "kernel-metadata.json").read_text())
    assert (EXAMPLES / settings["code_file"]).is_file()
    user, _, name = settings["id"].partition("/")
    assert (user, name) == ("USER", settings["title"].lower().replace(" ", "-")), "Kaggle makes the id from the title"
    own = ("id", "title", "code_file")
    chosen = {name: value for name, value in settings.items() if value and name not in own}
    assert chosen == {
        "language": "python",
        "kernel_type": "notebook",
        "is_private": True,
        "enable_gpu": True,
        "enable_internet": True,
        "machine_shape": "NvidiaTeslaT4",
        "dataset_sources": [f"{user}/rooflaunch-wheel"],
    }
    facts = nbformat.read(EXAMPLES / "colab.ipynb", 4).metadata
    assert (facts["accelerator"], facts["colab"]["gpuType"]) == ("GPU", "T4")
