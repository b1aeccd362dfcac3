"""Parse logs of known trainers into tables with our column names, a row per printed iteration. Standard library only.

Known are pytorch/examples (imagenet/main.py and its copies), timm's train.py, torchvision's references, Megatron-LM,
nanoGPT, and the state of Hugging Face's Trainer. The formats follow the programs' sources, read 2026-11. Lines without
such a format are ignored.
"""

import itertools
import json
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from analysis.readers.tables import ForeignTable, RunFigures

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
# torchvision/references, utils.py: `time` and `data` are means over the last 20 iterations of the epoch, or over all
# iterations so far; `img/s` is that of the last iteration, without its wait for data.
_REFERENCE = re.compile(rf"Epoch:\s*\[(\d+)\]\s*\[\s*(\d+)/(\d+)\]\s+eta:.*?\btime: ({_NUMBER})\s+data: ({_NUMBER})")
_REFERENCE_RATE, _REFERENCE_LOSS = re.compile(rf"img/s: ({_NUMBER})"), re.compile(rf"\bloss: ({_NUMBER})")
_REFERENCE_WINDOW = 20
_NAMESPACE = re.compile(r"Namespace\(.*")
_NAMESPACE_LABELS = {"batch_size": r"\bbatch_size=(\d+)", "model": r"\bmodel='([^']+)'"}
# Megatron-LM, training.py: the mean time of the iterations since the line before.
_MEGATRON = re.compile(
    rf"iteration\s+(\d+)/\s*\d+ \|\s*consumed samples:\s*\d+ \|.*?elapsed time per iteration \(ms\):\s*({_NUMBER})"
    rf".*?global batch size:\s*(\d+) \|(?:.*?\bloss:\s*({_NUMBER}))?",
    re.IGNORECASE,
)
# nanoGPT, train.py: the time of one iteration, from the end of the iteration before.
_NANOGPT = re.compile(rf"\biter (\d+): loss (\S+), time ({_NUMBER})ms")
_NANOGPT_TOKENS = re.compile(r"tokens per iteration(?: will be)?: ([\d,]+)")
# Date and time that Python's `logging` writes before a message.
_STAMP = re.compile(r"^\W{0,2}(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?:Z|[+-]\d\d:?\d\d)?)")
# If a log's rounded figures fit several batch sizes, the batch size is taken to be a multiple of this.
_ROUND_BATCH = 8
# Largest rounding error of a time that is printed in seconds with three decimals.
_HALF_A_DIGIT_S = 0.0005
# Largest rounding error of a rate that is printed with two decimals.
_HALF_A_RATE = 0.005
# Relative rounding error above which the wall time from running means is too inaccurate to compare machines.
MOST_ROUNDING = 0.02


@dataclass(frozen=True, kw_only=True)
class _Printed:
    """A printed iteration. `count`: number of iterations of the epoch so far; `total_s`: their time, if known."""

    line: int
    epoch: int
    count: int
    total_s: float | None
    cells: Mapping[str, str]


def read(text: str) -> ForeignTable | None:
    """Parse a log in any of the known formats; None for any other text."""
    readers = (_trainer_state, _timm, _torchvision, _megatron, _nanogpt, _pytorch_examples)
    return next(filter(None, (reader(text) for reader in readers)), None)


def _lines(text: str, mark: str) -> Iterator[tuple[int, str]]:
    if mark not in text:
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if mark in line:
            yield number, line


# --- logs whose meters keep a running mean


def _pytorch_examples(text: str) -> ForeignTable | None:
    printed, first_count = list[_Printed](), 0
    for number, line in _lines(text, "Epoch"):
        match = _EPOCH.search(line)
        meters = {name: (value, mean) for name, value, mean in _METER.findall(line[match.end() :])} if match else {}
        if match is None or "Time" not in meters:
            continue
        if not printed:
            # Older versions print the index of the iteration, newer ones the number of iterations so far.
            first_count = 1 if int(match[2]) == 0 else 0
        (time, mean), count = meters["Time"], int(match[2]) + first_count
        cells = {
            "batch_time": time,
            "data_time": meters.get("Data", ("", ""))[0],
            "loss": meters.get("Loss", ("", ""))[0],
            "timestamp": _stamp(line) or "",
        }
        total_s = float(mean) * count if mean else None
        printed.append(_Printed(line=number, epoch=int(match[1]), count=count, total_s=total_s, cells=cells))
    if not printed:
        return None
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
                    total_s=float(match["mean"]) * (int(match["index"]) + 1),
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


