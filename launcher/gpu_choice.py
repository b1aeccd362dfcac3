"""Answers for each GPU whether a measured step fits its memory, how long the step takes there, and what it costs.

Memory is decided in `workload.contract.memory_fit`, time in `workload.stats.step_times`; prices are those of
`workload.contract.prices`. A cost is for the user's own amount of work, see `workload.contract.spent.amount_of`.
"""

import importlib.util
import itertools
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any, Self

from launcher.backends.shared_plan import Gpu
from workload.contract import allocations, bundle, memory_fit, peaks, tables
from workload.contract.errors import BundleError, NothingToDoError, UsageError
from workload.contract.invocation import as_typed
from workload.contract.memory_fit import CountedStep, Word
from workload.contract.record import Record, StepMemory
from workload.contract.script_words import redacted
from workload.contract.spec import SYNTHETIC, Device, RunSpec
from workload.contract.spent import SECONDS_PER_H, Amount, amount_of, units_per_step
from workload.contract.tables import Column, Role, TableFormat, facts, number, render, table_width
from workload.contract.text import percent, plain, seconds, size, wrapped

# Fields of an offer that a row keeps.
OFFERED = ("gpu", "provider", "machine_type", "gpus", "region", "usd_per_h", "usd_per_h_spot", "read", "memory_gb")
UNKNOWN = "unknown"
# Classes of our trainer's synthetic data, and the fewest of its other data sets.
SYNTHETIC_CLASSES, LEAST_CLASSES = 1000, 10
HOW = "launch local counts it: launch local -- train.py, or launch local for our trainer"


@dataclass(frozen=True, kw_only=True)
class CountedRun:
    """A run whose step's memory was counted."""

    path: Path
    record: Record
    memory: StepMemory
    step: CountedStep

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a bundle. Raises `BundleError` if it is damaged, `NothingToDoError` if no memory was counted."""
        record = bundle.read(folder).record
        memory = record.step_memory
        if memory is None or memory.peak_bytes is None:
            older = f"the run ended as {record.status}, or an older version measured it"
            why = "it is imported, and no log or profile has every tensor" if record.imported else older
            raise NothingToDoError(f"'{folder}' has no memory of a step: {why}", hint=HOW)
        try:
            found = allocations.read(folder / allocations.FILE)
        except (OSError, ValueError, KeyError) as error:
            raise BundleError(f"'{folder}' is damaged: {allocations.FILE}: {error}", hint="run again") from error
        # Memory that grows, and a lower bound: no batch is said to fit.
        at_least, ranks = any(allocations.notes(memory)), record.spec.ranks
        kind = {"at_least": at_least, "is_compiled": bool(record.spec.compile)}
        step = CountedStep(allocations=found, samples=memory.samples, ranks=ranks, **kind)
        return cls(path=folder, record=record, memory=memory, step=step)

    @property
    def at(self) -> str:
        """Samples of one forward pass as text: ` at batch 64`; empty for a script without a batch."""
        return f" at batch {self.memory.samples:g}" if self.memory.samples else ""


def counted_run(results: Path) -> CountedRun:
    """The run of a bundle's folder, or the newest run with counted memory in a folder of bundles.

    Raises `UsageError` for a path without a folder, `NothingToDoError` if no run has counted memory.
    """
    if not results.is_dir():
        what = "is a file" if results.exists() else "does not exist"
        raise UsageError(f"--for needs a bundle or a folder of bundles; '{results}' {what}", hint="--for results")
    if (results / bundle.RECORD).is_file():
        return CountedRun.read(results)
    if run := _newest(results):
        return run
    if folder := next(iter(_bundles(results)), None):
        return CountedRun.read(folder)
    raise NothingToDoError(f"no bundle in '{results}'", hint=HOW)


def _newest(results: Path, argv: tuple[str, ...] | None = None) -> CountedRun | None:
    """The newest readable run with counted memory; `argv`: of a script with these arguments."""
    for folder in _bundles(results):
        record = _record(folder)
        script = record.spec.script if record else None
        if record and record.step_memory and (argv is None or (script and tuple(script.argv or ()) == argv)):
            with suppress(BundleError, NothingToDoError):
                return CountedRun.read(folder)
    return None


def _bundles(results: Path) -> Sequence[Path]:
    """Complete bundles in a folder and its folders, the newest first: their names begin with the time."""
    found = [path.parent for path in results.rglob(bundle.MANIFEST) if bundle.DAMAGED not in path.parts]
    return sorted(found, key=lambda path: path.name, reverse=True)


def _record(folder: Path) -> Record | None:
    with suppress(BundleError):
        return bundle.read_record(folder)
    return None


def answer(
    results: Path, offers: Iterable[Mapping[str, Any]], samples: int | None, form: TableFormat, *, wide: bool
) -> str:
    """Output of `launch gpus --for RESULTS`. `samples`: the user's own amount of work."""
    run = counted_run(results)
    if run.path != results:
        print(f"run        {run.path}", file=sys.stderr)
    amount = amount_of(run.record, samples)
    rows = choices(run, offers, amount)
    if form is not TableFormat.TABLE:
        peak = {name: value for name, value in asdict(run.memory).items() if name.endswith("_bytes")}
        facts_of_run = {"bundle": str(run.path), "batch": run.memory.samples, **peak, **amount._asdict()}
        return tables.plain({**facts_of_run, "gpus": rows}, form, rows_of="gpus")
    width = table_width()
    table = render([for_people(row) for row in rows], columns(run, amount), form, wide=wide)
    notes = [wrapped(as_typed(note), width) for note in remarks(run, rows, amount)]
    return "\n".join([wrapped(headline(run), width), "", table, "", *notes])


