"""Chooses the metrics to collect: those in metrics.toml that the installed ncu has for the GPU's chip."""

import functools
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from workload.contract.spec import Precision
from workload.contract.vocabulary import TENSOR_PIPE_IS_PRODUCTS, tensor_operations

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
