"""Chooses the metrics to collect: those in metrics.toml that the installed ncu has for the GPU's chip."""

import functools
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from workload.contract import ncu_csv
from workload.contract.errors import ToolError
from workload.contract.ncu_csv import ERROR, ID, NAME, PROCESS, STARTED, DamagedTableError, NcuSource, NoTableError
from workload.contract.spec import Precision
from workload.contract.vocabulary import TENSOR_PIPE_IS_PRODUCTS, names_tensor_cores, tensor_operations

TABLE = Path(__file__).with_name("metrics.toml")

# Operand types whose tensor FLOP are counted. TF32 is always counted, to detect a library that uses TF32 although
# nobody asked for it.
TENSOR_TYPES = {
    Precision.FP32: ("tf32",),
    Precision.TF32: ("tf32",),
    Precision.AMP: ("fp16", "tf32"),
    Precision.BF16: ("bf16", "tf32"),
}
TENSOR_PREFIX = "tensor_flop_"
TENSOR_PIPE, TENSOR_PRODUCTS, HFMA2 = "tensor_pipe_instructions", "tensor_instructions", "hfma2_instructions"
DRAM, DRAM_PARTS = "dram_bytes", ("dram_read_bytes", "dram_write_bytes")
# Passes that a metric of the user may add. The three of a set of throughputs take 7 to 18 passes: see metrics.toml.
OWN_PASSES = 6
# Metrics of the launch itself, which ncu has for every chip and does not list.
LAUNCH_METRICS = ("launch__", "device__attribute_")
# Metrics of the whole-step run. SASS metrics cannot be collected for ranges.
STEP_ROLES = ("dram_bytes", "dram_read_bytes", "dram_write_bytes", "l2_bytes", "l1_bytes", "time_s")


@dataclass(frozen=True, kw_only=True)
class Chips:
    """Row of metrics.toml: metrics of GPUs of one compute capability, and the number of passes for these metrics."""

    capability: str
    chips: tuple[str, ...]
    passes: int
    throughput_passes: int
    tensor: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class MetricTable:
    """Content of metrics.toml: names of metrics by role, and rows by compute capability."""

    common: Mapping[str, tuple[str, ...]]
    throughput: Mapping[str, tuple[str, ...]]
    rows: Mapping[str, Chips]


@dataclass(frozen=True, kw_only=True)
class MetricSet:
    """Metrics to collect, each with its role. `missing`: metrics that this ncu lacks; they are unavailable, not 0.

    `passes`: expected number of passes, from metrics.toml; None for a compute capability that is not listed there.
    `own`: metrics that the user asked for, which may be some of ours. `own_missing`: those that this ncu lacks.
    """

    roles: Mapping[str, str]
    missing: tuple[str, ...]
    passes: int | None
    own: tuple[str, ...] = ()
    own_missing: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the metrics, in the form that `ncu --metrics` expects."""
        return tuple(dict.fromkeys([*self.roles, *self.own]))

    @property
    def most_passes(self) -> int | None:
        """Number of passes for a time limit: own metrics may need several each. None if unknown."""
        own = [name for name in self.own if name not in self.roles]
        return self.passes if self.passes is None else self.passes + OWN_PASSES * len(own)

    def notes(self) -> Iterator[str]:
        """A sentence for each metric of the user that this ncu lacks."""
        for name in self.own_missing:
            lists = "ncu's option --query-metrics lists what it has"
            yield f"this ncu does not have {name} for this GPU: left out; {lists}"


@functools.cache
def table() -> MetricTable:
    """Content of metrics.toml in this version of rooflaunch."""
    content = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return MetricTable(
        common=_names(content["common"]),
        throughput=_names(content["throughput"]),
        rows={
            capability: Chips(
                capability=capability,
                chips=tuple(row["chips"]),
                passes=row["passes"],
                throughput_passes=row["throughput_passes"],
                tensor=_names(row["tensor"]),
            )
            for capability, row in content["capability"].items()
        },
    )


def _names(rows: Mapping[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {role: tuple(names) for role, names in rows.items()}


def choose(capability: str, precision: Precision, known: Collection[str]) -> MetricSet:
    """Metrics for FLOP, bytes and time per kernel. `known`: base names (`dram__bytes`) that this ncu has."""
    row = table().rows.get(capability)
    only_products = capability in TENSOR_PIPE_IS_PRODUCTS
    wanted = {role: names for role, names in table().common.items() if not (only_products and role == HFMA2)}
    roles, missing = _first_known(wanted, known)
    if only_products:
        roles = {name: TENSOR_PRODUCTS if role == TENSOR_PIPE else role for name, role in roles.items()}
    tensor = _tensor_names(row, precision, known)
    absent = [name for name in tensor if base(name) not in known]
    # Leave out types with an unknown metric: only a part of their FLOP would be counted.
    half = {tensor[name] for name in absent}
    roles |= {name: role for name, role in tensor.items() if role not in half}
    return MetricSet(roles=roles, missing=(*missing, *absent), passes=row.passes if row else None)


def _tensor_names(row: Chips | None, precision: Precision, known: Collection[str]) -> dict[str, str]:
    """Metrics of tensor operations with their roles: from `row` or, for an unlisted GPU, by the names in `known`."""
    kinds = TENSOR_TYPES[precision]
    if row:
        return {name: TENSOR_PREFIX + kind for kind in kinds for name in row.tensor.get(kind, ())}
    operations = tensor_operations(f"{name}.sum" for name in known)
    return {
        name: TENSOR_PREFIX + next(kind for kind in kinds if kind in metric.operands)
        for name, metric in operations.items()
        if metric.operands & set(kinds)
    }


def with_own(chosen: MetricSet, wanted: Sequence[str], known: Collection[str], full: Collection[str]) -> MetricSet:
    """Add the metrics that the user asked for, as far as this ncu has them.

    `known`: base names, as for `choose`. `full`: names with suffixes of the bases in `wanted`; empty if ncu does not
    list them, in which case a known base is enough.
    """
    has = {name for name in wanted if name in full or (not full and base(name) in known) or name in chosen.roles}
    has |= {name for name in wanted if name.startswith(LAUNCH_METRICS)}
    return replace(
        chosen,
        own=tuple(name for name in wanted if name in has),
        own_missing=tuple(name for name in wanted if name not in has),
    )


def choose_throughput(capability: str, known: Collection[str]) -> MetricSet:
    """Metrics for a kernel's use of SMs, memory and DRAM in per cent of peak, and for its time, the weight in means."""
    row = table().rows.get(capability)
    roles, missing = _first_known(table().throughput, known)
    return MetricSet(roles=roles, missing=missing, passes=row.throughput_passes if row else None)


