import shlex
from email.message import Message
from importlib import metadata
from pathlib import Path

import pytest
import typer

from analysis.app import app as analyze
from launcher.cli.app import app as launch
from workload.contract import invocation
from workload.contract.errors import ToolError
from workload.contract.invocation import Call, as_typed, document

HINT = "launch build --flavour cpu, or launch again; analyze audit results; python -m workload.bundle results/*"


@pytest.fixture
def plain_commands() -> None:
    """Replaces the fixture of all tests that keeps commands as they are: here they are converted."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with an installation in `.venv`, as `make setup` leaves one."""
    scripts = tmp_path / ".venv" / "bin"
    scripts.mkdir(parents=True)
    for name in ("python", "launch", "analyze"):
        (scripts / name).touch(mode=0o755)
    return tmp_path


def call(project: Path, started: str, **changes: str) -> Call:
    scripts = str(project / ".venv" / "bin")
    given = {"python": f"{scripts}/python", "scripts": scripts, "path": "/usr/bin", "folder": str(project)}
    return Call(started=started, **{**given, **changes})


class Distribution(metadata.Distribution):
    """rooflaunch as pip has installed it."""

    def __init__(self, **files: str) -> None:
        self.files_of_it = files

    def read_text(self, filename: str) -> str | None:
        return self.files_of_it.get(filename.partition(".")[0])

    def locate_file(self, path: object) -> Path:
        raise AssertionError(path)


METADATA = """\
Requires-Dist: docker>=7
Requires-Dist: typer>=0.29
Provides-Extra: gcp
Requires-Dist: google-cloud-compute>=1.40; extra == "gcp"
Requires-Dist: google-cloud-storage>=3; extra == "gcp"
Provides-Extra: batch
Requires-Dist: google-cloud-batch>=0.17; extra == "batch"
Requires-Dist: rooflaunch[gcp]; extra == "batch"
"""
WHEEL = '{"url": "file:///tmp/rooflaunch-0.2.0-py3-none-any.whl", "archive_info": {}}'
CLONED = '{"url": "https://example.org/r.git", "vcs_info": {"vcs": "git", "commit_id": "0123abc"}}'
INSTALLED = {
    "a wheel": ({"direct_url": WHEEL}, "batch", "'rooflaunch[batch] @ file:///tmp/rooflaunch-0.2.0-py3-none-any.whl'"),
    "a wheel without extras": (
        {"direct_url": WHEEL},
        "",
        "'rooflaunch @ file:///tmp/rooflaunch-0.2.0-py3-none-any.whl'",
    ),
    "a repository": ({"direct_url": CLONED}, "gcp", "'rooflaunch[gcp] @ git+https://example.org/r.git@0123abc'"),
    "an extra of another": (
        {"METADATA": METADATA},
        "batch",
        "'google-cloud-batch>=0.17' 'google-cloud-compute>=1.40' 'google-cloud-storage>=3'",
    ),
    "no extra": ({"METADATA": METADATA}, "", "'docker>=7' 'typer>=0.29'"),
}


