import shlex
from collections.abc import Callable
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
INSTALLED: dict[str, tuple[dict[str, str], str]] = {
    "a wheel": ({"direct_url": WHEEL}, "batch"),
    "a wheel without extras": ({"direct_url": WHEEL}, ""),
    "a repository": ({"direct_url": CLONED}, "gcp"),
    "an extra of another": ({"METADATA": METADATA}, "batch"),
    "no extra": ({"METADATA": METADATA}, ""),
}


def installations(project: Path, patch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is told to install, wherever the running code came from."""
    typed = {}
    patch.setattr(invocation, "ROOT", project)
    for name, (files, extra) in INSTALLED.items():
        patch.setattr(metadata, "distribution", lambda _, files=files: Distribution(**files))
        hint = f"pip install 'rooflaunch[{extra}]'; or not" if extra else "pip install rooflaunch; or not"
        typed[f"installed from {name}"] = as_typed(hint, call(project, ".venv/bin/launch"))

    def unknown(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    patch.setattr(metadata, "distribution", unknown)
    typed["copied"] = as_typed("pip install 'rooflaunch[trainer]'", call(project, "launch"))
    (project / "pyproject.toml").touch()
    for folder in (str(project), "/"):
        here = call(project, "launch", folder=folder)
        typed[f"a checkout, from {folder}"] = as_typed("pip install 'rooflaunch[gcp]'", here)
    return typed


# Words that started the program.
STARTED = [
    *(".venv/bin/launch", "./.venv/bin/analyze", "{project}/.venv/bin/launch"),
    *("{project}/launcher/__main__.py", "{project}/analysis/__main__.py"),
    # Neither program runs: a trainer, a notebook.
    *("{project}/workload/__main__.py", "/usr/lib/ipykernel_launcher.py"),
]
# What is no command stays.
NO_COMMANDS = [
    *("launch again", "interrupted; launch the same", "no launch doctors it", "results/launch build", "python")
]


def test_commands_are_told_as_they_work_here(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None]
) -> None:
    scripts, ours = f"{project}/.venv/bin", f"{project}/.venv/bin/launch"
    spaced, other = tmp_path / "my project", tmp_path / "other"
    for place in (spaced / ".venv/bin", other):
        place.mkdir(parents=True)
        (place / "launch").touch(mode=0o755)
    sections = {
        **{f"started by {word}": as_typed(HINT, call(project, word.format(project=project))) for word in STARTED},
        "on PATH": as_typed(HINT, call(project, ours, path=f"/usr/bin:{scripts}")),
        "another installation is on PATH": as_typed("launch build", call(project, ".venv/bin/launch", path=str(other))),
        "from /usr": as_typed("launch doctor", call(project, ours, folder="/usr")),
        "from the folder of scripts": as_typed("launch doctor", call(project, ours, folder=scripts)),
        "a folder with a blank": as_typed("launch doctor", call(spaced, f"{spaced}/.venv/bin/launch", folder="/usr")),
        "without scripts": as_typed("launch doctor", call(tmp_path / "no", "train.py")),
        **installations(project, monkeypatch),
    }
    page = "".join(f"## {title}\n{typed}\n\n" for title, typed in sections.items())
    golden("commands.txt", page.replace(str(tmp_path)[1:], "PROJECT"))
    for text in NO_COMMANDS:
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
