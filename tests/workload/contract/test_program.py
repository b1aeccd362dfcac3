import sys
from collections.abc import Callable

import pytest
import typer

from analysis import __main__ as analyze
from analysis.app import app as analyze_app
from launcher import __main__ as launch
from launcher.cli.app import app as launch_app
from workload import __version__
from workload.contract import program

PROGRAMS = {"launch": launch, "analyze": analyze}
COMMANDS = [
    (name, *words)
    for name, app in (("launch", launch_app), ("analyze", analyze_app))
    for words in ((), *((command,) for command in typer.main.get_command(app).commands))  # type: ignore[attr-defined] # a group
]
LOCAL = "launch local --help"


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("launch", "--help", width=80)`: exit code, stdout and stderr of a program in a terminal of that width."""

    def run_program(*words: str, width: int = 80) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", list(words))
        monkeypatch.setenv("COLUMNS", str(width))
        code = PROGRAMS[words[0]].main()
        return (code, *capsys.readouterr())

    return run_program


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_a_command_help_is_shown_and_nothing_is_wrong(run: Run, name: str) -> None:
    code, out, err = run(name)
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: {name} [OPTIONS] COMMAND")
    assert run(name, "--help") == run(name, "-h") == (0, out, "")


@pytest.mark.parametrize("name", PROGRAMS)
def test_version(run: Run, name: str) -> None:
    assert run(name, "--version") == (0, f"rooflaunch {__version__}\n", "")


@pytest.mark.parametrize("width", [40, 63, 66, 80, 200])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_fits_and_cuts_nothing(run: Run, words: tuple[str, ...], width: int) -> None:
    code, out, err = run(*words, "-h", width=width)
    assert (code, err) == (0, "")
    # A word that is longer than the line stays whole, and an option with its value.
    too_long = [line for line in out.splitlines() if len(line) > width and len(line.strip(" \\").split()) > 2]
    assert too_long == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_summary_is_one_whole_sentence(run: Run, name: str) -> None:
    _, out, _ = run(name, width=200)
    listed = [words for words in COMMANDS if words[0] == name and len(words) > 1]
    text = " ".join(out.partition("Commands:\n")[2].partition("  Examples:")[0].split())
    assert text.count(". ") == len(listed) - 1
    assert "..." not in text


def test_a_long_example_goes_on_in_the_next_line(run: Run) -> None:
    _, out, _ = run("launch", "slurm", "-h", width=60)
    assert "    launch slurm --host me@login.cluster --partition gpu \\\n        --image ~/rooflaunch.sif\n" in out
    assert "    launch gcp --gpu t4 --dry-run\n" in run("launch", "gcp", "-h", width=60)[1]


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("launch local --modle resnet18", "No such option: --modle", f"did you mean --model? {LOCAL} lists all"),
        ("launch gcp --gpus t4", "No such option: --gpus", "did you mean --gpu? launch gcp --help lists all"),
        ("launch build --frobnicate", "No such option: --frobnicate", "launch build --help lists all"),
        ("launch local --no-compil", "No such option: --no-compil", f"did you mean --no-compile? {LOCAL} lists all"),
        ("launch local --cpus x", "Invalid value for '--cpus': should be a valid number; got 'x'", LOCAL),
        ("launch local --format xml", "Invalid value for '--format': 'xml' is not one of 'table', 'json', 'csv'.", LOCAL),  # noqa: E501
        ("launch local --model", "Option '--model' requires an argument.", "launch local --help"),
        ("launch local extra", "Got unexpected extra argument(s) (extra)", "launch local --help"),
        ("launch gcp", "Missing option '--gpu'.", "launch gcp --help"),
        ("launch lcoal", "No such command 'lcoal'. Did you mean 'local'?", "launch --help"),
        ("launch --colour", "No such option: --colour", "launch --help lists all"),
        ("analyze sumary", "No such command 'sumary'. Did you mean 'summary'?", "analyze --help"),
        ("analyze roofline", "Missing argument 'RESULTS...'.", "analyze roofline --help"),
    ],
)  # fmt: skip
def test_what_is_not_accepted(run: Run, words: str, error: str, hint: str) -> None:
    assert run(*words.split()) == (2, "", f"error: {error}\nhint: {hint}\n")


@pytest.mark.parametrize("app", [launch_app, analyze_app])
def test_commands_without_options_are_listed_as_with_them(app: typer.Typer) -> None:
    whole = typer.main.get_command(app).commands  # type: ignore[attr-defined] # a group
    used = next(iter(whole))
    made = program._command(app, frozenset([used])).commands
    assert [(name, made[name].help, made[name].hidden) for name in made] == [
        (name, whole[name].help, whole[name].hidden) for name in whole
    ]
    assert [name for name in made if made[name].params] == [used]
