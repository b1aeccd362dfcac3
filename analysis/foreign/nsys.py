"""A trace of Nsight Systems (`nsys stats --report cuda_gpu_trace --format csv`) as a table of kernels: time only."""

import csv
import io
import re

_HEADER = re.compile(r'^"?Start ?\((?P<start>\w+)\)"?,"?Duration ?\((?P<unit>\w+)\)"?,', re.MULTILINE)
# What nsys calls a unit, as ncu spells it; `--timeunit` chooses one.
_UNITS = {
    "ns": "ns", "nsec": "ns", "us": "us", "usec": "us", "μs": "us", "ms": "ms", "msec": "ms", "s": "s", "sec": "s",
}  # fmt: skip
_DEVICE = re.compile(r"^(.*?)\s*\((\d+)\)$")
_NAME, _DURATION, _COPY = "Name", 1, "["
HEADER = (
    "ID",
    "Process ID",
    "Kernel Name",
    "Block Size",
    "Grid Size",
    "Device",
    "device__attribute_display_name",
    "gpu__time_duration.sum",
)


def is_gpu_trace(text: str) -> bool:
    """Whether there is the header of a trace with the names of its kernels."""
    match = _HEADER.search(text)
    return match is not None and _NAME in text[match.start() :].split("\n", 1)[0].replace('"', "").strip().split(",")


def as_csv(text: str) -> str:
    """The wide table: a row per kernel, and a warning that says how many copies and rows were left out."""
    match = _HEADER.search(text)
    assert match is not None
    reader = csv.reader(io.StringIO(text[match.start() :], newline=""))
    header = [name.strip() for name in next(reader)]
    place = {name: header.index(name) for name in (_NAME, "Device", "GrdX", "BlkX") if name in header}
    kernels = list[tuple[str, ...]]()
    copies, broken = 0, 0
    for row in reader:
        if len(row) != len(header) or not row[_DURATION].strip():
            broken += any(row)
        elif row[place[_NAME]].startswith(_COPY):
            copies += 1
        else:
            kernels.append(_kernel(len(kernels), row, place))
    out = io.StringIO()
    if copies:
        out.write(f"==WARNING== {copies} copies and memsets of the trace are left out: they are no kernels\n")
    if broken:
        out.write(f"==WARNING== {broken} broken rows left out: the file is cut off or damaged\n")
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerow(["" for _ in HEADER[:-1]] + [_UNITS.get(match["unit"], match["unit"])])
    writer.writerows(kernels)
    return out.getvalue()


def _kernel(number: int, row: list[str], place: dict[str, int]) -> tuple[str, ...]:
    device = row[place["Device"]].strip() if "Device" in place else ""
    named = _DEVICE.match(device)
    grid, block = (_size(row, place.get(first)) for first in ("GrdX", "BlkX"))
    label, ordinal = (named[1], named[2]) if named else (device, "0" if device else "")
    return (str(number), "", row[place[_NAME]], block, grid, ordinal, label, row[_DURATION].strip())


def _size(row: list[str], first: int | None) -> str:
    return "" if first is None else f"({', '.join(cell.strip() for cell in row[first : first + 3])})"
