"""Convert traces of Nsight Systems to ncu's CSV. Standard library only.

`nsys stats --report cuda_gpu_trace --format csv`: a row per kernel, with its time and no counters.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.readers.tables import DELIMITERS, split_line, without_second_half
from workload.contract.ncu_csv import ID, NAME, PROCESS

_WIDE = (
    *(ID, PROCESS, NAME, "Block Size", "Grid Size", "Device"),
    *("device__attribute_display_name", "gpu__time_duration.sum"),
)
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
    out = io.StringIO()
    out.writelines(f"{message}\n" for message in messages)
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([_WIDE, units, *kernels])
    return out.getvalue()


def _kernel(number: int, row: Sequence[str], header: _TraceHeader) -> tuple[str, ...]:
    place = header.place
    device = row[place["Device"]].strip() if "Device" in place else ""
    named = _DEVICE.match(device)
    grid, block = (_size(row, [place[axis] for axis in axes if axis in place]) for axes in (_GRID, _BLOCK))
    label, ordinal = (named[1], named[2]) if named else (device, "0" if device else "")
    return (str(number), "", row[place[_NAME]], block, grid, ordinal, label, row[header.duration].strip())


def _size(row: Sequence[str], places: Sequence[int]) -> str:
    return f"({', '.join(row[place].strip() for place in places)})" if places else ""
