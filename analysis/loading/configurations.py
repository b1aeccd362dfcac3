"""Groups of runs that repeat one measurement: the user's choices, the place, the software and the work agree. Pure."""

import bisect
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from workload.contract.errors import ExitCode, RooflaunchError
from workload.contract.record import Status
from workload.contract.tables import Column, Role, facts
from workload.contract.text import counted, si
from workload.contract.verdict import busy_sentence
from workload.contract.vocabulary import MODEL_RATIO_TO
from workload.stats.intervals import FIRST_LOOK

if TYPE_CHECKING:
    from analysis.statistics.samples import Estimate

# Facts that the user chose.
CONFIGURATION = (
    "model",
    "script",
    "unit",
    "batch_size",
    "precision",
    "dataset",
    "image_size",
    "warmup",
    "grad_accumulation",
    "channels_last",
    "compile",
    "deterministic",
    "optimizer",
    "workers",
    "prefetch_factor",
    "pin_memory",
    "persistent_workers",
    "machines",
    "devices",
    "change",
)
# Numbers whose runs are never mixed: machines that train together, and devices of each machine.
NUMBERS = ("machines", "devices")
# A user's script does not state these facts: they are counted in its steps, so repeats may differ slightly.
COUNTED = ("batch_size", "grad_accumulation")
# Facts of the device; the threads of a CPU run decide its ceilings.
DEVICE = ("place", "device_type", "device_name", "threads")
PLACE = (*DEVICE, "machine_type")
# Runs of one configuration and place are different measurements if they differ in one of these facts.
SOFTWARE = (
    "driver_version",
    "torch",
    "runtime",
    "start",
    "image_digest",
    "rooflaunch",
    "commit",
    "commit_dirty",
    "imported",
    "script_sha256",
    "packages_sha256",
)
# Facts that name a row of a table. If two rows have the same name, their notes list the other facts that differ.
NAMED = ("place", "device_name", "model", "batch_size", "precision")
# Facts that determine the work of a step: larger images are more work.
WORK_NAMED = (*NAMED, "image_size")
# Further facts that distinguish groups of runs; each is a column in data output.
UNNAMED = tuple(name for name in (*CONFIGURATION, *PLACE, *SOFTWARE) if name not in WORK_NAMED)
NAMED_COLUMNS = (*facts(place="place", device_name="device", model="model", batch_size="batch", precision="precision"),)

# Beginning of the name of a script's argument as a fact; the rest is the argument without its dashes, as in a matrix.
ARGUMENT = "args."
LABELS = {
    "device_name": "device",
    "driver_version": "driver",
    "image_digest": "image digest",
    "batch_size": "batch size",
    "image_size": "image size",
    "warmup": "warm-up steps",
    "grad_accumulation": "gradient accumulation",
    "device_type": "device type",
    "commit_dirty": "uncommitted changes",
    "rooflaunch": "rooflaunch version",
}
# Number of characters shown, by column: the beginning of a long identifier is enough to distinguish it.
SHOWN_CHARACTERS = {"commit": 12, "image_digest": 19}


# Columns of facts that are not in `NAMED`: always in JSON and CSV, in printed tables only if rows differ in them.
DETAILS = tuple(
    Column(name=name, heading=LABELS.get(name, name.replace("_", " ")), role=Role.FACT, detail=True)
    for name in (*CONFIGURATION, *PLACE, *SOFTWARE)
    if name not in NAMED
)

# The same columns for tables that already print these facts as notes. As figures instead of facts, they are only in
# JSON, CSV and wide tables.
DATA_DETAILS = tuple(replace(column, role=Role.FIGURE) for column in DETAILS)


class NotPoolableError(RooflaunchError):
    """Runs that are different measurements cannot be summarized as one."""

    exit_code: ClassVar[ExitCode] = ExitCode.NOT_POOLABLE


