"""Parse logs of known trainers into tables with our column names, a row per printed iteration. Standard library only.

Known are pytorch/examples (imagenet/main.py and its copies), timm's train.py, NVIDIA's dllogger as JSON and as text
(DeepLearningExamples, lambdal/deeplearning-benchmark), and MLPerf's `:::MLLOG` lines. The formats follow the programs'
sources, read 2026-11. Lines without such a format are ignored.
"""

import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.readers.tables import ForeignTable, RunFigures, repeated_rows
from workload.contract.text import counted

# pytorch/examples: a counter in brackets, then meters as `Name value (mean)`.
_EPOCH = re.compile(r"Epoch:\s*\[(\d+)\]\s*\[\s*(\d+)/(\d+)\]")
_NUMBER = r"[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?"
_METER = re.compile(rf"([A-Za-z][\w@]*)[ :]\s*({_NUMBER})(?![\d.])(?:\s*\(\s*({_NUMBER})\s*\))?")
_TIMM = re.compile(
    r"Train:\s*(?P<epoch>\d+)\s*\[\s*(?P<index>\d+)/(?P<of>\d+)[^\]]*\].*?"
    rf"Time:\s*(?P<time>{_NUMBER})s,\s*(?P<rate>{_NUMBER})/s\s*\(\s*(?P<mean>{_NUMBER})s,"
)
_TIMM_LOSS = re.compile(rf"Loss:\s*({_NUMBER})")
_TIMM_DATA = re.compile(rf"Data:\s*({_NUMBER})")
_TIMM_MODEL = re.compile(r"Model (\S+) created, param count")
_DLL_JSON = re.compile(r"DLLL (\{.*\})\s*$")
_DLL_TEXT = re.compile(r"DLL (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?) - (.*)$")
_DLL_STEP = re.compile(r"Epoch:\s*(\d+)\s+Iteration:\s*(\d+)|^[(\[]\s*(\d+),\s*(\d+)")
_DLL_METRIC = re.compile(rf"([A-Za-z_][\w.]*) : ({_NUMBER})(?![\d.])")
_MLLOG = re.compile(r":::MLLOG (\{.*\})\s*$")
# Date and time that Python's `logging` writes before a message.
_STAMP = re.compile(r"^\W{0,2}(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?:Z|[+-]\d\d:?\d\d)?)")
_PARAMETERS = {"arch": "model", "model": "model", "model_name": "model", "batch_size": "batch_size"}
# If a log's rounded figures fit several batch sizes, the batch size is taken to be a multiple of this.
_ROUND_BATCH = 8
# Largest rounding error of a running mean that is printed with three decimals, in seconds.
_HALF_A_DIGIT_S = 0.0005
# Largest rounding error of a rate that is printed with two decimals.
_HALF_A_RATE = 0.005
_LARGEST = 1e15
# Lines of the known logs that contain a time.
_TIMED = re.compile(r"DLLL? \S|:::MLLOG|Train:.*Time|Epoch:.*Time")
# Relative rounding error above which the wall time from running means is too inaccurate to compare machines.
MOST_ROUNDING = 0.02


@dataclass(frozen=True, kw_only=True)
class _ExampleLine:
    """A line of pytorch/examples. `index`: of the iteration in its epoch; `meters`: value and running mean by name."""

    number: int
    epoch: int
    index: int
    meters: Mapping[str, tuple[str, str]]
    stamp: str | None


@dataclass(frozen=True, kw_only=True)
class _Printed:
    """A printed iteration of an AverageMeter log; `count`: number of iterations of the epoch so far."""

    line: int
    epoch: int
    count: int
    time_s: float
    mean_s: float | None
    cells: Mapping[str, str]


def read(text: str) -> ForeignTable | None:
    """Parse a log in any of the known formats; None for any other text."""
    readers = (_dll_json, _dll_text, _mllog, _timm, _pytorch_examples)
    return next(filter(None, (reader(text) for reader in readers)), None)


def without_repeats(text: str) -> tuple[str, int]:
    """The text with timed lines that repeat earlier ones blanked, and the number of such lines."""
    lines = text.splitlines()
    timed = [index for index, line in enumerate(lines) if _TIMED.search(line)]
    words = [lines[index].strip() for index in timed]
    repeated = repeated_rows(words, words)
    for index in repeated:
        lines[timed[index]] = ""
    return ("\n".join(lines), len(repeated)) if repeated else (text, 0)


def _lines(text: str, mark: str) -> Iterator[tuple[int, str]]:
    if mark not in text:
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if mark in line:
            yield number, line


# --- logs whose meters keep a running mean


