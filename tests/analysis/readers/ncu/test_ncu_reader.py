"""What is read of the tables that Nsight Compute writes."""

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from analysis.readers import ncu
from analysis.readers.ncu import table
from tests.analysis.readers.ncu.ncu_files import (
    DETAILS,
    DRAM,
    FADD,
    FFMA,
    FMUL,
    IDENTITY,
    LONG,
    PUSHED,
    READ,
    SASS,
    STARTED,
    TENSOR_PIPE,
    TIME,
    WRITTEN,
    line,
    long,
    save,
    who,
    wide,
)
from tests.analysis.sentence_runs import Golden
from workload.contract.ncu_csv import NcuSource
from workload.profile import metrics as own
from workload.profile import metrics as own_metrics

LAUNCH = {TIME: "ns"}
MARK = '{}  "<default domain>:{}:none:none:none:none:none:none" '


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


# --- pages, and what is read of them


def details() -> str:
    sol, memory = "GPU Speed Of Light Throughput", "Memory Workload Analysis"
    rows = [
        (sol, "Duration", "ns", "21,058,944"),
        (sol, "Elapsed Cycles", "cycle", "12,319,469"),
        (sol, "Memory Throughput", "%", "61.84"),
        (sol, "DRAM Throughput", "%", "60.00"),
        (sol, "Compute (SM) Throughput", "%", "1.30"),
        # One label, two units.
        (memory, "Memory Throughput", "byte/s", "196,456,177,859.63"),
        ("Launch Statistics", "Function Cache Configuration", "", "CachePreferNone"),
    ]
    text = line(DETAILS) + "".join(line([*who(), *row])[:-1] + ",\n" for row in rows)
    return text + line([*who(), "SourceCounters", "", "", "", "UncoalescedAccess", "OPT", 'with "quotes", and\na line'])


def in_range(started: str, pushed: str) -> str:
    header = line(["ID", PUSHED, STARTED, "Kernel Name", TIME]) + line(["", "", "", "", "ns"])
    return header + line([0, pushed, started, "k", "5"])


def one(metrics: dict[str, str], *values: object, name: str = "k", capability: str = "8.9") -> str:
    """A launch with these metrics."""
    return wide(metrics, [values], names=[name], capability=capability)


HEADER = ("ID", "Kernel Time", PUSHED, "Kernel Name", TIME, DRAM)
OTHER_COLUMNS: list[Sequence[object]] = [
    HEADER,
    ("", "", "", "", "us", "Kbyte"),
    (3, "2022-Nov-21 10:00:00", "", "k", "1.5", "2"),
    (4, "2022-Nov-21 10:00:01", "", "l", "2", "n/a"),
]
THREE = wide({TIME: "ns", DRAM: "byte"}, [["5", "6"], ["7", "8"], ["1234567", "99999999999999999999999"]])
CLOCK = {"sm__cycles_elapsed.avg": "cycle", "sm__cycles_elapsed.avg.per_second": "cycle/nsecond"}
SUFFIXES = ("avg", "max", "min", "sum")
TWO = wide(LAUNCH, [["5"], ["7"]])
PAGES: dict[str, str] = {
    # What stands around a table does not matter.
    "byte order mark": "\ufeff" + TWO,
    "CRLF": TWO.replace("\n", "\r\n"),
    "program output": '==PROF== Connected to process 1 (python)\nmy program, says "hello\nepoch 1\n\n' + TWO,
    "all of it": "\ufeff==PROF== x\r\n" + TWO.replace("\n", "\r\n"),
    "glued to a progress line": "0%....50%....100% - 3 passes" + TWO,
    "messages after it": TWO + "==PROF== Disconnected from process 1\n",
    "program output in between": TWO.replace('"5"', '"5"\nepoch 2, loss 0.5', 1),
    "no quotes": TWO.replace('"', "").replace("(256, 1, 1)", "256").replace("(50, 1, 1)", "50"),
    "blank lines": TWO.replace("\n", "\n\n"),
    "no last line end": TWO[:-1],
    "wide": wide(
        {DRAM: "byte", "lts__t_bytes.sum": "byte", TIME: "nsecond", "sm__cycles_elapsed.max": "cycle"},
        [["4195712", "8000000", "31872", "44000"], ["0", "32", "1500.50", "2000"]],
        names=['void k<float, "a">(int, T1 *)', "fill"],
    ),
    # Units differ from row to row, and prefixes are decimal.
    "long": long(
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
    ),
    "details": details(),
    "other columns": "".join(map(line, OTHER_COLUMNS)),
    "exact names only": wide({f"dram__bytes.{suffix}": "byte" for suffix in SUFFIXES}, [["1", "2", "3", "4"]]),
    "rows of a launch apart": long(
        [(0, TIME, "ns", "1"), (1, TIME, "ns", "2"), (1, DRAM, "byte", "20"), (0, DRAM, "byte", "10")]
    ),
    "a metric twice": long([(0, DRAM, "byte", "1"), (0, DRAM, "byte", "2")]),
    "several tables": "==PROF== a\n{}==PROF== b\n==WARNING== careful\n{}".format(
        wide({TIME: "ns"}, [["5"], ["6"]]), wide({DRAM: "Kbyte", TIME: "us"}, [["1", "7"]]).replace('"11"', '"12"')
    ),
    **{
        f"{text!r} for a value": wide({DRAM: "byte"}, [[text], ["1,005"]])
        for text in ("n/a", "", "nan", "inf", "(!) no")
    },
    **{f"in {unit}": one({TIME: unit}, "2") for unit in ("nsecond", "us", "usecond", "ms", "msecond", "s", "second")},
    **{f"in {unit}": one({DRAM: unit}, "2") for unit in ("byte", "Kbyte", "Mbyte", "Gbyte")},
    "in no known unit": one({TIME: "jiffy", DRAM: "byte"}, "2", "3"),
    "in no unit": long([(0, TIME, "", "2"), (0, DRAM, "byte", "3")]),
    "time from cycles and clock": wide(CLOCK, [["3000", "1.5"], ["3000", "0"]]),
    "an error": "==WARNING== slow\n==ERROR== Failed to profile kernel 9\n" + wide(LAUNCH, [["5"]]),
    "a warning": "==WARNING== slow\n" + wide(LAUNCH, [["5"]]),
    "a version": "NVIDIA (R) Nsight Compute Command Line Profiler, Version 2024.1.1.0 (build 33998838)\n"
    + wide(LAUNCH, [["5"]]),
    "no known metric": wide({"l1tex__data_bank_conflicts.sum": ""}, [["5"]]),
    **{f"cut off by {left}": THREE[: -left - 1] for left in (1, 3, 30, 60)},
    "a long page cut off": long([(0, TIME, "ns", "5"), (1, TIME, "ns", "6")])[:-30],
}
RANGES = {
    "a started range": ('1  "<default domain>:step 0 forward:none:none:none:none:none:none" ', ""),
    "pushed ranges": ("", f"{MARK.format(3984, 'train_step')}{MARK.format('', 'forward')}"),
    "a name with a colon": ("0:<default domain>:compute_kernel:profile:none:none:none:none:none:none", ""),
    "one in the other": ('1  "d:outer:none:none:none:none:none:none" ', '2  "d:inner:none:none:none:none:none:none" '),
    "no range": ("", ""),
    "an odd range": ("odd", ""),
}

