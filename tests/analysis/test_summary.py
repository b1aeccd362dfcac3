import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.summary import COLUMNS, summarize
from benchmarks.synthetic_bundles import make
from tests.analysis.sentence_runs import Golden
from workload.contract.tables import TableFormat, render
from workload.stats.intervals import interval_at_look, single_contrast


def lines(tmp_path: Path, *changes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A run per argument, which takes 1 s for as many images as `images` says; summarised."""
    for number, each in enumerate(changes):
        defaults = {"timing__measured_s": 1.0, "timing__images": 100 + number}
        make(tmp_path, number, **{**defaults, **each})
    table = summarize(analysis.load(tmp_path).runs)
    assert list(table.columns) == [column.name for column in COLUMNS]
    plain: list[dict[str, Any]] = [
        {str(key): None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}
        for row in table.to_dict("records")
    ]
    return plain


def test_repeats_are_one_line(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, {}, {}, {})
    assert line["runs"] == 3
    assert line["images_per_s"] == 101
    # ln 100, 101, 102: mean 4.615088, standard deviation 0.0099015; t(2, 97.5 %) = 4.30265.
    assert line["images_per_s_low"] == pytest.approx(math.exp(4.615088 - 4.302653 * 0.0099015 / 3**0.5), rel=2e-6)
    assert line["images_per_s_high"] == pytest.approx(math.exp(4.615088 + 4.302653 * 0.0099015 / 3**0.5), rel=2e-6)
    assert line["interval"] == "95 %, Student t over runs (about 90 % in place of 95 % if runs fall into two modes)"
    assert line["note"] is None


def blocks_of(*rates: int) -> list[dict[str, Any]]:
    """A run per block of a sweep; the bundles come in another order than the blocks."""
    return [
        {"timing__images": rate, "job": {"name": "night", "task": 1, "block": block, "position": 1}}
        for block, rate in sorted(enumerate(rates, start=1), key=lambda one: (one[0] * 3) % 11)
    ]


RATES = (1000, 1030, 980, 1020, 990, 1015, 985, 1010)


def test_blocks_of_a_sweep_have_the_interval_of_its_rule_to_stop(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, *blocks_of(*RATES))
    stand = interval_at_look(single_contrast(RATES), target=0.01)
    assert (line["images_per_s"], line["images_per_s_low"], line["images_per_s_high"]) == pytest.approx(
        (stand.value, stand.low, stand.high)
    )
    assert line["interval"] == ("95 %, Student t over blocks in their order, which holds where --until stopped them")


BROKEN = {"status": "out_of_memory", "error": "too big", "timing__images": None, "bound": None}
FAST = {"timing__step_s__median": 0.09}
CASES: dict[str, list[dict[str, Any]]] = {
    "fewer blocks than the rule looks at": blocks_of(*RATES[:7]),
    "a block twice": [*blocks_of(*RATES), *blocks_of(1000)],
    "a run without a block": [*blocks_of(*RATES), {"timing__images": 1000}],
    "no blocks": [{"timing__images": rate} for rate in RATES],
    "runs that broke off": [{}, BROKEN, {**BROKEN, "spec__batch_size": 512}, {**BROKEN, "spec__batch_size": 512}],
    "bounds that disagree": [{"complexity__bytes_per_step_lower": 14e9} | FAST, FAST, FAST],
    "the best model first, then by throughput": [
        {"timing__images": 50},
        {"timing__images": 80, "spec__model": "vgg16"},
        {"timing__images": 200, "spec__batch_size": 64},
        {"timing__images": None, "spec__model": "alexnet"},
    ],
    "nothing known": [{"complexity": None, "bound": None, "timing__step_s": None, "timing__measured_s": None}],
}


def test_lines_of_a_summary(golden: Golden, tmp_path: Path) -> None:
    told = []
    names = ("runs", "images_per_s", "interval", "step_s", "flop_per_s", "bound", "note")
    for number, (name, runs) in enumerate(CASES.items()):
        told.append(f"## {name}")
        for line in lines(tmp_path / str(number), *runs):
            facts = [
                f"{key} {line[key]:.5g}" if isinstance(line[key], float) else f"{key} {line[key]}" for key in names
            ]
            told.append(f"{line['model']}, batch {line['batch_size']}: {', '.join(facts)}")
    golden("summary.txt", "\n".join([*told, ""]))


# Of 10 s and of 30 s.
SHORT = {"start": 0.0, "prepare": 4.0, "environment": 5.0, "setup": 6.0, "warmup": 6.5, "measured": 8.0, "end": 10.0}
LONG = {"start": 0.0, "prepare": 3.0, "environment": 9.0, "setup": 10.0, "warmup": 10.5, "measured": 12.0, "end": 30.0}


def test_shares_are_of_the_time_of_all_runs(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, *({"timing__phases": phases} for phases in (SHORT, LONG, {})))
    assert (line["runs"], line["wall_s"], line["usd_per_run"]) == (3, 20.0, None)
    shares = {name: value for name, value in line.items() if name.endswith("_share") and value is not None}
    assert shares == pytest.approx(
        {
            "steps_share": (2 + 18) / 40,
            "imports_share": (4 + 3) / 40,
            "prepare_share": (1 + 6 + 0.5 + 0.5) / 40,
            "environment_share": (1 + 1) / 40,
            "warmup_share": (1.5 + 1.5) / 40,
        }
    )


def test_on_a_rented_machine_time_and_cost_are_those_charged(tmp_path: Path) -> None:
    charged = {"billed_from": "2026-11-01T00:00:00Z", "billed_to": "2026-11-01T00:01:40Z", "billed_s": 100.0}
    phases = {"booted": "2026-11-01T00:00:40Z", "image_pulled": "2026-11-01T00:01:00Z"}
    (line,) = lines(
        tmp_path,
        {"timing__phases": SHORT, "cost": {**charged, "usd": 0.05}, "environment__cloud": {"phases": phases}},
    )
    shares = [line[f"{part}_share"] for part in ("steps", "imports", "boot", "image", "outside")]
    assert shares == pytest.approx([0.02, 0.04, 0.4, 0.2, 0.3])
    assert (line["wall_s"], line["usd_per_run"]) == (100.0, 0.05)


def test_runs_without_phases_have_empty_cells_and_no_columns_of_rare_parts(tmp_path: Path) -> None:
    make(tmp_path, 0, timing__phases={})
    table = summarize(analysis.load(tmp_path).runs)
    (row,) = json.loads(render(table, COLUMNS, TableFormat.JSON))
    assert {row[name] for name in row if name.endswith("_share") or name == "wall_s"} == {None}
    headings, cells = render(table, COLUMNS, TableFormat.TABLE, wide=True).splitlines()
    assert "time in imports [%]" in headings
    assert "time in boot" not in headings
    assert cells.count(" -  ") >= 6
    assert "time in" not in render(table, COLUMNS, TableFormat.TABLE, width=140)


def test_mfu_is_the_median_over_runs_and_unknown_without_a_peak(tmp_path: Path) -> None:
    # A step takes 2, 3 or 4 s on a T4, whose dense peak of fp32 is 8.1 TFLOP/s; a tenth of its FLOP is repeated.
    work = {"train_flop_per_step": 8.1e12, "recomputed_flop_per_step": 8.1e11}
    step = {"complexity": work, "timing__step_s": {"n": 1, "median": 0.5}}
    for gpu, expected in (("Tesla T4", (0.3, 1 / 3, "T4, fp32")), ("GPU", (None, None, None))):
        changes = [{**step, "timing__measured_s": s, "environment__device__name": gpu} for s in (2.0, 3.0, 4.0)]
        (line,) = lines(tmp_path / gpu, *changes)
        assert (line["mfu"], line["hfu"], line["mfu_peak"]) == pytest.approx(expected)


def test_mean_deviation_and_gain_over_the_batch_before(tmp_path: Path) -> None:
    """Rates 100, 102, 104 at batch 4; 110 and 112 at batch 8; 99 at batch 16; and another model at batch 8."""
    runs = [{"spec__batch_size": 4, "timing__images": 100 + 2 * number} for number in range(3)]
    runs += [{"spec__batch_size": 8, "timing__images": rate} for rate in (110, 112)]
    runs += [{"spec__batch_size": 16, "timing__images": 99}]
    runs += [{"spec__batch_size": 8, "spec__model": "vgg16", "timing__images": 50}]
    found = {(line["model"], line["batch_size"]): line for line in lines(tmp_path, *runs)}
    small, middle, large = (found["resnet18", size] for size in (4, 8, 16))
    assert (small["images_per_s_mean"], small["images_per_s_sd"]) == (102, 2)
    assert (middle["images_per_s_mean"], middle["images_per_s_sd"]) == (111, pytest.approx(2**0.5))
    assert (large["images_per_s_mean"], large["images_per_s_sd"]) == (99, None)
    assert small["gain"] is None
    assert middle["gain"] == pytest.approx(111 / 102 - 1)
    assert large["gain"] == pytest.approx(99 / 111 - 1)
    assert found["vgg16", 8]["gain"] is None
