"""Figures of run.json against the steps that they were made from, each rule on both sides."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import analysis
from analysis.audit import audit
from benchmarks.synthetic_bundles import make
from tests.analysis.audit.rules import Cases, figures, rows
from tests.analysis.by_hand import run
from workload.contract import bundle

STEPS = [0.1, 0.12, 0.1, 0.11, 0.1]


def timed(**facts: Any) -> dict[str, Any]:
    return run(**({"steps": STEPS} | facts))


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
        f"1 of 110 steps; in step 19, forward, backward and optimizer take {together:.6g} s together, but step_s is"
        f" {float(cells[3]):.6g}"
    )


CASES: Cases = {
    "figures against steps": {
        "as they are": (timed(), []),
        "all": (timed(step_mean_s=0.106, step_stdev_s=0.0089442719, step_min_s=0.1, step_max_s=0.12), []),
        "images": (timed(images=320.0), ["timing.images is 320, steps.csv gives 160"]),
        "rate": (timed(steps=STEPS, stated_images_per_s=160 / 0.53), []),
        "another rate": (timed(stated_images_per_s=302.0), ["timing.images_per_s is 302, steps.csv gives 301.887"]),
        "median as it is rounded": (timed(step_median_s=0.1000004), []),
        "another median": (timed(step_median_s=0.100001), ["timing.step_s.median is 0.100001, steps.csv gives 0.1"]),
        "another mean": (timed(step_mean_s=0.1), ["timing.step_s.mean is 0.1, steps.csv gives 0.106"]),
        "another deviation": (timed(step_stdev_s=0.0), ["timing.step_s.stdev is 0, steps.csv gives 0.00894427"]),
        "two at once": (
            timed(step_p5_s=0.09, step_p95_s=0.13),
            ["timing.step_s.p5 is 0.09, steps.csv gives 0.1; timing.step_s.p95 is 0.13, steps.csv gives 0.118"],
        ),
        "waits": (
            timed(data_s=[0.01] * 5, data_wait_fraction=0.0001, measured_s=0.58),
            ["timing.data_wait_fraction is 0.0001, steps.csv gives 0.0862069"],
        ),
        "explained": (timed(explained_fraction=0.9), ["timing.explained_fraction is 0.9, steps.csv gives 1"]),
        "what is absent claims nothing": (timed(images=None, step_median_s=None, measured_s=None), []),
        "no steps at all": (
            timed(steps=[], images=160.0, step_median_s=0.1),
            [
                (
                    "timing.images is 160, steps.csv gives 0; "
                    "timing.step_s.median is 0.1, but steps.csv gives no such figure"
                )
            ],
        ),
    },
    "wall time against steps": {
        "as it is": (timed(), []),
        "another clock": (timed(measured_s=0.5297), []),
        "a slow end": (timed(measured_s=0.53 * 1.019 + 0.2), []),
        "halved": (
            timed(measured_s=0.265),
            ["timing.measured_s is 0.265, the steps took 0.53 s by their time stamps: 0.5 x"],
        ),
        "shorter": (
            timed(measured_s=0.529),
            ["timing.measured_s is 0.529, the steps took 0.53 s by their time stamps: 0.998 x"],
        ),
        "longer": (
            timed(measured_s=0.75),
            ["timing.measured_s is 0.75, the steps took 0.53 s by their time stamps: 1.42 x"],
        ),
        "a log": (timed(measured_s=0.53, imported=True), []),
        "a log has no end to wait for": (
            timed(measured_s=0.54, imported=True),
            ["timing.measured_s is 0.54, the steps took 0.53 s by their time stamps: 1.02 x"],
        ),
        "no time stamps": (timed(measured_s=0.1, ended_at_s=[np.nan] * 5), []),
    },
    "clock set back": {
        "as it is": (timed(imported=True), []),
        "once": (
            timed(imported=True, ended_at_s=[5.1, 5.05, 5.3, 5.4, 5.5]),
            ["time stamps go back once, first at row 3"],
        ),
    },
}


@pytest.mark.parametrize(("rule", "runs", "expected"), rows(CASES))
def test_rules(tmp_path: Path, rule: str, runs: list[dict[str, Any]], expected: list[str]) -> None:
    assert figures(*runs, rule=rule, folder=tmp_path) == expected
