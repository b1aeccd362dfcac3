import math
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from analysis.readers import ncu
from analysis.readers.ncu import launches, table
from tests.analysis.readers.ncu.ncu_files import (
    DETAILS,
    DRAM,
    FADD,
    FFMA,
    IDENTITY,
    LONG,
    PUSHED,
    READ,
    STARTED,
    TIME,
    WRITTEN,
    line,
    long,
    save,
    who,
    wide,
)
from workload.contract.ncu_csv import NcuSource
from workload.profile import metrics as own
from workload.profile import metrics as own_metrics


def test_wide_page(tmp_path: Path) -> None:
    text = wide(
        {DRAM: "byte", "lts__t_bytes.sum": "byte", TIME: "nsecond", "sm__cycles_elapsed.max": "cycle"},
        [["4195712", "8000000", "31872", "44000"], ["0", "32", "1500.50", "2000"]],
        names=['void k<float, "a">(int, T1 *)', "fill"],
    )
    found = ncu.read(save(tmp_path, text))
    assert list(found.kernels["launch"]) == [0, 1]
    first, second = found.kernels.to_dict("records")
    assert first["name"] == 'void k<float, "a">(int, T1 *)', "commas and quotes in names"
    assert (first["process_id"], first["block"], first["grid"]) == ("11", "(256, 1, 1)", "(50, 1, 1)")
    assert first["compute_capability"] == "8.0"
    assert first["duration_s"] == pytest.approx(31.872e-6)
    assert (first["dram_bytes"], first["l2_bytes"], first["cycles"]) == (4195712, 8e6, 44000)
    assert second["duration_s"] == pytest.approx(1.5005e-6)
    assert second["dram_bytes"] == 0, "0 bytes of one kernel are normal"
    assert np.isnan(first["flop"]), "no counter, no FLOP"
    assert np.isnan(first["dram_read_bytes"])
    assert math.isnan(float(first["l1_bytes"]))
    assert found.totals == {"duration": pytest.approx(33.3725e-6), "dram": 4195712, "l2": 8000032, "cycles": 46000}
    assert (found.warnings, found.is_partial) == ((), False)


def test_long_page(tmp_path: Path) -> None:
    text = long(
        [
            (0, READ, "Mbyte", "1.08"),
            (0, WRITTEN, "byte", "0"),
            (0, TIME, "usecond", "97.06"),
            (0, FFMA, "inst", "11,183,680"),
            (1, READ, "Kbyte", "4.86"),
            (1, WRITTEN, "byte", "512"),
            (1, TIME, "ms", "1.25"),
            (1, FFMA, "inst", "0"),
        ]
    )
    found = ncu.read(save(tmp_path, text))
    first, second = found.kernels.to_dict("records")
    assert first["dram_read_bytes"] == pytest.approx(1.08e6), "prefixes are decimal"
    assert first["dram_bytes"] == pytest.approx(1.08e6)
    assert first["duration_s"] == pytest.approx(97.06e-6)
    assert second["dram_bytes"] == pytest.approx(4860 + 512)
    assert second["duration_s"] == pytest.approx(1.25e-3), "units differ from row to row"
    assert found.totals["fp32_fma"] == 11183680


def test_details_page(tmp_path: Path) -> None:
    sol, memory = "GPU Speed Of Light Throughput", "Memory Workload Analysis"
    rows = [
        (sol, "Duration", "ns", "21,058,944"),
        (sol, "Elapsed Cycles", "cycle", "12,319,469"),
        (sol, "Memory Throughput", "%", "61.84"),
        (sol, "DRAM Throughput", "%", "60.00"),
        (sol, "Compute (SM) Throughput", "%", "1.30"),
        (memory, "Memory Throughput", "byte/s", "196,456,177,859.63"),
        ("Launch Statistics", "Function Cache Configuration", "", "CachePreferNone"),
    ]
    text = line(DETAILS)
    for row in rows:
        text += line([*who(), *row])[:-1] + ",\n"
    text += line([*who(), "SourceCounters", "", "", "", "UncoalescedAccess", "OPT", 'with "quotes", and\na line'])
    found = ncu.read(save(tmp_path, text))
    (kernel,) = found.kernels.to_dict("records")
    assert kernel["duration_s"] == pytest.approx(0.021058944)
    assert kernel["cycles"] == 12319469
    assert (kernel["sm_percent"], kernel["memory_percent"], kernel["dram_percent"]) == (1.3, 61.84, 60)
    assert kernel["dram_bytes"] == pytest.approx(196456177859.63 * 0.021058944), "one label, two units"
    remark = "DRAM bytes are bytes per second x time, rounded as ncu prints them: the file has no counts"
    assert (found.warnings, found.is_partial) == ((remark,), False)


