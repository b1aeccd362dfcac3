"""Metrics of ncu that are read: their meaning, and their columns in a table of launches.

The meaning is in metrics.toml; that of tensor operations is in the metric's name.
"""

import functools
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from workload.contract.ncu_csv import (
    METRIC,
    NAME,
    PROCESS,
    PUSHED,
    STARTED,
    UNIT,
    VALUE,
    Layout,
    Quantity,
    factor,
    layout_of,
)
from workload.contract.vocabulary import TELLING_CHARACTERS, tensor_operations

_TABLE = Path(__file__).with_name("metrics.toml")
# Names of metrics contain two underscores; labels of the details page have none.
_NAME = re.compile(r"\w+__\w+")
# Units of integers: a mark in such a number separates thousands.
WHOLE_UNITS = frozenset({"inst", "byte"})

# Columns that identify a launch or its GPU, beside those of `ncu_csv`.
BLOCK, GRID, CAPABILITY, DEVICE = "Block Size", "Grid Size", "CC", "Device"
ATTRIBUTE = "device__attribute_"
DEVICE_NAME = f"{ATTRIBUTE}display_name"
MAJOR, MINOR = f"{ATTRIBUTE}compute_capability_major", f"{ATTRIBUTE}compute_capability_minor"
_IDENTITY = (PROCESS, NAME, BLOCK, GRID, CAPABILITY, DEVICE, DEVICE_NAME, MAJOR, MINOR)


@dataclass(frozen=True, kw_only=True)
class MetricRole:
    """A quantity, and the names of the metrics that measure it, best first."""

    name: str
    kind: Quantity
    metrics: tuple[str, ...]


@functools.cache
def roles() -> tuple[MetricRole, ...]:
    """The rows of metrics.toml."""
    content = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    return tuple(
        MetricRole(name=name, kind=Quantity(kind), metrics=tuple(metrics))
        for kind, section in content.items()
        for name, metrics in section.items()
    )


def known(names: Iterable[str]) -> tuple[MetricRole, ...]:
    """Roles that metrics of these names can fill; each metric of tensor operations is a role of its own."""
    present = frozenset(names)
    table = [
        MetricRole(name=role.name, kind=role.kind, metrics=present_metrics)
        for role in roles()
        if (present_metrics := tuple(name for name in role.metrics if name in present))
    ]
    return (
        *table,
        *(MetricRole(name=name, kind=Quantity.COUNT, metrics=(name,)) for name in tensor_operations(present)),
    )


def is_label(name: str) -> bool:
    """Whether a name is a label of ncu's details page, which several metrics may share, and not a metric's own name."""
    return _NAME.match(name) is None


# --- the columns of a table


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


def plan(header: tuple[str, ...], units: Sequence[str] | None, own: Collection[str] = ()) -> ReadingPlan:
    """The columns to read from a table with this header; `units`: second row of a wide table, None if absent.

    `own`: further metrics to read from a wide table, each with its name as its role and in the file's unit.
    """
    layout = layout_of(header)
    marks = tuple(name for name in dict.fromkeys(header) if name.startswith((STARTED, PUSHED)))
    identity = tuple(name for name in _IDENTITY if name in header) + marks
    if layout is not Layout.WIDE:
        own = tuple(name for name in (METRIC, UNIT) if name in header)
        return ReadingPlan(layout=layout, header=header, texts=identity + own, numbers=(VALUE,), units={})
    # In reverse, so that the first of two columns with one name counts.
    unit_of = dict(zip(reversed(header), reversed(units), strict=True)) if units else {}
    chosen = {role: _reading(role, unit_of) for role in known(header)}
    readings = tuple(reading for reading in chosen.values() if reading) + tuple(
        MetricReading(
            role=MetricRole(name=name, kind=Quantity.COUNT, metrics=(name,)),
            metric=name,
            unit=unit_of.get(name, ""),
            factor=1.0,
        )
        for name in own
        if name in header
    )
    return ReadingPlan(
        layout=layout,
        header=header,
        texts=identity,
        numbers=tuple(dict.fromkeys(reading.metric for reading in readings)),
        readings=readings,
        units=unit_of,
        warnings=tuple(
            unknown_unit(role.metrics[0], unit_of.get(role.metrics[0], ""), role)
            for role, reading in chosen.items()
            if reading is None
        ),
    )


def _reading(role: MetricRole, unit_of: Mapping[str, str]) -> MetricReading | None:
    """The first metric whose unit fits the role; None if there is none.

    In a table without units, a metric fits only if its role needs no unit.
    """
    for metric in role.metrics:
        unit = unit_of.get(metric, "")
        base_units = factor(role.kind, unit)
        if base_units is not None:
            return MetricReading(role=role, metric=metric, unit=unit, factor=base_units)
    return None


def unknown_unit(metric: str, unit: str, role: MetricRole) -> str:
    """The warning that a metric is left out because its unit is unknown."""
    problem = f"its unit '{unit}' is no known unit of" if unit else "the file gives no unit of"
    return f"{metric} is unavailable: {problem} {role.kind.replace('_', ' ')}"


# --- families of kernels

_FAMILIES = Path(__file__).with_name("families.toml")


class Family(StrEnum):
    """Kinds of kernels in a training step."""

    CONVOLUTION = "convolution"
    GEMM = "GEMM"
    BATCH_NORM = "batch norm"
    LAYER_NORM = "layer norm"
    ELEMENTWISE = "elementwise"
    POOLING = "pooling"
    REDUCTION = "reduction"
    ATTENTION = "softmax/attention"
    OPTIMIZER = "optimizer"
    COPY = "copy"
    OTHER = "other"


def family(name: str) -> Family:
    """The family of the first rule that matches a kernel's name; `other` if none does."""
    beginning = name[:TELLING_CHARACTERS]
    return next((family for pattern, family in _rules() if pattern.search(beginning)), Family.OTHER)


def is_backward(name: str) -> bool:
    """Whether only a backward pass launches kernels of this name; many backward kernels have neutral names."""
    return _pattern("backward").search(name[:TELLING_CHARACTERS]) is not None


@functools.cache
def _families() -> dict[str, Any]:
    return tomllib.loads(_FAMILIES.read_text(encoding="utf-8"))


@functools.cache
def _rules() -> tuple[tuple[re.Pattern[str], Family], ...]:
    return tuple((_any_of(rule["names"]), Family(rule["family"])) for rule in _families()["rule"])


@functools.cache
def _pattern(section: str) -> re.Pattern[str]:
    return _any_of(_families()[section]["names"])


def _any_of(patterns: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.IGNORECASE)
