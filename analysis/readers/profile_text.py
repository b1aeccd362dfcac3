"""Convert ncu's printed output and traces of Nsight Systems to ncu's CSV. Standard library only.

`ncu` without `--csv`: a line names the launch. Tables below it have a metric per line in three columns, whose widths
follow from a line of dashes above them. Nsight Compute 2020 to 2025 differ in the launch's line and in whether columns
have names. `nsys stats --report cuda_gpu_trace --format csv`: a row per kernel, with its time and no counters.
"""

import csv
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from analysis.readers.tables import DELIMITERS, repeated_rows, split_line, without_second_half
from workload.contract.ncu_csv import ID, METRIC, NAME, PROCESS, UNIT, VALUE
from workload.contract.text import counted

_LAUNCHED = (ID, PROCESS, NAME, "Block Size", "Grid Size", "Device")
_LONG = (*_LAUNCHED, "CC", METRIC, UNIT, VALUE)
_WIDE = (*_LAUNCHED, "device__attribute_display_name", "gpu__time_duration.sum")


def _csv(messages: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    out = io.StringIO()
    out.writelines(f"{message}\n" for message in messages)
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return out.getvalue()


# --- ncu without --csv

_LAUNCH = re.compile(
    r"^\s+(?P<name>\S.*?)"
    r"(?: \((?P<grid>\d+, \d+, \d+)\)x\((?P<block>\d+, \d+, \d+)\))?"
    r"(?:, \d{4}-\w{3}-\d{2} [\d:]+)?"
    r", Context \d+, Stream \d+(?:, Device (?P<device>\d+), CC (?P<capability>\d+\.\d+))?\s*$"
)
_PROCESS = re.compile(r"^\[(\d+)\] \S.*@\S+\s*$")
_RULER = re.compile(r"^(\s*)(-{3,}) (-{3,}) (-{3,})\s*$")
_MARK = "(!)"
_OF_TIME = re.compile(r"Duration|Elapsed Cycles|time_duration|cycles_elapsed")
# Number of words in a metric's line, without and with a unit.
_WITHOUT_UNIT, _WITH_UNIT = 2, 3
_MESSAGE = "=="


def is_ncu_text(text: str) -> bool:
    """Whether the text has a launch with a table below it."""
    return ", Context " in text and next(_rows(text), None) is not None


def ncu_text_as_csv(text: str) -> str:
    """CSV in ncu's long layout: ncu's messages, then a row per launch and metric. Repeated launches are left out."""
    messages = [line for line in text.splitlines() if line.startswith(_MESSAGE)]
    once, is_doubled = without_second_half(text)
    launches = [list(rows) for _, rows in itertools.groupby(_rows(once), key=lambda row: row[0])]
    repeated = set(repeated_rows([_figures(rows) for rows in launches], [_times(rows) for rows in launches]))
    number = len(repeated) + len(launches) * is_doubled
    if number:
        messages.append(
            f"==WARNING== {counted(number, 'kernel')} a second time in the file (same figures): each is counted once"
        )
    kept = (rows for index, rows in enumerate(launches) if index not in repeated)
    return _csv(messages, [_LONG, *((str(launch), *row[1:]) for launch, rows in enumerate(kept) for row in rows)])


def _figures(rows: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    return tuple(row[1:] for row in rows)


def _times(rows: Sequence[tuple[str, ...]]) -> str:
    """Duration and cycles of a launch as one text: figures that differ between launches of one kernel."""
    return " ".join(row[-1] for row in rows if _OF_TIME.search(row[-3]))


def _rows(text: str) -> Iterator[tuple[str, ...]]:
    number, process = -1, ""
    identity: tuple[str, ...] | None = None
    columns: tuple[int, int, int] | None = None
    for line in text.splitlines():
        if ruler := _RULER.match(line):
            indent, name, unit = (len(part) for part in ruler.groups()[:3])
            columns = (indent, indent + name, indent + name + 1 + unit)
        elif launch := _LAUNCH.match(line):
            number += 1
            columns = None
            block, grid = (f"({launch[which]})" if launch[which] else "" for which in ("block", "grid"))
            identity = (
                str(number),
                process,
                launch["name"],
                block,
                grid,
                launch["device"] or "",
                launch["capability"] or "",
            )
        elif process_line := _PROCESS.match(line):
            process, identity, columns = process_line[1], None, None
        elif not line.strip():
            columns = None
        elif identity and columns and not line.strip().startswith("Metric Name"):
            cells = _cells(line, columns)
            if cells:
                yield (*identity, *cells)


def _cells(line: str, columns: tuple[int, int, int]) -> tuple[str, str, str] | None:
    """Name, unit and value of a metric's line, split by column widths, or by words if a cell exceeds its column."""
    start, unit, value = columns
    if line[:start].strip() == "" and line[unit : unit + 1] in {" ", ""} and line[value : value + 1] in {" ", ""}:
        cells = (line[start:unit].strip(), line[unit:value].strip(), line[value:].strip())
    else:
        words = line.replace(_MARK, " ").split()
        if len(words) not in {_WITHOUT_UNIT, _WITH_UNIT}:
            return None
        cells = (words[0], words[1] if len(words) == _WITH_UNIT else "", words[-1])
    name, unit_text, number = cells
    # ncu marks metrics that it could not measure.
    if unit_text == _MARK:
        unit_text = ""
    return (name, unit_text, number.replace(_MARK, "").strip()) if name and number else None


# --- nsys

_START, _DURATION = re.compile(r"Start ?\(\w+\)"), re.compile(r"Duration ?\((\w+)\)")
_HEADER = re.compile(r"^.*Duration ?\(\w+\).*$", re.MULTILINE)
# Units of nsys in ncu's spelling; `--timeunit` chooses one.
_UNITS = {
    "ns": "ns", "nsec": "ns", "us": "us", "usec": "us", "μs": "us", "ms": "ms", "msec": "ms", "s": "s", "sec": "s",
}  # fmt: skip
_DEVICE = re.compile(r"^(.*?)\s*\((\d+)\)$")
_NAME, _COPY = "Name", "["
_GRID, _BLOCK = ("GrdX", "GrdY", "GrdZ"), ("BlkX", "BlkY", "BlkZ")


@dataclass(frozen=True, kw_only=True)
class _TraceHeader:
    """Header of a trace; `start`: text position of the first row, `place`: index of each column that is read."""

    start: int
    delimiter: str
    width: int
    unit: str
    duration: int
    place: Mapping[str, int]


def is_gpu_trace(text: str) -> bool:
    """Whether the text has the header of a trace with kernel names."""
    return _trace_header(text) is not None


def _trace_header(text: str) -> _TraceHeader | None:
    for line in _HEADER.finditer(text):
        for delimiter in DELIMITERS:
            names = [name.strip() for name in split_line(line[0].strip("\r"), delimiter)]
            duration = next((index for index, name in enumerate(names) if _DURATION.fullmatch(name)), None)
            if duration is not None and _NAME in names and any(map(_START.fullmatch, names)):
                unit = _DURATION.fullmatch(names[duration])
                assert unit is not None
                place = {name: names.index(name) for name in (_NAME, "Device", *_GRID, *_BLOCK) if name in names}
                return _TraceHeader(
                    start=min(line.end() + 1, len(text)), delimiter=delimiter, width=len(names), unit=unit[1],
                    duration=duration, place=place,
                )  # fmt: skip
    return None


def gpu_trace_as_csv(text: str) -> str:
    """CSV in ncu's wide layout: warnings that count omitted copies and rows, then a row per kernel."""
    header = _trace_header(text)
    assert header is not None
    kernels = list[tuple[str, ...]]()
    seen = set[tuple[str, ...]]()
    copies, broken, doubled = 0, 0, 0
    once, is_doubled = without_second_half(text)
    for row in csv.reader(io.StringIO(once[header.start :], newline=""), delimiter=header.delimiter):
        if len(row) != header.width or not row[header.duration].strip():
            broken += any(row)
        elif _DURATION.fullmatch(row[header.duration].strip()):
            continue
        elif row[header.place[_NAME]].startswith(_COPY):
            copies += 1
        elif tuple(row) in seen:
            # An identical row is a duplicate: a kernel starts only once.
            doubled += 1
        else:
            seen.add(tuple(row))
            kernels.append(_kernel(len(kernels), row, header))
    doubled += len(kernels) * is_doubled
    messages = []
    if copies:
        messages.append(
            f"==WARNING== {copies} copies and memsets of the trace are left out, because they are not kernels"
        )
    if doubled:
        messages.append(f"==WARNING== {doubled} rows are in the file twice (same start): each is counted once")
    if broken:
        messages.append(f"==WARNING== {broken} broken rows left out: the file is cut off or damaged")
    units = ["" for _ in _WIDE[:-1]] + [_UNITS.get(header.unit, header.unit)]
    return _csv(messages, [_WIDE, units, *kernels])


def _kernel(number: int, row: Sequence[str], header: _TraceHeader) -> tuple[str, ...]:
    place = header.place
    device = row[place["Device"]].strip() if "Device" in place else ""
    named = _DEVICE.match(device)
    grid, block = (_size(row, [place[axis] for axis in axes if axis in place]) for axes in (_GRID, _BLOCK))
    label, ordinal = (named[1], named[2]) if named else (device, "0" if device else "")
    return (str(number), "", row[place[_NAME]], block, grid, ordinal, label, row[header.duration].strip())


def _size(row: Sequence[str], places: Sequence[int]) -> str:
    return f"({', '.join(row[place].strip() for place in places)})" if places else ""
