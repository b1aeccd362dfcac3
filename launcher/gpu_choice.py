"""Which GPU suits a run that was measured: does a step fit its memory, how long does it take, and what does it cost.

Memory is decided in `workload.contract.memory_fit`, time in `workload.stats.step_times`; prices are those of
`workload.contract.prices`. A cost is for the user's own amount of work, see `workload.contract.spent.amount_of`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from workload.contract import allocations, bundle, memory_fit, peaks
from workload.contract.allocations import Allocation, Kind
from workload.contract.errors import BundleError, NothingToDoError, UsageError
from workload.contract.invocation import as_typed
from workload.contract.memory_fit import Fit
from workload.contract.record import Record, StepMemory
from workload.contract.spent import SECONDS_PER_H, Amount, amount_of, units_per_step
from workload.contract.tables import Column, Role, TableFormat, facts, number, plain, render, table_width
from workload.contract.text import percent, percent_range, seconds, si, span, wrapped

# Words of a user for a word of `memory_fit`.
WORDS = {Fit.FITS: "yes", Fit.CLOSE: "close", Fit.DOES_NOT_FIT: "no"}
UNKNOWN = "unknown"
HOW = "launch local counts it: launch local -- train.py, or launch local for our trainer"


@dataclass(frozen=True, kw_only=True)
class CountedRun:
    """A run whose step's memory was counted, with the allocations of the step."""

    path: Path
    record: Record
    memory: StepMemory
    allocations: Sequence[Allocation]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a bundle. Raises `BundleError` if it is damaged, `NothingToDoError` if no memory was counted."""
        record = bundle.read(folder).record
        memory = record.step_memory
        if memory is None or memory.peak_bytes is None:
            raise NothingToDoError(f"'{folder}' has no memory of a step: {_why_not_counted(record)}", hint=HOW)
        try:
            found = allocations.read(folder / allocations.FILE)
        except (OSError, ValueError, KeyError) as error:
            raise BundleError(f"'{folder}' is damaged: {allocations.FILE}: {error}", hint="run again") from error
        return cls(path=folder, record=record, memory=memory, allocations=found)

    @property
    def batch(self) -> int:
        """Samples of one forward pass."""
        return int(self.memory.samples or self.record.spec.batch_size)

    @cached_property
    def neighbours(self) -> list[Record]:
        """Records of all readable runs in the folder of this run, for the time of their steps."""
        return [record for folder in _bundles(self.path.parent) if (record := _record(folder))]


def counted_run(results: Path) -> CountedRun:
    """The run of a bundle's folder, or the newest run with counted memory in a folder of bundles.

    Raises `UsageError` for a path without a folder, `NothingToDoError` if no run has counted memory.
    """
    if not results.is_dir():
        what = "is a file" if results.exists() else "does not exist"
        raise UsageError(f"--for needs a bundle or a folder of bundles; '{results}' {what}", hint="--for results")
    if _is_bundle(results):
        return CountedRun.read(results)
    folders = list(_bundles(results))
    for folder in folders:
        record = _record(folder)
        if record and record.step_memory:
            with suppress(BundleError, NothingToDoError):
                return CountedRun.read(folder)
    if folders:
        return CountedRun.read(folders[0])
    raise NothingToDoError(f"no bundle in '{results}'", hint=HOW)


def _why_not_counted(record: Record) -> str:
    if record.imported:
        return "it is imported, and a log or a profile does not tell every tensor"
    return f"the run ended as {record.status}, or an older version measured it"


def _is_bundle(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (bundle.MANIFEST, bundle.RECORD))


def _bundles(folder: Path) -> Iterator[Path]:
    """Complete bundles in a folder and its folders, the newest first: their names begin with the time."""
    found = [path.parent for path in folder.rglob(bundle.MANIFEST) if bundle.DAMAGED not in path.parts]
    return iter(sorted(found, key=lambda path: path.name, reverse=True))


def _record(folder: Path) -> Record | None:
    try:
        return bundle.read_record(folder)
    except BundleError:
        return None


def answer(
    results: Path, offers: Iterable[Mapping[str, Any]], samples: int | None, form: TableFormat, *, wide: bool
) -> str:
    """Output of `launch gpus --for RESULTS`. `samples`: the user's own amount of work."""
    run = counted_run(results)
    amount = amount_of(run.record, samples)
    rows = choices(run, offers, amount)
    if form is not TableFormat.TABLE:
        peak = {name: value for name, value in asdict(run.memory).items() if name.endswith("_bytes")}
        facts_of_run = {"bundle": str(run.path), "batch": run.batch, **peak, **amount._asdict()}
        return plain({**facts_of_run, "gpus": rows}, form, rows_of="gpus")
    width = table_width()
    table = render([for_people(row) for row in rows], columns(run, amount), form, wide=wide)
    notes = [wrapped(as_typed(note), width) for note in remarks(run, rows)]
    return "\n".join([wrapped(headline(run), width), "", table, "", *notes])


