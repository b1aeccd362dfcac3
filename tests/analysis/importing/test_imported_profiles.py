"""Profiles and traces of other people: what an import makes of each, also of damaged and impossible ones."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.analysis.importing.outcomes import Files, printed
from tests.analysis.readers.ncu.foreign_profiles import NSYS, NSYS_HEADER, PRINTED
from tests.analysis.readers.ncu.ncu_files import (
    COUNTS,
    DETAILS,
    DRAM,
    FADD,
    FFMA,
    READ,
    ROW,
    TIME,
    WRITTEN,
    line,
    long,
    who,
    wide,
)
from tests.analysis.readers.traces.kineto_traces import V100, document, product_step
from tests.analysis.sentence_runs import Golden

GIVEN = {"model": "mine", "batch_size": 4, "profile_steps": 1}
LOST = ("lost at import",)


def given(text: str | bytes, **more: Any) -> tuple[str | bytes, dict[str, Any]]:
    return text, GIVEN | more


# Cells of a row in another order; `number` counts the rows.
ORDERS: dict[str, Callable[[list[str], int], list[str]]] = {
    "in order": lambda row, _: row,
    "reversed": lambda row, _: row[::-1],
    "ID in the middle": lambda row, _: [*row[4:6], *row[:4], *row[6:]],
    "behind pandas' index": lambda row, number: [str(number - 1) if number else "", *row],
}


def written(text: str, *, delimiter: str = ",", order: str = "in order", is_quoted: bool = True) -> str:
    """The same cells in another form."""
    out = io.StringIO()
    quoting = csv.QUOTE_ALL if is_quoted else csv.QUOTE_MINIMAL
    writer = csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator="\n")
    for number, row in enumerate(csv.reader(io.StringIO(text))):
        writer.writerow(ORDERS[order](row, number))
    return out.getvalue()


# Two launches of 1 + 2 + 2 x 10 FLOP and 64 bytes each.
WIDE = wide(COUNTS, [ROW, ROW])
CELLS = [(metric, unit, cell) for (metric, unit), cell in zip(COUNTS.items(), ROW, strict=True)]
LONG = long([(launch, *cells) for launch in (0, 1) for cells in CELLS])
PAGE = line(DETAILS) + "".join(line([*who(launch), "Section", *cells]) for launch in (0, 1) for cells in CELLS)
TABLE_OF_NSYS = NSYS[NSYS.index("Start") :]
FORMS: Files = {
    **{
        f"{name}, {order}, {delimiter!r}{'' if is_quoted else ', bare'}": given(
            written(text, delimiter=delimiter, order=order, is_quoted=is_quoted)
        )
        for name, text in (("wide", WIDE), ("long", LONG))
        for is_quoted in (True, False)
        for delimiter, order in zip([",", ";", "\t", "|"], ORDERS, strict=True)
    },
    "wide, carriage returns": given(WIDE.replace("\n", "\r")),
    "long, carriage returns": given(LONG.replace("\n", "\r")),
    "details, carriage returns": given(PAGE.replace("\n", "\r")),
    "details, semicolons": given(written(PAGE, delimiter=";")),
    "Nsight Systems": given(NSYS),
    "Nsight Systems, nsec": given(NSYS.replace(NSYS_HEADER, NSYS_HEADER.replace("(ns)", "(nsec)"))),
    "Nsight Systems, us": given(NSYS.replace(NSYS_HEADER, NSYS_HEADER.replace("(ns)", "(us)"))),
    "Nsight Systems, tabs, reversed": given(written(TABLE_OF_NSYS, delimiter="\t", order="reversed")),
    "Nsight Systems, semicolons": given(written(TABLE_OF_NSYS, delimiter=";")),
}


def ragged(*, broken: str = "") -> str:
    """A details page: rows of metrics end before the columns of rules."""
    rule = ("SOLBottleneck", "OPT", "Some advice, with a comma")
    text = line(DETAILS)
    for launch in range(3):
        for metric, unit, cell in ((TIME, "us", "1,000.50"), (FADD, "inst", "1,001"), (DRAM, "Kbyte", "2.25")):
            text += line([*who(launch, name='k<"a", b>'), "Speed Of Light", metric, unit, cell])
        text += line([*who(launch, name='k<"a", b>'), "Speed Of Light", "", "", "", *rule])
    return text + broken


def without_rows(*numbers: int) -> str:
    lines = wide(COUNTS, [ROW] * 10).splitlines(keepends=True)
    return "".join(row for number, row in enumerate(lines) if number not in numbers)


def of_processes(count: int, *numbers: int) -> str:
    """Rows of these numbers are of another process."""
    lines = wide(COUNTS, [ROW] * count).splitlines(keepends=True)
    return "".join(row.replace('"11"', '"12"') if number in numbers else row for number, row in enumerate(lines))


ONE, OTHER = wide(COUNTS, [ROW]), wide(COUNTS, [ROW]).replace('"11"', '"12"')
DAMAGED: Files = {
    "whole": given(wide(COUNTS, [ROW] * 5)),
    "rows twice": given(WIDE + WIDE.split("\n", 2)[2]),
    "a launch twice, with other figures": given(ONE + wide(COUNTS, [["1000", "1", "2", "99", "64"]])),
    "long, twice": given(long([(number % 2, *cells) for number in range(4) for cells in CELLS])),
    "missing launches": given(without_rows(4, 5, 8)),
    "no value": given(wide(COUNTS, [ROW, ["1000", "1", "2", "n/a", "64"]])),
    "an unknown unit": given(wide(COUNTS | {FFMA: "MB"}, [ROW])),
    "two processes": given(ONE + OTHER),
    "two processes that share one count of IDs": given(of_processes(4, 3, 5)),
    "two GPUs": given(ONE + OTHER.replace(',"0","8.0"', ',"1","8.0"')),
    "Nsight Systems, broken row": given(NSYS + "40000,25"),
    "Nsight Systems, twice": given(NSYS * 2),
    "Nsight Systems, rows twice": given(NSYS + NSYS.split("\n", 1)[1]),
    "ragged details": given(ragged()),
    "ragged details and a message": given(ragged(broken="==PROF== Disconnected from process 11\n")),
    # Neither a row nor a message: the page is read row by row.
    "ragged details and output": given(ragged(broken="done, in 3 s\n")),
    "ragged details, cut": given(ragged(broken='"3","11","k","(256, 1, 1)","(5\n')),
    "printed for people": given(PRINTED),
    "aggregated": given('"Kernel Name","Invocations","Metric Name","Average"\n"k","3","x","1"\n'),
    "no kernels": given("==PROF== Connected to process 1\n==WARNING== No kernels were profiled.\n"),
    "no model": (ONE, {"batch_size": 4}),
    "no number of steps": (ONE, {"model": "mine", "batch_size": 4}),
}

NAME = "device__attribute_display_name"
MAX = "gpu__time_duration.max"


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


IMPOSSIBLE: Files = {
    "usual": given(profile()),
    "more bytes than a device moves": given(profile(**{DRAM: "1e23"})),
    # 20 TB/s are 10 x no peak, but of a T4.
    "bytes below ten times the fastest": given(profile(**{DRAM: "20000000"})),
    "bytes above ten times a T4": given(profile("Tesla T4", **{DRAM: "20000000"})),
    "bytes below 0": given(profile(**{DRAM: "-64"})),
    "FLOP below 0": given(profile(**{FFMA: "-5"})),
    "more FLOP than a device computes": given(profile(**{FFMA: "1e15"})),
    "a launch of an hour": given(profile(**{TIME: "4619008000000000"})),
    "a clock of 1000 GHz": given(profile(cycles="1e9")),
    "seconds for nanoseconds": given(profile().replace('"ns"', '"s"')),
    "gigabytes": given(long([(0, TIME, "ns", "1000"), (0, DRAM, "Gbyte", "64")])),
    "Nsight Systems, a launch of an hour": given(NSYS.replace("2500,", "4619008000000000,")),
    "too short for the clock": given(profile(**{TIME: "0"})),
    "above 100 %": given(profile(sm="103.5")),
    "absent": given(profile(**{DRAM: "n/a"})),
    "a launch of 0 ns": given(wide(COUNTS, [ROW, ["0", *ROW[1:]]])),
    "another unit than .max": given(wide(COUNTS | {TIME: "us", MAX: "ns"}, [[*ROW, "1000"]])),
    "the same as .max": given(wide(COUNTS | {MAX: "ns"}, [[*ROW, "1000"]])),
    "ten launches without reads": given(wide({TIME: "ns", READ: "byte", WRITTEN: "byte"}, [["1000", "0", "64"]] * 10)),
    "nine launches without reads": given(wide({TIME: "ns", READ: "byte", WRITTEN: "byte"}, [["1000", "0", "64"]] * 9)),
    "another device than its own": given(profile("Tesla T4"), gpu="NVIDIA L4"),
    "a device that the user names": given(profile(), gpu="NVIDIA L4"),
}


def trace(*, gpu_us: float = 100, device: str | None = None, **event: Any) -> str:
    events = product_step(gpu_us=gpu_us)
    mark, product = events[0], events[1]
    mark["dur"] = event.get("mark", mark["dur"])
    product["args"]["Input Dims"] = event.get("dims", product["args"]["Input Dims"])
    return document(events, deviceProperties=[{"id": 0, "name": device} if device else V100])


TRACES: Files = {
    "usual": given(trace()),
    "too many FLOP": given(trace(dims=[[10**9, 800], [800, 700]])),
    "FLOP above the peak": given(trace(dims=[[4000, 800], [800, 700]])),
    "a step of 53 days": given(trace(mark=4.619008e12)),
    "kernels of 0.9 ms in a step of 1 ms": given(trace(gpu_us=900)),
    "a host that runs ahead": given(trace(gpu_us=2000)),
    "a device with peaks": given(trace(device="AMD Instinct MI300X")),
    "a device without peaks": given(trace(device="AMD Instinct MI325X")),
}


def test_one_profile_in_any_form(golden: Golden, tmp_path: Path) -> None:
    golden("profiles_forms.txt", printed(FORMS, tmp_path, name="profile.txt"))


def test_damaged_profiles(golden: Golden, tmp_path: Path) -> None:
    golden("profiles_damaged.txt", printed(DAMAGED, tmp_path, name="profile.txt", rules=LOST))


def test_profiles_that_cannot_be_true(golden: Golden, tmp_path: Path) -> None:
    golden("profiles_impossible.txt", printed(IMPOSSIBLE, tmp_path, name="profile.txt", rules=LOST))


def test_traces_that_cannot_be_true(golden: Golden, tmp_path: Path) -> None:
    golden("traces_impossible.txt", printed(TRACES, tmp_path, name="t.json"))
