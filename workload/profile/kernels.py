"""kernels.csv as `ncu --import --csv --page raw --print-units base` writes it: wide, units in the second row."""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workload.errors import ToolError
from workload.profile.metrics import TENSOR_PREFIX

HEADER_START = '"ID",'
ID, PROCESS, NAME, PASSES = "ID", "Process ID", "Kernel Name", "profiler__replayer_passes"
# The name of the column says what its cells hold; ranges of `range_start` are process-wide.
MARKS_PREFIX = "Id:Domain:Start/Stop_Range"
# Base units in the spelling of several versions, as factors of ours.
UNITS = {
    "": 1.0,
    "inst": 1.0,
    "cycle": 1.0,
    "pass": 1.0,
    "op": 1.0,
    "%": 1.0,
    "byte": 1.0,
    "nsecond": 1e-9,
    "ns": 1e-9,
    "usecond": 1e-6,
    "us": 1e-6,
    "msecond": 1e-3,
    "ms": 1e-3,
    "second": 1.0,
    "s": 1.0,
}
ABSENT = ("", "n/a")
NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
AGAIN = "LC_ALL=C ncu --import profile.ncu-rep --csv --page raw --print-units base"

FLOATS = ("fp64", "fp32", "fp16")
# Where there is no counter for tensor instructions: how NVIDIA's libraries name kernels that use them.
TENSOR_NAME = re.compile(r"tensorop|[shi](?:884|1688|16816|64x\d+x\d+)|hmma|gmma", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One launch. `values` by role, in bytes, seconds, instructions or FLOP; None where ncu gave none.

    `marks` are the ranges around the launch, None where the table has no such column.
    """

    process_id: str
    index: str
    name: str
    marks: str | None
    passes: float | None
    values: Mapping[str, float | None]

    @property
    def flop_by_class(self) -> dict[str, float | None]:
        """FLOP per type: add + mul + 2 fma, and tensor operations, which count 2 per multiply-accumulate already.

        None for what was not counted.
        """
        tensor = {role.removeprefix(TENSOR_PREFIX): role for role in self.values if role.startswith(TENSOR_PREFIX)}
        plain = {kind: self._plain_flop(kind) for kind in FLOATS}
        return plain | {f"tensor_{kind}": self.values[role] for kind, role in tensor.items()}

    @property
    def uses_tensor_cores(self) -> bool:
        """By the counter of their instructions, or by the name where there is none."""
        instructions = self.values.get("tensor_instructions")
        return TENSOR_NAME.search(self.name) is not None if instructions is None else instructions > 0

    @property
    def tensor_flop(self) -> float:
        """What was counted on tensor cores."""
        return sum(value or 0 for kind, value in self.flop_by_class.items() if kind.startswith("tensor_"))

    def _plain_flop(self, kind: str) -> float | None:
        add, mul, fma = (self.values.get(f"{kind}_{operation}") for operation in ("add", "mul", "fma"))
        return None if add is None or mul is None or fma is None else add + mul + 2 * fma


def read(path: Path, roles: Mapping[str, str]) -> list[Kernel]:
    """The launches in the order of the table; `roles` by metric name. Raises `ToolError` for anything unexpected.

    Metrics that share a role are added up; a metric without a column has no value.
    """
    with path.open(encoding="utf-8-sig", newline="") as lines:
        return parse(lines, roles)


def parse(lines: Iterable[str], roles: Mapping[str, str]) -> list[Kernel]:
    """As `read`, from lines."""
    rows = iter(csv.reader(_from_header(lines)))
    header, units = next(rows), next(rows, [])
    columns = {name: index for index, name in enumerate(header)}
    if len(units) != len(header) or units[columns[ID]]:
        raise _unexpected("the second row holds no units")
    factors = {name: _factor(name, units[columns[name]]) for name in (*roles, PASSES) if name in columns}
    marks = next((index for name, index in columns.items() if name.startswith(MARKS_PREFIX)), None)
    return [_kernel(row, header, columns, factors, roles, marks) for row in rows]


def _from_header(lines: Iterable[str]) -> Iterable[str]:
    """From the table's first line on; what stands before it are messages."""
    source = iter(lines)
    seen: list[str] = []
    for line in source:
        if line.startswith(HEADER_START):
            return _chain(line, source)
        seen.append(line.strip())
    said = next((line for line in seen if line.startswith("==ERROR==")), next(filter(None, seen), "nothing"))
    raise _unexpected(f"there is no table; ncu says: {said}")


def _chain(first: str, rest: Iterable[str]) -> Iterable[str]:
    yield first
    yield from rest


def _kernel(
    row: Sequence[str],
    header: Sequence[str],
    columns: Mapping[str, int],
    factors: Mapping[str, float],
    roles: Mapping[str, str],
    marks: int | None,
) -> Kernel:
    if len(row) != len(header):
        raise _unexpected(f"a row has {len(row)} cells under {len(header)} columns")
    numbers = {name: _number(row[columns[name]], name, factor) for name, factor in factors.items()}
    values: dict[str, float | None] = {}
    for name, role in roles.items():
        value = numbers.get(name)
        before = values.get(role, 0.0)
        values[role] = None if value is None or before is None else before + value
    return Kernel(
        process_id=row[columns[PROCESS]],
        index=row[columns[ID]],
        name=row[columns[NAME]],
        marks=None if marks is None else row[marks],
        passes=numbers.get(PASSES),
        values=values,
    )


def _factor(name: str, unit: str) -> float:
    if unit not in UNITS:
        raise _unexpected(f"the unit of {name} is '{unit}', no base unit")
    return UNITS[unit]


def _number(text: str, name: str, factor: float) -> float | None:
    if text in ABSENT:
        return None
    if not NUMBER.fullmatch(text):
        raise _unexpected(f"'{text}' under {name} is no number")
    return float(text) * factor


def _unexpected(what: str) -> ToolError:
    return ToolError(f"kernels.csv is not as ncu writes it: {what}", hint=AGAIN)
