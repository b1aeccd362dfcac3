"""Rules on counts of FLOP, bytes and memory, and on the roofs with which the counts are compared."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.audit.rule import WITH_KERNELS, AuditEvidence, Hit, Rule, Severity, each_case, each_profile
from analysis.kernels import in_steps
from analysis.loading.cases import Case
from analysis.loading.tables import rows
from analysis.readers.ncu.metrics import is_backward
from analysis.roofline.against_model import PARTLY, contradiction, model_flop
from workload.contract import allocations, peaks
from workload.contract.allocator import is_expandable, replay
from workload.contract.peaks import Gpu
from workload.contract.spec import Device, Precision
from workload.contract.text import counted, percent, seconds, si, size
from workload.contract.verdict import ABOVE_BY_CPU_TIME, ABOVE_CEILING, MOST_UNATTRIBUTED, shares_of_flop
from workload.contract.vocabulary import MODEL_RATIO_FROM, MODEL_RATIO_TO, names_tensor_cores

# 1 multiply-accumulate is 2 FLOP. Operations other than products move the counted ratio to 1.9 to 2.1 (fvcore on
# MobileNetV2 and ViT); MACs mistaken for FLOP give 1.
FLOP_PER_MAC_FROM, FLOP_PER_MAC_TO = 1.5, 2.5
# Training is the forward pass, and two products in the backward pass for each product of the forward pass (one in the
# first layer). Recomputation adds a forward pass.
TRAIN_OVER_FORWARD_FROM, TRAIN_OVER_FORWARD_TO = 2.0, 4.1
# No run exceeds a vendor's peak.
OVER_PEAK = 1.0
# ncu empties the caches before each kernel, so it counts reads that an unprofiled step does not make.
OVER_BANDWIDTH = 1.25
# Matrix products reach 80 to 90 % of a peak, copies 77 to 92 %. Less than half means another device or a busy device.
CEILING_FROM, CEILING_TO = 0.5, 1.03
# Among 253 published throughputs, the slowest that was limited by the GPU reached 1.9 % of its fp32 peak (MobileNetV2
# on an RTX 4090); runs that exceeded the GPU's memory reached less than 0.7 %. A thousand launches take some 10 ms, on
# a slow CPU 100 ms.
TOO_SLOW, LAUNCHES_S = 0.015, 0.1
# Kernels of a trace may also wait for other GPUs; a wrong unit of time is a factor of 1000.
TRACED_SPARE = 10
# Two CPU cores train at 0.1e12 FLOP/s, all CPUs of a server at some 1e12.
OF_A_CPU = 1e12
# Published model FLOP utilisations of training are at most this.
MFU_TO = 0.60
# Below the lower limit a step may fit where it is said not to. PyTorch's figure has workspaces in it that the count has
# not: those of cuBLAS are up to 64 MiB; those of cuDNN have not been measured here.
COUNTED_MEMORY_FROM, COUNTED_MEMORY_TO = 0.95, 1.25

# Compute capability of NVIDIA Volta, 2017.
FIRST_WITH_TENSOR_CORES = 7.0

# Names of a profile's counts, by the column that contains the count.
COUNTS = {"flop": "FLOP", "dram_bytes": "DRAM bytes"}
INCOMPLETE_PROFILES = ("partial", "failed", "timed out", "interrupted")


def mac_as_flop(case: Case) -> str | None:
    flop, mac, train = (case[f"{name}_per_image"] for name in ("forward_flop", "forward_mac", "train_flop"))
    if flop and mac and not FLOP_PER_MAC_FROM <= flop / mac <= FLOP_PER_MAC_TO:
        return f"{si(flop, 'FLOP', 4)} for {si(mac, 'MAC', 4)} in the forward pass: {flop / mac:.2f} per MAC"
    if flop and train and not TRAIN_OVER_FORWARD_FROM <= train / flop <= TRAIN_OVER_FORWARD_TO:
        return f"{si(train, 'FLOP', 4)} of training for {si(flop, 'FLOP', 4)} in the forward pass: {train / flop:.2f} x"
    return None


# --- roofs


def above_roof(case: Case) -> str | None:
    excesses = [f"{percent(ratio, decimals=1)} of {roof}" for roof, ratio, limit in _fractions(case) if ratio > limit]
    return ", ".join(excesses) or None


def _fractions(case: Case) -> Iterator[tuple[str, float, float]]:
    """A row per known roof of a run: the roof's name, the attained fraction, and the largest plausible fraction."""
    peak = _peak(case)
    if rate := flop_per_s(case):
        if ceiling := case["ceiling_flop_per_s"]:
            most = ABOVE_CEILING if case["cpu_time_share"] is None else ABOVE_BY_CPU_TIME
            yield f"the measured ceiling, {si(ceiling, 'FLOP/s')}", rate / ceiling, most
        # Skip fp32: a rate above the fp32 peak means tf32, which another rule reports.
        if peak and case["precision"] != Precision.FP32:
            yield f"the vendor's peak, {si(peak.flop_per_s, 'FLOP/s')}", rate / peak.flop_per_s, OVER_PEAK
        if case["precision"] is None and (gpu := _gpu(case)):
            highest = max(row.tflop_per_s for row in gpu.peaks) * 1e12
            yield f"the highest peak of {gpu.gpu} in any precision, {si(highest, 'FLOP/s')}", rate / highest, OVER_PEAK
    # From counters only, because the model's formulas give no single number.
    moved, step_s = case["counted_dram_bytes_per_step"], case["step_median_s"]
    if moved := moved / step_s if moved and step_s else None:
        if ceiling := case["ceiling_bytes_per_s"]:
            yield f"the measured ceiling, {si(ceiling, 'B/s')}", moved / ceiling, OVER_BANDWIDTH
        if peak:
            yield f"the vendor's peak, {si(peak.bytes_per_s, 'B/s')}", moved / peak.bytes_per_s, OVER_BANDWIDTH


