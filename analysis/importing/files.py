"""Convert other programs' measurements into bundles with the facts in the file or given by the user, and no others.

An imported bundle is an ordinary sealed bundle. Its run.json has a section `imported`: the file, its sha256, and the
meaning of each column. Every fact that is not stated is None. The bundle contains the file itself.
"""

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, mode
from typing import TYPE_CHECKING, Any

from analysis.importing.bundle import (
    MAX_NAME,
    Facts,
    File,
    Given,
    iso,
    new_record,
    precision_of,
    required,
    seal,
    without_peaks,
)
from analysis.loading import model_work
from analysis.loading.gpu_names import fits
from analysis.loading.run_row import row_of
from analysis.readers import tables
from analysis.readers.logs import iteration_log
from analysis.readers.logs.iteration_log import Log, Whole
from analysis.readers.looks_like import READABLE, looks_like
from analysis.readers.ncu.ncu_text import is_ncu_text
from analysis.readers.ncu.nsys import is_gpu_trace
from analysis.readers.text import BINARY, GZIP, Decoded, decode
from analysis.readers.traces import kineto
from analysis.roofline import lower_bound
from workload.contract import bundle
from workload.contract.errors import BundleError, NothingToDoError, UsageError
from workload.contract.profile_record import NcuTool, ProfileResult
from workload.contract.record import ImportedColumn, Record, StepSeconds, Timing, to_json
from workload.contract.spec import Device, Precision, Profile

__all__ = ["Given", "import_file"]

if TYPE_CHECKING:
    import pandas as pd

    from analysis.readers.ncu import NcuFile

# Path of the file in the bundle; an imported profile has the path of our own profiles.
LOG_COPY = "imported/log.csv"
KERNELS_COPY, REPORT_COPY = "ncu/kernels.csv", "ncu/profile.ncu-rep"
REPORT_SUFFIX = ".ncu-rep"
# Lines that ncu prints before its table, or column names of the table, quoted or not, in any order.
NCU_MARKS = re.compile(rb'^==[A-Z]+==|^"?ID"?[,;\t]|"Kernel Name"|(?:^|[,;\t])Kernel Name[,;\t\r\n]', re.MULTILINE)
LOOKED_AT_BYTES = 1 << 20
_BREAKS_OFF = "the file breaks off in its last row, which is left out"


def import_file(path: Path, given: Given, *, output: Path) -> list[Path]:
    """Make a bundle of each run in a file, all or none; returns their folders.

    Raises `UsageError` for a file that cannot be understood or lacks required facts, `NothingToDoError` for one that
    `output` already contains.
    """
    file = _read(path)
    _refuse_again(file, output)
    if trace := _trace(file):
        from analysis.importing import trace as imported_trace  # noqa: PLC0415 - pandas, once the file was found to be a trace

        return [imported_trace.make(file, trace, given.checked(), output)]
    if _is_ncu(file):
        return [_import_profile(file, given.checked(), output)]
    return _import_log(file, given.checked(), output)


def _read(path: Path) -> File:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"'{path}' cannot be read: {error.strerror}", hint="analyze import FILE.csv") from error
    return File(path=path, content=content, sha256=hashlib.sha256(content).hexdigest())


def _refuse_again(file: File, output: Path) -> None:
    held = _imported(output).get(file.sha256)
    if held:
        raise NothingToDoError(
            f"'{file.path}' is imported already: {held}", hint=f"remove {held} first to import it with other options"
        )


def _imported(output: Path) -> dict[str, str]:
    """Folders of the imported bundles in `output`, by sha256 of the imported file."""
    from analysis.loading.index import look  # noqa: PLC0415 - pyarrow, once the file was found to be there

    if not output.is_dir():
        return {}
    table, _ = look(output)
    pairs = zip(table["imported_sha256"].to_pylist(), table["path"].to_pylist(), strict=True)
    return {sha256: path for sha256, path in pairs if sha256}


def _trace(file: File) -> Decoded | None:
    """The text of a file in Chrome's trace format; None for another format."""
    start = file.content[:LOOKED_AT_BYTES]
    if not start.startswith(GZIP) and not start.lstrip(b"\xef\xbb\xbf \r\n\t").startswith((b"{", b"[")):
        return None
    decoded = decode(file.content)
    return decoded if kineto.is_trace(decoded.content[:LOOKED_AT_BYTES].decode(errors="replace")) else None