def refuse_too_large(spec: RunSpec, gpu: Gpu, results: Path) -> None:
    """Raise `UsageError` if a step certainly does not fit the memory of a GPU that is about to be rented.

    A script's step is known if a run in `results` has counted it with the same arguments. Our trainer's is counted on
    tensors without memory, if this Python has PyTorch.
    """
    card = memory_fit.card(gpu.device, memory_gb=gpu.memory_gb)
    if card is None or spec.device is Device.CPU:
        return
    if spec.script:
        run = _newest(results, redacted(spec.script))
        step = run.step if run else None
    else:
        step = _step_of_trainer(spec)
    if step is None or (needed := step.needed(card)).word is not Word.DOES_NOT_FIT:
        return
    largest = step.largest_batch(card).fits
    smaller = f"a batch of {largest}" if spec.script else f"--batch-size {largest}"
    raise UsageError(
        f"a step of {spec.title} needs at least {size(needed.low)}; a {gpu.title} has {size(card.total.high)} for it",
        hint=" or ".join([*([smaller] if largest else []), "a larger GPU (launch gpus)", "--anyway"]),
    )


def _step_of_trainer(spec: RunSpec) -> CountedStep | None:
    """The step of our trainer, counted in a process of its own, because PyTorch's import takes seconds.

    None without PyTorch, and for the default configuration, which fits every GPU that can be rented.
    """
    spec, usual = (each.filled(Device.CUDA, cpus=1) for each in (spec, RunSpec()))
    sizes = [(each.model, each.batch_size, each.image_size) for each in (spec, usual)]
    if sizes[0] == sizes[1] or not all(map(importlib.util.find_spec, ("torch", "torchvision"))):
        return None
    print(f"memory     counting a step of {spec.title}; --anyway skips this", file=sys.stderr)
    classes = SYNTHETIC_CLASSES if spec.dataset == SYNTHETIC else LEAST_CLASSES
    names = ("model", "batch_size", "image_size", "precision", "optimizer")
    words = [f"--{name.replace('_', '-')}={getattr(spec, name)}" for name in names]
    command = [sys.executable, "-P", "-m", "workload", "complexity", *words, f"--num-classes={classes}"]
    done = subprocess.run([*command, "--allocations"], capture_output=True, text=True, check=False)
    if done.returncode:  # the run itself will say what is wrong
        return None
    found, samples = allocations.parse(done.stdout), spec.batch_size
    return CountedStep(allocations=found, samples=samples, is_compiled=spec.compile, ranks=spec.ranks)


