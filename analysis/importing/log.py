"""Makes bundles of logs: a run of iterations, or several runs as rows of a table."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, mode
from typing import Any

from analysis.importing.bundle import (
    MAX_NAME,
    File,
    ImportedFacts,
    UserFacts,
    iso,
    new_record,
    parsed_precision,
    require_model_and_batch,
    seal,
)
from analysis.loading import model_work
from analysis.loading.model_work import can_name, folded
from analysis.loading.run_row import row_of
from analysis.readers import iteration_log
from analysis.readers.iteration_log import Log
from analysis.readers.tables import BINARY, READABLE, Decoded, RunFigures, decode, looks_like
from workload.contract import bundle
from workload.contract.errors import BundleError, UsageError
from workload.contract.record import Record, StepSeconds, Timing, to_json
from workload.contract.record_sections import ImportedColumn
from workload.contract.spec import Device, Precision

# Path of the imported log in the bundle.
LOG_COPY = "imported/log.csv"
_BREAKS_OFF = "the file ends within its last row, which is left out"


def make(file: File, user: UserFacts, output: Path) -> list[Path]:
    """Make a bundle of each run and return their folders; `UsageError` if the log cannot be understood."""
    decoded = decode(file.content)
    if decoded.encoding == BINARY:
        what, hint = looks_like(decoded.content, "", file.path.suffix) or ("a binary file", "import text")
        raise UsageError(f"'{file.path}' looks like {what}; {READABLE}", hint=hint)
    logs = iteration_log.read(decoded.text, file=str(file.path), batch_size=user.batch_size)
    bundles, left_out = [], list[str]()
    for log in logs:
        try:
            bundles.append(_bundle_of_log(file, log, _options_for_run(user, log, logs), decoded))
        except UsageError as error:
            # A bad row of a table of runs does not stop the import of the other rows.
            if not log.figures or len(logs) == 1:
                raise
            reason = str(error).removeprefix(f"'{file.path}' ")
            left_out.append(f"line {log.lines[0]} is left out: {reason}")
    if not bundles:
        raise UsageError(
            f"'{file.path}': {left_out[0]}", hint="give what the file does not, for example --batch-size 32"
        )
    return [seal(output, _with_losses(record, left_out), contents) for record, contents in bundles]


def _options_for_run(user: UserFacts, log: Log, logs: Sequence[Log]) -> UserFacts:
    """The user's options for one run of a file, except those for which the file gives different values to its runs."""
    labels = {"model": "model", "batch_size": "batch_size", "precision": "precision", "device_name": "gpu"}
    overruled: dict[str, Any] = {
        option: None
        for label, option in labels.items()
        if log.labels.get(label) and len({other.labels.get(label) for other in logs}) > 1
    }
    return replace(user, **overruled)


def _with_losses(record: Record, losses: Sequence[str]) -> Record:
    if not losses or record.imported is None:
        return record
    imported = replace(record.imported, losses=[*(record.imported.losses or ()), *losses])
    return replace(record, imported=imported, notes=[*(record.notes or ()), *losses])


def _bundle_of_log(file: File, log: Log, user: UserFacts, decoded: Decoded) -> tuple[Record, dict[str, bytes]]:
    """run.json and the files of one run of a log."""
    facts = _facts(file.path, log, user)
    rows = [] if log.figures else _steps(file.path, log, facts.batch_size)
    began_s = _first_value(log.series.get("timestamp", ()))
    started_at = None if began_s is None or not log.has_zone else datetime.fromtimestamp(began_s, UTC)
    timing, notes = _timing_without_steps(log.figures, facts.batch_size) if log.figures else _timing(rows, log)
    rates = log.series.get("images_per_s", ())
    imported = replace(
        file.described("iterations", user),
        columns={field: ImportedColumn(**asdict(meaning)) for field, meaning in log.columns.items()},
        ignored=log.ignored,
        labels=log.labels,
        rows=log.rows,
        rows_cut=log.cut,
        claimed_images_per_s=log.figures.images_per_s if log.figures else _mean(rates),
        claimed_measured_images_per_s=_mean(rates[1:]),
        losses=[*decoded.losses, *log.losses, *[_BREAKS_OFF] * log.cut] or None,
        contradictions=[*_contradictions(facts, log)] or None,
    )
    notes += [*log.losses, *[_BREAKS_OFF] * log.cut]
    word = "" if facts.precision else log.labels.get("precision", "")[:80]
    unknown = [f"the file's precision '{word}' is not one of {', '.join(Precision)}: it is left out"] if word else []
    measured = None if log.figures else max(0, log.rows - 1)
    record = replace(
        new_record(facts, user, imported, started_at=started_at, measured=measured),
        notes=[*(imported.contradictions or ()), *unknown, *decoded.remarks, *log.remarks, *notes],
        timing=replace(timing, started_at=iso(started_at)),
    )
    if log.figures:
        return record, {LOG_COPY: file.content}
    steps_csv = _steps_csv(rows)
    _require_possible(file.path, record, steps_csv)
    return record, {LOG_COPY: file.content, bundle.STEPS: steps_csv}


def _require_possible(path: Path, record: Record, steps_csv: bytes) -> None:
    """Raise `UsageError` for a log whose bundle could not be read back."""
    from analysis.loading.series import LAYOUTS, parse, refusals  # noqa: PLC0415 - pyarrow, once the file was understood

    try:
        row_of(to_json(record))
        reason = refusals(parse(LAYOUTS["steps"], [steps_csv]).lists, imported=[True])[0]
    except BundleError as error:
        reason = str(error)
    if reason:
        raise UsageError(
            f"'{path}' cannot be the log of a run: {reason}", hint="correct the file, or import another one"
        )


