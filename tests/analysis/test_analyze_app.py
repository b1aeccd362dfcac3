import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from analysis import __main__ as program
from benchmarks.synthetic_bundles import make
from tests.analysis.in_process import Analyze
from workload.contract.errors import ExitCode

ROOT = Path(__file__).parents[2]
HEAVY = {"pandas", "numpy", "pyarrow", "scipy", "altair", "google", "torch", "docker", "rich"}
# Beside these, help loads nothing that typer does not load for a command of one word.
OURS = {"analysis", "rooflaunch", "workload"}
BARE = """import typer
def bare(word: str): pass
try: typer.run(bare)
except SystemExit: pass"""
LOG = "iter_time_ms,timestamp\n100,1763159640\n100,1763159641\n"


def test_help_names_what_works(analyze: Analyze) -> None:
    code, out, _ = analyze("--help")
    assert code == ExitCode.DONE
    commands = out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    # Further lines of a long summary are indented more.
    named = {line.split()[0] for line in commands if line.startswith("  ") and not line.startswith("   ")}
    assert {"summary", "import"} <= named
    for name in named:
        assert analyze(name, "--help")[0] == ExitCode.DONE


def test_many_problems_do_not_hide_the_table(analyze: Analyze, tmp_path: Path) -> None:
    make(tmp_path, 1)
    for number in range(25):
        (tmp_path / f"folder-{number:02d}").mkdir()
        (tmp_path / f"folder-{number:02d}" / "file").write_text("")
    _, _, err = analyze("summary", tmp_path)
    lines = err.splitlines()
    assert len(lines) == 21
    assert lines[-1] == 'problem    and 5 more: analysis.load("…").problems in Python lists them'


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["summary", "nope"], ExitCode.USAGE, "error: results folder 'nope' does not exist\nhint: name a folder that"),
        (["summary", "."], ExitCode.NOTHING_TO_DO, "error: no bundle in '.'\nhint: launch local -o .\n"),
        (["summary"], ExitCode.USAGE, "error: Missing argument 'RESULTS...'."),
        (["frobnicate"], ExitCode.USAGE, "error: No such command 'frobnicate'.\nhint: analyze --help\n"),
        (["import", "nope.csv"], ExitCode.USAGE, "error: 'nope.csv' cannot be read: No such file or directory\n"),
        (["import", "log.csv"], ExitCode.USAGE, "error: 'log.csv' does not say the model or the batch size\n"),
        (
            ["import", "log.csv", "--model", "m", "--batch-size", "0"],
            ExitCode.USAGE,
            "error: --batch-size must be a positive integer; got '0'\nhint: --batch-size 4\n",
        ),
        (["import", "log.csv", "--batch-size", "many"], ExitCode.USAGE, "error: Invalid value for '--batch-size'"),
    ],
)
def test_errors_have_two_lines_and_a_code(
    analyze: Analyze,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: ExitCode,
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text(LOG)
    found, out, err = analyze(*words)
    assert (found, out) == (code, "")
    assert err.startswith(text)
    assert "\nhint: " in err


def test_import_prints_folders_and_summary_reads_them(analyze: Analyze, tmp_path: Path) -> None:
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_text(LOG)
    second.write_text(LOG.replace("9641", "9642"))
    options = ("--model", "vgg16", "--batch-size", "8", "--gpu", "Tesla T4", "-o", tmp_path / "results")
    code, out, err = analyze("import", first, *options)
    assert (code, err) == (ExitCode.DONE, "")
    folder = Path(out.strip())
    assert (folder / "MANIFEST.json").is_file()
    code, out, err = analyze("import", first, second, *options)
    assert code == ExitCode.DONE
    assert len(out.splitlines()) == 1
    assert err == f"note       '{first}' is imported already: {folder}\n"
    code, out, err = analyze("import", first, second, *options)
    assert (code, out) == (ExitCode.NOTHING_TO_DO, "")
    assert err.startswith(f"error: '{first}' is imported already: {folder}\nhint: remove {folder} first")
    _, out, _ = analyze("summary", tmp_path / "results", "--format", "json")
    (line,) = json.loads(out)
    assert (line["model"], line["batch_size"], line["device_name"], line["runs"]) == ("vgg16", 8, "Tesla T4", 2)
    # 8 images in 1 s and in 2 s.
    assert line["images_per_s"] == 6.0


@pytest.mark.parametrize("package", ["pandas", "pyarrow", "typer", "google.cloud"])
def test_missing_package_is_told(
    analyze: Analyze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    def absent(*_: object, **__: object) -> int:
        raise ModuleNotFoundError(f"No module named '{package}'", name=package)

    monkeypatch.setattr(program, "_run", absent)
    code, _, err = analyze("summary", tmp_path)
    assert code == ExitCode.TOOL
    name = package.partition(".")[0]
    assert err == f"error: analyze needs the package {name}\nhint: pip install 'rooflaunch[analysis]'\n"


def test_bug_keeps_its_traceback(analyze: Analyze, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug() -> int:
        raise ModuleNotFoundError("No module named 'analysis.nope'", name="analysis.nope")

    monkeypatch.setattr(program, "_run", bug)
    with pytest.raises(ModuleNotFoundError):
        analyze("summary", ".")


class Refusing(io.StringIO):
    """A stdout that cannot be written, once its buffer is flushed."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def flush(self) -> None:
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (errno.EPIPE, ExitCode.DONE, ""),
        (
            errno.ENOSPC,
            ExitCode.TOOL,
            (
                "error: standard output cannot be written: No space left on device\nhint: the work itself "
                "is done; print its result again, to another file\n"
            ),
        ),
    ],
    ids=["reader has left", "disk is full"],
)
def test_output_that_cannot_be_written(
    number: int, code: int, said: str, analyze: Analyze, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make(tmp_path)
    monkeypatch.setattr(sys, "stdout", Refusing(number))
    assert analyze("summary", str(tmp_path)) == (code, "", said)


def run(*words: str, code: str = "from analysis.__main__ import main; main()") -> str:
    arguments = f"import sys; before = set(sys.modules); sys.argv = ['analyze', *{words!r}]; {code}"
    show = "print('LOADED', *{name.partition('.')[0] for name in {*sys.modules} - before})"
    done = subprocess.run(
        [sys.executable, "-c", f"{arguments}\n{show}"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout


@pytest.mark.world
@pytest.mark.parametrize("words", [("--help",), ("summary", "--help"), ("import", "--help"), ("nonsense",)])
def test_help_stays_light(words: tuple[str, ...]) -> None:
    loaded = set(run(*words).rpartition("LOADED")[2].split())
    assert "typer" in loaded
    assert not loaded & HEAVY
    assert loaded - set(run("x", code=BARE).rpartition("LOADED")[2].split()) - sys.stdlib_module_names <= OURS


@pytest.mark.world
def test_importing_the_package_stays_light() -> None:
    loaded = set(run(code="import analysis; analysis.load").rpartition("LOADED")[2].split())
    assert not loaded & (HEAVY | {"typer"})


@pytest.mark.slow
@pytest.mark.world
def test_no_command_loads_torch(tmp_path: Path) -> None:
    make(tmp_path, 1)
    loaded = set(run("summary", str(tmp_path)).rpartition("LOADED")[2].split())
    assert "pandas" in loaded
    assert not loaded & {"torch", "docker", "google", "altair", "rich"}