class _Columns:
    """Columns of a table as lists, each made once: to choose rows of a list takes 1 % of the time as of a table."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table
        self._values: dict[str, list[Any]] = {}
        self._numbers: dict[str, list[float]] = {}

    def values(self, name: str) -> list[Any]:
        """Values of a column; an absent one is None or NaN, as in the table."""
        if name not in self._values:
            self._values[name] = self.table[name].tolist()
        return self._values[name]

    def numbers(self, name: str) -> list[float]:
        """Values of a column as numbers; NaN for other values."""
        if name not in self._numbers:
            numbers = pd.to_numeric(self.table[name], errors="coerce")
            self._numbers[name] = [float(value) for value in numbers.tolist()]
        return self._numbers[name]


# Figures that `Group.figures` gives, see there.
FIGURES = (
    *("runs", "images_per_s_mean", "images_per_s_sd", "images_per_s", "images_per_s_low", "images_per_s_high"),
    *("interval", "step_s", "bound", "busy", "data_wait_fraction"),
    *("joules_per_image", "joules_per_image_low", "joules_per_image_high"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """Runs that may be pooled. `facts`: by column of `CONFIGURATION`, `PLACE` and `SOFTWARE`, None if unknown.

    `apart`: words on how the group differs from others with the same place, device, model, batch size and precision.
    """

    facts: Mapping[str, Any]
    apart: tuple[str, ...]
    _columns: _Columns
    _rows: Sequence[int]

    def __getitem__(self, fact: str) -> Any:
        return self.facts[fact]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def runs(self) -> pd.DataFrame:
        """Rows of the runs, as a table. To read a column, the methods below take much less time."""
        return self._columns.table.iloc[list(self._rows)]

    def only(self, is_kept: Sequence[bool]) -> "Group":
        """The group with only some of its runs; `is_kept`: for each run, whether it is kept."""
        return replace(self, _rows=list(itertools.compress(self._rows, is_kept)))

    def values(self, column: str) -> list[Any]:
        """Values of a column, one per run; an absent one is None or NaN, as in the table."""
        values = self._columns.values(column)
        return [values[row] for row in self._rows]

    def numbers(self, column: str) -> list[float]:
        """Values of a column as numbers, one per run; NaN for other values."""
        numbers = self._columns.numbers(column)
        return [numbers[row] for row in self._rows]

    def known(self, column: str) -> list[float]:
        """Finite values of a column, one per run that has a value."""
        return list(filter(math.isfinite, self.numbers(column)))

    def texts(self, column: str) -> list[str]:
        """Texts of a column, one per run that has a text."""
        return [value for value in self.values(column) if isinstance(value, str)]

    def median(self, column: str) -> float | None:
        """Median over the runs that have a finite value; None if none has."""
        values = self.known(column)
        return median(values) if values else None

    @cached_property
    def rate(self) -> "Estimate":
        """Estimate of images per second over runs; over blocks if one sweep has enough blocks for its stopping rule."""
        # Imported here, because importing SciPy takes longer than loading runs.
        from analysis.statistics.samples import over_blocks, over_runs  # noqa: PLC0415

        blocks = self._by_block()
        return over_blocks(blocks) if len(blocks) >= FIRST_LOOK else over_runs(self.known("images_per_s"))

    def _by_block(self) -> list[float]:
        """Images per second in the order of blocks; empty unless each run is a different block of the same sweep."""
        rates = self.numbers("images_per_s")
        measured_runs = self.only([rate > 0 for rate in rates])
        blocks = measured_runs.known("block")
        if len(set(measured_runs.values("job_name"))) != 1 or len(set(blocks)) < len(measured_runs):
            return []
        return [rate for _, rate in sorted(zip(blocks, measured_runs.numbers("images_per_s"), strict=True))]

    @property
    def bound(self) -> str | None:
        """The limit, such as `memory`, or `compute 2, memory 1` (number of runs) if runs disagree. None if unknown."""
        counts = Counter(self.texts("bound"))
        if len(counts) > 1:
            return ", ".join(f"{bound} {number}" for bound, number in counts.most_common())
        return next(iter(counts), None)

    @property
    def busy(self) -> str | None:
        """A sentence that counts the runs on a busy machine; None if no machine was busy."""
        return busy_sentence([text if isinstance(text, str) else None for text in self.values("busy")])

    def figures(self) -> dict[str, Any]:
        """Figures of a configuration that every table shows: throughput, step time, limit, data waits, energy."""
        from analysis.statistics.samples import over_runs  # noqa: PLC0415 - see `rate`

        rates = self.known("images_per_s")
        return {
            "runs": len(self),
            "images_per_s_mean": fmean(rates) if rates else None,
            "images_per_s_sd": stdev(rates) if len(rates) > 1 else None,
            **self.rate.columns("images_per_s"),
            "interval": self.rate.interval_words,
            "step_s": self.median("step_median_s"),
            "bound": self.bound,
            "busy": self.busy,
            "data_wait_fraction": self.median("data_wait_fraction"),
            **over_runs(self.known("joules_per_image")).columns("joules_per_image"),
        }


def with_usual_batch(runs: pd.DataFrame) -> pd.DataFrame:
    """Set the batch size and gradient accumulation of each script's runs to their most frequent values, in place.

    Both are counted while a script runs, and may differ between repeats. Runs of one script have the same arguments,
    files, unit and numbers of machines and devices.
    """
    scripts = runs[runs["script"].notna()]
    for _, same in scripts.groupby(["script", "script_sha256", "unit", *NUMBERS, "change"], dropna=False):
        for name in COUNTED:
            usual = same[name].mode()
            if len(usual):
                runs.loc[same.index, name] = usual.iloc[0]
    return runs


def completed(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs that completed, including imported profiles, which have no times."""
    return runs[runs["status"] == Status.COMPLETED]


def measured(runs: pd.DataFrame) -> pd.DataFrame:
    """Completed runs that may be pooled: with timed steps, or imported from a table of rates."""
    done = completed(runs)
    of_a_table = done["imported"].eq(True) & (done["images_per_s"] > 0)
    return done[(done["step_median_s"] > 0) | of_a_table]


