"""Evidence of an imaginary H100 on which every claim holds, by part."""

import copy
import json
from pathlib import Path
from typing import Any

from benchmarks.gpu_truth.evidence import FORMAT, SCHEMA, GpuEvidence

FLOAT = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
PIPE, CONSTANTS = "sm__inst_executed_pipe_tensor.sum", "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum"
TENSOR, L2, FABRIC = "sm__ops_path_tensor_src_fp16.sum", "lts__t_sectors.sum", "lts__t_sectors_srcunit_ltcfabric.sum"
MODELS, PRECISIONS = ("resnet50", "resnet18", "mobilenet_v2", "vit_b_16"), ("fp32", "tf32", "amp", "bf16")
RATES = {"fp32": 900.0, "tf32": 1800.0, "amp": 2700.0, "bf16": 2700.0}


def launch(within: str, **values: float) -> dict[str, Any]:
    zeros = {FLOAT.format(op): 0.0 for op in ("hadd", "hmul", "hfma", "ffma")} | {PIPE: 0.0, CONSTANTS: 0.0}
    names = {"hfma": FLOAT.format("hfma"), "ffma": FLOAT.format("ffma"), "pipe": PIPE, "constants": CONSTANTS}
    names |= {"tensor": TENSOR, "l2": L2, "fabric": FABRIC}
    own = {names[name]: value for name, value in values.items()}
    return {"range": within, "kernel": within, "values": zeros | {L2: 100.0, FABRIC: 10.0, TENSOR: 0.0} | own}


def counters() -> dict[str, Any]:
    return {
        "known": {
            "constants": {"tensor_products": 0},
            "packed_half": {"tensor_products": 0, "half_instructions": 1000},
            "single": {"tensor_products": 0, "single_instructions": 1000},
            "product": {"tensor_products": 50, "tensor_flop": 4096},
        },
        "plain": ["softmax"],
        "asked": [PIPE, CONSTANTS, TENSOR, L2, FABRIC],
        "launches": [
            launch("constants", pipe=8, constants=8),
            launch("packed_half", hfma=2000, pipe=4, constants=4),
            launch("single", ffma=1000),
            launch("product", tensor=4096, pipe=50),
            launch("softmax", pipe=7, constants=7),
            launch("backward"),
            launch("backward", pipe=9),
        ],
        "pushed": 0,
    }


def profile() -> dict[str, Any]:
    return {
        "exit_code": 0,
        "said": "",
        "record": {
            "status": "completed",
            "profile": {
                "status": "completed",
                "reason": None,
                "flop_per_step": 1e12,
                "flop_is_lower_bound": False,
                "lower_bound_reason": None,
                "dram_bytes_per_step": 1e9,
                "elapsed_s": 100.0,
                "kernels_profiled": 200,
                "passes": 4,
                "checks": {
                    "calibration": {"fp16": {"ratio": 1.0, "verified": True}},
                    "model_flop": {"counted_over_model": 1.02, "flagged": False, "likely_cause": None},
                },
            },
        },
        "launches": [
            {"kernel": "sm90_xmma_fprop_warpgroupsize1x1x1", "values": {PIPE: 9.0, CONSTANTS: 0.0}},
            {"kernel": "batch_norm_collect_statistics", "values": {PIPE: 3.0, CONSTANTS: 3.0}},
        ],
    }


def load(flop: float, *, first_s: float, last_s: float) -> dict[str, Any]:
    rows = [
        {
            "t_s": 0.1 * number,
            "call_s": first_s if number < 15 else last_s,
            "power_usual_w": 200.0,
            "power_instant_w": 600.0,
        }
        for number in range(60)
    ]
    return {"work": flop, "rows": rows}


def model(name: str) -> dict[str, Any]:
    runs = {
        precision: {
            "exit_code": 0,
            "said": "",
            "record": {
                "status": "completed",
                "timing": {"images_per_s": RATES[precision], "measured_s": 3.5, "skipped_steps": {"measured": 0}},
            },
            "published": [{"images_per_s": rate} for rate in (RATES[precision], 1.2 * RATES[precision])],
        }
        for precision in PRECISIONS
    }
    return {"model": name, "runs": runs}


def ended(code: int, status: str | None, said: str = "") -> dict[str, Any]:
    return {"exit_code": code, "record": {"status": status} if status else None, "said": said}


def h100() -> dict[str, dict[str, Any]]:
    """The evidence by part; a new copy every time."""
    known = {"9.0": ["dram__bytes", "lts__t_bytes"]}
    gpu = {"name": "NVIDIA H100 80GB HBM3", "capability": "9.0", "memory_bytes": 85e9}
    parts: dict[str, dict[str, Any]] = {
        "machine": {"gpu": gpu, "auto": "cuda", "notes": [], "obstacle": None, "driver": "580", "wsl": False},
        "compiler": {
            "targets": {
                "80": {"constants": {"instructions": {"HFMA2.MMA": 8}}},
                "89": {"constants": {"instructions": {"MOV": 19}}},
            }
        },
        "metrics": {"ncu": [{"known": known, "missing": {"9.0": []}}]},
        "counters": counters(),
        "ceilings": {
            "loads": {"amp": load(1e12, first_s=1 / 720, last_s=1 / 700), "copy": load(3e9, first_s=1e-3, last_s=1e-3)},
            "ceilings": {
                "flop_per_s": {"amp": {"median": 720e12, "sustained": 705e12}, "fp32": {"median": 50e12}},
                "bytes_per_s": {"copy": {"median": 3e12, "sustained": None}},
            },
        },
        **{f"profile-{precision}": profile() for precision in PRECISIONS},
        **{name: model(name) for name in MODELS},
        "names": {"steps": {"resnet50 fp32": [{"name": "sm80_xmma_fprop_implicit_gemm", "s": 1.0}]}},
        "failures": {
            "cases": {
                "a little too large": ended(7, "out_of_memory"),
                "much too large": ended(7, "out_of_memory"),
                "deterministic": ended(0, "completed"),
                "deterministic, adaptive pooling": ended(6, "failed", "error: not deterministic\nhint: without it"),
                "compile": ended(0, "completed"),
            }
        },
        "loops": {"ratios": [1.001, 1.002, 1.003, 1.002], "model": "resnet18", "device": "cuda"},
        "refusals": {
            "cases": {
                "mps": ended(2, None, "error: no MPS device: …"),
                "cuda, hidden": ended(2, None, "error: no CUDA device: …"),
                "auto, hidden": ended(0, "completed"),
            }
        },
        "interrupt": {"ended_before_the_signal": False, "exit_code": 130, "status": "completed", "left_over": []},
        "tests": {"exit_code": 0, "said": "…\n41 passed in 90 s"},
    }
    return copy.deepcopy(parts)


def document(part: str, evidence: Any, *, status: str = "done", reason: str | None = None) -> dict[str, Any]:
    """Document of a part, as the collector writes it."""
    return {"format": FORMAT, "schema": SCHEMA, "part": part, "status": status, "reason": reason, "evidence": evidence}


def evidence_of(parts: dict[str, Any]) -> GpuEvidence:
    return GpuEvidence(parts={name: document(name, part) for name, part in parts.items()})


def save(folder: Path, parts: dict[str, Any]) -> Path:
    """A folder as the collector leaves it."""
    (folder / "parts").mkdir(parents=True)
    for name, part in parts.items():
        (folder / "parts" / f"{name}.json").write_text(json.dumps(document(name, part)))
    return folder