# --- rows


def choices(run: CountedRun, offers: Iterable[Mapping[str, Any]], amount: Amount) -> list[dict[str, Any]]:
    """A row for each GPU of each cloud: on its cheapest machine, the cost of `amount`; the lowest cost first.

    `offers`: rows of `launch gpus`. Sizes are in bytes, times in seconds, costs in USD; what is unknown is None.
    """
    from workload.stats import step_times  # noqa: PLC0415 - numpy

    beside = map(_record, (path.parent for path in run.path.resolve().parent.glob(f"*/{bundle.MANIFEST}")))
    step, known = step_times.step_of(run.record), step_times.measured(record for record in beside if record)
    per_step, rows = units_per_step(run.record), []
    steps = amount.number / per_step if per_step else None
    for offer in _cheapest(offers):
        time = step_times.expected(step, peaks.named(offer["device"]), known)
        row = {name: offer[name] for name in OFFERED} | _memory(run, offer["device"], offer["memory_gb"])
        row |= {"step_s": time.value_s, "step_s_low": time.low_s, "step_s_high": time.high_s}
        row |= {"step_s_least": time.roof_s, "why": time.why}
        for kind, end in itertools.product(("", "_spot"), ("", "_low", "_high", "_least")):
            step_s, usd_per_h = row[f"step_s{end}"] if _may_run(row) else None, offer[f"usd_per_h{kind}"]
            cost = steps * step_s * usd_per_h / SECONDS_PER_H if steps and step_s and usd_per_h else None
            row[f"usd{kind}{end}"] = cost
        rows.append(row)
    fastest = min((row["step_s"] for row in rows if row["step_s"] and _may_run(row)), default=None)
    rows = [row | {"is_fastest": _may_run(row) and row["step_s"] == fastest is not None} for row in rows]
    return sorted(rows, key=_order)


def _memory(run: CountedRun, device: str, memory_gb: float) -> dict[str, Any]:
    """Memory that the step needs on a GPU, and its largest batch there."""
    card = memory_fit.card(device, memory_gb=memory_gb)
    assert card, f"gpu_memory.toml lacks {device}"
    needed, largest = run.step.needed(card), run.step.largest_batch(card)
    return {
        "fits": needed.word,
        "is_lower_bound": run.step.at_least,
        "needed_low_bytes": needed.low,
        "needed_high_bytes": needed.high,
        "total_bytes": card.total.low,
        "largest_batch": largest.fits,
        "too_large_batch": largest.does_not_fit,
    }


