"""The metrics that are read, and their meaning: metrics.toml, and tensor operations by name."""

import functools
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from analysis.ncu.units import Quantity
from workload.contract.vocabulary import tensor_operations

_TABLE = Path(__file__).with_name("metrics.toml")
# Names of metrics contain two underscores; labels of the details page have none.
_NAME = re.compile(r"\w+__\w+")


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
    """Whether this is a label of the details page, which several metrics may share."""
    return _NAME.match(name) is None


# Units of integers: a mark in such a number separates thousands.
WHOLE_UNITS = frozenset({"inst", "byte"})
