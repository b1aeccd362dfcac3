"""Efficiency of several devices against one, and what limits scaling."""

from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from test_compare_blocks import in_blocks

import analysis
from analysis.compare import of_pairs
from analysis.figures import registry
from analysis.loading.configurations import completed, group, measured, together, with_usual_batch
from analysis.loading.tables import rows as rows_of
from analysis.pairing import pair_up
from analysis.report.content import Paragraph, Table
from analysis.report.measurements import scaling as section
from analysis.scaling import scaling
from analysis.summary import summarize
from benchmarks.synthetic_bundles import make
from tests.analysis.by_hand import results
from tests.analysis.sentence_runs import Golden, undrawn
from workload.contract.errors import NothingToDoError, UsageError
from workload.contract.ranks import RankStep, summarized

ONE = {"machines": 1.0, "devices": 1.0, "threads": 1.0}
TWO, TWO_MACHINES = ONE | {"devices": 2.0}, ONE | {"machines": 2.0}
PRICED = {"usd_per_h": 3.0, "spot": False}
# The price is that of all machines of a run.
TWICE = PRICED | {"usd_per_h": 6.0}
RATES, SLOWER = (100.0, 100.2, 99.9), (80.0, 80.1, 79.8)


def ranks(*own_s: float, exposed_s: tuple[float, float] = (0.0, 0.0), data_s: float = 0.0) -> dict[str, Any]:
    """The record of two ranks, from steps that all take the same times."""
    every = [
        {step: RankStep(own_s=own, data_s=data_s, hidden_s=0.0, exposed_s=exposed, images=32) for step in range(8)}
        for own, exposed in zip(own_s, exposed_s, strict=True)
    ]
    return vars(summarized(every, measured_s=1.0))


