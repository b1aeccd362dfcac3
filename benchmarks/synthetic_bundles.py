"""Valid bundles without a training run: every file as the trainer writes it, figures drawn with a seed."""

import random
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import repeat
from pathlib import Path
from typing import Any

from workload.contract import bundle, record, verdict
from workload.contract.fields import encode
from workload.contract.record import StepSeconds

WARMUP, MEASURED = 10, 100
# Of each step, written with seven decimals as the trainer does.
DATA_S = 0.0001
STARTED_AT = datetime(2026, 11, 1, tzinfo=UTC)
FLOP_PER_IMAGE = 10_648_000_000
CEILING_FLOP_PER_S, CEILING_BYTES_PER_S = 7.2e12, 2.6e11


def make(output: Path, number: int = 0, **changes: Any) -> Path:
    """Seal the bundle `number` into `output` and return its folder; the same number makes the same bundle.

    Figures of a T4: 110 steps of about 0.1 s at batch 32. `changes` replace fields of run.json: `spec__model="vgg16"`.
    """
    draw = random.Random(number)
    step_s = [round(draw.gauss(0.1, 0.002), 7) for _ in range(WARMUP + MEASURED)]
    document = make_record(number, step_s[WARMUP:])
    for where, value in changes.items():
        change(document, where, value)
    folder = output / document["run_id"]
    folder.mkdir(parents=True)
    (folder / bundle.STEPS).write_text(steps_csv(step_s, document["spec"]["batch_size"], draw))
    (folder / bundle.TELEMETRY).write_text(telemetry_csv(20, draw))
    (folder / bundle.LOG).write_text("measuring this machine's ceiling\nmeasured   100/100 steps\n" * 10)
    bundle.write_document(folder, document)
    bundle.seal(folder)
    return folder


def change(document: dict[str, Any], where: str, value: Any) -> None:
    """Set one field: `change(document, "spec__model", "vgg16")`."""
    *parents, last = where.split("__")
    for key in parents:
        document = document[key]
    document[last] = value


