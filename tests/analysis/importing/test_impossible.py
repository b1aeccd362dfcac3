"""Cells that cannot be true are refused by file, line and value; what is odd and possible is read."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.analysis import in_process
from tests.analysis.readers.ncu.foreign_profiles import NSYS
from tests.analysis.readers.ncu.ncu_files import COUNTS, DRAM, FFMA, READ, ROW, TIME, WRITTEN, long, wide
from tests.analysis.readers.traces.kineto_traces import V100, document, product_step
from workload.contract.errors import ExitCode, UsageError
from workload.contract.text import percent, plain, seconds, si

imported = partial(in_process.imported, model="mine", batch_size=1, profile_steps=1)
NAME, PEAK = "device__attribute_display_name", "above 10 x the peak of"


def profile(device: str | None = None, **cells: str) -> str:
    """Two launches, the second with other cells."""
    metrics = COUNTS | {"sm": "%", "cycles": "cycle"}
    names = {"sm": "sm__throughput.avg.pct_of_peak_sustained_elapsed", "cycles": "sm__cycles_elapsed.max"}
    row = dict(zip(metrics, [*ROW, "40", "1500"], strict=True))
    more = [device] if device else []
    return wide(
        {names.get(name, name): unit for name, unit in metrics.items()},
        [[*more, *row.values()], [*more, *(row | cells).values()]],
        extra=[NAME] if device else [],
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (profile(**{DRAM: "1e23"}), (f"line 4: {DRAM} of launch 1 (k) is '1e23' byte: "
            "within the duration of the launch this rate is")),
        (profile(**{DRAM: "-64"}), f"line 4: {DRAM} of launch 1 (k) is '-64' byte: a counter is never negative"),
        (profile(**{FFMA: "-5"}), f"line 4: {FFMA} of launch 1 (k) is '-5' inst: a counter is never negative"),
        (profile(**{FFMA: "1e15"}), ("of launch 1 (k) is '1e15' inst: within the "
            f"duration of the launch this rate is {PEAK}")),
        (profile(**{TIME: "4619008000000000"}), ("is '4619008000000000' ns: no kernel launch "
            "takes an hour: perhaps the unit of the")),
        (profile(cycles="1e9"), "is '1e9' cycle: with the duration of the launch, the clock would be above 30 GHz"),
        (profile().replace('"ns"', '"s"'), "cycle: with the duration of the launch, the clock would be below 10 MHz"),
        (long([(0, TIME, "ns", "1000"), (0, DRAM, "Gbyte", "64")]), f"line 3: {DRAM} of launch 0 (k) is '64' Gbyte: "),
        (NSYS.replace("2500,", "4619008000000000,"), "launch 1 (vectorized_elementwise) is 4619008: no kernel"),
        # 20 TB/s are 10 x no peak, but of a T4.
        (profile("Tesla T4", **{DRAM: "20000000"}), f"{PEAK} T4, 320 GB/s"),
    ],
)  # fmt: skip
def test_a_cell_that_cannot_be_true_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        imported(tmp_path, text)
    assert str(caught.value).startswith(f"'{tmp_path}/file.txt' cannot be a profile: ")
    assert message in str(caught.value)
    assert caught.value.exit_code == ExitCode.USAGE
    assert caught.value.hint == "correct the cell or its unit, or profile again"


@pytest.mark.parametrize(
    "text",
    [profile(), profile(**{DRAM: "20000000"}), profile(**{TIME: "0"}), profile(sm="103.5"), profile(**{DRAM: "n/a"})],
    ids=["usual", "below ten times the fastest", "too short for the clock", "above 100 %", "absent"],
)
def test_what_is_odd_and_possible_is_read(text: str, tmp_path: Path) -> None:
    assert imported(tmp_path, text).profile.kernels_profiled == 2


MAX = "gpu__time_duration.max"


@pytest.mark.parametrize(
    ("text", "figure", "loss"),
    [
        (
            wide(COUNTS, [ROW, ["0", *ROW[1:]]]),
            "kernel_time_s_per_step",
            "1 of 2 launches took 0 s by the file, which no launch does: times withheld",
        ),
        (
            wide(COUNTS | {TIME: "us", MAX: "ns"}, [[*ROW, "1000"]]),
            "kernel_time_s_per_step",
            f"times withheld: by {MAX} a launch takes 0.001 x its time, perhaps a unit is wrong",
        ),
        (wide(COUNTS | {MAX: "ns"}, [[*ROW, "1000"]]), None, None),
        (
            wide({TIME: "ns", READ: "byte", WRITTEN: "byte"}, [["1000", "0", "64"]] * 10),
            "dram_bytes_per_step",
            "bytes of DRAM withheld: 10 launches read 0 bytes by the file, which no step does",
        ),
        (wide({TIME: "ns", READ: "byte", WRITTEN: "byte"}, [["1000", "0", "64"]] * 9), None, None),
    ],
    ids=["0 ns", "another unit than .max", "the same as .max", "no reads", "few launches without reads"],
)
def test_values_that_contradict_others_are_withheld(
    text: str, figure: str | None, loss: str | None, tmp_path: Path
) -> None:
    record = imported(tmp_path, text)
    assert record.imported is not None
    assert list(record.imported.losses or ()) == ([loss] if loss else [])
    for name in ("kernel_time_s_per_step", "dram_bytes_per_step"):
        assert (getattr(record.profile, name) is None) is (name == figure)


@pytest.mark.parametrize(
    ("cell", "rule"),
    [("4619008000", "would be 4619008 s, longer than a day: another unit?"), ("-5", "must be positive")],
)
def test_iterations_that_cannot_be_true(cell: str, rule: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        imported(tmp_path, f"iter_time_ms,loss\n200,1\n{cell},1\n210,1\n")
    assert str(caught.value) == f"'{tmp_path}/file.txt' line 3: iter_time_ms {rule}; got '{cell}'"


def changed(**event: Any) -> str:
    events = product_step()
    mark, product = events[0], events[1]
    mark["dur"] = event.get("mark", mark["dur"])
    product["args"]["Input Dims"] = event.get("dims", product["args"]["Input Dims"])
    return document(events, deviceProperties=[V100])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed(dims=[[10**9, 800], [800, 700]]), "aten::mm has 1.12 PFLOP by its shapes in 100 µs, "),
        (changed(mark=4.619008e12), "has a step of 53 d 11 h: no step takes a day"),
        (changed(), None),
        (changed(dims=[[4000, 800], [800, 700]]), None),
    ],
    ids=["too many FLOP", "too long", "usual", "above the peak"],
)
def test_traces_that_cannot_be_true(text: str, message: str | None, tmp_path: Path) -> None:
    if message is None:
        imported(tmp_path, text, "t.json")
        return
    with pytest.raises(UsageError) as caught:
        imported(tmp_path, text, "t.json")
    assert message in str(caught.value)


@pytest.mark.parametrize(("gpu_us", "is_noted"), [(900, False), (2000, True)])
def test_a_host_that_runs_ahead_leaves_the_wall_time_unknown(gpu_us: float, is_noted: bool, tmp_path: Path) -> None:
    text = document(product_step(gpu_us=gpu_us), deviceProperties=[V100])
    record = imported(tmp_path, text, "t.json")
    assert (record.profile.wall_s_per_step is None) is is_noted
    assert any("the host ran ahead" in note for note in record.notes or ()) is is_noted


@pytest.mark.parametrize(
    ("name", "is_noted"), [("AMD Instinct MI300X", False), ("AMD Instinct MI325X", True), ("Tesla T4", False)]
)
def test_a_device_without_peaks_is_named(name: str, is_noted: bool, tmp_path: Path) -> None:
    record = imported(tmp_path, document(product_step(), deviceProperties=[{"id": 0, "name": name}]), "t.json")
    message = f"the file names the device '{name}', whose peaks are not known: it has no roof"
    assert (message in (record.notes or ())) is is_noted
    assert record.environment.device.name == name


def test_no_printed_number_has_more_than_twelve_digits() -> None:
    shown = [si(1e40, "FLOP/s"), seconds(4.6e20), plain(1e13, 3), percent(1e14), plain(123456789012.0, 3)]
    assert shown == ["1e+25 PFLOP/s", "4.6e+20 s", "1e+13", "1e+16 %", "123456789012"]
    assert max(map(len, json.dumps(shown).split())) < 20