def _is_ncu(file: File) -> bool:
    if file.path.suffix == REPORT_SUFFIX:
        return True
    head = file.content if file.content.startswith(GZIP) else file.content[:LOOKED_AT_BYTES]
    start = decode(head).content[:LOOKED_AT_BYTES]
    text = start.decode(errors="replace")
    begins_as_log = tables.find_header(text.split("\n", 1)[0], iteration_log.is_log) is not None
    return not begins_as_log and bool(NCU_MARKS.search(start) or is_ncu_text(text) or is_gpu_trace(text))


# --- per-iteration logs


def _import_log(file: File, given: Given, output: Path) -> list[Path]:
    decoded = decode(file.content)
    if decoded.encoding == BINARY:
        what, hint = looks_like(decoded.content, "", file.path.suffix) or ("a binary file", "import text")
        raise UsageError(f"'{file.path}' looks like {what}; {READABLE}", hint=hint)
    logs = iteration_log.read(decoded.text, file=str(file.path), batch_size=given.batch_size)
    bundles, left_out = [], list[str]()
    for log in logs:
        try:
            bundles.append(_bundle_of_log(file, log, _where_silent(given, log, logs), decoded))
        except UsageError as error:
            # A bad row of a table of runs does not stop the import of the other rows.
            if not log.whole or len(logs) == 1:
                raise
            reason = str(error).removeprefix(f"'{file.path}' ")
            left_out.append(f"line {log.lines[0]} is left out: {reason}")
    if not bundles:
        raise UsageError(f"'{file.path}': {left_out[0]}", hint="name what the file does not say, as --batch-size 32")
    return [seal(output, _with_losses(record, left_out), contents) for record, contents in bundles]


def _where_silent(given: Given, log: Log, logs: Sequence[Log]) -> Given:
    """The user's options for one run of a file, except those for which the file gives different values to its runs."""
    labels = {"model": "model", "batch_size": "batch_size", "precision": "precision", "device_name": "gpu"}
    overruled: dict[str, Any] = {
        option: None
        for label, option in labels.items()
        if log.labels.get(label) and len({other.labels.get(label) for other in logs}) > 1
    }
    return replace(given, **overruled)


def _with_losses(record: Record, losses: Sequence[str]) -> Record:
    if not losses or record.imported is None:
        return record
    imported = replace(record.imported, losses=[*(record.imported.losses or ()), *losses])
    return replace(record, imported=imported, notes=[*(record.notes or ()), *losses])


def _bundle_of_log(file: File, log: Log, given: Given, decoded: Decoded) -> tuple[Record, dict[str, bytes]]:
    """run.json and the files of one run of a log."""
    facts = _facts_of_log(file.path, log, given)
    rows = [] if log.whole else _steps(file.path, log, facts.batch_size)
    began_s = log.whole.started_at_s if log.whole else _first(log.series.get("timestamp", ()))
    started_at = None if began_s is None or not log.has_zone else datetime.fromtimestamp(began_s, UTC)
    timing, notes = _of_whole(log.whole, facts.batch_size) if log.whole else _timing(rows, log)
    rates = log.series.get("images_per_s", ())
    imported = replace(
        file.described("iterations", given),
        columns={field: ImportedColumn(**asdict(meaning)) for field, meaning in log.columns.items()},
        ignored=log.ignored,
        labels=log.labels,
        rows=log.rows,
        rows_cut=log.cut,
        claimed_images_per_s=log.whole.images_per_s if log.whole else _mean(rates),
        claimed_measured_images_per_s=_mean(rates[1:]),
        losses=[*decoded.losses, *log.losses, *[_BREAKS_OFF] * log.cut] or None,
        contradictions=[*_contradictions(facts, log)] or None,
    )
    notes += [*log.losses, *[_BREAKS_OFF] * log.cut]
    measured = None if log.whole else max(0, log.rows - 1)
    record = replace(
        new_record(facts, given, imported, started_at=started_at, measured=measured),
        notes=[*(imported.contradictions or ()), *_unknown_words(facts, log), *decoded.remarks, *log.remarks, *notes],
        timing=replace(timing, started_at=iso(started_at)),
    )
    if log.whole:
        return record, {LOG_COPY: file.content}
    steps_csv = _steps_csv(rows)
    _require_possible(file.path, record, steps_csv)
    return record, {LOG_COPY: file.content, bundle.STEPS: steps_csv}


