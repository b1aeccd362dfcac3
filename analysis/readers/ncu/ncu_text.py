"""Convert Nsight Compute's printed output (no `--csv`) to the CSV that it would have written. Standard library only.

A line names the launch. Tables below it have a metric per line in three columns, whose widths follow from a line of
dashes above them. Nsight Compute 2020 to 2025 differ in the launch's line and in whether columns have names.
"""

import csv
import io
import itertools
import re
from collections.abc import Iterator, Sequence

from analysis.readers.repeats import again, without_second_half
from workload.contract.text import counted

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
# Number of words in a metric's line.
_WITHOUT_UNIT, _WITH_UNIT = 2, 3
_MESSAGE = "=="
HEADER = (
    "ID",
    "Process ID",
    "Kernel Name",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
    "Metric Name",
    "Metric Unit",
    "Metric Value",
)


def is_ncu_text(text: str) -> bool:
    """Whether the text has a launch with a table below it."""
    return ", Context " in text and next(_rows(text), None) is not None


def as_csv(text: str) -> str:
    """The long table: a row per launch and metric, after ncu's own messages. Repeated launches are left out."""
    out = io.StringIO()
    for line in text.splitlines():
        if line.startswith(_MESSAGE):
            out.write(line + "\n")
    once, is_doubled = without_second_half(text)
    launches = [list(rows) for _, rows in itertools.groupby(_rows(once), key=lambda row: row[0])]
    repeated = set(again([_figures(rows) for rows in launches], [_times(rows) for rows in launches]))
    number = len(repeated) + len(launches) * is_doubled
    if number:
        out.write(f"==WARNING== {counted(number, 'kernel')} in the file again (same figures): each is counted once\n")
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(HEADER)
    for launch, rows in enumerate(rows for index, rows in enumerate(launches) if index not in repeated):
        writer.writerows((str(launch), *row[1:]) for row in rows)
    return out.getvalue()


def _figures(rows: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    return tuple(row[1:] for row in rows)


def _times(rows: Sequence[tuple[str, ...]]) -> str:
    """Figures that differ between launches of one kernel: duration and cycles, as one text."""
    return " ".join(row[-1] for row in rows if _OF_TIME.search(row[-3]))


def _rows(text: str) -> Iterator[tuple[str, ...]]:
    number, process = -1, ""
    who: tuple[str, ...] | None = None
    columns: tuple[int, int, int] | None = None
    for line in text.splitlines():
        if ruler := _RULER.match(line):
            indent, name, unit = (len(part) for part in ruler.groups()[:3])
            columns = (indent, indent + name, indent + name + 1 + unit)
        elif launch := _LAUNCH.match(line):
            number += 1
            columns = None
            block, grid = (f"({launch[which]})" if launch[which] else "" for which in ("block", "grid"))
            who = (
                str(number),
                process,
                launch["name"],
                block,
                grid,
                launch["device"] or "",
                launch["capability"] or "",
            )
        elif owner := _PROCESS.match(line):
            process, who, columns = owner[1], None, None
        elif not line.strip():
            columns = None
        elif who and columns and not line.strip().startswith("Metric Name"):
            cells = _cells(line, columns)
            if cells:
                yield (*who, *cells)


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
