"""Figures of run.json against the steps that they were made from, each rule on both sides."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import analysis
from analysis.audit import audit
from benchmarks.synthetic_bundles import make
from tests.analysis.by_hand import results, run
from workload.contract import bundle

STEPS = [0.1, 0.12, 0.1, 0.11, 0.1]


def figures(rule: str, **facts: Any) -> list[str]:
    made = results(run(**({"steps": STEPS} | facts)))
    return [finding.figure for finding in audit(made) if finding.rule == rule]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param({}, [], id="as they are"),
        pytest.param(
            {"step_mean_s": 0.106, "step_stdev_s": 0.0089442719, "step_min_s": 0.1, "step_max_s": 0.12}, [], id="all"
        ),
        pytest.param({"images": 320.0}, ["timing.images is 320, steps.csv gives 160"], id="images"),
        pytest.param({"steps": STEPS, "stated_images_per_s": 160 / 0.53}, [], id="rate"),
        pytest.param(
            {"stated_images_per_s": 302.0}, ["timing.images_per_s is 302, steps.csv gives 301.887"], id="another rate"
        ),
        pytest.param({"step_median_s": 0.1000004}, [], id="median as it is rounded"),
        pytest.param(
            {"step_median_s": 0.100001}, ["timing.step_s.median is 0.100001, steps.csv gives 0.1"], id="another median"
        ),
        pytest.param({"step_mean_s": 0.1}, ["timing.step_s.mean is 0.1, steps.csv gives 0.106"], id="another mean"),
        pytest.param(
            {"step_stdev_s": 0.0}, ["timing.step_s.stdev is 0, steps.csv gives 0.00894427"], id="another deviation"
        ),
        pytest.param(
            {"step_p5_s": 0.09, "step_p95_s": 0.13},
            ["timing.step_s.p5 is 0.09, steps.csv gives 0.1; timing.step_s.p95 is 0.13, steps.csv gives 0.118"],
            id="two at once",
        ),
        pytest.param(
            {"data_s": [0.01] * 5, "data_wait_fraction": 0.0001, "measured_s": 0.58},
            ["timing.data_wait_fraction is 0.0001, steps.csv gives 0.0862069"],
            id="waits",
        ),
        pytest.param(
            {"explained_fraction": 0.9}, ["timing.explained_fraction is 0.9, steps.csv gives 1"], id="explained"
        ),
        pytest.param(
            {"images": None, "step_median_s": None, "measured_s": None}, [], id="what is absent claims nothing"
        ),
        pytest.param(
            {"steps": [], "images": 160.0, "step_median_s": 0.1},
            [
                (
                    "timing.images is 160, steps.csv gives 0; timing.step_s.median is 0.1, but steps.csv gives no "
                    "such figure"
                )
            ],
            id="no steps at all",
        ),
    ],
)
def test_figures(facts: dict[str, Any], expected: list[str]) -> None:
    assert figures("figures against steps", **facts) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param({}, [], id="as it is"),
        pytest.param({"measured_s": 0.5297}, [], id="another clock"),
        pytest.param({"measured_s": 0.53 * 1.019 + 0.2}, [], id="a slow end"),
        pytest.param(
            {"measured_s": 0.265},
            ["timing.measured_s is 0.265, the steps took 0.53 s by their time stamps: 0.5 x"],
            id="halved",
        ),
        pytest.param(
            {"measured_s": 0.529},
            ["timing.measured_s is 0.529, the steps took 0.53 s by their time stamps: 0.998 x"],
            id="shorter",
        ),
        pytest.param(
            {"measured_s": 0.75},
            ["timing.measured_s is 0.75, the steps took 0.53 s by their time stamps: 1.42 x"],
            id="longer",
        ),
        pytest.param({"measured_s": 0.53, "imported": True}, [], id="a log"),
        pytest.param(
            {"measured_s": 0.54, "imported": True},
            ["timing.measured_s is 0.54, the steps took 0.53 s by their time stamps: 1.02 x"],
            id="a log has no end to wait for",
        ),
        pytest.param({"measured_s": 0.1, "ended_at_s": [np.nan] * 5}, [], id="no time stamps"),
    ],
)
def test_wall_time(facts: dict[str, Any], expected: list[str]) -> None:
    assert figures("wall time against steps", **facts) == expected


def test_clock_set_back() -> None:
    assert figures("clock set back", imported=True) == []
    stamps = [5.1, 5.05, 5.3, 5.4, 5.5]
    expected = ["time stamps go back once, first at row 3"]
    assert figures("clock set back", imported=True, ended_at_s=stamps) == expected


RULES = {"figures against steps", "wall time against steps", "parts against steps", "clock set back"}


def test_a_bundle_as_the_trainer_leaves_it_breaks_none(tmp_path: Path) -> None:
    for number in range(3):
        make(tmp_path, number)
    assert RULES & {finding.rule for finding in audit(analysis.load(tmp_path))} == set()


def test_parts_must_add_up(tmp_path: Path) -> None:
    folder = make(tmp_path, 0)
    path = folder / "steps.csv"
    lines = path.read_text().splitlines()
    cells = lines[20].split(",")
    lines[20] = ",".join([*cells[:5], "0.0000001", *cells[6:]])
    path.write_text("\n".join(lines) + "\n")
    bundle.seal(folder)

    (finding,) = [each for each in audit(analysis.load(tmp_path)) if each.rule in RULES]

    together = float(cells[6]) + float(cells[7]) + 1e-7
    assert finding.figure == (
        f"1 of 110 steps, as step 19: forward, backward and optimizer take {together:.6g} s together, step_s is"
        f" {float(cells[3]):.6g}"
    )