def on_two(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """The row of a bundle of two devices."""
    make(tmp_path, 1, spec__devices=2, **changes)
    [row] = rows_of(analysis.load(tmp_path).runs)
    return row


def test_efficiency_is_the_throughput_per_device_within_blocks() -> None:
    """Hosts differ by 30 %, so that only pairs within blocks give a narrow interval."""
    [row] = scaling(results(*in_blocks("a", RATES, **ONE), *in_blocks("b", SLOWER, **TWO)))
    assert row["efficiency"] == pytest.approx(0.8, rel=0.003)
    assert 0.79 < row["efficiency_low"] < row["efficiency"] < row["efficiency_high"] < 0.81
    assert (row["devices"], row["runs"], row["level"], row["why"]) == (2, 3, 0.95, None)
    assert row["note"].startswith("paired within 3 blocks")


ODD, USUAL = (
    in_blocks(name, rates, **ONE, driver_version=driver)
    for name, rates, driver in (("odd", (200.0,), "570.1"), ("a", RATES, "570.2"))
)
SEVERAL = in_blocks("b", SLOWER, **TWO)


def waiting(*shares: float | None, limits: tuple[str | None, ...]) -> list[dict[str, Any]]:
    """Runs on two devices with shares of collectives, slow ranks and input; their limits in turn."""
    names = ("collectives_share", "slow_rank_share", "rank_input_share")
    runs = in_blocks("b", SLOWER, **TWO, **dict(zip(names, shares, strict=True)))
    return [run | {"scaling_limit": limit} for run, limit in zip(runs, cycle(limits), strict=False)]


CASES = {
    "the counterpart with most runs counts": [*ODD, *USUAL, *in_blocks("b", SLOWER, **TWO, driver_version="570.3")],
    "in any order": [*USUAL, *ODD, *in_blocks("b", SLOWER, **TWO, driver_version="570.3")],
    "too few runs": [*in_blocks("a", RATES[:2], **ONE), *in_blocks("b", SLOWER[:2], **TWO)],
    "no run on one device": SEVERAL,
    "other threads on one device": [*in_blocks("a", RATES, **ONE | {"threads": 2.0}), *SEVERAL],
    "another batch size on one device": [*in_blocks("a", RATES, **ONE, batch_size=64.0), *SEVERAL],
    "one device": in_blocks("a", RATES, **ONE),
    "two machines": [*in_blocks("a", RATES, **ONE), *in_blocks("b", SLOWER, **TWO_MACHINES)],
    "two machines, priced": [
        *in_blocks("a", RATES, **ONE, **PRICED),
        *in_blocks("b", SLOWER, **TWO_MACHINES, **TWICE),
    ],
    "two devices, priced": [*in_blocks("a", RATES, **ONE, **PRICED), *in_blocks("b", SLOWER, **TWO, **PRICED)],
    "machines of two devices": [
        *in_blocks("a", RATES, **ONE),
        *in_blocks("b", SLOWER, **TWO),
        *in_blocks("c", [0.75 * rate for rate in RATES], **TWO | {"machines": 2.0}),
        *in_blocks("d", [0.7 * rate for rate in RATES], **TWO | {"machines": 4.0}),
    ],
    "no run on one machine": [
        *in_blocks("a", RATES, **ONE),
        *in_blocks("b", SLOWER, **TWO | {"machines": 2.0}),
        *in_blocks("c", RATES, **TWO_MACHINES),
    ],
    "collectives": waiting(0.2, 0.1, 0.0, limits=("collectives",)),
    "one slow rank": waiting(0.0, 0.2, 0.1, limits=("slow rank 1",)),
    "slow ranks in turn": waiting(0.0, 0.2, 0.1, limits=("slow rank 1", "slow rank 0")),
    "input": waiting(0.0, 0.0, 0.5, limits=("input",)),
    "no wait": waiting(0.04, 0.0, 0.0, limits=("no wait",)),
    "unknown": waiting(None, None, None, limits=(None,)),
}


def test_efficiency_or_why_there_is_none_and_what_limits_it(golden: Golden) -> None:
    lines: list[str] = []
    for name, runs in CASES.items():
        lines.append(f"## {name}")
        for row in scaling(results(*runs)):
            efficiency = f"{row['efficiency']:.3g}" if row["efficiency"] else "none"
            against = f"efficiency {efficiency} of one {row['by'].removesuffix('s')}"
            lines.append(f"{together(row)}, {row['runs']} runs, level {row['level']}, {against}")
            lines += [f"    {name}: {row[name]}" for name in ("gain", "why", "note", "sentence") if row[name]]
    golden("scaling.txt", "\n".join([*lines, ""]))


def test_speed_up_and_cost_of_machines() -> None:
    """Each of 2 machines has 80 % of the throughput of one: 1.6 times as fast, 2 / 1.6 times the machine-hours."""
    # Blocks differ by 0.98, 1 and 1 / 0.98 times 0.8: 0.8 exp(+- 4.303 x 0.0202 / sqrt(3)) is 0.761 to 0.841.
    rates = [100 * 0.8 * each for each in (0.98, 1.0, 1 / 0.98)]
    runs = [*in_blocks("a", (100.0,) * 3, **ONE, **PRICED), *in_blocks("b", rates, **TWO_MACHINES, **TWICE)]
    [row] = rows_of(of_pairs(pair_up(results(*runs), "machines")))
    assert (row["ratio"], row["cost_ratio"]) == (pytest.approx(0.8), pytest.approx(1.25))
    assert row["gain"] == (
        "2 machines: 1.60 times as fast as 1 machine (95 %: 1.52 to 1.68), 1.25 times the cost per epoch (1.19 to 1.31)"
    )
    assert row["verdict"].startswith("1 machine is 1.25 x as fast as each of 2 machines")


@pytest.mark.parametrize(
    ("left", "right", "cost"),
    [
        pytest.param({}, {}, None, id="unknown"),
        pytest.param(PRICED, {"spot": False}, None, id="one is unknown"),
        pytest.param(PRICED, PRICED, 0.625, id="half the price for each machine"),
    ],
)
def test_cost_needs_both_prices(left: dict[str, Any], right: dict[str, Any], cost: float | None) -> None:
    runs = [*in_blocks("a", RATES, **ONE, **left), *in_blocks("b", SLOWER, **TWO_MACHINES, **right)]
    [row] = rows_of(of_pairs(pair_up(results(*runs), "machines")))
    assert row["cost_ratio"] == (None if cost is None else pytest.approx(cost, rel=0.003))
    assert ("machine-hours" in row["gain"]) is (cost is None)


def test_no_cost_if_only_some_runs_were_spot() -> None:
    runs = [*in_blocks("a", RATES, **ONE, **PRICED), *in_blocks("b", SLOWER, **TWO, **PRICED)]
    runs[0]["spot"] = True
    [row] = rows_of(of_pairs(pair_up(results(*runs), "devices")))
    assert (row["cost_ratio"], "epoch" in row["gain"]) == (None, False)


def test_one_device_has_no_total() -> None:
    assert summarize(results(*in_blocks("a", RATES, **ONE)).runs)["all_images_per_s"].isna().all()


@pytest.mark.parametrize("name", ["devices", "machines"])
def test_runs_on_several_devices_are_never_mixed(name: str) -> None:
    loaded = results(*in_blocks("a", RATES, **ONE), *in_blocks("b", SLOWER, **ONE | {name: 2.0}))
    assert len(group(measured(loaded.runs))) == 2
    with pytest.raises(UsageError, match=f"different numbers of {name} are never mixed") as refused:
        pair_up(loaded, "precision", allow_mixed=[name])
    assert refused.value.hint == f"--by {name} compares them"


def test_two_devices_and_two_machines_are_no_pair() -> None:
    loaded = results(*in_blocks("a", RATES, **TWO), *in_blocks("b", SLOWER, **TWO_MACHINES))
    with pytest.raises(NothingToDoError, match="the nearest two differ in machines, devices") as refused:
        pair_up(loaded)
    assert refused.value.hint == "add runs that differ in the number of machines alone, or of devices"


def test_the_batch_of_a_script_is_counted_for_each_number_of_devices() -> None:
    """A script that divides its batch by the devices has another batch on each: no efficiency."""
    script = {"script": "train.py", "script_sha256": "0" * 64, "unit": "images"}
    runs = results(
        *in_blocks("a", RATES, **ONE, **script), *in_blocks("b", SLOWER[:2], **TWO, **script, batch_size=16.0)
    ).runs
    assert set(with_usual_batch(runs)["batch_size"]) == {32, 16}


def test_compare_says_that_its_ratio_is_per_device() -> None:
    loaded = results(*in_blocks("a", RATES, **ONE), *in_blocks("b", SLOWER, **TWO))
    [row] = rows_of(of_pairs(pair_up(loaded)))
    assert row["by"] == "devices"
    assert row["verdict"].startswith("1 device is 1.25 x as fast as each of 2 devices")
    assert "images/s per device" in row["note"]


def test_runs_of_other_numbers_of_devices_are_not_pooled_and_old_bundles_have_one(tmp_path: Path) -> None:
    """The generator's spec has no number of devices, as the bundles of older versions."""
    make(tmp_path, 1)
    make(tmp_path, 2, spec__devices=1)
    make(tmp_path, 3, spec__devices=2, ranks=ranks(0.09, 0.09))
    runs = analysis.load(tmp_path).runs
    assert sorted((pool["devices"], len(pool)) for pool in group(completed(runs))) == [(1, 2), (2, 1)]
    lines = {line["devices"]: line for line in rows_of(summarize(runs))}
    assert lines[1]["all_images_per_s"] == lines[1]["images_per_s"]
    assert lines[2]["all_images_per_s"] == 2 * 8 * 32 / 1.0


@pytest.mark.parametrize(
    ("record", "limit", "shares"),
    [
        pytest.param(ranks(0.08, 0.08, exposed_s=(0.02, 0.02)), "collectives", (0.2, 0.0, 0.0), id="collectives"),
        pytest.param(ranks(0.1, 0.06, exposed_s=(0.0, 0.04)), "slow rank 0", (0.0, 0.2, 0.0), id="slow rank"),
        pytest.param(ranks(0.1, 0.1, data_s=0.05), "input", (0.0, 0.0, 0.5), id="input"),
        pytest.param(ranks(0.1, 0.1, exposed_s=(0.001, 0.001)), "no wait", (0.01, 0.0, 0.0), id="none"),
        pytest.param(None, None, (None, None, None), id="unknown"),
    ],
)
def test_what_limits_scaling(
    tmp_path: Path, record: dict[str, Any] | None, limit: str | None, shares: tuple[float | None, ...]
) -> None:
    row = on_two(tmp_path, ranks=record)
    assert row["scaling_limit"] == limit
    found = (row["collectives_share"], row["slow_rank_share"], row["rank_input_share"])
    assert found == tuple(share if share is None else pytest.approx(share, abs=0.001) for share in shares)


def test_the_page_has_a_section_and_no_advice_to_use_fewer_devices(tmp_path: Path) -> None:
    record = ranks(0.08, 0.08, exposed_s=(0.02, 0.02))
    for number in range(3):
        make(tmp_path, number)
        make(tmp_path, 10 + number, spec__devices=2, ranks=record)
        make(tmp_path, 20 + number, spec__machines=2, ranks=record)
    evidence = undrawn(analysis.load(tmp_path))
    assert [figure.name for figure in registry.figures(evidence.material)].count("devices_efficiency") == 1
    explanation, table = section(evidence).blocks
    assert isinstance(explanation, Paragraph)
    assert isinstance(table, Table)
    machines, cells = sorted(
        (dict(zip([heading.text for heading in table.headings], row, strict=True)) for row in table.rows),
        key=lambda cells: cells["devices"],
    )
    assert (machines["machines"], machines["devices"], machines["images/s of all"]) == ("2", "1", "512.0")
    assert machines["together"].startswith("2 machines: ")
    assert (cells["machines"], cells["devices"], cells["runs"], cells["images/s of all"]) == ("1", "2", "3", "512.0")
    assert (cells["collectives"], cells["limits scaling"]) == ("20 %", "collectives")
    assert cells["interval"].startswith("95 %: ")
    assert not [contrast for contrast in evidence.contrasts if contrast.fact in ("machines", "devices")]