# --- rows


def choices(run: CountedRun, offers: Iterable[Mapping[str, Any]], amount: Amount) -> list[dict[str, Any]]:
    """A row for each GPU of each cloud: on its cheapest machine, the cost of `amount`; the lowest cost first.

    `offers`: rows of `launch gpus`. Sizes are in bytes, times in seconds, costs in USD; what is unknown is None.
    """
    from workload.stats import step_times  # noqa: PLC0415 - numpy

    per_step, step = units_per_step(run.record), step_times.step_of(run.record)
    steps, known = amount.number / per_step if per_step else None, step_times.measured(run.neighbours)
    rows = []
    for offer in _cheapest(offers):
        fit = memory_of(run, offer)
        time = step_times.expected(step, peaks.named(offer["device"]), known)
        may_run = fit["fits"] != Fit.DOES_NOT_FIT
        costs = {
            f"usd_{end}{kind}": steps * step_s * usd_per_h / SECONDS_PER_H
            if steps and may_run and step_s and (usd_per_h := offer[f"usd_per_h{kind}"])
            else None
            for kind in ("", "_spot")
            for end, step_s in (
                *(("expected", time.value_s), ("low", time.low_s), ("high", time.high_s)),
                ("least", time.roof_s if time.value_s is None else None),
            )
        }
        rows.append(
            {name: offer[name] for name in OFFERED}
            | fit
            | {"step_s": time.value_s, "step_s_low": time.low_s, "step_s_high": time.high_s}
            | {"roof_step_s": time.roof_s, "why": time.why}
            | costs
        )
    fastest = min((row["step_s"] for row in rows if row["step_s"] and _may_run(row)), default=None)
    rows = [row | {"is_fastest": _may_run(row) and row["step_s"] == fastest is not None} for row in rows]
    return sorted(rows, key=_order)


OFFERED = ("gpu", "provider", "machine_type", "gpus", "region", "usd_per_h", "usd_per_h_spot", "read", "memory_gb")


def _cheapest(offers: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """The machine with the lowest price of each GPU in each cloud; on-demand prices go before spot prices."""

    def price(offer: Mapping[str, Any]) -> tuple[float, float]:
        return tuple(float("inf") if each is None else each for each in (offer["usd_per_h"], offer["usd_per_h_spot"]))

    best: dict[tuple[str, str], Mapping[str, Any]] = {}
    for offer in offers:
        key = offer["gpu"], offer["provider"]
        best[key] = min(best.get(key, offer), offer, key=price)
    return best.values()


def _may_run(row: Mapping[str, Any]) -> bool:
    return row["fits"] != Fit.DOES_NOT_FIT


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """By cost; after these the GPUs with only a least cost, those without a price, and those that are too small."""
    usd = next((row[name] for name in ("usd_expected", "usd_expected_spot", "usd_least") if row[name]), None)
    return not _may_run(row), usd is None, row["step_s"] is None, usd or 0.0, row["roof_step_s"] or 0.0


# --- the text for people


def columns(run: CountedRun, amount: Amount) -> tuple[Column, ...]:
    """Columns of a printed table. JSON and CSV have every figure of a row under other names."""
    work = f"{'per epoch of' if amount.is_epoch else 'for'} {amount.text}"
    return (
        *facts(gpu="GPU", provider="cloud"),
        Column(name="machine", heading="machine", role=Role.FACT, detail=True),
        Column(name="memory", heading="memory"),
        Column(name="fits", heading=f"fits at {run.batch}"),
        Column(name="largest", heading="largest batch"),
        Column(name="step", heading="a step, about"),
        Column(name="usd", heading=f"USD {work}"),
        Column(name="spot", heading="spot"),
        Column(name="notes", heading="note", role=Role.NOTE),
    )


def headline(run: CountedRun) -> str:
    """What was counted: the peak of live bytes, its parts, and where it is."""
    memory, spec = run.memory, run.record.spec
    peak = float(memory.peak_bytes or 0.0)
    unit = si(peak, "B").split()[1]
    factor = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}.get(unit, 1.0)
    parts = ((kind, (getattr(memory, f"{kind}_bytes") or 0.0) / factor) for kind in Kind)
    split = ", ".join(f"{kind} {part:.1f}" for kind, part in parts if round(part, 1))
    bound = "at least" if memory.lower_bound else "at most"
    where = " at ".join(filter(None, (memory.peak_op, memory.peak_line)))
    return "".join(
        (
            f"{spec.model} at batch {run.batch} keeps {bound} {peak / factor:.1f} {unit} in tensors ({split})",
            f", in {where}" if where else "",
            f"; {memory.method}" if memory.method else "",
        )
    )


