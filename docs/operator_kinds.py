"""Writes operator_kinds.csv of analysis/readers, PyTorch's operators by kind: `python docs/operator_kinds.py`.

`analysis` loads no torch, and a trace from elsewhere has only the names of operators and the shapes of their inputs.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import torch
from torch._ops import OpOverload

from workload.model.flop import ALLOCATIONS, HIDDEN_VIEWS, OVERWRITING, formula_of, is_known

TARGET = Path(__file__).parents[1] / "analysis" / "readers" / "operator_kinds.csv"
COLUMNS = ("name", "kind", "writes", "overwrites")
COMPOSITE_KEY = "CompositeImplicitAutograd"


def rows() -> Iterator[tuple[str, str, str, str]]:
    """A row per operator that we know; `writes`: the positions of the arguments that it changes."""
    schemas = torch._C._jit_get_all_schemas()  # noqa: SLF001 - the only list of them
    for name in sorted({schema.name.removeprefix("aten::") for schema in schemas if schema.name.startswith("aten::")}):
        overloads = _overloads(name)
        kind = _kind(name, overloads) if overloads else None
        if kind is None:
            continue
        changing = next((overload for overload in overloads if _writes(overload)), overloads[0])
        positions = " ".join(map(str, _writes(changing)))
        yield name, kind, positions, "yes" if name in OVERWRITING and positions else ""


def _overloads(name: str) -> list[OpOverload]:
    """Those that an operator has beside the copies that TorchScript and `out=` need."""
    packet = getattr(torch.ops.aten, name, None)
    overloads = [getattr(packet, overload) for overload in packet.overloads()] if packet else []
    plain = [overload for overload in overloads if not any(a.is_out for a in overload._schema.arguments)]  # noqa: SLF001
    return [overload for overload in plain if _is_dispatched(overload)]


def _is_dispatched(overload: OpOverload) -> bool:
    try:
        torch._C._dispatch_has_kernel(overload.name())  # noqa: SLF001 - as below
    except RuntimeError:
        return False
    return torch._C._dispatch_has_kernel(overload.name())  # noqa: SLF001 - nothing public tells it


def _kind(name: str, overloads: list[OpOverload]) -> str | None:
    if formula_of(name):
        return "product"
    composite = [
        torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), COMPOSITE_KEY)  # noqa: SLF001 - as above
        for overload in overloads
    ]
    if all(composite):
        return "composite"
    if name in ALLOCATIONS | HIDDEN_VIEWS or any(overload.is_view for overload in overloads):
        return "nothing"
    return "bytes" if any(is_known(overload) for overload in overloads) else None


def _writes(overload: OpOverload) -> list[int]:
    arguments = overload._schema.arguments  # noqa: SLF001 - the only way to an op's schema
    return [
        position for position, argument in enumerate(arguments) if argument.alias_info and argument.alias_info.is_write
    ]


def main() -> None:
    """Write the table."""
    with TARGET.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows())


if __name__ == "__main__":
    main()
