"""Names of Nsight Compute's metrics, of GPU kernels and of torchvision's models, for all three packages.

Standard library only.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from workload.contract.errors import UsageError
from workload.contract.text import did_you_mean

# Names that NVIDIA's libraries give to kernels on tensor cores.
_TENSOR_KERNEL = re.compile(
    r"tensorop|tensor\d+x\d+x\d+"  # CUTLASS, xmma: ..._tensor16x8x16
    r"|[shi](?:884|1688|16816|16832)"  # volta_fp16_s884gemm, turing_h1688cudnn, ampere_fp16_s16816gemm
    r"|[shi]64x\d+x\d+"  # sm_90: s64x128x16
    r"|[hi]g?mma|_wgmma|warpgroupsize"  # hmma, hgmma; warp groups exist for wgmma only
    r"|nvjet_"  # cuBLAS on Hopper and later
    r"|flash_(?:fwd|bwd)_|fmha_cutlass[FB]_b?f16",  # attention in 16 bit
    re.IGNORECASE,
)
# Number of first characters of a kernel name that are searched; after these, the name has only template arguments.
TELLING_CHARACTERS = 2000

# Compute capabilities on which every instruction of the tensor pipe is a matrix product. On 8.0 and 9.0 the compiler
# also builds constants in that pipe (`HFMA2.MMA R, -RZ, RZ, imm`): 15 of 20 batch norm and 99 of 120 softmax kernels in
# torch 2.15's code for sm_90 have this instruction and no matrix product (cuobjdump of the wheel, 2026-11). Newer
# capabilities are unknown.
TENSOR_PIPE_IS_PRODUCTS = frozenset({"7.0", "7.2", "7.5", "8.6", "8.7", "8.9"})

# A100 and H100 have metrics with `srcunit_ltcfabric`: `lts__t_bytes` seems to include traffic between the L2's halves.
_L2, _L2_SPLIT = "requests of the whole GPU to L2", "requests to L2, most likely with those between its two halves"
_SPLIT_L2 = ("8.0", "9.0")

# Metrics of operations on tensor cores: a multiply-add counts as 2. Metrics with `_sparsity_on` and `_sparsity_off` are
# parts of these metrics.
_TENSOR_METRIC = re.compile(r"sm__ops_path_tensor(?:_op_([a-z0-9]+))?_src_([a-z0-9_]+?)(?:_dst_([a-z0-9]+))?\.sum")
_FLOATS = re.compile(r"(?:fp|bf|tf)\d+")

# Names of profiler ranges in the profiled process; kernels outside of all ranges belong to no step.
STEP_RANGE = re.compile(r"step (\d+) (data|forward|backward|optimizer)")
CALIBRATION_RANGE = re.compile(r"calibration (\w+)")

# Counted FLOP of a matrix product of known size, over 2 n^3. Libraries pad and reduce, which adds a few per cent. A
# smaller ratio means that the counters miss operations.
CALIBRATED_FROM, CALIBRATED_TO = 0.98, 1.10
# Counted FLOP of a step over the FLOP of the model's formulas: 0.7 with Winograd convolutions, 1.1 with element-wise
# work. Outside of this range operations are missing or padded.
MODEL_RATIO_FROM, MODEL_RATIO_TO = 0.7, 1.5


def step_range(number: int, part: str) -> str:
    """Name of the profiler range around a part of a profiled step."""
    return f"step {number} {part}"


def calibration_range(number_type: str) -> str:
    """Name of the profiler range around a matrix product of known size, which calibrates the counters."""
    return f"calibration {number_type}"


def step_of(name: str | None) -> tuple[int, str] | None:
    """Step number and part from the name of a range; None if the range is no part of a step."""
    match = STEP_RANGE.fullmatch(name or "")
    return (int(match[1]), match[2]) if match else None


def calibration_of(name: str | None) -> str | None:
    """Element type in the name of a calibration range (see `calibration_range`); None for other ranges."""
    match = CALIBRATION_RANGE.fullmatch(name or "")
    return match[1] if match else None


def l2_bytes_are(capability: str) -> str:
    """Traffic that `lts__t_bytes` counts on GPUs of this compute capability, in words."""
    return _L2_SPLIT if capability in _SPLIT_L2 else _L2


def names_tensor_cores(kernel: str) -> bool:
    """Whether a kernel's name has a form that NVIDIA's libraries use for kernels on tensor cores."""
    return _TENSOR_KERNEL.search(kernel[:TELLING_CHARACTERS]) is not None


@dataclass(frozen=True, kw_only=True)
class TensorMetric:
    """Operations that a metric of tensor cores counts.

    `instruction`, `accumulator`: None if the metric counts all instructions or all types of accumulators.
    """

    instruction: str | None
    operands: frozenset[str]
    accumulator: str | None

    def covers(self, other: "TensorMetric") -> bool:
        """Whether this metric counts everything that `other` counts."""
        return (
            self.instruction in {None, other.instruction}
            and self.operands >= other.operands
            and self.accumulator in {None, other.accumulator}
        )


def tensor_operations(names: Iterable[str]) -> dict[str, TensorMetric]:
    """Metrics of floating-point operations on tensor cores, by name; without metrics that another metric includes."""
    metrics = {name: metric for name in sorted(names) if (metric := _tensor_metric(name))}
    return {
        name: metric
        for name, metric in metrics.items()
        if not any(other != name and wider.covers(metric) for other, wider in metrics.items())
    }


def _tensor_metric(name: str) -> TensorMetric | None:
    match = _TENSOR_METRIC.fullmatch(name)
    if not match or "sparsity" in name:
        return None
    operands = match[2].split("_")
    if not all(_FLOATS.fullmatch(operand) for operand in operands):
        return None
    return TensorMetric(instruction=match[1], operands=frozenset(operands), accumulator=match[3])


# --- metrics of ncu that a user asks for, as a list or in a file


# `dram__bytes.sum.per_second`, `launch__registers_per_thread`.
METRIC_NAME = re.compile(r"[a-z][a-z0-9_]*__[a-z0-9_]+(\.[a-z0-9_]+)*")
METRICS_HINT = "--ncu-metrics dram__bytes.sum,l1tex__t_sector_hit_rate.pct, or a file with a name on each line"


def parse_metrics(value: object) -> str:
    """Names separated by commas, each once, from such a list or from a file of names.

    A file has names separated by commas or lines, and comments after `#`. It is read here and now, so that the names
    travel with the options to every machine. Raises `UsageError` with the file and the line of a word that is no name.
    """
    text = value if isinstance(value, str) else ""
    listed = [word for _, word in _words(text)]
    if listed and all(map(METRIC_NAME.fullmatch, listed)):
        return ",".join(dict.fromkeys(listed))
    found = list(_words(_content(text)))
    for line, name in found:
        if not METRIC_NAME.fullmatch(name):
            raise UsageError(f"'{text}', line {line}: '{name}' is not the name of a metric of ncu", hint=METRICS_HINT)
    if not found:
        raise UsageError(f"'{text}' names no metric", hint=METRICS_HINT)
    return ",".join(dict.fromkeys(name for _, name in found))


def metric_names(value: str | None) -> list[str]:
    """The names in a result of `parse_metrics`."""
    return value.split(",") if value else []


def _words(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        for word in line.partition("#")[0].split(","):
            yield from ((number, part) for part in word.split())


def _content(value: str) -> str:
    try:
        path = Path(value).expanduser()
        if value.strip() and path.is_file():
            return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise UsageError(f"'{value}' cannot be read: {error}", hint=METRICS_HINT) from error
    raise UsageError(f"'{value}' is neither a file nor a list of metrics of ncu", hint=METRICS_HINT)


# --- torchvision's models: a launcher without torch refuses a typo before it rents a machine


# Version of torchvision whose models.list_models(module=models) returned MODELS; a test compares both.
TORCHVISION = "0.29.2"
MODELS = """
alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161 densenet169 densenet201
efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4 efficientnet_b5 efficientnet_b6
efficientnet_b7 efficientnet_v2_l efficientnet_v2_m efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5
mnasnet0_75 mnasnet1_0 mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_16gf regnet_x_1_6gf
regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf regnet_y_128gf regnet_y_16gf regnet_y_1_6gf
regnet_y_32gf regnet_y_3_2gf regnet_y_400mf regnet_y_800mf regnet_y_8gf resnet101 resnet152 resnet18 resnet34
resnet50 resnext101_32x8d resnext101_64x4d resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5
shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_b swin_s swin_t swin_v2_b swin_v2_s swin_v2_t vgg11 vgg11_bn
vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn vit_b_16 vit_b_32 vit_h_14 vit_l_16 vit_l_32 wide_resnet101_2
wide_resnet50_2
""".split()  # noqa: SIM905 - 80 lines, one for each


def unknown_model(name: str, known: Collection[str] = MODELS) -> UsageError:
    """Error for the model `name`, which is not in `known`; its hint has up to three similar names."""
    return UsageError(
        f"unknown model '{name}': it must be a torchvision classifier",
        hint=did_you_mean(name.lower(), known, most=3, after=" ") + "`python -m workload models` lists all",
    )
