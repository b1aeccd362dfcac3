"""Which of a file's metrics are read, and what each one means: metrics.toml, and tensor operations by name."""

import functools
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from analysis.ncu.units import Kind

_TABLE = Path(__file__).with_name("metrics.toml")
# Names of ncu have two underscores; the labels of its details page have none.
_NAME = re.compile(r"\w+__\w+")
# Operations on tensor cores, 2 per multiply-accumulate already. `_sparsity_on` and `_off` are parts of them.
_TENSOR = re.compile(r"sm__ops_path_tensor(?:_op_([a-z0-9]+))?_src_([a-z0-9_]+?)(?:_dst_([a-z0-9]+))?\.sum")
_FLOATS = re.compile(r"(?:fp|bf|tf)\d+")


@dataclass(frozen=True, kw_only=True)
class Role:
    """Something that a metric can tell, and the names of metrics that do; the first of them is the best."""

    name: str
    kind: Kind
    metrics: tuple[str, ...]


@functools.cache
def roles() -> tuple[Role, ...]:
    """metrics.toml."""
    content = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    return tuple(
        Role(name=name, kind=Kind(kind), metrics=tuple(metrics))
        for kind, section in content.items()
        for name, metrics in section.items()
    )


def known(names: Iterable[str]) -> tuple[Role, ...]:
    """The roles that metrics of these names can play; tensor operations are a role each."""
    present = frozenset(names)
    table = [
        Role(name=role.name, kind=role.kind, metrics=found)
        for role in roles()
        if (found := tuple(name for name in role.metrics if name in present))
    ]
    return (*table, *(Role(name=name, kind=Kind.COUNT, metrics=(name,)) for name in tensor_operations(present)))


def is_label(name: str) -> bool:
    """Whether this is a label of the details page, which several metrics may share."""
    return _NAME.match(name) is None


def tensor_operations(names: Iterable[str]) -> tuple[str, ...]:
    """The metrics that count floating-point operations on tensor cores, none of which counts a part of another."""
    found = {name: parts for name in sorted(names) if (parts := _tensor_parts(name))}
    return tuple(
        name
        for name, parts in found.items()
        if not any(other != name and _covers(whole, parts) for other, whole in found.items())
    )


@dataclass(frozen=True)
class _Tensor:
    """What a metric counts: by instruction, operand types and accumulator; None where it counts all of them."""

    instruction: str | None
    operands: frozenset[str]
    accumulator: str | None


def _tensor_parts(name: str) -> _Tensor | None:
    match = _TENSOR.fullmatch(name)
    if not match or "sparsity" in name:
        return None
    operands = match[2].split("_")
    if not all(_FLOATS.fullmatch(operand) for operand in operands):
        return None
    return _Tensor(match[1], frozenset(operands), match[3])


def _covers(whole: _Tensor, part: _Tensor) -> bool:
    return (
        whole.instruction in {None, part.instruction}
        and whole.operands >= part.operands
        and whole.accumulator in {None, part.accumulator}
    )


# Whole numbers by nature: a fraction of one is a thousands mark.
WHOLE_UNITS = frozenset({"inst", "byte"})
