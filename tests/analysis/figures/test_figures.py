"""Figures: which of them are drawn, their contents, and their files."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.figures import Figure, export, registry, rooflines, style, throughput
from analysis.figures.material import Material
from tests.analysis.by_hand import BYTES, at_rates, for_every_figure
from tests.analysis.figures.material_by_hand import made, run
from tests.analysis.sentence_runs import Golden


def drawn(found: Material) -> dict[str, Figure]:
    """Figures by name. Altair validates each chart, so a chart that is no Vega-Lite raises."""
    each = [figure for build in registry.REGISTRY.values() for figure in registry.built(build, found)]
    return {figure.name: figure for figure in each if isinstance(figure, Figure)}


def values(figure: Figure) -> list[dict[str, Any]]:
    """Every row of every layer."""
    found: list[dict[str, Any]] = []

    def collect(part: Any) -> None:
        if isinstance(part, dict):
            data = part.get("data")
            if isinstance(data, dict):
                found.extend(data.get("values", []))
            for value in part.values():
                collect(value)
        elif isinstance(part, list):
            for value in part:
                collect(value)

    spec = export.specification(figure)
    for rows in spec.get("datasets", {}).values():
        found.extend(rows)
    collect({key: value for key, value in spec.items() if key != "datasets"})
    return found


# --- which figures


def test_without_any_throughput_there_is_no_figure() -> None:
    assert drawn(made(run("a", status="failed", steps=[]))) == {}


def of_models(models: int) -> Material:
    """Runs of `models` models, each at one batch size, with a price and a ceiling."""
    facts: dict[str, Any] = {"usd_per_h": 0.7, "ceiling_flop_per_s": 2e13, "ceiling_bytes_per_s": 2.5e11}
    names = ("resnet18", "resnet50", "vgg11", "vgg16")[:models]
    return made(*(one for name in names for one in at_rates(name, (100.0, 102.0), model=name, **facts)))


def test_a_figure_repeats_no_table_of_a_few_rows() -> None:
    assert set(drawn(of_models(3))) == {"variance_fixed_config"}
    compared = {"throughput_comparison", "model_comparison", "efficiency_comparison"}
    assert set(drawn(of_models(4))) == {"variance_fixed_config", *compared}


def test_a_curve_has_three_points_and_of_one_environment_one_figure() -> None:
    two = (*at_rates("a", (100.0, 102.0), **BYTES), *at_rates("b", (120.0, 121.0), batch_size=64, **BYTES))
    assert set(drawn(made(*two))) == {"variance_fixed_config", "roofline_local-cuda"}
    three = (*two, *at_rates("c", (130.0, 131.0), batch_size=128, **BYTES))
    curves = {"throughput_env-local-cuda", "ai_vs_batch_resnet18"}
    assert set(drawn(made(*three))) == {"variance_fixed_config", "roofline_local-cuda", *curves}


def everything() -> Material:
    return made(*for_every_figure())


@pytest.fixture(scope="module")
def figures() -> dict[str, Figure]:
    return drawn(everything())


def words(drawn_figures: dict[str, Figure]) -> str:
    parts = []
    for name, figure in sorted(drawn_figures.items()):
        legend = export.specification(figure)["usermeta"]["legendCharacters"]
        parts.append(f"## {name}, legend of {legend} characters\n{figure.title}\n{figure.caption}\n{figure.text}\n")
    return "".join(parts)


def test_every_figure_has_its_words(figures: dict[str, Figure], golden: Golden) -> None:
    golden("figures.txt", words(figures))


def test_every_figure_can_be_filtered_and_asked(figures: dict[str, Figure]) -> None:
    for figure in figures.values():
        spec = export.specification(figure)
        assert all(param["bind"] == "legend" for param in spec.get("params", []))
        # A click needs a legend, and there is one where something varies.
        assert bool(spec.get("params")) == bool(spec["usermeta"]["legendCharacters"])
        assert '"tooltip"' in json.dumps(spec)


def test_what_does_not_vary_has_no_legend_and_stands_in_the_caption(golden: Golden) -> None:
    rates = {32: 100.0, 64: 120.0, 128: 125.0}
    runs = [
        one for size, rate in rates.items() for one in at_rates(f"b{size}-", (rate, rate + 1), batch_size=size, **BYTES)
    ]
    golden("figures_of_one_series.txt", words(drawn(made(*runs))))


def test_names_are_broken_into_lines_and_never_cut_to_the_same_text() -> None:
    long = [f"a-very-long-name-of-a-machine-somewhere-far-{end}" for end in ("one", "two")]
    models = ("resnet18", "vgg16")
    figure = drawn(made(*(run(name + model, place=name, model=model) for name in long for model in models)))[
        "throughput_comparison"
    ]
    spec = export.specification(figure)
    (expression,) = set(re.findall(r'"labelExpr": "(\{.*?)\[datum', json.dumps(spec["layer"][-3])))
    lines = json.loads(json.loads(f'"{expression}"'))
    assert {name: "".join(parts) for name, parts in lines.items()} == {name: name for name in long}
    assert all(len(line) <= style.LEGEND_CHARACTERS for parts in lines.values() for line in parts)
    for theme in (style.PAGE, style.PAPER):
        assert theme["axis"]["labelLimit"] == theme["legend"]["labelLimit"] == 0


def test_batch_sizes_stand_beside_their_points_where_there_is_room() -> None:
    frame = rooflines.Plane(left=1.0, right=1000.0, bottom=1e9, top=1e12)
    point = {"task": "m", "variant": "fp32", "intensity_flop_per_byte": 10.0}
    apart = [{**point, "batch_size": batch, "flop_per_s": rate} for batch, rate in ((4, 1e10), (8, 5e10), (16, 2e11))]
    texts = rooflines.batch_labels(pd.DataFrame(apart), frame)
    assert dict(zip(texts["text"], texts["align"], strict=True)) == {"16": "left", "4": "left", "8": "left"}
    same = [{**point, "batch_size": batch, "flop_per_s": 1e10} for batch in (4, 8, 16, 32, 64)]
    texts = rooflines.batch_labels(pd.DataFrame(same), frame)
    # Four sides, and the outermost batch sizes first.
    assert texts["text"].tolist() == ["64", "4", "32", "8"]
    assert texts[["align", "dx", "dy"]].drop_duplicates().shape[0] == 4


def test_numbers_reach_the_chart(figures: dict[str, Figure]) -> None:
    rows = values(figures["throughput_env-local-cuda"])
    assert {row["images_per_s"] for row in rows if row.get("batch_size") == 32 and row.get("task") == "resnet18"} == {
        100.0
    }
    assert [row["ending"] for row in rows if row.get("batch_size") == 128] == ["out of memory"]
    scaled = {
        row["batch_size"]: row["relative"]
        for row in values(figures["batch_size_scaling"])
        if "batch_size" in row and row["env"] == "local-cuda"
    }
    assert scaled == {32: 1.0, 64: pytest.approx(1.21)}


def test_counted_and_modelled_points_and_roofs_look_different(figures: dict[str, Figure]) -> None:
    layers = export.specification(figures["roofline_local-cuda"])["layer"]
    filters = {
        part["filter"]: layer["mark"]
        for layer in layers
        for part in layer.get("transform", [])
        if layer["mark"]["type"] == "point"
    }
    assert filters["datum.source == 'counters'"]["filled"]
    assert filters["datum.source == 'modelled'"]["fill"] == "transparent"
    roofs = [row for row in values(figures["roofline_local-cuda"]) if "kind" in row]
    assert {row["kind"] for row in roofs} == {"measured", "peak"}
    dashes = next(layer["encoding"]["strokeDash"]["scale"] for layer in layers if "strokeDash" in layer["encoding"])
    assert dashes["domain"] == ["measured", "peak"]
    assert dashes["range"][0] != dashes["range"][1]


def test_a_roof_bends_at_its_ridge() -> None:
    roofs = pd.DataFrame([{"kind": "measured", "precision": "fp32", "flop_per_s": 1e12, "bytes_per_s": 1e11}])
    points = pd.DataFrame({"intensity_flop_per_byte": [1.0, 100.0], "flop_per_s": [5e10, 8e11]})
    frame = rooflines.frame_of(points, roofs)
    assert (frame.left, frame.right, frame.bottom, frame.top) == (0.5, 200.0, 2e10, 2e12)
    corners = rooflines._lines(roofs, frame)[["intensity_flop_per_byte", "flop_per_s"]].to_numpy().tolist()
    assert corners == [[0.5, 5e10], [10.0, 1e12], [200.0, 1e12]]


def test_labels_of_close_roofs_do_not_touch() -> None:
    rates = [1.00e13, 0.99e13, 0.98e13, 1e12]
    roofs = pd.DataFrame(
        [{"kind": "peak", "precision": "amp", "flop_per_s": rate, "bytes_per_s": 1e11} for rate in rates]
    )
    frame = rooflines.Plane(left=1.0, right=1000.0, bottom=1e10, top=2e13)
    pixels = [frame.pixels(rate) for rate in rooflines._labels(roofs, frame)["flop_per_s"]]
    gaps = [after - before for before, after in pairwise(pixels)]
    assert min(gaps) >= rooflines.LABEL_HEIGHT - 1e-6


def test_the_fixed_configuration_is_that_of_most_environments() -> None:
    found = made(
        *at_rates("a", (10.0, 11.0, 12.0, 13.0), model="vgg11"),
        *at_rates("b", (100.0, 110.0)),
        *at_rates("c", (20.0, 22.0), place="t4", device_name="Tesla T4"),
        *at_rates("d", (20.0,), place="cpu", device_name="Xeon", device_type="cpu"),
    )
    runs = registry.fixed_configuration(found)
    assert runs is not None
    assert set(runs["run_id"]) == {"b0", "b1", "c0", "c1"}
    rows = throughput.variance_rows(runs)
    assert rows["relative"].tolist() == pytest.approx([-1 / 21, 1 / 21, -1 / 21, 1 / 21])


def test_a_run_stands_on_the_line_of_its_steps() -> None:
    """Throughput includes waits for data and step times do not: here half of the time is spent waiting."""
    steps = {"step_median_s": 0.1, "step_p95_s": 0.125, "step_p5_s": 0.08}
    rows = throughput.variance_rows(
        made(
            *at_rates("a", (100.0, 100.0, 120.0), data_wait_fraction=0.5, **steps),
            *at_rates("b", (100.0, 100.0), place="t4", device_name="Tesla T4", data_wait_fraction=0.0, **steps),
        ).runs
    )
    assert rows["slow"].tolist() == pytest.approx([-1 / 9, -1 / 9, 1.2 / 1.125 - 1, -0.2, -0.2])
    assert rows["relative"].tolist() == pytest.approx([0, 0, 0.2, 0, 0])
    assert rows["fast"].tolist() == pytest.approx([1 / 9, 1 / 9, 1.2 / 0.9 - 1, 0.25, 0.25])


def test_efficiency_against_ceiling_and_peak() -> None:
    table = registry.efficiencies(made(run("a", steps=[0.1] * 10, **BYTES)))
    found = dict(zip(table["of"], table["fraction"], strict=True))
    attained = 32 * 10.6484e9 / 0.1
    assert found["of the measured ceiling"] == pytest.approx(attained / 2e13)
    assert found["of the vendor's peak"] == pytest.approx(attained / 30.3e12, rel=0.01)


# --- files


def test_a_folder_that_cannot_be_written_is_told(figures: dict[str, Figure], tmp_path: Path) -> None:
    from workload.contract.errors import UsageError

    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as caught:
        export.save([figures["model_comparison"]], tmp_path / "file")
    assert str(caught.value) == f"figures folder '{tmp_path / 'file'}' cannot be written: File exists"
    assert caught.value.hint == "--figures FOLDER"


def test_long_titles_break_between_words(figures: dict[str, Figure]) -> None:
    figure = figures["model_comparison"]
    long = Figure(**{**figure.__dict__, "title": "word " * 30})
    lines = export.titled(long)["title"]["text"]
    assert len(lines) == 2
    assert all(len(line) <= export.TITLE_CHARACTERS for line in lines)


def test_bars_may_be_a_standard_deviation() -> None:
    """Rates 100, 102, 104: the mean 102 and the deviation 2; one run has no bar."""
    sizes = {4: (100.0, 102.0, 104.0), 8: (150.0,), 16: (170.0,)}
    found = made(*(run for size, rates in sizes.items() for run in at_rates(f"b{size}-", rates, batch_size=size)))
    figures = {bars: {each.name: each for each in registry.figures(found, bars)} for bars in registry.Bars}
    name = next(name for name in figures[registry.Bars.SD] if name.startswith("throughput_env-"))
    deviations, intervals = (figures[bars][name] for bars in (registry.Bars.SD, registry.Bars.INTERVAL))
    ends = [(row["bar_low"], row["bar_high"]) for row in values(deviations) if row.get("bar_low")]
    assert ends
    assert all(end == pytest.approx((100, 104)) for end in ends)
    assert all(row["bar_low"] < 100 for row in values(intervals) if row.get("bar_low"))
    assert "Bars are the mean ± 1 standard deviation over runs" in deviations.caption
    assert "95 % intervals" in intervals.caption
    assert {row["interval"] for row in values(deviations) if "interval" in row} == {"mean ± 1 SD"}
