"""Every command on every odd folder ends with a table or with an error that says what is missing, never a traceback."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.importing import UserFacts, import_file
from benchmarks.synthetic_bundles import make, make_record
from tests.analysis.in_process import Analyze
from tests.analysis.readers.ncu.ncu_files import COUNTS, save, wide
from workload.contract import bundle

COMMANDS = ("summary", "roofline", "kernels", "variance", "compare", "audit", "report")
RUN = {"summary", "audit", "report"}
TIMED = {*RUN, "variance"}


def bare(folder: Path, status: str = "failed") -> None:
    """A run that ended before anything was measured: run.json says little more than its name."""
    record = {name: make_record(1, [0.1, 0.1])[name] for name in ("run_id", "spec")} | {"status": status}
    path = folder / record["run_id"]
    path.mkdir(parents=True)
    bundle.write_document(path, record | {"environment": {"place": "here"}})
    bundle.seal(path)


def incomplete(folder: Path) -> None:
    (make(folder, 1) / bundle.MANIFEST).unlink()


def damaged(folder: Path) -> None:
    (make(folder, 1) / bundle.STEPS).write_text("")


def newer(folder: Path) -> None:
    make(folder, 1, schema_version=99)


def failed(folder: Path) -> None:
    make(folder, 1, status="failed")


def without_work(folder: Path) -> None:
    """Neither FLOP nor ceilings, and no device whose peak is known."""
    for number in (1, 2):
        make(folder, number, ceilings=None, complexity=None, environment__device__name="NVIDIA Unknown")


def waiting_for_ever(folder: Path) -> None:
    for number in (1, 2):
        make(folder, number, timing__data_wait_fraction=1e308)


def no_sections(folder: Path) -> None:
    sections = ("timing", "environment", "complexity", "ceilings", "bound", "profile")
    make(folder, 1, **dict.fromkeys(sections))


def only_profiles(folder: Path) -> None:
    for number in (1, 2):
        file = save(folder.parent, wide(COUNTS, [[1000, 10, 10, 40, 100 * number]]), name=f"{number}.csv")
        import_file(file, UserFacts(model="resnet50", batch_size=64), output=folder)


# A page takes seconds: only where reading fails before one is made.
WITH_REPORT = (incomplete,)


@pytest.mark.parametrize(
    ("fill", "answered"),
    [
        (incomplete, set()),
        (damaged, set()),
        (newer, set()),
        (bare, RUN),
        (failed, TIMED),
        (no_sections, TIMED),
        (without_work, TIMED),
        (waiting_for_ever, set()),
        (only_profiles, {*RUN, "kernels", "roofline"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_odd_folders(tmp_path: Path, analyze: Analyze, fill: Callable[[Path], Any], answered: set[str]) -> None:
    results = tmp_path / "results"
    results.mkdir()
    fill(results)
    codes = {}
    # The first leaves the index that the others read.
    for command in COMMANDS:
        if command == "report" and fill not in WITH_REPORT:
            continue
        options = ["-o", str(tmp_path / "page.html")] if command == "report" else []
        codes[command], out, err = analyze(command, results, *options)
        assert bool(out) == (codes[command] == 0), command
        assert err.startswith("error: ") == (codes[command] != 0), command
    assert codes == {command: 0 if command in answered else 3 for command in codes}


@pytest.mark.parametrize(
    ("fill", "command", "message"),
    [
        (bare, "roofline", "no point for a roofline: 0 completed runs without FLOP and bytes of a step"),
        (without_work, "roofline", "no point for a roofline: 2 completed runs without FLOP and bytes of a step"),
        (bare, "variance", "no variance to show: no completed run with measured steps among 1 run"),
        (bare, "compare", "nothing to compare: no run completed its measured steps"),
    ],
)
def test_what_is_missing_is_said(
    tmp_path: Path, analyze: Analyze, fill: Callable[[Path], Any], command: str, message: str
) -> None:
    fill(tmp_path)
    code, _, err = analyze(command, tmp_path)
    assert code == 3
    assert err.splitlines()[0] == f"error: {message}"