def _pytorch_examples(text: str) -> ForeignTable | None:
    lines: list[_ExampleLine] = []
    for number, line in _lines(text, "Epoch"):
        if match := _EPOCH.search(line):
            meters = {name: (value, mean) for name, value, mean in _METER.findall(line[match.end() :])}
            if "Time" in meters:
                epoch, index = int(match[1]), int(match[2])
                lines.append(_ExampleLine(number=number, epoch=epoch, index=index, meters=meters, stamp=_stamp(line)))
    if not lines:
        return None
    # Older versions print the index of the iteration, newer ones the number of iterations so far.
    first_count = 1 if lines[0].index == 0 else 0
    printed = [
        _Printed(
            line=line.number,
            epoch=line.epoch,
            count=line.index + first_count,
            time_s=float(line.meters["Time"][0]),
            mean_s=float(line.meters["Time"][1]) if line.meters["Time"][1] else None,
            cells={
                "batch_time": line.meters["Time"][0],
                "data_time": line.meters.get("Data", ("", ""))[0],
                "loss": line.meters.get("Loss", ("", ""))[0],
                "timestamp": line.stamp or "",
            },
        )
        for line in lines
    ]
    return _with_means("pytorch/examples", printed, {})


def _timm(text: str) -> ForeignTable | None:
    printed: list[_Printed] = []
    batches: list[tuple[float, float]] = []
    for number, line in _lines(text, "Train:"):
        if match := _TIMM.search(line):
            loss, data = _TIMM_LOSS.search(line), _TIMM_DATA.search(line, match.end())
            printed.append(
                _Printed(
                    line=number,
                    epoch=int(match["epoch"]),
                    count=int(match["index"]) + 1,
                    time_s=float(match["time"]),
                    mean_s=float(match["mean"]),
                    cells={
                        "batch_time": match["time"],
                        "data_time": data[1] if data else "",
                        "loss": loss[1] if loss else "",
                        "images_per_s": match["rate"],
                        "timestamp": _stamp(line) or "",
                    },
                )
            )
            batches.append((float(match["rate"]), float(match["time"])))
    if not printed:
        return None
    labels = {}
    if created := _TIMM_MODEL.search(text):
        labels["model"] = created[1]
    if batch := _batch_of(batches):
        labels["batch_size"] = str(batch)
    return _with_means("timm", printed, labels)


def _with_means(kind: str, printed: Sequence[_Printed], labels: dict[str, str]) -> ForeignTable:
    """The table, with the wall time of all iterations between the first and the last printed one.

    A mean over n iterations times n is the time since the epoch began. Two means therefore give the time of all
    iterations between them. Validation, and the part of an epoch after its last printed line, are not included.
    """
    iterations, wall_s, rounding_s = [], 0.0, 0.0
    before: _Printed | None = None
    for row in printed:
        continues = before is not None and before.epoch == row.epoch and before.count < row.count
        since = before.count if before is not None and continues else 0
        iterations.append(row.count - since)
        if before is not None:
            behind_s = before.count * (before.mean_s or 0.0) if continues else 0.0
            wall_s += row.count * (row.mean_s or 0.0) - behind_s
            rounding_s = max(rounding_s, row.count * _HALF_A_DIGIT_S)
        before = row
    names = [name for name in printed[0].cells if any(row.cells[name] for row in printed)]
    has_means = all(row.mean_s is not None for row in printed) and wall_s > 0 and "timestamp" not in names
    remarks = []
    if has_means:
        remarks.append(
            "the wall time comes from the log's running means, without validation and other work between epochs"
        )
        if rounding_s > MOST_ROUNDING * wall_s:
            remarks.append(
                f"the log's times have 3 decimals: its wall time of {wall_s:.3g} s may be {rounding_s:.2g} s off"
            )
    return ForeignTable(
        kind=kind,
        header=names,
        rows=[(row.line, [row.cells[name] for name in names]) for row in printed],
        iterations=iterations,
        wall_s=wall_s if has_means else None,
        labels=labels,
        remarks=tuple(remarks),
    )


