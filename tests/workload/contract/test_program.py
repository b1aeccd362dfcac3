"""Programs: their help, refusals of words, and their end."""

import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from analysis import __main__ as analyze
from analysis.app import app as analyze_app
from launcher import __main__ as launch
from launcher.cli.app import app as launch_app
from workload import __version__
from workload.contract import operating_system, process, program
from workload.contract.errors import ExitCode, UsageError
from workload.contract.operating_system import from_checkout

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
        ("launch train.py --lr 1", "No such command 'train.py'.", "launch local -- train.py --lr 1"),
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


ROOT = Path(__file__).parents[3]
LOST = (
    "error: standard output cannot be written: No space left on device\nhint: the work itself is done; "
    "print its result again, to another file\n"
)


class Refusing(io.StringIO):
    """A stream that cannot be written any more."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def write(self, _: str) -> int:
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    ("number", "own_code", "code", "said"),
    [
        (errno.EPIPE, 0, 0, ""),
        (errno.EPIPE, 6, 6, ""),
        (errno.ENOSPC, 0, ExitCode.TOOL, LOST),
        (errno.ENOSPC, 6, 6, LOST),
    ],
)
def test_work_goes_on_without_a_reader(
    number: int,
    own_code: int,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done: list[str] = []

    def work() -> int:
        for repeat in ("first", "second"):
            print(repeat, flush=True)
            done.append(repeat)
        return own_code

    refusing = Refusing(number)
    monkeypatch.setattr(sys, "stdout", refusing)
    assert process.enter(work) == code
    assert done == ["first", "second"]
    assert capsys.readouterr().err == said
    assert sys.stdout is refusing


def test_messages_that_cannot_be_written_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Refusing(errno.EIO))

    def work() -> int:
        print("error: a message", file=sys.stderr)
        return ExitCode.NOTHING_TO_DO

    assert process.enter(work) == ExitCode.NOTHING_TO_DO


def test_other_errors_of_the_system_keep_their_traceback() -> None:
    with pytest.raises(FileNotFoundError):
        process.enter(lambda: Path("/nowhere/at/all").stat().st_size)


def test_ctrl_c_is_one_word(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise KeyboardInterrupt

    assert process.enter(work) == ExitCode.INTERRUPTED
    assert capsys.readouterr() == ("", "interrupted\n")


@pytest.mark.world
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize(
    "words", [["launcher", "--help"], ["analysis", "--help"], ["workload", "--help"], ["workload.bundle", "BUNDLE"]]
)
def test_every_program_reports_a_lost_result(words: list[str], tmp_path: Path) -> None:
    from workload.contract import bundle

    bundle.write_document(
        tmp_path, {"run_id": "run-1", "status": "completed", "spec": {"model": "resnet18", "batch_size": 4}}
    )
    bundle.seal(tmp_path)
    command = [sys.executable, "-m", *(str(tmp_path) if word == "BUNDLE" else word for word in words)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (ExitCode.TOOL, LOST)


@pytest.mark.world
def test_closed_streams_are_not_given_to_the_next_file(tmp_path: Path) -> None:
    code = (
        "from workload.contract import process\n"
        "def work():\n"
        "    with open('file', 'w') as text: text.write(str(text.fileno()))\n"
        "    print('dropped'); return 3\n"
        "raise SystemExit(process.enter(work))"
    )
    command = ["bash", "-c", '"$0" -c "$1" <&- >&- 2>&-', sys.executable, code]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 3
    assert int((tmp_path / "file").read_text()) > 2


@pytest.mark.world
def test_ctrl_c_while_python_ends_changes_nothing() -> None:
    """A child gets Ctrl-C twice, from the terminal and from its launcher: the second may come at its end."""
    code = """
import atexit, os, signal, sys
from workload.contract import process
atexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), print("ended", flush=True)))
sys.exit(process.enter(lambda: 6))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (6, "ended\n", "")


@pytest.mark.world
@pytest.mark.parametrize(("tool", "freed"), [("", ""), ("/nowhere/libprofiler.so", "freed\n")])
def test_a_quick_end_frees_nothing_and_loses_nothing(tool: str, freed: str, tmp_path: Path) -> None:
    code = """
import atexit, sys, threading, weakref
from workload.contract import process
class Freed:
    def __del__(self): print("freed", flush=True)
kept, may_end = Freed(), threading.Event()
threading.Thread(target=lambda: (may_end.wait(), print("thread"))).start()
atexit.register(print, "atexit")
sys.stderr.write("no newline")
may_end.set()
kept_open = open(sys.argv[1], "w")
kept_open.write("buffered")
class Tee:
    def flush(self): sys.__stdout__.write("flushed")
    def write(self, text): sys.__stdout__.write(text)
sys.stdout = Tee()
class Gone: pass
to_nothing = weakref.proxy(Gone())
process.end_quickly(7)
"""
    environment = {**os.environ, "CUDA_INJECTION64_PATH": tool}
    command = [sys.executable, "-c", code, str(tmp_path / "file")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, f"thread\natexit\nflushed{freed}", "no newline")
    assert (tmp_path / "file").read_text() == "buffered"


def test_a_module_beside_the_packages_is_imported() -> None:
    assert from_checkout("benchmarks.gpu_truth.evidence", "gpu-truth").SCHEMA == 1


def test_an_installed_package_says_that_it_has_no_such_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operating_system, "ROOT", tmp_path)
    with pytest.raises(UsageError) as caught:
        from_checkout("benchmarks.gpu_truth.evidence", "gpu-truth")
    folder = tmp_path / "benchmarks" / "gpu_truth"
    expected = f"there is no '{folder}': gpu-truth is part of the repository, not of the installed package"
    assert str(caught.value) == expected
    assert caught.value.hint.startswith("run gpu-truth from a checkout: ")
    assert caught.value.hint.endswith("docs/gpu-truth.md")
    assert caught.value.exit_code == ExitCode.USAGE