def flop_per_s(case: Case) -> float | None:
    """FLOP/s of the median step, by the model's formulas, or by counters if the formulas are unknown; else None.

    For an imported run, FLOP per image x images/s if known, because a timer that does not wait for the GPU may show any
    step time.
    """
    rate, per_image = case["images_per_s"], case["train_flop_per_image"]
    if case["imported"] and rate and per_image:
        return float(rate * per_image)
    flop, step_s = case["train_flop_per_step"] or case["counted_flop_per_step"], case["step_median_s"]
    return flop / step_s if flop and step_s else None


def _gpu(case: Case) -> Gpu | None:
    """Device of the run in the table of peaks; None for a CPU: a run may use few of its cores, far below their peak."""
    gpu = peaks.find_gpu(case["device_name"])
    return None if gpu is None or gpu.device == Device.CPU else gpu


def _peak(case: Case, precision: str | None = None) -> peaks.Peak | None:
    known = _gpu(case)
    return peaks.find(case["device_name"], precision=precision or case["precision"]) if known else None


def wrong_peak(evidence: AuditEvidence) -> Iterator[Hit]:
    """Measured ceilings above the vendor's peak of the run's device, or far below this peak."""
    by_id = {case.run_id: case for case in evidence.cases}
    for row in rows(evidence.results.ceilings):
        case, best = by_id.get(row["run_id"]), row["best_per_s"] or row["median_per_s"]
        if case is None or not best:
            continue
        is_compute = row["quantity"] == "flop_per_s"
        peak = _peak(case, row["name"] if is_compute else case["precision"])
        if peak is None:
            continue
        limit = peak.flop_per_s if is_compute else peak.bytes_per_s
        if not CEILING_FROM <= best / limit <= CEILING_TO:
            unit = "FLOP/s" if is_compute else "B/s"
            figure = f"{row['name']}: {si(best, unit)} measured, {si(limit, unit)} the vendor's peak of {peak.gpu}"
            yield Hit(subject=(case.run_id,), figure=f"{figure}: {percent(best / limit, decimals=1)}")