def _batch_of(rates: Sequence[tuple[float, float]]) -> int | None:
    """Images per iteration, if rate x time fits a single number despite rounding (timm prints both); else None."""
    known = [(rate * time_s, rate * _HALF_A_DIGIT_S + time_s * _HALF_A_RATE) for rate, time_s in rates if time_s > 0]
    if not known:
        return None
    low = statistics.median(images - room for images, room in known)
    high = statistics.median(images + room for images, room in known)
    for multiple in (1, _ROUND_BATCH):
        fitting = [number * multiple for number in range(int(low // multiple), int(high // multiple) + 2)]
        fitting = [number for number in fitting if low <= number <= high and number > 0]
        if len(fitting) == 1:
            return fitting[0]
    return None


def _stamp(line: str) -> str | None:
    match = _STAMP.search(line)
    return match[1].replace(",", ".") if match else None


# --- dllogger


def _dll_json(text: str) -> ForeignTable | None:
    entries = [(number, entry) for number, entry in _json_lines(text, "DLLL ", _DLL_JSON) if entry.get("type") == "LOG"]
    if not entries:
        return None
    labels: dict[str, str] = {}
    steps: list[tuple[int, str, dict[str, str]]] = []
    left_out = 0
    for number, entry in entries:
        step, data = entry.get("step"), entry.get("data")
        if not isinstance(data, Mapping):
            continue
        if step == "PARAMETER":
            labels |= _parameters(data)
        elif isinstance(step, list) and len(step) > 1 and any(_is_timed(name) for name in data):
            numbers = {name: str(value) for name, value in data.items() if isinstance(value, int | float)}
            steps.append((number, str(step[1]), numbers | {"timestamp": str(entry.get("timestamp", ""))}))
        else:
            left_out += 1
    return _table_of_steps("dllogger (JSON)", steps, labels, left_out)


def _dll_text(text: str) -> ForeignTable | None:
    steps: list[tuple[int, str, dict[str, str]]] = []
    labels: dict[str, str] = {}
    left_out = 0
    for number, line in _lines(text, "DLL "):
        match = _DLL_TEXT.search(line)
        if not match:
            continue
        step = _DLL_STEP.search(match[2])
        metrics = dict(_DLL_METRIC.findall(match[2]))
        if match[2].startswith("PARAMETER"):
            labels |= _parameters(dict(re.findall(r"(\w+) : (\S+)", match[2])))
        elif step and any(_is_timed(name) for name in metrics):
            steps.append((number, step[2] or step[4], metrics | {"timestamp": match[1]}))
        else:
            left_out += 1
    return _table_of_steps("dllogger (text)", steps, labels, left_out) if steps or left_out else None


def _table_of_steps(
    kind: str, steps: Sequence[tuple[int, str, Mapping[str, str]]], labels: dict[str, str], left_out: int
) -> ForeignTable:
    names = list(dict.fromkeys(name for *_, cells in steps for name in cells))
    remarks = [f"{counted(left_out, 'line')} without a training step (epoch, validation, summary) left out"] * bool(
        left_out
    )
    return ForeignTable(
        kind=kind,
        header=["step", *names] if steps else [],
        rows=[(line, [index, *(cells.get(name, "") for name in names)]) for line, index, cells in steps],
        labels=labels,
        remarks=tuple(remarks),
    )


def _is_timed(name: str) -> bool:
    return name in {"train.compute_time", "train.total_ips", "train.total_time"}


def _parameters(data: Mapping[str, Any]) -> dict[str, str]:
    labels = {
        _PARAMETERS[name]: str(value) for name, value in data.items() if name in _PARAMETERS and value is not None
    }
    if str(data.get("amp", "")).lower() in {"true", "1"}:
        labels["precision"] = "amp"
    return labels


def _json_lines(text: str, mark: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Line numbers and JSON objects that `pattern` finds in lines with `mark`; incomplete lines are skipped."""
    for number, line in _lines(text, mark):
        if match := pattern.search(line):
            try:
                entry = json.loads(match[1])
            except (ValueError, RecursionError):
                continue
            if isinstance(entry, Mapping):
                yield number, entry


# --- MLPerf


def _mllog(text: str) -> ForeignTable | None:
    """Table with the figures of all training epochs together; None if the text is no MLPerf log.

    Only epochs with both a start and an end count.
    """
    events = [entry for _, entry in _json_lines(text, ":::MLLOG", _MLLOG) if isinstance(entry.get("key"), str)]
    if not events:
        return None
    values = {entry["key"]: entry.get("value") for entry in events if entry.get("value") is not None}
    rates = [
        float(entry["value"]["throughput"])
        for entry in events
        if entry["key"] == "tracked_stats"
        and isinstance(entry.get("value"), Mapping)
        and isinstance(entry["value"].get("throughput"), int | float)
    ]
    epochs = list(_epochs(events))
    samples = _number(values.get("train_samples"))
    wall_s = sum(epochs) if samples and epochs else None
    labels: dict[str, str] = {}
    benchmark = values.get("submission_benchmark")
    if isinstance(benchmark, str):
        labels["model"] = benchmark
    if (batch := _number(values.get("global_batch_size"))) and batch == int(batch):
        labels["batch_size"] = str(int(batch))
    remarks = []
    if wall_s:
        remarks.append(f"images and time of {len(epochs)} whole epochs, without evaluation")
    if not wall_s and rates:
        remarks.append(f"the mean of {len(rates)} rates in the log; nothing in the log confirms them")
    figures = RunFigures(
        images=samples * len(epochs) if samples and wall_s else None,
        wall_s=wall_s,
        images_per_s=statistics.fmean(rates) if rates else None,
    )
    return ForeignTable(kind="MLPerf", header=(), rows=(), labels=labels, remarks=tuple(remarks), figures=figures)


def _epochs(events: Sequence[Mapping[str, Any]]) -> Iterator[float]:
    """Seconds of each epoch, from its start to the following stop."""
    began_ms: float | None = None
    for entry in events:
        at_ms = _number(entry.get("time_ms"))
        if entry["key"] == "epoch_start":
            began_ms = at_ms
        elif entry["key"] == "epoch_stop" and began_ms is not None and at_ms is not None:
            if at_ms > began_ms:
                yield (at_ms - began_ms) / 1e3
            began_ms = None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LARGEST
    return float(value) if is_number else None