def _cheapest(offers: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """The machine with the lowest price of each GPU in each cloud; on-demand prices go before spot prices."""
    best: dict[tuple[str, str], Mapping[str, Any]] = {}
    for offer in sorted(offers, key=lambda offer: (offer["usd_per_h"] or inf, offer["usd_per_h_spot"] or inf)):
        best.setdefault((offer["gpu"], offer["provider"]), offer)
    return best.values()


def _may_run(row: Mapping[str, Any]) -> bool:
    return bool(row["fits"] != Word.DOES_NOT_FIT)


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Sort key of a GPU: first those that the step fits, then those of known cost, then by cost, the lowest first."""
    usd, spot = (row[name] if row[name] is not None else row[f"{name}_least"] for name in ("usd", "usd_spot"))
    return not _may_run(row), usd is None, row["step_s"] is None, usd or spot or row["usd_per_h"] or inf


# --- the text for people


def columns(run: CountedRun, amount: Amount) -> tuple[Column, ...]:
    """Columns of a printed table, the cost among those that a terminal of 80 characters shows.

    JSON and CSV have every figure of a row under other names.
    """
    return (
        *facts(gpu="GPU", provider="cloud"),
        Column(name="machine", heading="machine", role=Role.FACT, detail=True),
        Column(name="memory_gb", heading="GB"),
        Column(name="fits", heading=f"fits{run.at.replace(' batch', '')}"),
        Column(name="step", heading="a step, about"),
        Column(name="usd", heading="USD per epoch" if amount.is_epoch else "USD"),
        Column(name="largest", heading="largest batch"),
        Column(name="usd_spot", heading="spot"),
        Column(name="read", heading="price of", detail=True),
        Column(name="notes", heading="note", role=Role.NOTE),
    )


def headline(run: CountedRun) -> str:
    """Sentence on the counted memory: how much the step keeps at most, of what kind, at which line of the script."""
    spec, device = run.record.spec, run.record.environment.device
    kept = allocations.sentence(run.memory)
    counted = f"counted in one step on {device.name or device.type}"
    return f"{spec.model}{run.at} ({spec.precision or 'unknown precision'}) keeps {kept}; {counted}"


def for_people(row: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of a row as text."""
    return {
        **row,
        "machine": row["machine_type"] + (f" ({row['gpus']})" if row["gpus"] > 1 else ""),
        "fits": _fits_text(row),
        "largest": _largest_text(row["largest_batch"], row["too_large_batch"]),
        "step": _step_text(row) if _may_run(row) else None,
        **{name: _usd_text(row, name) if _may_run(row) else None for name in ("usd", "usd_spot")},
        "notes": [*([row["why"]] if _may_run(row) else []), *(["the fastest"] if row["is_fastest"] else [])],
    }


def _fits_text(row: Mapping[str, Any]) -> str:
    low, high = (percent(row[f"needed_{end}_bytes"] / row["total_bytes"]) for end in ("low", "high"))
    if row["fits"] is Word.CLOSE:
        return f"from {low}" if row["is_lower_bound"] else f"close {high}"
    return f"yes {high}" if row["fits"] is Word.FITS else f"no {low}"


def _largest_text(fits: int | None, too_large: int | None) -> str:
    """Largest batch that fits, as a text; `32-64` if 32 fits, 64 is close and 128 does not fit."""
    if not too_large:
        return f"from {fits}" if fits else UNKNOWN
    most = too_large // 2
    if not fits:
        return f"up to {most}" if most else "none"
    return str(fits) if fits == most else f"{fits}-{most}"


def _step_text(row: Mapping[str, Any]) -> str | None:
    if row["step_s"] is None:
        return row["step_s_least"] and f"at least {seconds(row['step_s_least'], 2)}"
    unit_s, unit = (1.0, "s") if row["step_s"] >= 1 else (1e-3, "ms")
    about, low, high = (plain(row[name] / unit_s, 2) for name in ("step_s", "step_s_low", "step_s_high"))
    return f"{about} {unit} ({low}-{high})"


def _usd_text(row: Mapping[str, Any], name: str) -> str:
    if row[name] is not None:
        return number(row[name], 2)
    return UNKNOWN if row[f"{name}_least"] is None else f"from {number(row[f'{name}_least'], 2)}"


def remarks(run: CountedRun, rows: Sequence[Mapping[str, Any]], amount: Amount) -> Iterator[str]:
    """Sentences on the whole table: what the figures are for, and what is special about the run."""
    devices = run.record.spec.ranks
    yield from allocations.notes(run.memory)
    if not run.step.scales:
        yield "the largest batch is unknown: the memory of one batch size only was counted"
    of_one = f" on one GPU; the run used {devices:g}" if devices > 1 else ""
    work = f"{'an epoch of ' if amount.is_epoch else ''}{amount.text}"
    yield (
        f"time and USD: training steps{run.at}{of_one}, without waits for data; USD for {work}; of a larger "
        "batch only the memory is known"
    )
    dates = sorted(row["read"] for row in rows if row["read"])
    yield (
        f"prices: the VM with its GPUs, on demand and spot, as of {dates[0]} to {dates[-1]}; from: at the GPU's peaks; "
        "each price, its date and source: launch gpus"
    )