def too_slow(case: Case) -> str | None:
    """Text on FLOP/s too low for the GPU `device_name` (if unknown: for the slowest GPU of peaks.toml); else None."""
    # Seconds per step: the smaller of the median step and, in a log, batch size over images/s, which includes waits.
    is_log = case["imported"] and case["images_per_s"]
    by_rate = case["batch_size"] / case["images_per_s"] if is_log else None
    step_s = min((value for value in (case["step_median_s"], by_rate) if value), default=None)
    work, spare = case["train_flop_per_step"], 1
    if step_s is None and (case["uncounted_share"] or 0.0) <= MOST_UNATTRIBUTED:
        step_s, spare = case["traced_busy_s"], TRACED_SPARE
    gpu = _gpu(case)
    if not work or not step_s or (gpu is None and (case["device_type"] != Device.CUDA or case["device_name"])):
        return None
    slowest = gpu or min((gpu for gpu in peaks.vendors() if gpu.device == Device.CUDA), key=_fp32_flop_per_s)
    peak = _fp32_flop_per_s(slowest)
    expected_s = spare * (LAUNCHES_S + work / (TOO_SLOW * peak))
    if step_s <= expected_s:
        return None
    name = f"{slowest.gpu}, the slowest GPU in peaks.toml" if gpu is None else slowest.gpu
    rate = work / step_s
    step = f"{seconds(step_s)} for a step of {si(work, 'FLOP', 4)}: {si(rate, 'FLOP/s', 4)}"
    like_a_cpu = "; a CPU is as fast as this" if rate < OF_A_CPU else ""
    return f"{step}, {percent(rate / peak, decimals=2)} of the fp32 peak of {name}{like_a_cpu}"


def _fp32_flop_per_s(gpu: Gpu) -> float:
    """The GPU's fp32 peak in FLOP/s at its lowest power limit; without an fp32 row, its lowest peak."""
    rows = {row.precision: row for row in gpu.peaks}
    row = rows.get(Precision.FP32) or min(gpu.peaks, key=lambda row: row.tflop_per_s)
    return (row.tflop_per_s_low or row.tflop_per_s) * 1e12


# --- counters


def fp32_is_tf32(case: Case, kernels: pd.DataFrame | None) -> str | None:
    # A step may compute convolutions in TF32 and most of its FLOP in fp32: then kernels for tensor cores are expected.
    if case["precision"] != Precision.FP32 or Precision.TF32 in shares_of_flop(case.record):
        return None
    return "; ".join(_signs_of_tf32(case, kernels)) or None


def _signs_of_tf32(case: Case, kernels: pd.DataFrame | None) -> Iterator[str]:
    if case["counted_tensor_flop_per_step"]:
        yield f"{si(case['counted_tensor_flop_per_step'], 'FLOP')} per step on tensor cores"
    tensor_kernels = [] if kernels is None else list(filter(names_tensor_cores, map(str, kernels["name"])))
    if tensor_kernels:
        yield f"{len(tensor_kernels)} launches of kernels for tensor cores, for example {tensor_kernels[0][:60]}"
    peak, rate = _peak(case), flop_per_s(case)
    share = rate / peak.flop_per_s if peak and rate else 0.0
    if peak and rate and share > (MFU_TO if case["tf32_instead_flop_per_s"] else OVER_PEAK):
        reached = "above" if share > OVER_PEAK else f"{percent(share)} of"
        yield f"{si(rate, 'FLOP/s')}, {reached} the fp32 peak of {peak.gpu}, {si(peak.flop_per_s, 'FLOP/s')}"


def tensor_flop_missing(case: Case, kernels: pd.DataFrame | None) -> str | None:
    """Text on FLOP of tensor cores that were not counted; None if none are missing.

    An imported profile is judged by its kernel launches, a profile of our own by run.json.
    """
    if kernels is not None and case["imported"]:
        return _missing_in_import(case, kernels)
    if case["flop_is_lower_bound"]:
        reason = case.record.profile.lower_bound_reason or "kernels use tensor cores whose FLOP were not counted"
        return f"counted FLOP are a lower bound: {reason}"
    counted = case["counted_flop_per_step"]
    if case["precision"] in {None, Precision.FP32} or not counted or case["counted_tensor_flop_per_step"]:
        return None
    return f"{case['precision']}, but no FLOP of tensor cores among {si(counted, 'FLOP')} counted per step"


