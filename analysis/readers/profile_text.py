"""Convert traces of Nsight Systems to ncu's CSV. Standard library only.

`nsys stats --report cuda_gpu_trace --format csv`: a row per kernel, with its time and no counters.
"""

import csv
import io
import re
from collections.abc import Sequence

from analysis.readers.tables import DELIMITERS, split_line
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


def is_gpu_trace(text: str) -> bool:
    """Whether the text has the header of a trace with kernel names."""
    return _header(text) is not None


def _header(text: str) -> tuple[int, str] | None:
    """Position of the header in the text, and its delimiter."""
    for line in _HEADER.finditer(text):
        for delimiter in DELIMITERS:
            names = [name.strip() for name in split_line(line[0].strip("\r"), delimiter)]
            if _NAME in names and any(map(_START.fullmatch, names)) and any(map(_DURATION.fullmatch, names)):
                return line.start(), delimiter
    return None


def gpu_trace_as_csv(text: str) -> str:
    """CSV in ncu's wide layout: warnings that count omitted copies and rows, then a row per kernel."""
    header = _header(text)
    assert header is not None
    reader = csv.DictReader(io.StringIO(text[header[0] :], newline=""), delimiter=header[1], restkey="more")
    reader.fieldnames = names = [name.strip() for name in reader.fieldnames or ()]
    duration, unit = next((name, match[1]) for name in names if (match := _DURATION.fullmatch(name)))
    kernels = list[tuple[str, ...]]()
    seen = set[tuple[str, ...]]()
    copies, broken, doubled = 0, 0, 0
    for row in reader:
        if None in row.values() or "more" in row or not row[duration].strip():
            broken += 1
        elif row[duration].strip() == duration:
            continue
        elif row[_NAME].startswith(_COPY):
            copies += 1
        elif tuple(row.values()) in seen:
            # An identical row is a duplicate: a kernel starts only once.
            doubled += 1
        else:
            seen.add(tuple(row.values()))
            device = row.get("Device", "").strip()
            named = _DEVICE.match(device)
            label, ordinal = (named[1], named[2]) if named else (device, "0" if device else "")
            block, grid = (_size([row[axis].strip() for axis in axes if axis in row]) for axes in (_BLOCK, _GRID))
            kernels.append((str(len(kernels)), "", row[_NAME], block, grid, ordinal, label, row[duration].strip()))
    messages = []
    if copies:
        messages.append(
            f"==WARNING== {copies} copies and memsets of the trace are left out, because they are not kernels"
        )
    if doubled:
        messages.append(f"==WARNING== {doubled} rows are in the file twice (same start): each is counted once")
    if broken:
        messages.append(f"==WARNING== {broken} broken rows left out: the file is cut off or damaged")
    units = ["" for _ in _WIDE[:-1]] + [_UNITS.get(unit, unit)]
    out = io.StringIO()
    out.writelines(f"{message}\n" for message in messages)
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([_WIDE, units, *kernels])
    return out.getvalue()


def _size(axes: Sequence[str]) -> str:
    return f"({', '.join(axes)})" if axes else ""
