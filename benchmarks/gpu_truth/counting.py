"""Checks of claims about GPU counters and kernels against collected evidence."""

from collections.abc import Iterable, Mapping
from typing import Any

from analysis.readers.ncu.metrics import Family, family
from benchmarks.gpu_truth.judging import NotSettledError, Observation, exact, figures
from workload.contract.vocabulary import CALIBRATED_FROM, CALIBRATED_TO, names_tensor_cores

PIPE, CONSTANTS = "sm__inst_executed_pipe_tensor.sum", "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum"
FLOAT = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
TENSOR = "sm__ops_path_tensor_"
L2, L2_FABRIC = "lts__t_sectors.sum", "lts__t_sectors_srcunit_ltcfabric.sum"
DRAM, DRAM_PARTS = (
    "dram__bytes",
    (("dram__bytes_read", "dram__bytes_op_read"), ("dram__bytes_write", "dram__bytes_op_write")),
)
# Compute capabilities for which the compiler emits HFMA2.MMA.
WITH_CONSTANTS = ("8.0", "9.0")
# Most seconds per kernel that we claim; ncu's time-out is derived from this.
KERNEL_LIMIT_S = 2.0
UNKNOWN_SHARE = 0.05


def sum_of(launches: Iterable[Mapping[str, Any]], name: str, within: str) -> float:
    """Sum of a metric over the launches of one range; `NotSettledError` if the metric was not counted."""
    values = [launch["values"].get(name) for launch in launches if launch["range"] == within]
    if not values or any(value is None for value in values):
        raise NotSettledError(f"{name} was not counted in range {within}")
    return float(sum(values))


def _plain(counters: Mapping[str, Any]) -> list[str]:
    """Names of the ranges without a matrix product."""
    hands = [name for name, known in counters["known"].items() if known.get("tensor_products") == 0]
    return [*hands, *counters["plain"]]


def compiled(compiler: Mapping[str, Any]) -> Observation:
    """Number of HFMA2.MMA instructions in machine code, by compute capability."""
    counted = {
        f"{target[:-1]}.{target[-1]}": kernels["constants"].get("instructions")
        for target, kernels in compiler["targets"].items()
    }
    known = {capability: each.get("HFMA2.MMA", 0) for capability, each in counted.items() if each}
    if not known:
        raise NotSettledError("triton, whose nvdisasm reads machine code, is not installed")
    holds = all((number > 0) == (capability in WITH_CONSTANTS) for capability, number in known.items())
    return Observation(found=figures(known), holds=holds)


def constants_on_pipe(machine: Mapping[str, Any], counters: Mapping[str, Any]) -> Observation:
    """Whether stores of constants use the tensor pipe exactly on the GPUs for which we claim it."""
    found = sum_of(counters["launches"], PIPE, "constants")
    return Observation(
        found=f"{found:g} instructions", holds=(found > 0) == (machine["gpu"]["capability"] in WITH_CONSTANTS)
    )


def rest_is_zero(counters: Mapping[str, Any]) -> Observation:
    """Whether the tensor pipe's instructions, minus those that build constants, are 0 without a matrix product."""
    launches = counters["launches"]
    if CONSTANTS in counters["asked"]:
        rest = {name: sum_of(launches, PIPE, name) - sum_of(launches, CONSTANTS, name) for name in _plain(counters)}
    else:
        rest = {name: sum_of(launches, PIPE, name) for name in _plain(counters)}
    return exact(rest, 0)


def constants_as_half(counters: Mapping[str, Any]) -> Observation:
    """Whether constants count as fp16 arithmetic; expected: 0 operations."""
    found = {op: sum_of(counters["launches"], FLOAT.format(op), "constants") for op in ("hadd", "hmul", "hfma")}
    return exact(found, 0)


def packed_half(counters: Mapping[str, Any]) -> Observation:
    """Operations counted per packed half instruction; expected: 2."""
    known = counters["known"]["packed_half"]["half_instructions"]
    return exact({"hfma": sum_of(counters["launches"], FLOAT.format("hfma"), "packed_half") / known}, 2, within=0.02)


def single(counters: Mapping[str, Any]) -> Observation:
    """Operations counted per fp32 instruction; expected: 1."""
    known = counters["known"]["single"]["single_instructions"]
    return exact({"ffma": sum_of(counters["launches"], FLOAT.format("ffma"), "single") / known}, 1, within=0.01)


def product(counters: Mapping[str, Any]) -> Observation:
    """Counted FLOP over known FLOP of a matrix product."""
    if "product" not in counters["known"]:
        raise NotSettledError("this GPU has no such product")
    names = [name for name in counters["asked"] if name.startswith(TENSOR)]
    if not names:
        raise NotSettledError("this ncu counts no tensor operations")
    counted = sum(sum_of(counters["launches"], name, "product") for name in names)
    ratio = counted / counters["known"]["product"]["tensor_flop"]
    return Observation(found=f"{ratio:.4g}", holds=CALIBRATED_FROM <= ratio <= CALIBRATED_TO)


def backward_in_range(counters: Mapping[str, Any]) -> Observation:
    """Launches of autograd's thread that are inside a range of the whole process; expected: more than one."""
    number = sum(launch["range"] == "backward" for launch in counters["launches"])
    return Observation(found=f"{number} launches", holds=number > 1)


def backward_not_pushed(counters: Mapping[str, Any]) -> Observation:
    """Launches of autograd's thread that are inside a range of another single thread; expected: none."""
    if counters["pushed"] is None:
        raise NotSettledError("ncu's table has no column of such ranges")
    return Observation(found=f"{counters['pushed']} launches", holds=counters["pushed"] == 0)


