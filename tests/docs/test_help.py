"""`--help` of every command of `launch`, `analyze` and `python -m workload`."""

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer.main

from analysis import __main__ as analyze
from analysis.app import app as analyze_app
from launcher import __main__ as launch
from launcher.backends import BACKENDS
from launcher.cli.app import app as launch_app
from tests.docs import grammar
from workload import cli
from workload.contract.invocation import Group
from workload.contract.program import GroupedCommand

PROGRAMS = {"launch": (launch.main, launch_app), "analyze": (analyze.main, analyze_app)}
TRAINER = ("train", "script", "profile", "ceilings", "complexity", "gpu-truth", "env", "models")
TOPS = [("launch",), ("analyze",), ("workload",)]
COMMANDS = [
    *[
        (name, command)
        for name, (_, app) in PROGRAMS.items()
        for command in typer.main.get_command(app).commands  # type: ignore[attr-defined] # a group
    ],
    *[("workload", name) for name in TRAINER],
]
SCRIPT_MODEL = f"{Group.MODEL}, without a script"
# Headings in the order of every command's help.
ORDER = [name for group in Group for name in ((group, SCRIPT_MODEL) if group is Group.MODEL else (group,))]
MOST_LINES, MOST_USED = 100, 3
# Written by `COLUMNS=100 launch ssh --help`, with `launch` on the PATH.
HELP_OF_SSH = Path(__file__).parent / "help_of_ssh.txt"
Help = Callable[..., str]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Help:
    """`shown("launch", "gcp", width=60)`: the text of `launch gcp --help` in a terminal of that width."""

    def text(*words: str, width: int = 100) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        if words[0] == "workload":
            with pytest.raises(SystemExit, match="0"):
                cli.parse([*words[1:], "--help"])
        else:
            monkeypatch.setattr(sys, "argv", [*words, "--help"])
            assert PROGRAMS[words[0]][0]() == 0
        return capsys.readouterr().out

    return text


def parts(text: str) -> dict[str, list[str]]:
    """Lines below each heading."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if heading := re.fullmatch(r" *(\w[\w ,]*):", line):
            lines = found.setdefault(heading[1], [])
        elif found and line.strip():
            lines.append(line)
    return found


@pytest.mark.parametrize("words", [*TOPS, *COMMANDS], ids=" ".join)
def test_help_is_short_with_two_examples(words: tuple[str, ...], shown: Help) -> None:
    text = shown(*words)
    assert len(text.splitlines()) <= MOST_LINES
    examples = re.sub(r" \\\n *", " ", text.partition("Examples:\n")[2]).splitlines()
    assert len(examples) == MOST_USED - 1
    for line in examples:
        command = re.split(r" (?:>|\|) ", line.strip())[0]
        grammar.check(command)
        name = " ".join(words).replace("workload ", "(?:workload|rooflaunch) ")
        assert re.search(name if len(words) > 1 else words[0], command), command


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_options_stand_below_headings_the_most_used_ones_first(words: tuple[str, ...], shown: Help) -> None:
    text = shown(*words)
    below = parts(text)
    headings = [name for name in below if name not in ("Usage", "usage", "Examples")]
    assert headings == [name for name in ORDER if name in headings]
    if words != ("workload", "models"):  # it has no options
        assert headings[0] == Group.FIRST
    first = [line for line in below.get(Group.FIRST, []) if re.match(r"  -\S", line)]
    assert len([line for line in first if not line.startswith("  -- ")]) <= MOST_USED
    # A switch and its twin are one line.
    names = re.findall(r"^  (?:-\w, )?(--[\w\[\]-]+)", text, re.MULTILINE)
    assert len(names) == len(set(names))
    assert [name for name in names if name.startswith("--no-") and f"--{name[5:]}" in names] == []
    assert " / --no-" not in text


def test_help_of_a_backend_lists_its_own_options(shown: Help) -> None:
    assert shown("launch", "ssh") == HELP_OF_SSH.read_text(encoding="utf-8")
    for command in (*BACKENDS, "duel"):
        text = shown("launch", command)
        assert re.search(r"^  run options +launch local --help$", text, re.MULTILINE)
        assert [flag for flag in ("--model", "--devices", "--cpu", "--warmup") if f"  {flag}" in text] == []


@pytest.mark.parametrize("width", [60, 100])
@pytest.mark.parametrize("words", [*TOPS, *COMMANDS], ids=" ".join)
def test_help_fits_a_narrow_terminal(words: tuple[str, ...], width: int, shown: Help) -> None:
    # A word that is longer than the line stays whole, and an option with its value.
    lines = [line for line in shown(*words, width=width).splitlines() if not line.startswith("usage:")]
    assert [line for line in lines if len(line) > width and len(line.strip(" \\").split()) > MOST_USED - 1] == []
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.world
@pytest.mark.parametrize(("module", "command"), [("launcher", "local"), ("analysis", "summary"), ("workload", "train")])
def test_a_terminal_gets_the_same_text_as_a_pipe_and_no_colour(module: str, command: str) -> None:
    if sys.platform == "win32":
        pytest.skip("Windows has no pty")
    import pty

    words = [sys.executable, "-m", module, command, "--help"]
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm-256color", "NO_COLOR": "1"}
    piped = subprocess.run(words, env=environment, check=True, capture_output=True, timeout=60).stdout
    del environment["NO_COLOR"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(words, env=environment, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        read = b""
        with contextlib.suppress(OSError):  # Linux: the other end is closed
            while piece := os.read(ours, 4096):
                read += piece
    os.close(ours)
    assert process.returncode == 0
    assert read.replace(b"\r\n", b"\n") == piped
    assert b"\x1b" not in piped


def test_every_option_has_a_heading() -> None:
    for _, app in PROGRAMS.values():
        for command in typer.main.get_command(app).commands.values():  # type: ignore[attr-defined] # a group
            assert isinstance(command, GroupedCommand)
            options_of_it = [each for each in command.params if each.param_type_name == "option"]
            assert [each.name for each in options_of_it if not getattr(each, "rich_help_panel", None)] == []
            assert set(command.first) <= {each.name for each in command.params}, shlex.quote(str(command.name))