def _facts(path: Path, log: Log, user: UserFacts) -> ImportedFacts:
    labels = log.labels
    label = str(user.batch_size) if user.batch_size else labels.get("batch_size")
    if label is not None and (not re.fullmatch(r"\d{1,8}", label, re.ASCII) or int(label) < 1):
        raise UsageError(f"'{path}': batch_size must be a positive integer; got '{label[:80]}'", hint="--batch-size 32")
    batch_size = None if label is None else int(label)
    model, batch_size = require_model_and_batch(path, user.model or labels.get("model"), batch_size)
    if len(model) > MAX_NAME:
        raise UsageError(f"'{path}': the model's name has {len(model)} characters", hint="--model NAME")
    precision = user.precision or labels.get("precision")
    if log.figures and precision and precision.lower() not in set(Precision):
        # No option can correct a single row of a table.
        precision = None
    image_size = labels.get("image_size", "")
    device_type = (labels.get("device_type") or "").partition(":")[0].lower()
    return ImportedFacts(
        model=model,
        batch_size=batch_size,
        precision=None if precision is None else parsed_precision(precision, f"'{path}': precision"),
        device_name=user.gpu or labels.get("device_name"),
        device_type=device_type if device_type in set(Device) - {Device.AUTO} else None,
        place=labels.get("place"),
        image_size=user.image_size or (int(image_size) if re.fullmatch(r"\d{1,5}", image_size, re.ASCII) else None),
        torch=labels.get("torch"),
        unit=labels.get("unit"),
    )


def _contradictions(facts: ImportedFacts, log: Log) -> Iterator[str]:
    """Sentences on contradictions between the user and the file, or within the file."""
    for field, known in asdict(facts).items():
        file_word = log.labels.get(field)
        if file_word and known is not None and field != "device_type" and not _is_same(field, file_word, str(known)):
            yield f"the file says {field.replace('_', ' ')} '{file_word}', but the import was given '{known}'"
    if (
        log.images_per_row
        and "batch_size" in log.columns
        and round(log.images_per_row / _stride(log)) != (named := int(log.labels["batch_size"]))
    ):
        images = f"{log.images_per_row:g} images a row"
        yield f"the file's {log.columns['images'].name} says {images}, its batch size is {named}"
    yield from log.contradictions


def _is_same(field: str, file_word: str, user_word: str) -> bool:
    """Whether two values of `field` mean the same: `ResNet-50` and `resnet50`, `v100` and `Tesla V100-SXM2-16GB`."""
    if field == "device_name":
        return can_name(user_word, file_word)
    if field != "model":
        return file_word.lower() == user_word.lower()
    known = model_work.known_name(file_word)
    if known is not None:
        return known == model_work.known_name(user_word)
    # A family alone, such as `resnet`, may be any of its models.
    is_family = model_work.models_named(file_word) == {(folded(file_word), "")}
    return file_word.lower() == user_word.lower() or (is_family and model_work.may_be_one_model(file_word, user_word))


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
    began_s = _first_value(stamps)
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
    """Number of iterations from one row to the next."""
    return mode(log.iterations[1:] or [1])


def _without_wait(path: Path, line: int, iteration_s: float, data_s: float) -> float:
    if data_s >= iteration_s:
        raise UsageError(
            f"'{path}' line {line}: the wait for data is as long as the whole iteration; got {data_s:g} s of "
            f"{iteration_s:g} s",
            hint="correct the file, or leave the column of data waits out",
        )
    return iteration_s - data_s


def _steps_csv(rows: Sequence[_Step]) -> bytes:
    """Text of steps.csv; numbers have 12 significant digits, which removes the noise of unit conversion."""
    values = [[getattr(row, name, None) for name in bundle.STEP_COLUMNS] for row in rows]
    cells = [[f"{value:.12g}" if isinstance(value, float) else value for value in line] for line in values]
    lines = [bundle.STEP_COLUMNS, *([("" if cell is None else str(cell)) for cell in line] for line in cells)]
    return "".join(",".join(line) + "\n" for line in lines).encode()


def _timing_without_steps(figures: RunFigures, batch_size: int) -> tuple[Timing, list[str]]:
    """Timing and notes of a run without steps; if only a rate is known, the time is that of one batch at this rate."""
    rate = figures.images_per_s or (batch_size / figures.step_s if figures.step_s else None)
    images, wall_s = figures.images, figures.wall_s
    if not (images and wall_s):
        images, wall_s = (batch_size, batch_size / rate) if rate else (None, None)
    if not (images and wall_s):
        return Timing(), ["the file gives neither times nor rates of this run"]
    return Timing(measured_s=wall_s, images=images, images_per_s=images / wall_s), []


def _timing(rows: Sequence[_Step], log: Log) -> tuple[Timing, list[str]]:
    """Timing and notes, from all rows but the first, because the beginning of the first row is unknown."""
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
        step_s=StepSeconds.from_seconds(steps) if steps else None,
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
    if first is not None and last is not None and last > first:
        return last - first, None
    has_none = all(row.ended_at_s is None for row in rows)
    what = "the file has no time stamps" if has_none else "no time stamp follows that of the first row"
    return None, f"{what}: wall time and throughput are unknown"


def _first_value(values: Sequence[float | None]) -> float | None:
    return values[0] if values else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