def choose_step(known: Collection[str]) -> MetricSet:
    """Metrics for the bytes and the time of a whole step, which is profiled as one range."""
    wanted = {role: names for role, names in table().common.items() if role in STEP_ROLES}
    roles, missing = _first_known(wanted, known)
    return MetricSet(roles=roles, missing=missing, passes=1)


def _first_known(wanted: Mapping[str, Sequence[str]], known: Collection[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """First known name for each role, and the preferred name of each role that has no known name."""
    roles: dict[str, str] = {}
    missing: list[str] = []
    for role, names in wanted.items():
        known_name = next((name for name in names if base(name) in known), None)
        if known_name:
            roles[known_name] = role
        else:
            missing.append(names[0])
    if set(DRAM_PARTS) <= set(roles.values()):
        # The total is not missing: the reader of the results adds read and written bytes.
        missing = [name for name in missing if name not in wanted.get(DRAM, ())]
    return roles, tuple(missing)


def base(name: str) -> str:
    """Name without its suffix: `dram__bytes` for `dram__bytes.sum`."""
    return name.partition(".")[0]


# --- figures from the metrics

PASSES = "profiler__replayer_passes"
ABSENT = ("", "n/a")
# Some versions of ncu ignore LC_ALL=C and write 4,195,712.
NUMBER = re.compile(r"-?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?(?:[eE][+-]?\d+)?")
AGAIN = "LC_ALL=C ncu --import profile.ncu-rep --csv --page raw --print-units base"

FLOATS = ("fp64", "fp32", "fp16")


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A launch of a kernel. `values`: measured values by role (such as `dram_bytes`), None if ncu gave no value.

    Units are bytes, seconds, instructions and FLOP. `marks`: the ranges around the launch; None if the table has no
    such column.
    """

    process_id: str
    index: str
    name: str
    marks: str | None
    passes: float | None
    values: Mapping[str, float | None]

    @property
    def flop_by_class(self) -> dict[str, float | None]:
        """FLOP by type: add + mul + 2 fma, and tensor operations, which already count 2 per multiply-accumulate.

        None for a type that was not counted.
        """
        tensor = {role.removeprefix(TENSOR_PREFIX): role for role in self.values if role.startswith(TENSOR_PREFIX)}
        plain = {kind: self._plain_flop(kind) for kind in FLOATS}
        return plain | {f"tensor_{kind}": self.values[role] for kind, role in tensor.items()}

    @property
    def tensor_products(self) -> float | None:
        """Number of instructions of matrix products on tensor cores; None if no counter separates them from others."""
        pipe, constants = self.values.get(TENSOR_PIPE), self.values.get(HFMA2)
        if pipe == 0:
            return 0.0
        if pipe is not None and constants is not None:
            return pipe - constants
        return self.values.get(TENSOR_PRODUCTS)

    @property
    def uses_tensor_cores(self) -> bool:
        """Whether the kernel uses tensor cores: by the counter of tensor instructions or, if absent, by kernel name."""
        products = self.tensor_products
        return names_tensor_cores(self.name) if products is None else products > 0

    @property
    def tensor_flop(self) -> float:
        """FLOP counted on tensor cores."""
        return sum(value or 0 for kind, value in self.flop_by_class.items() if kind.startswith("tensor_"))

    def _plain_flop(self, kind: str) -> float | None:
        add, mul, fma = (self.values.get(f"{kind}_{operation}") for operation in ("add", "mul", "fma"))
        return None if add is None or mul is None or fma is None else add + mul + 2 * fma


def read(source: NcuSource, roles: Mapping[str, str]) -> tuple[list[Kernel], tuple[str, ...]]:
    """Read kernel launches, in the order of the table, and notes on cells that cannot be read.

    `roles`: what each metric counts, by the metric's name. Metrics that share a role are added up. A metric without a
    column, in an unknown unit or without a number has no value. Raises `ToolError` if there is no table.
    """
    try:
        head = ncu_csv.find(source)
        units, _ = ncu_csv.units_of(source, head)
        if units is None:
            raise _unexpected("the second row has no units")
        reader = _Reader(head.header, units, roles)
        kernels = [reader.kernel(row) for _, _, row in ncu_csv.rows(source, head) if reader.is_whole(row)]
    except NoTableError as error:
        lines = [line.strip() for line in error.text.splitlines()]
        reported = next((line for line in lines if line.startswith(ERROR)), next(filter(None, lines), "nothing"))
        raise _unexpected(f"there is no table; ncu reports: {reported}") from error
    except DamagedTableError as error:
        raise _unexpected(str(error)) from error
    return kernels, tuple(reader.notes(head.is_cut))


class _Reader:
    """Converts rows to kernels and counts unreadable cells: a bad cell is left out, the rest of the profile is kept."""

    def __init__(self, header: Sequence[str], units: Sequence[str], roles: Mapping[str, str]) -> None:
        self._width, self._roles = len(header), roles
        self._columns = {name: index for index, name in enumerate(header)}
        known = {name: units[self._columns[name]] for name in (*roles, PASSES) if name in self._columns}
        self._units = {name: (unit, ncu_csv.factor_of_any(unit)) for name, unit in known.items()}
        self._marks = next((index for name, index in self._columns.items() if name.startswith(STARTED)), None)
        self._unread: Counter[str] = Counter()
        self._broken_rows = 0

    def is_whole(self, row: Sequence[str]) -> bool:
        """Whether the row has a cell under every column."""
        is_whole = len(row) == self._width
        self._broken_rows += not is_whole
        return is_whole

    def kernel(self, row: Sequence[str]) -> Kernel:
        """Kernel launch that a complete row describes."""
        values: dict[str, float | None] = {}
        for name, role in self._roles.items():
            value = self._value(row, name)
            before = values.get(role, 0.0)
            values[role] = None if value is None or before is None else before + value
        parts = [values.get(part) for part in DRAM_PARTS]
        if values.get(DRAM) is None and None not in parts:
            values[DRAM] = sum(part for part in parts if part is not None)
        return Kernel(
            process_id=row[self._columns[PROCESS]],
            index=row[self._columns[ID]],
            name=row[self._columns[NAME]],
            marks=None if self._marks is None else row[self._marks],
            passes=self._value(row, PASSES),
            values=values,
        )

    def _value(self, row: Sequence[str], name: str) -> float | None:
        if name not in self._units:
            return None
        text, (unit, base_units) = row[self._columns[name]].strip(), self._units[name]
        if text in ABSENT:
            return None
        if base_units is None:
            self._unread[f"{name} is in an unknown unit, '{unit}'"] += 1
        elif not NUMBER.fullmatch(text):
            self._unread[f"{name} is no number, '{text[:40]}'"] += 1
        else:
            return float(text.replace(",", "")) * base_units
        return None

    def notes(self, is_cut: bool) -> Iterator[str]:
        """Yield a sentence for each kind of unreadable cell or row; `is_cut`: the file ends within a row."""
        for what, number in self._unread.items():
            yield f"{what}: left out of {number} launch{'' if number == 1 else 'es'}"
        if number := self._broken_rows + is_cut:
            yield f"{number} row{'' if number == 1 else 's'} with too few or too many cells: left out"


def _unexpected(what: str) -> ToolError:
    return ToolError(f"kernels.csv is not in the format of ncu: {what}", hint=AGAIN)
