"""Results of torch.profiler: a Chrome trace, and a table of the kernels or operators in it."""

import csv
import gzip
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRACE, TABLE = "trace.json.gz", "kernels.csv"
COLUMNS = ("name", "calls", "total_s", "mean_s", "share")
# Kineto's category of GPU kernels. Copies and fills have their own categories.
KERNEL_CATEGORY = "kernel"
LABEL_CATEGORY = "user_annotation"
US_PER_S = 1e6
TOP = 5


@dataclass(frozen=True, kw_only=True)
class TraceRow:
    """Total time and number of calls of one GPU kernel over all profiled steps.

    On a CPU a row is an operator, and its time excludes the operators that it calls.
    """

    name: str
    calls: int
    total_s: float


def read(path: Path) -> list[dict[str, Any]]:
    """Events of the Chrome trace in the gzip file `path`."""
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as text:
        events: list[dict[str, Any]] = json.load(text)["traceEvents"]
    return events


def kernels(events: Iterable[dict[str, Any]]) -> list[TraceRow]:
    """Rows of the GPU kernels, one for each name, with the largest total time first."""
    durations_s: dict[str, list[float]] = {}
    for event in events:
        if event.get("cat") == KERNEL_CATEGORY:
            durations_s.setdefault(event["name"], []).append(event["dur"] / US_PER_S)
    return ordered(TraceRow(name=name, calls=len(times), total_s=sum(times)) for name, times in durations_s.items())


def kernels_within(events: Sequence[dict[str, Any]], labels: Collection[str]) -> list[TraceRow]:
    """GPU kernels that began during a host event named in `labels`, at whose start and end the device must be idle."""
    windows = [
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == LABEL_CATEGORY and event.get("name") in labels
    ]
    return kernels(event for event in events if any(low <= event.get("ts", -1) <= high for low, high in windows))


def ordered(rows: Iterable[TraceRow]) -> list[TraceRow]:
    """Rows in the order of their total time, longest first."""
    return sorted(rows, key=lambda row: -row.total_s)


def write(path: Path, rows: Sequence[TraceRow]) -> None:
    """Write the rows as CSV."""
    total_s = sum(row.total_s for row in rows)
    with path.open("w", newline="", encoding="utf-8") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            seconds = (row.total_s, row.total_s / row.calls)
            writer.writerow([row.name, row.calls, *(f"{each:.9f}" for each in seconds), f"{_share(row, total_s):.6f}"])


def top(rows: Sequence[TraceRow], steps: int) -> list[dict[str, Any]]:
    """Name, calls and seconds per step, and share of the time, of the first five rows."""
    total_s = sum(row.total_s for row in rows)
    return [
        {
            "name": row.name,
            "calls_per_step": row.calls / steps,
            "time_s_per_step": row.total_s / steps,
            "share": _share(row, total_s),
        }
        for row in rows[:TOP]
    ]


def _share(row: TraceRow, total_s: float) -> float:
    return row.total_s / total_s if total_s else 0.0