def make_record(number: int, step_s: list[float]) -> dict[str, Any]:
    """A completed run on a T4 with every section filled."""
    batch_size = 32
    spent_s = sum(step_s) + DATA_S * len(step_s)
    # Ending the measurement takes a moment.
    wall_s = spent_s * 1.0005
    started_at = STARTED_AT + timedelta(seconds=60 * number)
    stamp = started_at.strftime("%Y%m%dT%H%M%SZ")
    flop = FLOP_PER_IMAGE * batch_size
    document: dict[str, Any] = {
        "run_id": f"{stamp}-gcp-t4-us-central1-a-resnet18-b{batch_size}-fp32-{number:06x}",
        "status": "completed",
        "error": None,
        "repeat": {"index": 1, "of": 3},
        "spec": spec(batch_size),
        "spec_origin": dict.fromkeys(spec(batch_size), "default"),
        "environment": environment(),
        "timing": {
            "started_at": started_at.isoformat(),
            "measured_s": wall_s,
            "cpus_used": 1.02,
            "images": batch_size * len(step_s),
            "images_per_s": batch_size * len(step_s) / wall_s,
            "step_s": encode(StepSeconds.from_seconds(step_s)),
            "data_wait_fraction": DATA_S * len(step_s) / wall_s,
            "explained_fraction": spent_s / wall_s,
            "setup_s": 6.5,
            "phases": {"start": 0.0, "ceilings": 3.0, "warmup": 9.5, "measured": 10.5, "end": 20.6},
        },
        "complexity": {
            "parameters": 11689512,
            "forward_mac_per_image": 1814073344,
            "forward_flop_per_image": 3628146688,
            "train_flop_per_step": flop,
            "train_flop_per_image": FLOP_PER_IMAGE,
            "flop_by_op": {"convolution": flop // 3, "convolution_backward": flop // 3 * 2},
            "bytes_per_step_lower": 3_100_000_000,
            "bytes_per_step_upper": 9_800_000_000,
            "fvcore_mac_per_image": 1819_000_000.0,
            "uncounted": [],
            "method": "own formula table over dispatched ops in train mode, forward and backward",
            "theoretical_step_s": flop / CEILING_FLOP_PER_S,
        },
        "ceilings": ceilings(started_at),
        "memory": {"peak_allocated_bytes": 2_400_000_000, "peak_reserved_bytes": 2_600_000_000},
        "usage": {"user_s": 14.0, "elapsed_s": 20.6, "max_rss_bytes": 2_900_000_000},
        "profile": {"status": "not requested"},
        "cost": None,
        "notes": [],
    }
    return judged(document)


def judged(document: dict[str, Any]) -> dict[str, Any]:
    """Copy of a run.json with the verdict on its figures."""
    bound = verdict.from_record(record.read(document).record)
    return document | {"bound": encode(bound) if bound else None}


def make_many(make_bundle: Callable[[Path, int], object], output: Path, numbers: Iterable[int]) -> None:
    """Call `make_bundle(output, number)` for each number, in all processes of the machine."""
    with ProcessPoolExecutor() as pool:
        for _ in pool.map(make_bundle, repeat(output), numbers, chunksize=50):
            pass


def spec(batch_size: int) -> dict[str, Any]:
    return {
        "model": "resnet18",
        "device": "cuda",
        "batch_size": batch_size,
        "precision": "fp32",
        "dataset": "synthetic",
        "data_dir": "~/.cache/rooflaunch",
        "download": False,
        "subset": None,
        "image_size": 224,
        "warmup": WARMUP,
        "iterations": MEASURED,
        "repeats": 3,
        "profile": "none",
        "profile_steps": 1,
        "profile_step_bytes": False,
        "profile_throughput": False,
        "channels_last": False,
        "compile": False,
        "deterministic": False,
        "no_augment": False,
        "grad_accumulation": 1,
        "workers": 0,
        "optimizer": "sgd",
        "seed": 0,
        "ceilings": True,
    }


def environment() -> dict[str, Any]:
    return {
        "place": "gcp-t4-us-central1-a",
        "backend": "gcp",
        "runtime": "docker",
        "runtime_reason": "asked for",
        "host": {
            "hostname": "vm",
            "os": "Debian GNU/Linux 12 (bookworm)",
            "kernel": "6.1.0-26-cloud-amd64",
            "hypervisor": "kvm",
            "cpu_model": "Intel(R) Xeon(R) CPU @ 2.00GHz",
            "cpu_flags": ["sse4_2", "avx", "f16c", "fma", "avx2", "avx512f", "avx512dq", "avx512bw", "avx512vl"],
            "caches": [{"level": 3, "type": "unified", "size_bytes": 40370176, "shared_by_cpus": 4}],
            "memory_total_bytes": 15_600_000_000,
        },
        "device": {
            "type": "cuda",
            "name": "Tesla T4",
            "compute_capability": "7.5",
            "driver_version": "580.95.05",
            "memory_total_bytes": 16_106_127_360,
        },
        "software": {
            "rooflaunch": "0.1.0",
            "commit": "b9eda8a56f3bee44574ffd9f352fafb5ad3e19b3",
            "commit_dirty": False,
            "python": "3.12.8",
            "torch": "2.15.0+cu132",
            "torchvision": "0.29.2",
            "cuda_build": "13.2",
            "cudnn": 92600,
        },
        "cloud": {
            "provider": "gce",
            "zone": "us-central1-a",
            "machine_type": "n1-standard-4",
            "cpu_platform": "Intel Skylake",
            "spot": True,
            "physical_host": "/a/b/c",
        },
        "container": {"runtime": "docker", "image_digest": "sha256:" + "0" * 64},
        "slurm": None,
    }


def ceilings(measured_at: datetime) -> dict[str, Any]:
    conditions = {"sm_clock_mhz": 1590, "power_w": 69.8, "temperature_c": 61}
    return {
        "flop_per_s": {"fp32": rate(CEILING_FLOP_PER_S, conditions)},
        "bytes_per_s": {"copy": rate(CEILING_BYTES_PER_S, None), "triad": rate(CEILING_BYTES_PER_S * 1.02, None)},
        "unavailable": {},
        "method": "n x n x n product of random normal matrices",
        "measured_at": measured_at.isoformat(),
        "device": "Tesla T4",
    }


def rate(value: float, conditions: Mapping[str, Any] | None) -> dict[str, Any]:
    low, high = value * 0.97, value * 1.03
    return {"median": value, "best": high, "min": low, "p5": low, "p95": high, "samples": 30, "conditions": conditions}


def steps_csv(step_s: list[float], images: int, draw: random.Random) -> str:
    lines, ended_at_s = [",".join(bundle.STEP_COLUMNS)], 9.5
    for step, each_s in enumerate(step_s):
        ended_at_s += each_s + DATA_S
        phase = "warmup" if step < WARMUP else "measured"
        times = (ended_at_s, each_s, DATA_S, 0.3 * each_s, 0.6 * each_s, 0.1 * each_s)
        cells = ",".join(f"{value:.7f}" for value in times)
        lines.append(f"{step},{phase},{cells},{images},{draw.gauss(6.9, 0.1):.6g}")
    return "\n".join(lines) + "\n"


def telemetry_csv(seconds: int, draw: random.Random) -> str:
    lines = [",".join(bundle.TELEMETRY_COLUMNS)]
    for second in range(seconds):
        clock = draw.randrange(1200, 1590, 15)
        lines.append(
            f"{second:.3f},{clock},5001,61,69.{second % 10}12,0x4,99,2600000000,25.1,0.0,2000,29e8,0.0,0.1,9e9"
        )
    return "\n".join(lines) + "\n"