FP32 = {FADD: "inst", FMUL: "inst", FFMA: "inst"}
SIMT, TENSOR = "ampere_sgemm_32x32_nn", "ampere_fp16_s16816gemm_fp16_128x128"
OF_TENSORS = [f"sm__ops_path_tensor_src_{types}.sum" for types in ("fp16_dst_fp32", "fp16_dst_fp16", "tf32_dst_fp32")]
TF32 = OF_TENSORS[-1]
PIPE_TIME = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
HFMA2 = "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum"
ALL_TYPES = {SASS.format(kind + operation): "inst" for kind in "dfh" for operation in ("add", "mul", "fma")}
RATE = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum.per_cycle_elapsed"
RATES = {RATE.format(f"f{operation}"): "inst/cycle" for operation in ("add", "mul", "fma")}
RATES |= {"smsp__cycles_elapsed.avg.per_second": "cycle/nsecond", TIME: "us"}
PER_SM = {name.replace("smsp__", "sm__"): "inst" for name in FP32}


def tensor(name: str, capability: str = "8.9", **values: str) -> str:
    """1 + 2 + 2 x 3 FLOP in fp32, and counts of the tensor cores by keyword."""
    names = {"pipe": TENSOR_PIPE, "pipe_time": PIPE_TIME, "hfma2": HFMA2, "tf32": TF32}
    units = {"pipe": "inst", "pipe_time": "%", "hfma2": "inst", "tf32": ""}
    metrics = FP32 | {names[key]: units[key] for key in values}
    return one(metrics, "1", "2", "3", *values.values(), name=name, capability=capability)


