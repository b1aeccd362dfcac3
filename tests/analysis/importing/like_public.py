"""Files of our own with the quirks of public ones: logs and profiles whose figures are known because we chose them.

The public files themselves may not be copied; the tests that need them skip where they are not at hand.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from tests.analysis.readers.ncu.ncu_files import (
    DETAILS,
    FADD,
    FFMA,
    FMUL,
    LONG,
    PUSHED,
    READ,
    TIME,
    WRITTEN,
    line,
    who,
    wide,
)

UNSYNCHRONISED, SPILLING, OUTSIDE = "rtx3090_resnet50_b64.csv", "rtx3090_resnet50_b128.csv", "t4_resnet18_b128.csv"
CORRELATED, STEADY = "h100_resnet50_amp_b1024.csv", "rtx4090_resnet50_fp32_b256.csv"
WIDE, LONG_NVTX, BOM_CRLF, RAGGED = "v100_wide.csv", "l4_long_nvtx.csv", "gemm_bom_crlf.csv", "details_ragged.csv"
NO_KERNELS, NO_HEADER = "no_kernels.csv", "no_header.csv"
LOGS = (UNSYNCHRONISED, SPILLING, OUTSIDE, CORRELATED, STEADY)

# Of batch 64 the timer reads 200 ms, but 80 ms where the step before was not waited for; a step takes 202 ms.
TIMER_MS = tuple(80.0 if number % 10 == 1 else 200.0 for number in range(100))
# Of batch 128: memory spills, so that steps take from 1 to 9 s; the log stops after 39 of them.
SPILLING_MS = tuple(float(1000 + (number * 3701) % 8000) for number in range(39))
# The T4's timer sees 60 % of the wall time.
T4_MS = tuple(150.0 if number % 2 else 300.0 for number in range(64))


def make(folder: Path) -> Path:
    """`iterations` and `ncu` in `folder`."""
    logs, profiles = folder / "iterations", folder / "ncu"
    logs.mkdir(parents=True)
    profiles.mkdir()
    (logs / UNSYNCHRONISED).write_text(_timer_log("resnet50", 64, TIMER_MS, [0.202] * 100))
    (logs / SPILLING).write_text(_timer_log("resnet50", 128, SPILLING_MS, [each / 700 for each in SPILLING_MS]))
    (logs / OUTSIDE).write_text(_timer_log("resnet18", 128, T4_MS, [each / 600 for each in T4_MS]))
    (logs / CORRELATED).write_text(_training_log("H100_SXM5", "AMP", 1024, _correlated()))
    (logs / STEADY).write_text(_training_log("RTX4090", "FP32", 256, _steady()))
    for name, content in readable_profiles().items():
        (profiles / name).write_bytes(content)
    (profiles / NO_KERNELS).write_text("==PROF== Connected to process 7\n==WARNING== No kernels were profiled.\n")
    (profiles / NO_HEADER).write_text(
        "==PROF== Connected to process 7\n==ERROR== The application returned an error code (1).\n"
    )
    return folder


# --- logs


def _timer_log(model: str, batch_size: int, timer_ms: Sequence[float], took_s: Sequence[float]) -> str:
    """A log that names the wrong device, claims a rate per row from its timer, and stamps each row."""
    rows = [
        f"labC,cuda,{model},{batch_size},{number},{each:.2f},{1000 * batch_size / each:.2f},{1.763e9 + ended_s:.6f}"
        for number, (each, ended_s) in enumerate(zip(timer_ms, accumulate(took_s), strict=True))
    ]
    return "\n".join(["env,device,model,batch_size,iter_idx,iter_time_ms,imgs_per_sec,timestamp", *rows]) + "\n"


def _training_log(gpu: str, precision: str, batch_size: int, steps_s: Sequence[float]) -> str:
    """A log converted from a training's output, whose first iteration takes far longer than the others."""
    rows = [
        f"{gpu},resnet50,{precision},{batch_size},0,{number},{1000 * step:.3f},0.150,{batch_size / step:.2f},"
        f"{1.7e9 + ended_s:.6f}"
        for number, (step, ended_s) in enumerate(zip(steps_s, accumulate(steps_s), strict=True), 1)
    ]
    header = "gpu,model,precision,batch_size,epoch,iter_idx,iter_time_ms,data_time_ms,imgs_per_sec,timestamp"
    return "\n".join([header, *rows]) + "\n"


def _correlated() -> list[float]:
    """190 steps of 0.46 s, each like the one before: many rows, few independent ones."""
    draw = np.random.default_rng(1)
    deviation, steps = 0.0, [4.1]
    for noise in draw.normal(0, 0.00015, 189):
        deviation = 0.95 * deviation + noise
        steps.append(0.46 + deviation)
    return steps