def l2(machine: Mapping[str, Any], counters: Mapping[str, Any]) -> Observation:
    """Whether bytes move between the two halves of the L2 cache exactly on the GPUs for which we claim it."""
    if L2_FABRIC not in counters["asked"]:
        return Observation(found="no such counter", holds=machine["gpu"]["capability"] not in WITH_CONSTANTS)
    whole, between = (
        sum(launch["values"].get(name) or 0 for launch in counters["launches"]) for name in (L2, L2_FABRIC)
    )
    found = f"{between:.4g} of {whole:.4g} sectors"
    return Observation(found=found, holds=(between > 0) == (machine["gpu"]["capability"] in WITH_CONSTANTS))


# --- what ncu knows


def names_known(machine: Mapping[str, Any], metrics: Mapping[str, Any]) -> Observation:
    """Metric names of our table that ncu does not know, for this GPU or else for a chip of every capability."""
    if machine["gpu"]:
        missing = set(_of_this_gpu(machine, metrics, "missing"))
        return Observation(found=", ".join(sorted(missing)) or "all are known", holds=not missing)
    by_capability = [answer for ncu in metrics["ncu"] for answer in ncu["missing"].items()]
    if not by_capability:
        raise NotSettledError("no ncu here knows a chip of our table")
    missing = {name for _, names in by_capability for name in names}
    capabilities = ", ".join(sorted({capability for capability, _ in by_capability}))
    return Observation(found=f"{', '.join(sorted(missing)) or 'all are known'} of {capabilities}", holds=not missing)


def dram_known(machine: Mapping[str, Any], metrics: Mapping[str, Any]) -> Observation:
    """Whether ncu knows one metric for DRAM bytes, or one each for bytes read and written."""
    known = set(_of_this_gpu(machine, metrics, "known"))
    parts = [next((name for name in names if name in known), None) for names in DRAM_PARTS]
    names = [DRAM] if DRAM in known else [name for name in parts if name]
    return Observation(found=" + ".join(names) or "none", holds=DRAM in known or None not in parts)


def _of_this_gpu(machine: Mapping[str, Any], metrics: Mapping[str, Any], what: str) -> list[str]:
    if not machine["gpu"]:
        raise NotSettledError("there was no GPU")
    capability = machine["gpu"]["capability"]
    answers: list[list[str]] = [ncu[what][capability] for ncu in metrics["ncu"] if capability in ncu[what]]
    if not answers:
        raise NotSettledError(f"no ncu here knows compute capability {capability}")
    return answers[0]


# --- profiles


def profile_of(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """The profile of a run; `NotSettledError` if it has no FLOP per step."""
    profile: Mapping[str, Any] = (run.get("record") or {}).get("profile") or {}
    if not profile.get("flop_per_step"):
        raise NotSettledError(f"{profile.get('status')}: {profile.get('reason') or run.get('said')}")
    return profile


def calibrated(run: Mapping[str, Any]) -> Observation:
    """Counted over known FLOP of a matrix product, by number type."""
    calibration = profile_of(run)["checks"]["calibration"]
    found = {kind: each["ratio"] for kind, each in calibration.items() if each["ratio"] is not None}
    return Observation(found=figures(found), holds=all(each["verified"] for each in calibration.values()))


def no_lower_bound(run: Mapping[str, Any]) -> Observation:
    """Whether the profile's FLOP are complete: no uncounted matrix products are suspected."""
    profile = profile_of(run)
    return Observation(
        found=profile.get("lower_bound_reason") or "no lower bound", holds=not profile.get("flop_is_lower_bound")
    )


def near_model(run: Mapping[str, Any]) -> Observation:
    """Counted FLOP over those of the formulas."""
    check = profile_of(run)["checks"]["model_flop"]
    if check["counted_over_model"] is None:
        raise NotSettledError("the run has no FLOP of formulas")
    cause = f", {check['likely_cause']}" if check["likely_cause"] else ""
    return Observation(found=f"{check['counted_over_model']:.3g}{cause}", holds=not check["flagged"])


def dram_counted(run: Mapping[str, Any]) -> Observation:
    """Bytes of DRAM traffic per step in the profile."""
    moved = profile_of(run)["dram_bytes_per_step"]
    return Observation(found=f"{moved:.4g} bytes a step" if moved else "none", holds=bool(moved))


def seconds_per_kernel(run: Mapping[str, Any]) -> Observation:
    """Seconds that ncu takes per kernel launch, and its number of passes."""
    profile = profile_of(run)
    each_s = profile["elapsed_s"] / profile["kernels_profiled"]
    return Observation(found=f"{each_s:.2f} s, {profile['passes']:g} passes", holds=each_s <= KERNEL_LIMIT_S)


def tensor_names(run: Mapping[str, Any]) -> Observation:
    """Kernels whose name wrongly indicates, or fails to indicate, the use of tensor cores."""
    wrong = set()
    for launch in run["launches"]:
        pipe = launch["values"].get(PIPE)
        if pipe is not None:
            products = pipe - (launch["values"].get(CONSTANTS) or 0)
            if (products > 0) != names_tensor_cores(launch["kernel"]):
                wrong.add(launch["kernel"][:80])
    if not run["launches"]:
        raise NotSettledError("no launch was profiled")
    return Observation(found="; ".join(sorted(wrong)) or "every name tells", holds=not wrong)


def families(names: Mapping[str, Any]) -> Observation:
    """Share of each step's time in kernels of no known family."""
    shares = {}
    for step, rows in names["steps"].items():
        total = sum(row["s"] for row in rows)
        shares[step] = sum(row["s"] for row in rows if family(row["name"]) is Family.OTHER) / total
    return Observation(found=figures(shares), holds=all(share <= UNKNOWN_SHARE for share in shares.values()))