def group(runs: pd.DataFrame) -> list[Group]:
    """Groups of runs that may be pooled: same configuration, place, software and work, in order of appearance."""
    columns = (*CONFIGURATION, *PLACE, *SOFTWARE, "work")
    alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for number, values in enumerate(_tuples(runs, columns[:-1])):
        alike[values].append(number)
    shown = runs["shown_flop_per_step"].tolist()
    rows: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for values, numbers in alike.items():
        for number, work in zip(numbers, _works([shown[number] for number in numbers]), strict=True):
            rows[(*values, work)].append(number)
    apart = _apart(list(rows), columns)
    lists = _Columns(runs)
    return [
        Group(facts=dict(zip(columns, values, strict=True)), apart=apart[values], _columns=lists, _rows=numbers)
        for values, numbers in rows.items()
    ]


def _works(flop_per_step: Sequence[float | None]) -> list[str | None]:
    """A name for the work of each run, such as `1.6 TFLOP a step`; None for a run with unknown FLOP.

    All names are None if the FLOP agree within the tolerance for counters, formulas and recomputation.
    """
    lows: list[float] = []
    for flop in sorted(flop for flop in flop_per_step if flop is not None and flop > 0):
        if not lows or flop > MODEL_RATIO_TO * lows[-1]:
            lows.append(flop)
    if len(lows) < 2:  # noqa: PLR2004
        return [None] * len(flop_per_step)
    names = [si(low, "FLOP", 2) + " a step" for low in lows]
    return [
        names[bisect.bisect_right(lows, flop) - 1] if flop is not None and flop > 0 else None for flop in flop_per_step
    ]


def require_poolable(runs: pd.DataFrame, *, hint: str = "name folders that contain one configuration each") -> None:
    """Raise `NotPoolableError` that names the first fact in which two runs differ; incomplete runs are ignored."""
    done = measured(runs)
    columns = ("device_name", *SOFTWARE, *CONFIGURATION, *PLACE)
    first: tuple[Any, ...] | None = None
    for row, values in zip(done["run_id"], _tuples(done, columns), strict=True):
        if first is None:
            first, first_run = values, row
        elif values != first:
            fact = next(index for index, value in enumerate(values) if value != first[index])
            raise NotPoolableError(
                f"cannot pool: {label(columns[fact])} is {_quoted(first[fact])} in run {first_run}, "
                f"{_quoted(values[fact])} in run {row}",
                hint=hint,
            )
    works = list(dict.fromkeys(_works(done["shown_flop_per_step"].tolist())))
    if len(works) > 1:
        raise NotPoolableError(
            f"cannot pool: work is {_quoted(works[0])} in one run, {_quoted(works[1])} in another", hint=hint
        )


def label(column: str) -> str:
    """The name of a column in messages."""
    return column if column.startswith(ARGUMENT) else LABELS.get(column, column.replace("_", " "))


def shown(column: str, value: Any) -> str:
    """A fact as printed text: `driver 580.95.05`."""
    if column == "change" and value is None:
        return "no change"
    return f"{label(column)} {_text(value)[: SHOWN_CHARACTERS.get(column)]}"


def devices_of(facts: Mapping[str, Any]) -> float:
    """Number of devices that train together, of all machines; 1 if unknown."""
    return float((facts["machines"] or 1) * (facts["devices"] or 1))


def together(facts: Mapping[str, Any]) -> str:
    """Words on what trains together: `4 devices`, `2 machines`, `2 machines of 4 devices`; empty for one device."""
    machines, devices = (
        counted(int(number), name.removesuffix("s")) if (number := facts[name] or 1) > 1 else "" for name in NUMBERS
    )
    return " of ".join(filter(None, (machines, devices)))


def needs_no_digest(facts: Mapping[str, Any]) -> bool:
    """Whether the image digest is absent because the run had no container; False if the digest is unknown."""
    return bool(facts["runtime"] == "process" and facts["image_digest"] is None)


def pool_words(facts: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    """Facts that distinguish a pool of runs from others, as printed text: `runtime process`, `driver 580.95.05`."""
    kept = [name for name in names if name != "image_digest" or not needs_no_digest(facts)]
    return tuple(shown(name, facts[name]) for name in kept)


def _tuples(runs: pd.DataFrame, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Rows as tuples, with None for absent values, because NaN does not equal itself."""
    # Convert by column: a frame of objects takes ten times as long.
    lists = [
        [
            None if absent else value
            for value, absent in zip(runs[name].tolist(), runs[name].isna().tolist(), strict=True)
        ]
        for name in columns
    ]
    return zip(*lists, strict=True)


def _apart(keys: Sequence[tuple[Any, ...]], columns: Sequence[str]) -> dict[tuple[Any, ...], tuple[str, ...]]:
    by_name: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
    named = [columns.index(name) for name in NAMED]
    for key in keys:
        by_name[tuple(key[index] for index in named)].append(key)
    words_of = {}
    for same_name in by_name.values():
        varying = [index for index in range(len(columns)) if len({key[index] for key in same_name}) > 1]
        for key in same_name:
            facts = dict(zip(columns, key, strict=True))
            words_of[key] = pool_words(facts, [columns[index] for index in varying])
    return words_of


def _quoted(value: Any) -> str:
    return "unknown" if value is None else f"'{_text(value)}'"


def _text(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