FLOP = {
    # 1 + 2 + 2 x 3, ten and a hundred times as many; tensor operations count 2 per multiply-accumulate already.
    "all types": one(ALL_TYPES | dict.fromkeys(OF_TENSORS, ""), 1, 2, 3, 10, 20, 30, 100, 200, 300, 4096, 2048, 1024),
    "sums over multiprocessors": one(PER_SM, 1, 2, 3),
    "both sums": one(FP32 | PER_SM, 1, 2, 3, 1, 2, 3),
    "no counters": one({TIME: "ns"}, 5),
    "no value": one(FP32, 1, "n/a", 3),
    "not all": one({FADD: "inst", FFMA: "inst"}, 1, 3),
    "a part of a type": one({SASS.format(name): "inst" for name in ("hadd", "hmul", "hfma", "ffma")}, 1, 1, 1, 50),
    "simt": tensor(SIMT),
    "tensor": tensor(TENSOR),
    "tensor, idle pipe": tensor(TENSOR, pipe="0"),
    "simt, busy pipe": tensor(SIMT, pipe="7"),
    "tensor, no value of the pipe": tensor(TENSOR, pipe="n/a"),
    "simt, no value of the pipe": tensor(SIMT, pipe="n/a"),
    "simt, time of the pipe": tensor(SIMT, pipe_time="1.5"),
    "tensor, no time of the pipe": tensor(TENSOR, pipe_time="0"),
    "tensor, busy pipe, counted": tensor(TENSOR, pipe="7", tf32="4096"),
    "tensor, busy pipe, counted none": tensor(TENSOR, pipe="7", tf32="0"),
    "simt, counted none": tensor(SIMT, tf32="0"),
    "tensor, counted none": tensor(TENSOR, tf32="0"),
    "tensor, no value": tensor(TENSOR, tf32="n/a"),
    # HFMA2.MMA builds constants on the tensor pipe: no matrix product is hidden. Not counted apart, the name decides.
    **{
        f"{what}, capability {capability}": tensor(name, capability, **values)
        for capability in ("8.0", "9.0", "12.0")
        for what, name, values in (
            ("constants", SIMT, {"pipe": "96", "hfma2": "96"}),
            ("constants, counted none", SIMT, {"pipe": "96", "hfma2": "96", "tf32": "0"}),
            ("constants and more", SIMT, {"pipe": "5096", "hfma2": "96"}),
            ("simt, busy pipe", SIMT, {"pipe": "96"}),
            ("tensor, busy pipe", TENSOR, {"pipe": "96"}),
            ("tensor, idle pipe", TENSOR, {"pipe": "0"}),
            ("simt, time of the pipe", SIMT, {"pipe_time": "1.5"}),
            ("tensor, no time of the pipe", TENSOR, {"pipe_time": "0"}),
        )
    },
    "each launch has its own bound": wide(
        {**FP32, TENSOR_PIPE: "inst"}, [[1, 1, 1, 0], [1, 1, 1, 9]], capability="8.9"
    ),
    "bytes of DRAM": one({DRAM: "byte", READ: "byte", WRITTEN: "byte"}, 9, 5, 3),
    "bytes read and written": one({READ: "Kbyte", WRITTEN: "byte"}, 5, 3),
    "under other names": one({"dram__bytes_op_read.sum": "byte", "dram__bytes_op_write.sum": "byte"}, 5, 3),
    "bytes read alone": one({READ: "byte"}, 5),
    "bytes written without a value": one({READ: "byte", WRITTEN: "byte"}, 5, "n/a"),
    "bytes by their rate": one({TIME: "ms", "dram__bytes.sum.per_second": "Gbyte/s"}, 2, 3),
    "a rate without a time": one({"dram__bytes.sum.per_second": "Gbyte/s"}, 3),
    # (1 + 2 + 2 x 3.5) a cycle, 1.5 GHz for 2 us; counts are exact.
    "FLOP by rates of a roofline": one(RATES, 1, 2, 3.5, 1.5, 2),
    "rates and counts": one(RATES | FP32, 1, 2, 3.5, 1.5, 2, 10, 20, 30),
}
COLUMNS = (
    "range", "duration_s", "cycles", "flop_fp64", "flop_fp32", "flop_fp16", "flop_tensor", "flop", "dram_bytes",
    "dram_read_bytes", "dram_write_bytes", "l2_bytes", "l1_bytes", "sm_percent", "memory_percent", "dram_percent",
)  # fmt: skip


def told(folder: Path, text: str) -> Iterator[str]:
    found = ncu.read(save(folder, text))
    kernels = found.kernels.astype(object)
    for row in kernels.where(kernels.notna(), None).to_dict("records"):
        named: dict[str, Any] = {name: row[name] for name in COLUMNS if row[name] is not None}
        values = [f"{name} {value:.6g}" if name != "range" else f"range {value}" for name, value in named.items()]
        bound = ["a lower bound"] if row["flop_is_lower_bound"] else []
        yield f"    {row['name']} ({row['process_id']}): {', '.join([*values, *bound]) or 'nothing'}"
    if found.is_partial or found.ncu_version:
        yield f"    partial {found.is_partial}, version {found.ncu_version}"
    yield from (f"    {warning}" for warning in found.warnings)
    yield from (f"    loss: {loss}" for loss in found.losses if loss not in found.warnings)


def test_pages(tmp_path: Path, golden: Golden) -> None:
    ranges = {name: in_range(*marks) for name, marks in RANGES.items()}
    golden(
        "pages.txt",
        "".join(f"{name}\n{chr(10).join(told(tmp_path, text))}\n" for name, text in (PAGES | ranges).items()),
    )


def test_flop_and_bytes(tmp_path: Path, golden: Golden) -> None:
    golden("flop.txt", "".join(f"{name}\n{chr(10).join(told(tmp_path, text))}\n" for name, text in FLOP.items()))


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
