"""Reads kernels.csv, the wide table of `ncu --import --csv --page raw --print-units base`; its second row has units."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from workload.contract import ncu_csv
from workload.contract.errors import ToolError
from workload.contract.ncu_csv import ERROR, ID, NAME, PROCESS, STARTED, DamagedTableError, NcuSource, NoTableError
from workload.contract.vocabulary import names_tensor_cores
from workload.profile.metrics import DRAM, DRAM_PARTS, HFMA2, TENSOR_PIPE, TENSOR_PREFIX, TENSOR_PRODUCTS

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
    """Kernel launches in the order of the table, and notes on unreadable cells; `roles`: role of each metric, by name.

    Metrics that share a role are added up. A metric without a column, in an unknown unit or without a number has no
    value. Raises `ToolError` if there is no table.
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