def _require_possible(path: Path, record: Record, steps_csv: bytes) -> None:
    """Raise `UsageError` for a log whose bundle could not be read back."""
    from analysis.loading.csv_files import LAYOUTS, parse  # noqa: PLC0415
    from analysis.loading.step_rules import refusals  # noqa: PLC0415 - pyarrow, once the file was understood

    try:
        measured_s = row_of(to_json(record)).cells["measured_s"]
        reason = refusals(parse(LAYOUTS["steps"], [steps_csv]).lists, imported=[True], measured_s=[measured_s])[0]
    except BundleError as error:
        reason = str(error)
    if reason:
        raise UsageError(
            f"'{path}' cannot be the log of a run: {reason}", hint="correct the file, or import another one"
        )


def _facts_of_log(path: Path, log: Log, given: Given) -> Facts:
    labels = log.labels
    label = None if given.batch_size else labels.get("batch_size")
    batch_size = given.batch_size if label is None else _batch_size(path, label)
    model, batch_size = required(path, given.model or labels.get("model"), batch_size)
    if len(model) > MAX_NAME:
        raise UsageError(f"'{path}': the model's name has {len(model)} characters", hint="--model NAME")
    precision = given.precision or labels.get("precision")
    if log.whole and precision and precision.lower() not in set(Precision):
        # No option can correct a single row of a table.
        precision = None
    device_type = (labels.get("device_type") or "").partition(":")[0].lower()
    return Facts(
        model=model,
        batch_size=batch_size,
        precision=None if precision is None else precision_of(precision, f"'{path}': precision"),
        device_name=given.gpu or labels.get("device_name"),
        device_type=device_type if device_type in set(Device) - {Device.AUTO} else None,
        place=labels.get("place"),
        torch=labels.get("torch"),
    )


def _batch_size(path: Path, label: str) -> int:
    if not re.fullmatch(r"\d{1,7}", label, re.ASCII) or int(label) < 1:
        raise UsageError(f"'{path}': batch_size must be a positive integer; got '{label[:80]}'", hint="--batch-size 32")
    return int(label)


def _unknown_words(facts: Facts, log: Log) -> list[str]:
    """A remark if the file's word for the precision names no known precision."""
    word = log.labels.get("precision")
    if not word or facts.precision is not None:
        return []
    return [f"the file's precision '{word[:80]}' is none of {', '.join(Precision)}: it is left out"]


def _contradictions(facts: Facts, log: Log) -> Iterator[str]:
    """Sentences on contradictions between the user and the file, or within the file."""
    for field, known in asdict(facts).items():
        own = log.labels.get(field)
        if own and known is not None and field != "device_type" and not _is_same(field, own, str(known)):
            yield f"the file says {field.replace('_', ' ')} '{own}', the import was told '{known}'"
    if (
        log.images_per_row
        and "batch_size" in log.columns
        and round(log.images_per_row / _stride(log)) != (named := int(log.labels["batch_size"]))
    ):
        images = f"{log.images_per_row:g} images a row"
        yield f"the file's {log.columns['images'].name} says {images}, its batch size is {named}"
    yield from log.contradictions