def _missing_in_import(case: Case, kernels: pd.DataFrame) -> str | None:
    counted = kernels[kernels["flop"].notna()]
    if case["flop_is_lower_bound"] and counted["hides_tensor_flop"].any():
        names = counted.loc[counted["hides_tensor_flop"], "name"].astype(str)
        return (
            f"counted FLOP are a lower bound: {_launches(len(names))} on tensor cores, whose FLOP were not counted, "
            f"for example {names.iloc[0][:60]}"
        )
    # The newest device may have a capability that is unknown here.
    generation = np.inf
    with suppress(ValueError):
        generation = float(case["compute_capability"] or np.inf)
    has_tensor_cores = generation >= FIRST_WITH_TENSOR_CORES
    if case["precision"] in {None, Precision.FP32} or counted.empty or not has_tensor_cores:
        return None
    if counted["flop_tensor"].notna().all() or counted["flop_tensor"].gt(0).any():
        # Tensor FLOP were counted. A count of 0 means that the precision is wrong, or no layer is a matrix product.
        return None
    return f"{case['precision']}, but the file has no count of work on tensor cores"


def _launches(count: int) -> str:
    return "1 launch" if count == 1 else f"{count} launches"


IMPORT_AGAIN = (
    "import the file again with the right --model, --batch-size, --profile-steps and --image-size; analyze "
    "kernels shows where the FLOP are"
)


def counted_against_model(case: Case, kernels: pd.DataFrame | None) -> str | Hit | None:
    """Finding on counted FLOP that contradict the run's model, else None.

    The model of an imported run is the one that the user named.
    """
    if case["imported"]:
        if kernels is None:
            return None
        profile = case.record.profile
        is_partial = case["profile_status"] in INCOMPLETE_PROFILES
        figure = contradiction(case.record.spec, kernels, steps=profile.steps_profiled, is_partial=is_partial)
        return Hit(figure=figure, cure=IMPORT_AGAIN) if figure else None
    counted, model = case["counted_flop_per_step"], case["train_flop_per_step"]
    if not counted or not model or MODEL_RATIO_FROM <= counted / model <= MODEL_RATIO_TO:
        return None
    if kernels is not None and counted < model:
        in_step, steps = in_steps(kernels)
        if steps and model_flop(in_step)[1] / steps >= MODEL_RATIO_FROM * model:
            return None
    checks = case.record.profile.checks
    cause = checks.model_flop.likely_cause if checks and checks.model_flop else None
    because = f"; likely {cause}" if cause else ""
    figures = f"{si(counted, 'FLOP', 4)} per step counted, {si(model, 'FLOP', 4)} by the model"
    return f"{figures}: {counted / model:.2f} x{because}"


def unverified(case: Case) -> str | None:
    if case["calibration_verified"] is not False:
        return None
    checks = case.record.profile.checks
    calibrations = (checks.calibration if checks else None) or {}
    wrong = [
        f"{kind} {'not counted' if calibration.ratio is None else f'{calibration.ratio:.2f} x'}"
        for kind, calibration in calibrations.items()
        if not calibration.verified
    ]
    return f"counted over true FLOP of products of known size: {', '.join(wrong) or 'not within the limits'}"


def no_backward(case: Case, kernels: pd.DataFrame | None) -> str | Hit | None:
    """Text on a profile without backward kernels; else None.

    In our own runs, the profile has a range for the backward pass; imported profiles are judged by kernel names,
    imported traces also by operators.
    """
    if case["imported"] and case["backward_kernels"] is False:
        steps = counted(int(case.record.profile.steps or 0), "step")
        return Hit(
            figure=f"{steps}, but no operator or kernel that occurs only in a backward pass",
            cure="profile whole training steps: a trace of inference says nothing about training",
        )
    if case["backward_kernels"] is not None:
        return None if case["backward_kernels"] else "no kernels in the backward range, or too little work in them"
    if kernels is None or any(is_backward(str(name)) for name in kernels["name"].unique()):
        return None
    return f"{_launches(len(kernels))}, but no kernel that occurs only in a backward pass"