def for_people(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as text."""
    shown = dict.fromkeys(("usd", "spot"), UNKNOWN if _may_run(row) else None)
    for name, kind in (("usd", ""), ("spot", "_spot")):
        if row[f"usd_expected{kind}"] is not None:
            shown[name] = number(row[f"usd_expected{kind}"], 2)
        elif row[f"usd_least{kind}"] is not None:
            shown[name] = f"at least {number(row[f'usd_least{kind}'], 2)}"
    return {
        "gpu": row["gpu"],
        "provider": row["provider"],
        "machine": row["machine_type"] + (f" ({row['gpus']})" if row["gpus"] > 1 else ""),
        "memory": f"{row['memory_gb']} GB",
        "fits": _fits_text(row),
        "largest": _largest_text(row),
        "step": _step_text(row) if _may_run(row) else None,
        **shown,
        "notes": [*(["the fastest"] if row["is_fastest"] else []), *([row["why"]] if _may_run(row) else [])],
    }


def _fits_text(row: Mapping[str, Any]) -> str:
    low, high = (row[f"needed_{end}_bytes"] / row["usable_bytes"] for end in ("low", "high"))
    share = percent_range(low, high) if row["fits"] is Fit.CLOSE else percent(high if row["fits"] is Fit.FITS else low)
    return f"{WORDS[row['fits']]}, {share}"


def _largest_text(row: Mapping[str, Any]) -> str:
    if row["largest_batch"] is None:
        return UNKNOWN
    return f"{row['largest_batch']} ({row['too_large_batch']}: no)" if row["too_large_batch"] else row["largest_batch"]


def _step_text(row: Mapping[str, Any]) -> str | None:
    if row["step_s"] is not None:
        return span(row["step_s"], (row["step_s_low"], row["step_s_high"]), digits=2)
    return None if row["roof_step_s"] is None else f"at least {seconds(row['roof_step_s'], 2)}"


def remarks(run: CountedRun, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Sentences on the whole table: what the figures are for, and what is special about the run."""
    memory, devices = run.memory, run.record.spec.devices or 1
    if memory.growth_bytes:
        left = si(memory.growth_bytes, "B")
        yield f"every step keeps {left} more than the one before (a leak?): after enough steps no memory is large enough"
    for why in memory.lower_bound or ():
        yield f"the memory is a lower bound: {why}"
    if any(row["largest_batch"] is None for row in rows):
        yield "the largest batch is unknown: the memory of one batch size only was counted"
    of_one = f" on one GPU; the run used {devices:g}" if devices > 1 else ""
    yield f"time and USD: training steps at batch {run.batch}{of_one}, without waits for data; of a larger batch only the memory is known"
    dates = dict.fromkeys(f"{row['read']} ({row['provider']})" for row in rows if row["read"])
    yield f"prices: on demand and spot, the VM with its GPUs alone, as of {', '.join(dates)}; sources: launch gpus"