def _with_means(
    kind: str, printed: Sequence[_Printed], labels: dict[str, str], *, half_a_digit_s: float = _HALF_A_DIGIT_S
) -> ForeignTable:
    """The table, with the wall time of all iterations between the first and the last printed one.

    A mean over n iterations times n is the time since the epoch began. Two means therefore give the time of all
    iterations between them. Validation, and the part of an epoch after its last printed line, are not included.
    `half_a_digit_s`: rounding error of a mean.
    """
    iterations, wall_s, rounding_s = [], 0.0, 0.0
    before: _Printed | None = None
    for row in printed:
        continues = before is not None and before.epoch == row.epoch and before.count < row.count
        since = before.count if before is not None and continues else 0
        iterations.append(row.count - since)
        if before is not None:
            wall_s += (row.total_s or 0.0) - ((before.total_s or 0.0) if continues else 0.0)
            rounding_s = max(rounding_s, row.count * half_a_digit_s)
        before = row
    names = list(dict.fromkeys(name for row in printed for name, cell in row.cells.items() if cell))
    has_means = all(row.total_s is not None for row in printed) and wall_s > 0 and "timestamp" not in names
    remarks = []
    if has_means:
        remarks.append("the wall time is the sum of the log's times of iterations, without other work between them")
        if rounding_s > MOST_ROUNDING * wall_s:
            remarks.append(f"the log rounds its times: its wall time of {wall_s:.3g} s may be {rounding_s:.2g} s off")
    return ForeignTable(
        kind=kind,
        header=names,
        rows=[(row.line, [row.cells.get(name, "") for name in names]) for row in printed],
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


# --- logs of other times: means over the last iterations, and times of single iterations


def _torchvision(text: str) -> ForeignTable | None:
    """Lines of torchvision's references.

    The time since the epoch began follows from means over at most 20 iterations if a line ends where the next window
    begins, as with `--print-freq 10`.
    """
    printed: list[_Printed] = []
    totals: dict[int, float] = {}
    of = 0
    for number, line in _lines(text, "Epoch"):
        if match := _REFERENCE.search(line):
            epoch, count, of = int(match[1]), int(match[2]) + 1, int(match[3])
            if not printed or printed[-1].epoch != epoch:
                totals = {0: 0.0}
            began = max(0, count - _REFERENCE_WINDOW)
            if began in totals:
                totals[count] = totals[began] + float(match[4]) * (count - began)
            rate, loss = _REFERENCE_RATE.search(line), _REFERENCE_LOSS.search(line)
            cells = {"images_per_s": rate[1]} if rate else {"batch_time": match[4]}
            cells |= {"data_time": match[5], "loss": loss[1] if loss else ""}
            printed.append(_Printed(line=number, epoch=epoch, count=count, total_s=totals.get(count), cells=cells))
    if not printed:
        return None
    if 2 * max(row.count for row in printed) < of:
        # Most iterations come after the last line of an epoch, and their time is unknown.
        printed = [replace(row, total_s=None) for row in printed]
    options = _NAMESPACE.search(text)
    found = {name: re.search(pattern, options[0]) for name, pattern in _NAMESPACE_LABELS.items()} if options else {}
    labels = {name: match[1] for name, match in found.items() if match}
    return _with_means("torchvision/references", printed, labels, half_a_digit_s=_HALF_A_DIGIT_S / 10)


def _megatron(text: str) -> ForeignTable | None:
    matches = [(line, match) for line, text_line in _lines(text, "iteration") if (match := _MEGATRON.search(text_line))]
    total_s, printed = 0.0, list[_Printed]()
    for (line, match), (part, count, advance) in zip(matches, _counts([int(m[1]) for _, m in matches]), strict=True):
        total_s = advance * float(match[2]) / 1e3 + (total_s if printed and printed[-1].epoch == part else 0.0)
        cells = {"iter_time_ms": match[2], "batch_size": match[3], "loss": match[4] or ""}
        printed.append(_Printed(line=line, epoch=part, count=count, total_s=total_s, cells=cells))
    labels = {"unit": "samples"}
    return _with_means("Megatron-LM", printed, labels, half_a_digit_s=_HALF_A_DIGIT_S / 10) if printed else None


def _nanogpt(text: str) -> ForeignTable | None:
    matches = [(line, match) for line, text_line in _lines(text, "iter ") if (match := _NANOGPT.search(text_line))]
    counts = _counts([int(match[1]) for _, match in matches])
    # Of iterations that are not printed, the time is unknown.
    is_every = all(advance == 1 for *_, advance in counts[1:])
    total_s, printed = 0.0, list[_Printed]()
    for (line, match), (part, count, _) in zip(matches, counts, strict=True):
        total_s = float(match[3]) / 1e3 + (total_s if printed and printed[-1].epoch == part else 0.0)
        cells = {"iter_time_ms": match[3], "loss": match[2], "timestamp": _stamp(match.string) or ""}
        known_s = total_s if is_every else None
        printed.append(_Printed(line=line, epoch=part, count=count, total_s=known_s, cells=cells))
    tokens = _NANOGPT_TOKENS.search(text)
    labels = {"unit": "tokens", "batch_size": tokens[1].replace(",", "")} if tokens else {"unit": "samples"}
    return _with_means("nanoGPT", printed, labels, half_a_digit_s=_HALF_A_DIGIT_S / 100) if printed else None


def _counts(numbers: Sequence[int]) -> list[tuple[int, int, int]]:
    """Part of the log, number of iterations in this part, and iterations since the line before, for each line.

    `numbers`: the printed numbers of iterations. A number that is not above the one before begins a new part, because
    the training was resumed.
    """
    advances = [after - before for before, after in itertools.pairwise(numbers)]
    usual = statistics.mode([advance for advance in advances if advance > 0] or [1])
    counts, part, count = [], 0, 0
    for advance in [usual, *advances][: len(numbers)]:
        part, count = (part, count + advance) if advance > 0 else (part + 1, usual)
        counts.append((part, count, advance if advance > 0 else usual))
    return counts


def _trainer_state(text: str) -> ForeignTable | None:
    """Figures of the whole training from trainer_state.json or train_results.json; None if they have no time."""
    if '"train_runtime"' not in text:
        return None
    try:
        state = json.loads(text)
    except (ValueError, RecursionError):
        return None
    history = state.get("log_history", [state]) if isinstance(state, Mapping) else []
    last = next((entry for entry in reversed(history) if isinstance(entry, Mapping) and "train_runtime" in entry), {})
    names = ("train_runtime", "train_samples_per_second", "train_steps_per_second")
    values = [value for name in names if isinstance(value := last.get(name), int | float) and 0 < value < math.inf]
    if len(values) != len(names):
        return None
    wall_s, samples_per_s, steps_per_s = values
    steps, device_batch = last.get("step"), state.get("train_batch_size")
    samples_per_step = (
        samples_per_s * wall_s / steps if isinstance(steps, int) and steps else samples_per_s / steps_per_s
    )
    # The last batch of an epoch may be smaller. Batches of several devices or accumulated ones are multiples of one.
    batch_size = round(samples_per_step)
    if isinstance(device_batch, int) and device_batch > 0:
        batch_size = device_batch * math.ceil(samples_per_step / device_batch - MOST_ROUNDING)
    return ForeignTable(
        kind="Hugging Face Trainer",
        header=(),
        rows=(),
        labels={"unit": "samples", "batch_size": str(max(1, batch_size))},
        remarks=("the Trainer's time and rate of the whole training, with warm-up, evaluation and saving",),
        figures=RunFigures(images_per_s=samples_per_s, images=samples_per_s * wall_s, wall_s=wall_s),
    )
