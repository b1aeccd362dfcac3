"""The layouts of ncu's tables, and which of their columns are read.

Wide (`--page raw`): a row per launch, a column per metric, units in the second row. Long (`--page details`, and ncu's
output while it profiles): a row per launch and metric. A details page also has columns for its rules, and its rows of
metrics end before these columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from analysis.ncu import metrics
from analysis.ncu.metrics import MetricRole
from analysis.ncu.units import factor


class Layout(StrEnum):
    """Arrangement of launches and metrics in a file."""

    WIDE = "wide"
    LONG = "long"
    DETAILS = "details"
    REPORT = "report"  # not a table: a .ncu-rep file


ID, PROCESS, NAME = "ID", "Process ID", "Kernel Name"
BLOCK, GRID, CAPABILITY, DEVICE = "Block Size", "Grid Size", "CC", "Device"
METRIC, UNIT, VALUE, RULE = "Metric Name", "Metric Unit", "Metric Value", "Rule Name"
# Beginnings of column names; the names continue with a description of the cells.
STARTED, PUSHED = "Id:Domain:Start/Stop_Range", "thread Domain:Push/Pop_Range"
ATTRIBUTE = "device__attribute_"
DEVICE_NAME = f"{ATTRIBUTE}display_name"
MAJOR, MINOR = f"{ATTRIBUTE}compute_capability_major", f"{ATTRIBUTE}compute_capability_minor"

_IDENTITY = (PROCESS, NAME, BLOCK, GRID, CAPABILITY, DEVICE, DEVICE_NAME, MAJOR, MINOR)


@dataclass(frozen=True, kw_only=True)
class MetricReading:
    """A metric read from a wide table: its role, name and unit, and the factor to convert it to base units."""

    role: MetricRole
    metric: str
    unit: str
    factor: float


@dataclass(frozen=True, kw_only=True)
class ReadingPlan:
    """Names of the columns to read as text and as numbers. `readings` and `units` apply to wide tables only."""

    layout: Layout
    header: tuple[str, ...]
    texts: tuple[str, ...]
    numbers: tuple[str, ...]
    readings: tuple[MetricReading, ...] = ()
    units: Mapping[str, str]
    warnings: tuple[str, ...] = ()

    def position(self, name: str) -> int:
        """Index of the first column of this name."""
        return self.header.index(name)

    def twins(self, name: str) -> list[int]:
        """Indices of further columns of this name."""
        first = self.position(name)
        return [index for index, other in enumerate(self.header) if other == name and index != first]


def layout_of(header: Sequence[str]) -> Layout:
    """The layout, recognized by columns that only one layout has."""
    if METRIC in header and VALUE in header:
        return Layout.DETAILS if RULE in header else Layout.LONG
    return Layout.WIDE


def plan(header: tuple[str, ...], units: Sequence[str] | None) -> ReadingPlan:
    """The columns to read from a table with this header; `units`: second row of a wide table, None if absent."""
    layout = layout_of(header)
    marks = tuple(name for name in dict.fromkeys(header) if name.startswith((STARTED, PUSHED)))
    identity = tuple(name for name in _IDENTITY if name in header) + marks
    if layout is not Layout.WIDE:
        own = tuple(name for name in (METRIC, UNIT) if name in header)
        return ReadingPlan(layout=layout, header=header, texts=identity + own, numbers=(VALUE,), units={})
    # In reverse, so that the first of two columns with one name counts.
    unit_of = dict(zip(reversed(header), reversed(units), strict=True)) if units else {}
    chosen = {role: _reading(role, unit_of) for role in metrics.known(header)}
    readings = tuple(reading for reading in chosen.values() if reading)
    return ReadingPlan(
        layout=layout,
        header=header,
        texts=identity,
        numbers=tuple(dict.fromkeys(reading.metric for reading in readings)),
        readings=readings,
        units=unit_of,
        warnings=tuple(_unknown(role, unit_of) for role, reading in chosen.items() if reading is None),
    )


def _reading(role: MetricRole, unit_of: Mapping[str, str]) -> MetricReading | None:
    """The first metric whose unit fits the role, None if there is none; without units, only a metric without one."""
    for metric in role.metrics:
        unit = unit_of.get(metric, "")
        base_units = factor(role.kind, unit)
        if base_units is not None:
            return MetricReading(role=role, metric=metric, unit=unit, factor=base_units)
    return None


def _unknown(role: MetricRole, unit_of: Mapping[str, str]) -> str:
    metric = role.metrics[0]
    return unknown_unit(metric, unit_of.get(metric, ""), role)


def unknown_unit(metric: str, unit: str, role: MetricRole) -> str:
    """The warning that a metric is left out because its unit is unknown."""
    problem = f"its unit '{unit}' is no known unit of" if unit else "the file gives no unit of"
    return f"{metric} is unavailable: {problem} {role.kind.replace('_', ' ')}"