def incomplete_profile(case: Case, kernels: pd.DataFrame | None) -> str | None:
    """Text on a profile that ended early or lacks counts of FLOP or bytes, or whose FLOP are a lower bound."""
    parts = []
    if case["profile_status"] in INCOMPLETE_PROFILES:
        reason = f": {case['profile_reason']}" if case["profile_reason"] else ""
        parts.append(f"{case['profile_status']}{reason}")
    if case["profile_status"] in WITH_KERNELS and kernels is not None:
        missing = [name for column, name in COUNTS.items() if bool(kernels[column].isna().all())]
        if missing:
            parts.append(f"{' and '.join(missing)} are unavailable: they were not counted")
        if case.record.profile.lower_bound_reason == PARTLY:
            parts.append(f"FLOP are a lower bound: {PARTLY}")
    return "; ".join(parts) or None


# --- memory


def counted_memory(case: Case) -> str | None:
    """Text on memory that differs from that of the counted step: of the tensors, and reserved by the allocator."""
    if case["device_type"] != Device.CUDA or not case["counted_peak_bytes"] or not case["path"]:
        return None
    record = case.record
    counted_step, real = record.step_memory, record.memory
    if not counted_step or not counted_step.peak_bytes or not real or not real.peak_allocated_bytes:
        return None
    # A script's peak may be in its evaluation, and copies of gradients in a group of processes are not counted.
    is_bound = bool(record.spec.script or record.ranks or counted_step.lower_bound)
    figures = [("of tensors", real.peak_allocated_bytes, counted_step.peak_bytes)]
    with suppress(OSError, ValueError, KeyError):
        software = record.environment.software
        again = replay(
            allocations.read(Path(case["path"]) / allocations.FILE),
            expandable=is_expandable((software.variables if software else None) or {}),
        )
        # An allocator that ran out of memory has reserved less.
        if real.peak_reserved_bytes and not real.allocator_retries:
            figures.append(("reserved", real.peak_reserved_bytes, again.peak_reserved_bytes))
    differing = [
        f"{size(round(found))} {what}, {size(round(expected))} counted: {found / expected:.2f} x"
        for what, found, expected in figures
        if found < COUNTED_MEMORY_FROM * expected or (found > COUNTED_MEMORY_TO * expected and not is_bound)
    ]
    return "; ".join(differing) or None