def _is_same(field: str, own: str, told: str) -> bool:
    """Whether two words name one thing: `ResNet-50` and `resnet50`, `v100` and `Tesla V100-SXM2-16GB`."""
    match field:
        case "model":
            known = model_work.known_name(own)
            return own.lower() == told.lower() or (known is not None and known == model_work.known_name(told))
        case "device_name":
            return fits(told, own)
        case _:
            return own.lower() == told.lower()


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A row of steps.csv; None is an empty cell."""

    step: int
    phase: str
    ended_at_s: float | None
    step_s: float | None
    data_s: float | None
    images: int
    loss: float | None


def _steps(path: Path, log: Log, batch_size: int) -> list[_Step]:
    """Rows of steps.csv. The first is marked as warm-up: its beginning is unknown, and it is usually slower.

    `step_s` is the log's timer, or follows from the rate in the log. `ended_at_s` is seconds since the first time
    stamp. The two are independent: comparing them reveals a timer that does not synchronise.
    """
    nothing: Sequence[float | None] = (None,) * log.rows
    stamps, losses, waits, rates = (
        log.series.get(name, nothing) for name in ("timestamp", "loss", "data_s", "images_per_s")
    )
    images = (log.images_per_row or batch_size * _stride(log)) / _stride(log)
    began_s = _first(stamps)
    timer = log.columns.get("step_s")
    rows = []
    for number in range(log.rows):
        stamp_s, data_s = stamps[number], waits[number]
        if timer is None:
            rate = rates[number]
            step_s = None if rate is None else batch_size / rate
        else:
            step_s = log.series["step_s"][number]
            if step_s is not None and data_s is not None and timer.includes_data:
                step_s = _without_wait(path, log.lines[number], step_s, data_s)
        rows.append(
            _Step(
                step=number,
                phase="measured" if number else "warmup",
                ended_at_s=None if stamp_s is None or began_s is None else stamp_s - began_s,
                step_s=step_s,
                data_s=data_s,
                images=round(images * log.iterations[number]),
                loss=losses[number],
            )
        )
    return rows


def _stride(log: Log) -> int:
    """Iterations from one row to the next."""
    return mode(log.iterations[1:] or [1])


def _without_wait(path: Path, line: int, iteration_s: float, data_s: float) -> float:
    if data_s >= iteration_s:
        raise UsageError(
            f"'{path}' line {line}: the wait for data is as long as the iteration that holds it;"
            f" got {data_s:g} s of {iteration_s:g} s",
            hint="correct the file, or leave the column of data waits out",
        )
    return iteration_s - data_s


def _steps_csv(rows: Sequence[_Step]) -> bytes:
    cells = [[_cell(getattr(row, name, None)) for name in bundle.STEP_COLUMNS] for row in rows]
    return "".join(",".join(line) + "\n" for line in [bundle.STEP_COLUMNS, *cells]).encode()


def _cell(value: float | str | None) -> str:
    """Text of a cell, rounded to 12 significant digits, which removes the noise of unit conversion; empty for None."""
    if value is None:
        return ""
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _of_whole(whole: Whole, batch_size: int) -> tuple[Timing, list[str]]:
    """Timing and notes of a run without steps. A rate alone becomes the wall time of one step: only the rate counts."""
    rate = whole.images_per_s or (batch_size / whole.step_s if whole.step_s else None)
    images, wall_s = whole.images, whole.wall_s
    if not (images and wall_s):
        images, wall_s = (batch_size, batch_size / rate) if rate else (None, None)
    if not (images and wall_s):
        return Timing(), ["the file gives neither times nor rates of this run"]
    return Timing(measured_s=wall_s, images=images, images_per_s=images / wall_s), []


def _timing(rows: Sequence[_Step], log: Log) -> tuple[Timing, list[str]]:
    """Timing and notes, from the rows after the first, because the wall clock is known from the first time stamp on."""
    measured = rows[1:]
    steps = [row.step_s for row in measured if row.step_s is not None]
    wall_s, note = (log.wall_s, None) if log.wall_s else _wall_s(rows)
    images = sum(row.images for row in measured)
    is_every_step = all(count == 1 for count in log.iterations[1:])
    data = [row.data_s for row in measured if row.data_s is not None]
    timing = Timing(
        measured_s=wall_s,
        images=images,
        images_per_s=images / wall_s if wall_s and images else None,
        step_s=StepSeconds.of(steps) if steps else None,
        explained_fraction=(sum(steps) + sum(data)) / wall_s
        if wall_s and is_every_step and len(steps) == len(measured)
        else None,
        data_wait_fraction=sum(data) / wall_s
        if wall_s and data and is_every_step and len(data) == len(measured)
        else None,
    )
    return timing, [note] if note else []


def _wall_s(rows: Sequence[_Step]) -> tuple[float | None, str | None]:
    first, last = rows[0].ended_at_s, rows[-1].ended_at_s
    if all(row.ended_at_s is None for row in rows):
        return None, "the file has no time stamps: wall time and images/s are unknown"
    if first is None or last is None:
        return None, "the first or the last row has no time stamp: wall time and images/s are unknown"
    if len(rows) == 1:
        return None, "the file has a single row: wall time and images/s are unknown"
    if last <= first:
        return None, "the time stamps do not advance: wall time and images/s are unknown"
    return last - first, None


def _first(values: Sequence[float | None]) -> float | None:
    return values[0] if values else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


# --- profiles by ncu


def _import_profile(file: File, given: Given, output: Path) -> Path:
    # pandas, once the file was found to be there
    from analysis.readers import ncu  # noqa: PLC0415
    from analysis.readers.ncu.metrics import DEVICE_NAME  # noqa: PLC0415
    from analysis.roofline import against_model  # noqa: PLC0415

    found = ncu.read(file.path)
    if len(found.gpus) > 1:
        launches = ", ".join(f"{gpu}: {number}" for gpu, number in found.gpus.items())
        raise UsageError(
            f"'{file.path}' holds the launches of {len(found.gpus)} GPUs, and a run is of one ({launches})",
            hint="keep the rows of one GPU, by the column Device, or profile with CUDA_VISIBLE_DEVICES=0",
        )
    model, batch_size = required(file.path, given.model, given.batch_size)
    device_name = found.attributes.get(DEVICE_NAME)
    facts = Facts(
        model=model,
        batch_size=batch_size,
        precision=None if given.precision is None else given.precision.lower(),
        # The name that the device reported takes precedence over the user's.
        device_name=device_name or given.gpu,
        device_type=Device.CUDA,
        place=None,
    )
    notes = [f"ncu: {warning}" for warning in found.warnings]
    contradictions = []
    if device_name and given.gpu and not fits(given.gpu, device_name):
        contradictions.append(f"the profile says device '{device_name}', the import was told '{given.gpu}'")
    notes += [*without_peaks(device_name), *contradictions]
    copy = REPORT_COPY if file.path.suffix == REPORT_SUFFIX else KERNELS_COPY
    imported = replace(
        file.described(Profile.NCU, given), losses=list(found.losses) or None, contradictions=contradictions or None
    )
    record = new_record(facts, given, imported, started_at=None, measured=None)
    wrong = against_model.contradiction(
        record.spec, found.kernels, steps=given.profile_steps, is_partial=found.is_partial
    )
    notes += [wrong] if wrong else []
    device = replace(record.environment.device, compute_capability=_one(found.kernels["compute_capability"]))
    record = replace(
        record,
        environment=replace(record.environment, device=device),
        profile=replace(_profile(found, given.profile_steps), files=[copy]),
        notes=notes,
    )
    return seal(output, record, {copy: file.content})


def _one(values: "pd.Series[str]") -> str | None:
    """The one value on which all launches agree, else None."""
    known = values.dropna().unique()
    return str(known[0]) if len(known) == 1 else None


def _profile(found: "NcuFile", steps: int | None) -> ProfileResult:
    """Section `profile` of run.json; figures per step only if the user gave the number of steps in the profile."""
    kernels = found.kernels
    uncounted = lower_bound.of_kernels(kernels)
    return ProfileResult(
        status="partial" if found.is_partial else "completed",
        reason="; ".join(found.warnings) or None if found.is_partial else None,
        kind=Profile.NCU,
        ncu=NcuTool(version=found.ncu_version),
        kernels_profiled=len(kernels),
        steps_profiled=steps,
        kernel_time_s_per_step=_per_step(kernels["duration_s"], steps),
        flop_per_step=_per_step(kernels["flop"], steps),
        tensor_flop_per_step=_per_step(kernels["flop_tensor"], steps),
        flop_is_lower_bound=uncounted is not None,
        lower_bound_reason=uncounted,
        dram_bytes_per_step=_per_step(kernels["dram_bytes"], steps),
        l2_bytes_per_step=_per_step(kernels["l2_bytes"], steps),
        l1_bytes_per_step=_per_step(kernels["l1_bytes"], steps),
    )


def _per_step(values: "pd.Series[float]", steps: int | None) -> float | None:
    """Sum per step; None if any launch lacks a value, because the sum would be too low."""
    if steps is None or values.empty or values.isna().any():
        return None
    total = float(values.sum()) / steps
    return total if math.isfinite(total) else None
