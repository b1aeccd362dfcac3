"""What `analysis.load` returns, as a notebook uses it: the tables of the commands, charts, and a short name."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import altair as alt
import pandas as pd
import pytest

import analysis
from analysis.api import Results
from analysis.loading.cases import OfRuns
from benchmarks.synthetic_bundles import make
from tests.analysis.in_process import Analyze
from tests.analysis.report.report_bundles import matrix
from workload.contract.errors import UsageError
from workload.contract.tables import Column, TableFormat, render

OURS = Path(__file__).with_name("bundles")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return matrix(tmp_path_factory.mktemp("results"), repeats=2)


@pytest.mark.parametrize(
    ("frame", "command"),
    [
        pytest.param(lambda results: results.summary(wide=True), ["summary"], id="summary"),
        pytest.param(lambda results: results.compare(wide=True), ["compare"], id="compare"),
        pytest.param(
            lambda results: results.compare(by="place", wide=True), ["compare", "--by", "place"], id="compare by"
        ),
        pytest.param(lambda results: results.roofline(wide=True), ["roofline"], id="roofline"),
        pytest.param(lambda results: results.variance(wide=True), ["variance", "--part", "between"], id="between"),
        pytest.param(
            lambda results: results.variance("within", wide=True), ["variance", "--part", "within"], id="within"
        ),
        pytest.param(
            lambda results: results.variance("causes", wide=True), ["variance", "--part", "causes"], id="causes"
        ),
        pytest.param(lambda results: results.audit(), ["audit"], id="audit"),
    ],
)
def test_a_frame_is_the_table_of_its_command(
    folder: Path, analyze: Analyze, frame: Callable[[Results], pd.DataFrame], command: list[str]
) -> None:
    printed = json.loads(analyze(*command, folder, "--format", "json")[1])
    table = frame(analysis.load(folder))
    columns = [Column(name=name, heading=name) for name in printed[0]] if printed else []
    assert json.loads(render(table, columns, TableFormat.JSON)) == (printed or [{}] * len(table))


def test_a_report_of_results(tmp_path: Path) -> None:
    results = analysis.load(shutil.copytree(OURS, tmp_path / "results"))
    assert len(results) == 2
    page = results.report(tmp_path / "page.html")
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_figures_are_altair_charts(folder: Path) -> None:
    results = analysis.load(folder)
    assert "figures" not in vars(results)
    chart = results.figures["throughput_comparison"]
    assert results.figures["throughput_comparison"] is chart
    assert isinstance(chart, alt.TopLevelMixin)
    assert {"roofline_combined", "efficiency_comparison"} <= set(results.figures)
    assert chart.to_dict()["title"]["text"]


def test_an_unknown_part_of_the_variance(folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        analysis.load(folder).variance("among")
    assert caught.value.report() == (
        "error: variance has no part 'among'\nhint: one of between, within, machines, causes"
    )


@pytest.mark.parametrize(
    ("models", "broken", "text"),
    [
        (["resnet18"], 0, "<Results: 1 run of 1 configuration on 1 place>"),
        (["resnet18", "vgg16", "vgg16"], 1, "<Results: 3 runs of 2 configurations on 1 place; 1 problem>"),
    ],
)
def test_a_short_name(tmp_path: Path, models: list[str], broken: int, text: str) -> None:
    for number, model in enumerate(models, start=1):
        make(tmp_path, number, spec__model=model)
    for number in range(broken):
        (make(tmp_path, 10 + number) / "MANIFEST.json").unlink()
    assert repr(analysis.load(tmp_path)) == text


@pytest.mark.slow
@pytest.mark.world
def test_loading_draws_nothing(folder: Path) -> None:
    names = "'altair' in sys.modules, 'scipy' in sys.modules"
    code = f"import sys, analysis; repr(analysis.load({str(folder)!r})); print({names})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_figures_judge_no_runs_and_can_be_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OfRuns, "begin", lambda *_: pytest.fail("runs are judged"))
    chart = analysis.load(folder).figures["model_comparison"]
    before, copied = chart.to_dict(), chart.copy()
    for layer in copied.layer:
        layer.encoding.y["scale"].domain = [1, 2]
    assert copied.to_dict() != before
    assert chart.to_dict() == before