RULES = (
    Rule(
        name="MACs counted as FLOP",
        severity=Severity.ERROR,
        threshold=f"{FLOP_PER_MAC_FROM:g} to {FLOP_PER_MAC_TO:g} FLOP per multiply-accumulate (a fused multiply-add is "
        f"2 FLOP), and {TRAIN_OVER_FORWARD_FROM:g} to {TRAIN_OVER_FORWARD_TO:g} x the FLOP of the forward "
        "pass for training, because the backward pass has two products for each product of the forward pass",
        why="vendors' peaks count a fused multiply-add as 2: with MACs, efficiency and intensity are half of "
        "the true ones",
        cure="multiply MACs by 2, and count forward and backward",
        check=each_case(mac_as_flop),
    ),
    Rule(
        name="above a roof",
        severity=Severity.ERROR,
        threshold=f"at most {percent(ABOVE_CEILING)} of a measured ceiling, {percent(OVER_PEAK)} of a vendor's peak, "
        f"and {percent(OVER_BANDWIDTH)} of a bandwidth (cold caches), because nothing runs faster than the "
        "device",
        why="the roof belongs to another device or another precision, or too many FLOP were counted",
        cure="check device, precision, model, batch size and peak; measure the ceilings again on an idle machine",
        check=each_case(above_roof),
    ),
    Rule(
        name="wrong peak",
        severity=Severity.WARNING,
        threshold=f"a measured ceiling of {percent(CEILING_FROM)} to {percent(CEILING_TO)} of the vendor's peak, "
        "because matrix products reach 80 % to 90 % and copies 77 % to 92 %",
        why="fractions of this peak say nothing about this device",
        cure="check the device's name and precision; if they are right, find out what slowed down the "
        "measurement of the ceilings",
        check=wrong_peak,
    ),
    Rule(
        name="too slow for its label",
        severity=Severity.ERROR,
        threshold=f"at least {percent(TOO_SLOW, decimals=1)} of the GPU's fp32 peak, not counting {LAUNCHES_S:g} s a "
        "step for kernel launches: the slowest published training that was limited by its GPU reaches 1.9 %",
        why="the label names a wrong device (perhaps the log is from a CPU), or the run did not wait for the device",
        cure="find out which device the run used and what it waited for; import the file again with the right --gpu, "
        "or without --gpu",
        check=each_case(too_slow),
    ),
    Rule(
        name="fp32 that is tf32",
        severity=Severity.ERROR,
        threshold="no work on tensor cores in fp32, and no rate above the fp32 peak, because tensor cores do not "
        f"compute in fp32; an import from a GPU with faster TF32 at most {percent(MFU_TO)} of this peak",
        why="by default PyTorch runs fp32 convolutions on tensor cores in TF32: label and roof are then wrong",
        cure='set torch.backends.cudnn.conv.fp32_precision = "ieee", or label the run tf32 and use that roof',
        check=each_profile(fp32_is_tf32),
    ),
    Rule(
        name="tensor FLOP missing",
        severity=Severity.ERROR,
        threshold="a count of the work on tensor cores, if there is any: the counters of fadd, fmul and ffma leave it "
        "out",
        why="FLOP/s and intensity are then many times too low, and the point is in the wrong part of the roofline",
        cure="launch local --profile ncu with ncu 2023.2 or newer, which counts work on tensor cores",
        check=each_profile(tensor_flop_missing),
    ),
    Rule(
        name="counted FLOP against model",
        severity=Severity.WARNING,
        threshold=f"{MODEL_RATIO_FROM:g} to {MODEL_RATIO_TO:g} x the model's FLOP: padding adds some; kernels named "
        "winograd or fft may save more",
        why="some work was not counted or was counted twice, or the label names another model",
        cure="check the likely cause; analyze kernels shows where the FLOP are",
        check=each_profile(counted_against_model),
    ),
    Rule(
        name="calibration unverified",
        severity=Severity.WARNING,
        threshold="counted FLOP of 0.98 to 1.10 x the true FLOP of a product of known size, because libraries pad a "
        "few per cent",
        why="on this GPU the metric counts something else than its name says, so every FLOP figure of the "
        "profile may be wrong",
        cure="use another version of ncu; until then use the model's FLOP",
        check=each_case(unverified),
    ),
    Rule(
        name="no backward kernels",
        severity=Severity.ERROR,
        threshold="at least one kernel of a backward pass: a training step has a gradient for every layer",
        why="two thirds of the work are missing: autograd runs in its own thread, which a push/pop range does "
        "not cover",
        cure="use cudaProfilerStart/Stop or a process-wide range, as launch local --profile ncu does",
        check=each_profile(no_backward),
    ),
    Rule(
        name="incomplete profile",
        severity=Severity.NOTE,
        threshold="a profile that ended normally, with a count of FLOP and of DRAM bytes for at least one launch",
        why="sums over the kernels cover only a part of the step; a missing count is not 0, and leaves no intensity",
        cure="profile again: python -m workload profile BUNDLE; let ncu collect these metrics, as launch local "
        "--profile ncu does",
        check=each_profile(incomplete_profile),
    ),
    Rule(
        name="counted memory",
        severity=Severity.WARNING,
        threshold=f"PyTorch's peaks on the GPU of {COUNTED_MEMORY_FROM:.2f} to {COUNTED_MEMORY_TO:.2f} x those of the "
        "counted step; only the lower limit holds for scripts, groups of processes and counts that are lower bounds",
        why="launch gpus and the check of a launch judge with the counted step which GPUs have enough memory",
        cure="do not rely on them for this step; report it with this run: the constants of gpu_memory.toml and this "
        "threshold are from public messages, not from this GPU",
        check=each_case(counted_memory),
    ),
)