def _steady() -> list[float]:
    return [3.0, *(0.31 + 0.0001 * np.random.default_rng(2).normal(size=189))]


# --- profiles


def readable_profiles() -> dict[str, bytes]:
    """Profiles by file name."""
    return {
        WIDE: _wide().encode(),
        LONG_NVTX: _long_nvtx().encode(),
        BOM_CRLF: _bom_crlf(),
        RAGGED: _ragged().encode(),
    }


FORWARD = (
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>",
    "volta_scudnn_128x64_relu_interior_nn_v1",
    "volta_sgemm_64x64_nn",
)
BACKWARD = ("void cudnn::cnn::wgrad_alg0_engine<float>", "volta_scudnn_128x64_stridedB_splitK_xregs_large_nn_v1")


def _wide() -> str:
    """Five launches of 1 to 5 us, with the device's own name; messages of ncu before the table."""
    names = [*FORWARD, *BACKWARD]
    attribute, sm = "device__attribute_display_name", "device__attribute_multiprocessor_count"
    metrics = {TIME: "nsecond", READ: "byte", WRITTEN: "byte", FADD: "inst", FMUL: "inst", FFMA: "inst"}
    rows = [
        [
            "Tesla V100-SXM2-16GB",
            "80",
            1000 * number,
            3000 * number,
            1000 * number,
            10 * number,
            20 * number,
            100 * number,
        ]
        for number in range(1, 6)
    ]
    table = wide({attribute: "", sm: "", **metrics}, rows, names=names, capability="7.0")
    return f"==PROF== Connected to process 11 (/usr/bin/python3)\n==PROF== Disconnected from process 11\n{table}"


def _long_nvtx() -> str:
    """Three launches in push/pop ranges, which miss the backward pass; units that differ by row, thousands marks."""
    launches = (
        ("forward", (("DRAM", READ, "Mbyte", "1.5"), ("SASS", FFMA, "inst", "2,433,449"), ("T", TIME, "us", "12.5"))),
        ("loss", (("DRAM", READ, "Kbyte", "1,024.25"), ("SASS", FFMA, "inst", "51"), ("T", TIME, "ns", "1,500"))),
        ("optimizer_step", (("DRAM", READ, "byte", "250"), ("SASS", FFMA, "inst", "0"), ("T", TIME, "us", "1"))),
    )
    names = ("void implicit_convolve_sgemm<float, float>", "softmax_warp_forward", "multi_tensor_apply_kernel")

    def rows() -> Iterator[str]:
        yield line([*LONG[:3], PUSHED, *LONG[3:]])
        for number, ((part, metrics), name) in enumerate(zip(launches, names, strict=True)):
            domain = '11  "<default domain>:{}:none:none:none:none:none:none" '
            pushed = domain.format("train_step") + domain.format(part)[4:]
            identity = who(number, name, capability="8.9")
            for section, metric, unit, value in (*metrics, ("DRAM", WRITTEN, "byte", "0"), *_zeros()):
                yield line([*identity[:3], pushed, *identity[3:], section, metric, unit, value])

    return "".join(rows())


def _zeros() -> Iterator[tuple[str, str, str, str]]:
    for metric in (FADD, FMUL):
        yield "SASS", metric, "inst", "0"


def _bom_crlf() -> bytes:
    """A matrix product without FLOP counters, from Windows, below what the program printed."""
    printed = "==PROF== Connected to process 11\ndevice: RTX, 48 SMs, 2.625 GHz\nwrote 7 rows to C:\\results\\a.csv\n"
    metrics = [(TIME, "ms", "10.5"), (READ, "Mbyte", "53.25"), (WRITTEN, "Mbyte", "3.5")]
    table = line(LONG) + "".join(
        line([*who(0, "void cutlass_80_simt_sgemm_128x64", capability="12.0"), "Raw", *each]) for each in metrics
    )
    return b"\xef\xbb\xbf" + (printed + table).replace("\n", "\r\n").encode()


def _ragged() -> str:
    """A details page: labels for metrics, rules in further columns, rows that end before them."""
    speed = "GPU Speed Of Light Throughput"
    metrics = [
        ("Duration", "msecond", "21.5"),
        ("DRAM Throughput", "%", "61.84"),
        ("Elapsed Cycles", "cycle", "12,319,469"),
    ]
    kernel = who(0, "copy_blocked", capability="7.5")
    rows = [line([*kernel, speed, *each]) for each in metrics]
    rule = line([*kernel, speed, "", "", "", "SOLBottleneck", "OPT", "Memory is more heavily utilized, than compute."])
    return "".join([line(DETAILS), *rows, rule])
