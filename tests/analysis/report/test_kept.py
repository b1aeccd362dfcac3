"""A report is kept beside the index, and used again as long as no file of a bundle changes."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import analysis
from analysis.loading import index
from analysis.loading.index import Problem
from analysis.report import html, kept, template
from analysis.report.content import Bullets, Paragraph, Report, Section
from benchmarks.synthetic_bundles import make
from tests.analysis.in_process import Analyze

SMALL = Report(
    title="Report",
    facts=["2 runs"],
    sections=[Section(name="answer", title="Answer", blocks=[Paragraph(text="No."), Bullets(sentences=["a", "b"])])],
)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two bundles, of which a report is kept as one of thousands is."""
    monkeypatch.setattr(index, "FEWEST", 1)
    for number in range(2):
        make(tmp_path / "results", number)
    (tmp_path / "results" / index.FOLDER).mkdir()
    return tmp_path / "results"


def put(results: Path, report: Report, problems: tuple[Problem, ...] = ()) -> str:
    key = kept.key_of(results)
    assert key
    kept.store(results, key, report, problems)
    return key


def has_report(results: Path) -> bool:
    key = kept.key_of(results)
    return bool(key and kept.load(results, key))


def test_a_kept_report_makes_the_same_page(results: Path, report: Report) -> None:
    problems = (Problem(path="a\udcff", reason="was odd"),)
    key = put(results, report, problems)
    found = kept.load(results, key)
    assert found
    assert html.render(found[0]) == html.render(report)
    assert template.as_markdown(found[0], figures="figures") == template.as_markdown(report, figures="figures")
    assert tuple(found[1]) == problems
    # A kept report can be kept again.
    assert html.render(kept.store(results, key, found[0], problems)) == html.render(report)


def bundles(results: Path) -> list[Path]:
    return sorted(path for path in results.iterdir() if not path.name.startswith("."))


def profiled(results: Path) -> None:
    (bundles(results)[0] / "torch").mkdir()
    (bundles(results)[0] / "torch" / "operators.csv").write_text("name\n")


CHANGES: dict[str, Callable[[Path], object]] = {
    "another bundle": lambda results: make(results, 7),
    "one less": lambda results: shutil.rmtree(bundles(results)[0]),
    "renamed": lambda results: bundles(results)[0].rename(results / "other"),
    "a file with another time": lambda results: os.utime(bundles(results)[1] / "run.json", ns=(1, 1)),
    "another size": lambda results: (bundles(results)[1] / "steps.csv").write_text("step\n"),
    "a profile": profiled,
    "a folder that is no bundle": lambda results: ((results / "x").mkdir(), (results / "x" / "notes.txt").touch()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_every_change_of_a_file_needs_another_report(results: Path, change: Callable[[Path], object]) -> None:
    put(results, SMALL)
    assert has_report(results)
    change(results)
    assert not has_report(results)


DAMAGES: dict[str, Callable[[str], str]] = {
    "no JSON": lambda _: "{",
    "a list": lambda _: "[]",
    "too deep": lambda _: "[" * 100_000,
    "another part": lambda text: text.replace('"Report"', '"Other"'),
    "another field": lambda text: text.replace('"facts"', '"others"'),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_report_is_none(results: Path, damage: Callable[[str], str]) -> None:
    """A damaged file is the concern of the cache."""
    key = put(results, SMALL)
    path = results / index.FOLDER / kept.FILE
    (row,) = pq.read_table(path).to_pylist()
    index.store_table(path, pa.table([[key], [damage(row["report"])]], schema=kept.SCHEMA))
    assert not has_report(results)


def test_a_report_of_bundles_that_changed_meanwhile_is_not_kept(results: Path) -> None:
    key = kept.key_of(results)
    assert key
    make(results, 7)
    assert html.render(kept.store(results, key, SMALL, ())) == html.render(SMALL)
    assert not (results / index.FOLDER / kept.FILE).exists()


def test_no_report_is_kept_of_few_bundles(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "FEWEST", 3)
    assert kept.key_of(results) is None
    assert kept.key_of(results / "absent") is None
    assert kept.key_of(bundles(results)[0] / "run.json") is None


@pytest.mark.slow
def test_the_command_uses_a_kept_report(
    results: Path, tmp_path: Path, analyze: Analyze, monkeypatch: pytest.MonkeyPatch
) -> None:
    (results / "x").mkdir()
    (results / "x" / "notes.txt").touch()

    def made(name: str, *words: str) -> tuple[tuple[int, str], list[bytes]]:
        page, folder = tmp_path / f"{name}.html", tmp_path / name
        code, _, err = analyze("report", results, "-o", page, "--figures", folder, *words)
        # SVG files have ids that vl-convert counts up.
        return (code, err), [page.read_bytes(), *(path.read_bytes() for path in sorted(folder.glob("*.png")))]

    first = made("first")
    assert len(first[1]) > 1
    assert "not a rooflaunch bundle" in first[0][1]
    calls: list[Any] = []
    load = analysis.load
    monkeypatch.setattr(
        analysis, "load", lambda *folders, **options: (calls.append(folders), load(*folders, **options))[1]
    )
    assert made("second") == first
    assert not calls
    assert made("verified", "--verify") == first
    make(results, 7)
    assert made("more")[1] != first[1]
    assert len(calls) == 2