@pytest.mark.parametrize("name", INSTALLED)
def test_an_installation_is_told_what_works_where_it_came_from(
    name: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, extra, source = INSTALLED[name]
    monkeypatch.setattr(invocation, "ROOT", project)
    monkeypatch.setattr(metadata, "distribution", lambda _: Distribution(**files))
    hint = f"pip install 'rooflaunch[{extra}]'; or not" if extra else "pip install rooflaunch; or not"
    typed = as_typed(hint, call(project, ".venv/bin/launch"))
    assert typed == f".venv/bin/python -m pip install {source}; or not"


def test_a_checkout_installs_itself(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "pyproject.toml").touch()
    monkeypatch.setattr(invocation, "ROOT", project)
    hint = "pip install 'rooflaunch[gcp]'"
    assert as_typed(hint, call(project, "launch")) == ".venv/bin/python -m pip install --editable '.[gcp]'"
    elsewhere = as_typed(hint, call(project, "launch", folder="/"))
    assert elsewhere.endswith(f"/.venv/bin/python -m pip install --editable '{project}[gcp]'")


def test_a_copy_that_nobody_installed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(invocation, "ROOT", project)
    monkeypatch.setattr(metadata, "distribution", unknown)
    typed = as_typed("pip install 'rooflaunch[trainer]'", call(project, "launch"))
    assert typed == ".venv/bin/python -m pip install torch torchvision numpy psutil"


@pytest.mark.parametrize(
    ("started", "program", "python"),
    [
        (".venv/bin/launch", ".venv/bin/{}", ".venv/bin/python"),
        ("./.venv/bin/analyze", "./.venv/bin/{}", ".venv/bin/python"),
        ("{project}/.venv/bin/launch", ".venv/bin/{}", ".venv/bin/python"),
        ("{project}/launcher/__main__.py", ".venv/bin/python -m {module}", ".venv/bin/python"),
        ("{project}/analysis/__main__.py", ".venv/bin/python -m {module}", ".venv/bin/python"),
        # Neither program runs: a trainer, a notebook.
        ("{project}/workload/__main__.py", ".venv/bin/{}", ".venv/bin/python"),
        ("/usr/lib/ipykernel_launcher.py", ".venv/bin/{}", ".venv/bin/python"),
    ],
)
def test_commands_off_path(project: Path, started: str, program: str, python: str) -> None:
    launch, analyze = (
        program.format(name, module=module) for name, module in (("launch", "launcher"), ("analyze", "analysis"))
    )
    assert as_typed(HINT, call(project, started.format(project=project))) == (
        f"{launch} build --flavour cpu, or launch again; {analyze} audit results; {python} -m workload.bundle results/*"
    )


def test_commands_on_path_stay(project: Path) -> None:
    scripts = f"{project}/.venv/bin"
    assert as_typed(HINT, call(project, f"{scripts}/launch", path=f"/usr/bin:{scripts}")) == HINT


def test_a_program_of_another_installation_on_path_is_not_meant(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "launch").touch(mode=0o755)
    assert as_typed("launch build", call(project, ".venv/bin/launch", path=str(other))) == ".venv/bin/launch build"


@pytest.mark.parametrize(
    ("folder", "typed"), [("/usr", "{project}/.venv/bin/launch"), ("{project}/.venv/bin", "./launch")]
)
def test_from_other_folders(project: Path, folder: str, typed: str) -> None:
    here = call(project, f"{project}/.venv/bin/launch", folder=folder.format(project=project))
    assert as_typed("launch doctor", here) == f"{typed.format(project=project)} doctor"


def test_a_folder_with_a_blank_is_quoted(tmp_path: Path) -> None:
    spaced = tmp_path / "my project"
    (spaced / ".venv" / "bin").mkdir(parents=True)
    (spaced / ".venv" / "bin" / "launch").touch(mode=0o755)
    started = f"{spaced}/.venv/bin/launch"
    assert as_typed("launch doctor", call(spaced, started, folder="/usr")) == f"'{started}' doctor"


def test_without_scripts_the_module_is_named(tmp_path: Path) -> None:
    assert as_typed("launch doctor", call(tmp_path, "train.py")) == ".venv/bin/python -m launcher doctor"


@pytest.mark.parametrize(
    "text", ["launch again", "interrupted; launch the same", "no launch doctors it", "results/launch build", "python"]
)
def test_what_is_no_command_stays(project: Path, text: str) -> None:
    assert as_typed(text, call(project, ".venv/bin/launch")) == text


def test_every_command_is_known() -> None:
    listed = {
        program: set(typer.main.get_command(app).commands)  # type: ignore[attr-defined] # a group
        for program, app in (("launch", launch), ("analyze", analyze))
    }
    for program, names in listed.items():
        assert names <= set(invocation.COMMANDS[program])


def test_a_hint_is_printed_as_typed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invocation, "this_call", lambda: call(project, ".venv/bin/launch"))
    assert ToolError("no image", hint="launch build").report() == "error: no image\nhint: .venv/bin/launch build"


def test_a_document_of_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    monkeypatch.chdir(root)
    assert document("infra/gcp/README.md") == "infra/gcp/README.md"
    monkeypatch.chdir(tmp_path)
    assert document("infra/gcp/README.md") == shlex.quote(f"{root}/infra/gcp/README.md")


@pytest.mark.parametrize(
    ("links", "shown"),
    [
        ([], ""),
        (["Changelog, https://example.org/changes"], ""),
        (["Repository, https://example.org/code"], "infra/gcp/README.md in https://example.org/code"),
    ],
)
def test_a_document_that_a_wheel_lacks(
    links: list[str], shown: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheel = Message()
    for link in links:
        wheel["Project-URL"] = link
    monkeypatch.setattr(metadata, "metadata", lambda _: wheel)
    monkeypatch.setattr(invocation, "ROOT", tmp_path)
    assert document("infra/gcp/README.md") == shown