LAUNCH = {TIME: "ns"}
MARK = '{}  "<default domain>:{}:none:none:none:none:none:none" '


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: '==PROF== Connected to process 1 (python)\nmy program, says "hello\nepoch 1\n\n' + text,
        lambda text: "\ufeff==PROF== x\r\n" + text.replace("\n", "\r\n"),
        lambda text: "0%....50%....100% - 3 passes" + text,
        lambda text: text + "==PROF== Disconnected from process 1\n",
        lambda text: text.replace('"5"', '"5"\nepoch 2, loss 0.5', 1),
        lambda text: text.replace('"', "").replace("(256, 1, 1)", "256").replace("(50, 1, 1)", "50"),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: text[:-1],
    ],
    ids=[
        "byte order mark",
        "CRLF",
        "program output",
        "all of it",
        "glued to a progress line",
        "messages after it",
        "program output in between",
        "no quotes",
        "blank lines",
        "no last line end",
    ],
)
def test_what_stands_around_the_table_does_not_matter(change: Callable[[str], str], tmp_path: Path) -> None:
    found = ncu.read(save(tmp_path, change(wide(LAUNCH, [["5"], ["7"]]))))
    assert list(found.kernels["duration_s"]) == pytest.approx([5e-9, 7e-9])
    assert list(found.kernels["process_id"]) == ["11", "11"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_from_a_pipe(encoding: str, tmp_path: Path) -> None:
    """As a shell gives it for <(ncu --import …)."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    text = wide(LAUNCH, [["5"]]).encode(encoding)
    writer = threading.Thread(target=lambda: path.write_bytes(text))
    writer.start()
    found = ncu.read(path)
    writer.join()
    assert found.kernels["duration_s"][0] == 5e-9


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    header = ("ID", "Kernel Time", PUSHED, "Kernel Name", TIME, DRAM)
    units = ("", "", "", "", "us", "Kbyte")
    rows = [(3, "2022-Nov-21 10:00:00", "", "k", "1.5", "2"), (4, "2022-Nov-21 10:00:01", "", "l", "2", "n/a")]
    found = ncu.read(save(tmp_path, "".join(map(line, [header, units, *rows]))))
    assert list(found.kernels["name"]) == ["k", "l"]
    assert list(found.kernels["duration_s"]) == pytest.approx([1.5e-6, 2e-6])
    assert found.kernels["dram_bytes"].tolist() == pytest.approx([2000, math.nan], nan_ok=True)
    assert math.isnan(found.totals["dram"]), "a sum without one of them would be too low"
    for absent in ("process_id", "block", "grid", "compute_capability", "range", "device"):
        assert found.kernels[absent].isna().all()


def test_several_tables_in_one_file(tmp_path: Path) -> None:
    first = wide({TIME: "ns"}, [["5"], ["6"]])
    second = wide({DRAM: "Kbyte", TIME: "us"}, [["1", "7"]]).replace('"11"', '"12"')
    found = ncu.read(save(tmp_path, f"==PROF== a\n{first}==PROF== b\n==WARNING== careful\n{second}"))
    assert list(found.kernels["launch"]) == [0, 1, 2]
    assert list(found.kernels["duration_s"]) == pytest.approx([5e-9, 6e-9, 7e-6])
    assert found.kernels["dram_bytes"].tolist() == pytest.approx([math.nan, math.nan, 1000], nan_ok=True)
    assert "==WARNING== careful" in found.warnings
    assert found.losses == ("launches of 2 processes are added up",)


# --- values

NO_VALUE = "dram__bytes.sum has no value for 1 of 2 launches (n/a, or in an unknown unit): sums of it are unavailable"


@pytest.mark.parametrize("text", ["n/a", "", "nan", "inf", "-inf"])
@pytest.mark.parametrize("other", ["5", "1,005"], ids=["plain", "marks"])
def test_what_is_no_value_is_absent_and_no_zero(text: str, other: str, tmp_path: Path) -> None:
    found = ncu.read(save(tmp_path, wide({DRAM: "byte"}, [[text], [other]])))
    assert math.isnan(found.kernels["dram_bytes"][0])
    assert found.kernels["dram_bytes"][1] > 0
    assert found.warnings == (NO_VALUE,)
    found = ncu.read(save(tmp_path, long([(0, DRAM, "byte", text), (1, DRAM, "byte", other)])))
    assert math.isnan(found.kernels["dram_bytes"][0])


@pytest.mark.parametrize(
    ("unit", "expected_s"),
    [
        ("ns", 2e-9),
        ("nsecond", 2e-9),
        ("us", 2e-6),
        ("usecond", 2e-6),
        ("ms", 2e-3),
        ("msecond", 2e-3),
        ("s", 2.0),
        ("second", 2.0),
    ],
)
def test_units_of_time(unit: str, expected_s: float, tmp_path: Path) -> None:
    assert ncu.read(save(tmp_path, wide({TIME: unit}, [["2"]]))).kernels["duration_s"][0] == pytest.approx(expected_s)
    found = ncu.read(save(tmp_path, long([(0, TIME, unit, "2")])))
    assert found.kernels["duration_s"][0] == pytest.approx(expected_s)


@pytest.mark.parametrize(("unit", "factor"), [("byte", 1), ("Kbyte", 1e3), ("Mbyte", 1e6), ("Gbyte", 1e9)])
def test_units_of_bytes_are_decimal(unit: str, factor: float, tmp_path: Path) -> None:
    assert ncu.read(save(tmp_path, wide({DRAM: unit}, [["2"]]))).kernels["dram_bytes"][0] == 2 * factor


@pytest.mark.parametrize(
    ("unit", "problem"), [("jiffy", "its unit 'jiffy' is no known unit of"), ("", "the file gives no unit of")]
)
def test_an_unknown_unit_is_not_guessed(unit: str, problem: str, tmp_path: Path) -> None:
    warning = f"gpu__time_duration.sum is unavailable: {problem} time"
    for text in (wide({TIME: unit, DRAM: "byte"}, [["2", "3"]]), long([(0, TIME, unit, "2"), (0, DRAM, "byte", "3")])):
        found = ncu.read(save(tmp_path, text))
        assert math.isnan(found.kernels["duration_s"][0])
        assert found.kernels["dram_bytes"][0] == 3
        assert found.warnings == (warning,)


def test_time_from_cycles_and_clock(tmp_path: Path) -> None:
    metrics = {"sm__cycles_elapsed.avg": "cycle", "sm__cycles_elapsed.avg.per_second": "cycle/nsecond"}
    found = ncu.read(save(tmp_path, wide(metrics, [["3000", "1.5"], ["3000", "0"]])))
    assert found.kernels["duration_s"].tolist() == pytest.approx([2e-6, math.nan], nan_ok=True)
    assert found.warnings == ("kernel times are cycles / clock: the file has no durations",)


# --- who and where


@pytest.mark.parametrize(
    ("started", "pushed", "expected"),
    [
        ('1  "<default domain>:step 0 forward:none:none:none:none:none:none" ', "", "step 0 forward"),
        (
            "",
            f"{MARK.format(3984, 'train_step')}{MARK.format('', 'forward')}",
            "train_step/forward",
        ),
        ("0:<default domain>:compute_kernel:profile:none:none:none:none:none:none", "", "compute_kernel:profile"),
        ('1  "d:outer:none:none:none:none:none:none" ', '2  "d:inner:none:none:none:none:none:none" ', "outer/inner"),
        ("", "", None),
        ("odd", "", None),
    ],
)
def test_ranges(started: str, pushed: str, expected: str | None, tmp_path: Path) -> None:
    assert launches.range_names(started, pushed) == expected
    text = line(["ID", PUSHED, STARTED, "Kernel Name", TIME]) + line(["", "", "", "", "ns"])
    found = ncu.read(save(tmp_path, text + line([0, pushed, started, "k", "5"])))
    assert found.kernels["range"].astype(object).where(found.kernels["range"].notna(), None)[0] == expected


def own_profile() -> str:
    chips = own_metrics.table().rows["8.9"]
    roles = {names[0]: role for role, names in own_metrics.table().common.items()}
    roles |= {name: f"tensor_flop_{kind}" for kind, names in chips.tensor.items() for name in names}
    units = {"time_s": "nsecond", "cycles": "cycle"}
    header = {name: units.get(role, "byte" if "bytes" in role else "inst") for name, role in roles.items()}
    ranges = ["calibration tf32", "step 0 forward", "step 0 backward", "step 0 optimizer", ""]
    text = line([*IDENTITY, PUSHED, STARTED, *header]) + line([*[""] * 9, *header.values()])
    for launch, name in enumerate(ranges):
        cells = [(launch + 1) * (position + 3) for position in range(len(header))]
        mark = MARK.format(launch + 1, name) if name else ""
        text += line([*who(launch, name="ampere_sgemm_32x32_nn"), "", mark, *cells])
    return text


def test_our_own_profiles_are_read_as_workload_reads_them(tmp_path: Path) -> None:
    path = save(tmp_path, own_profile())
    roles = {name: role for role, names in own_metrics.table().common.items() for name in names[:1]}
    roles |= {
        name: f"tensor_flop_{kind}" for kind, names in own_metrics.table().rows["8.9"].tensor.items() for name in names
    }
    expected, _ = own.read(NcuSource(path=path), roles)
    kernels = ncu.read(path).kernels
    assert list(kernels["name"]) == [kernel.name for kernel in expected]
    for column, role in [("duration_s", "time_s"), ("dram_bytes", "dram_bytes"), ("l1_bytes", "l1_bytes")]:
        assert kernels[column].tolist() == pytest.approx([kernel.values[role] for kernel in expected])
    for kind in ("fp64", "fp32", "fp16"):
        assert kernels[f"flop_{kind}"].tolist() == pytest.approx([kernel.flop_by_class[kind] for kernel in expected])
    assert kernels["flop_tensor"].tolist() == pytest.approx([kernel.tensor_flop for kernel in expected])
    assert kernels["flop"].tolist() == pytest.approx(
        [sum(flop or 0 for flop in kernel.flop_by_class.values()) for kernel in expected]
    )


# --- broken files


def test_errors_of_ncu_make_a_profile_partial(tmp_path: Path) -> None:
    text = "==WARNING== slow\n==ERROR== Failed to profile kernel 9\n" + wide(LAUNCH, [["5"]])
    found = ncu.read(save(tmp_path, text))
    assert found.is_partial
    assert found.warnings == ("==WARNING== slow", "==ERROR== Failed to profile kernel 9")
    assert not ncu.read(save(tmp_path, "==WARNING== slow\n" + wide(LAUNCH, [["5"]]))).is_partial


@pytest.mark.parametrize("left", [-1, -3, -30, -60])
def test_a_file_that_is_cut_off(left: int, tmp_path: Path) -> None:
    text = wide({TIME: "ns", DRAM: "byte"}, [["5", "6"], ["7", "8"], ["1234567", "99999999999999999999999"]])
    found = ncu.read(save(tmp_path, text[: left - 1]))
    if left == -1:  # only the closing quote's line end is gone
        assert len(found.kernels) == 2
    assert list(found.kernels["duration_s"][:2]) == pytest.approx([5e-9, 7e-9])
    assert found.is_partial
    assert found.warnings == ("1 broken row left out: the file is cut off or damaged",)


def test_version(tmp_path: Path) -> None:
    banner = "NVIDIA (R) Nsight Compute Command Line Profiler, Version 2024.1.1.0 (build 33998838)\n"
    assert ncu.read(save(tmp_path, banner + wide(LAUNCH, [["5"]]))).ncu_version == "2024.1.1.0"
    assert ncu.read(save(tmp_path, wide(LAUNCH, [["5"]]))).ncu_version is None


# --- both ways to read a table give the same


@pytest.mark.parametrize(
    "text",
    [
        wide({TIME: "us", DRAM: "Kbyte"}, [["1.5", "2"], ["n/a", "3"], ["7", ""]]),
        wide({TIME: "us", FADD: "inst"}, [["1.50", "2,433,449"], ["1,000.25", "3"]]),
        long([(0, TIME, "us", "1.5"), (0, DRAM, "byte", "n/a"), (1, DRAM, "Kbyte", "3")]),
        own_profile(),
        line(LONG) + line([*who(), "s", TIME, "ns", "5"]) + line([*who(1), "s", TIME, "ns", "1,005"]),
    ],
    ids=["wide", "wide with marks", "long", "own", "long with marks"],
)
def test_row_by_row_gives_the_same(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, text)
    fast = ncu.read(path)
    monkeypatch.setattr(table, "_regular", lambda *_, **__: None)
    slow = ncu.read(path)
    assert fast.kernels.astype(object).equals(slow.kernels.astype(object))
    assert (fast.totals.keys(), fast.warnings) == (slow.totals.keys(), slow.warnings)


def test_row_by_row_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_CHUNK_ROWS", 3)
    monkeypatch.setattr(table, "_regular", lambda *_, **__: None)
    found = ncu.read(save(tmp_path, wide(LAUNCH, [[str(row)] for row in range(1, 11)], names="abcdefghij")))
    assert list(found.kernels["name"]) == list("abcdefghij")
    assert list(found.kernels["duration_s"]) == pytest.approx([row * 1e-9 for row in range(1, 11)])
