"""Seconds that `analyze report` takes and size of its page, in fresh processes: N synthetic bundles.

python benchmarks/report.py [100 1000] [--keep FOLDER]   five environments, six models, batches, precisions, repeats
"""

import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import synthetic_bundles as synthetic

from workload.contract import bundle

MOST_S, MOST_BYTES = 20.0, 15e6
BATCHES = (16, 32, 64, 128)
PRECISIONS = ("fp32", "amp")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Machine with the rates that its steps reach: FLOP/s by precision, bytes/s. `floor_s`: least time of any step."""

    place: str
    backend: str
    device: str
    compute_capability: str
    flop_per_s: dict[str, float]
    bytes_per_s: float
    floor_s: float
    spread: float
    memory_bytes: float
    usd_per_h: float | None


MACHINES = (
    Machine(
        place="gcp-t4-us-central1-a",
        backend="gcp",
        device="Tesla T4",
        compute_capability="7.5",
        flop_per_s={"fp32": 5.2e12, "amp": 21e12},
        bytes_per_s=2.4e11,
        floor_s=0.011,
        spread=0.012,
        memory_bytes=15.6e9,
        usd_per_h=0.54,
    ),
    Machine(
        place="gcp-l4-us-central1-b",
        backend="gcp",
        device="NVIDIA L4",
        compute_capability="8.9",
        flop_per_s={"fp32": 14e12, "amp": 48e12},
        bytes_per_s=2.5e11,
        floor_s=0.008,
        spread=0.006,
        memory_bytes=23e9,
        usd_per_h=0.71,
    ),
    Machine(
        place="gcp-v100-europe-west4-a",
        backend="gcp",
        device="Tesla V100-SXM2-16GB",
        compute_capability="7.0",
        flop_per_s={"fp32": 12.5e12, "amp": 55e12},
        bytes_per_s=7.6e11,
        floor_s=0.009,
        spread=0.008,
        memory_bytes=16e9,
        usd_per_h=2.55,
    ),
    Machine(
        place="local-cuda",
        backend="local",
        device="NVIDIA GeForce RTX 4080 Laptop GPU",
        compute_capability="8.9",
        flop_per_s={"fp32": 15e12, "amp": 40e12},
        bytes_per_s=3.4e11,
        floor_s=0.007,
        spread=0.025,
        memory_bytes=12e9,
        usd_per_h=None,
    ),
    Machine(
        place="slurm-a100",
        backend="slurm",
        device="NVIDIA A100-SXM4-40GB",
        compute_capability="8.0",
        flop_per_s={"fp32": 17e12, "amp": 120e12},
        bytes_per_s=1.3e12,
        floor_s=0.009,
        spread=0.004,
        memory_bytes=40e9,
        usd_per_h=3.67,
    ),
)
# Model: parameters, training FLOP per image, bytes per image with each tensor once and with every operation to memory.
MODELS = {
    "resnet18": (11_689_512, 10.65e9, 7e7, 2.6e8),
    "resnet50": (25_557_032, 24.2e9, 2.6e8, 9.5e8),
    "mobilenet_v2": (3_504_872, 1.82e9, 1.6e8, 6.1e8),
    "vgg16": (138_357_544, 92.7e9, 3.1e8, 9.9e8),
    "efficientnet_b0": (5_288_548, 2.4e9, 2.0e8, 8.0e8),
    "vit_b_16": (86_567_656, 105e9, 4.2e8, 1.9e9),
}


def configurations() -> list[tuple[Machine, str, int, str]]:
    return [
        (machine, model, batch, precision)
        for machine in MACHINES
        for model in MODELS
        for batch in BATCHES
        for precision in PRECISIONS
    ]


def make(output: Path, number: int) -> Path:
    """Seal the bundle `number` and return its folder. Configurations take turns: more bundles are more repeats."""
    every = configurations()
    machine, model, batch, precision = every[number % len(every)]
    draw = random.Random(number)
    record = _record(number, draw, machine, model, batch, precision)
    step_s = record.pop("_step_s")
    folder = output / record["run_id"]
    folder.mkdir(parents=True)
    (folder / bundle.STEPS).write_text(synthetic.steps_csv(step_s, batch, draw))
    (folder / bundle.TELEMETRY).write_text(synthetic.telemetry_csv(20, draw))
    (folder / bundle.LOG).write_text("measured   100/100 steps\n")
    bundle.write_document(folder, record)
    bundle.seal(folder)
    return folder


def _record(
    number: int, draw: random.Random, machine: Machine, model: str, batch: int, precision: str
) -> dict[str, Any]:
    parameters, flop_per_image, low, high = MODELS[model]
    size = 0.55 if precision == "amp" else 1.0
    flop, moved_low, moved_high = (value * batch for value in (flop_per_image, low * size, high * size))
    ideal_s = max(flop / machine.flop_per_s[precision], 0.8 * moved_high / machine.bytes_per_s) + machine.floor_s
    typical_s = ideal_s * draw.gauss(1.0, machine.spread)
    step_s = [draw.gauss(typical_s, 0.01 * typical_s) for _ in range(synthetic.WARMUP + synthetic.MEASURED)]
    record = synthetic.make_record(number, step_s[synthetic.WARMUP :])
    measured = step_s[synthetic.WARMUP :]
    ceiling = machine.flop_per_s[precision] * 1.35
    changes: dict[str, Any] = {
        "run_id": f"{record['run_id'].split('-')[0]}-{machine.place}-{model}-b{batch}-{precision}-{number:06x}",
        "spec__model": model,
        "spec__batch_size": batch,
        "spec__precision": precision,
        "environment__place": machine.place,
        "environment__backend": machine.backend,
        "environment__device__name": machine.device,
        "environment__device__compute_capability": machine.compute_capability,
        "environment__device__memory_total_bytes": machine.memory_bytes,
        "environment__cloud__zone": machine.place.split("-", 2)[-1],
        "timing__images": batch * len(measured),
        "timing__images_per_s": batch * len(measured) / record["timing"]["measured_s"],
        "complexity__parameters": parameters,
        "complexity__forward_mac_per_image": round(flop_per_image / 6),
        "complexity__forward_flop_per_image": round(flop_per_image / 3),
        "complexity__train_flop_per_step": round(flop),
        "complexity__train_flop_per_image": round(flop_per_image),
        "complexity__flop_by_op": {"convolution": round(flop / 3), "convolution_backward": round(flop / 1.5)},
        "complexity__bytes_per_step_lower": round(moved_low),
        "complexity__bytes_per_step_upper": round(moved_high),
        "complexity__theoretical_step_s": flop / ceiling,
        "ceilings__flop_per_s": {precision: synthetic.rate(ceiling, {"sm_clock_mhz": 1590})},
        "ceilings__bytes_per_s": {name: synthetic.rate(machine.bytes_per_s, None) for name in ("copy", "triad")},
        "ceilings__device": machine.device,
        "cost": None if machine.usd_per_h is None else {"usd_per_h": machine.usd_per_h},
    }
    if machine.backend != "gcp":
        changes["environment__cloud"] = None
        del changes["environment__cloud__zone"]
    # The largest batches do not fit everywhere: a result like any other.
    needed_bytes = parameters * 16 + batch * high / 8
    for where, value in changes.items():
        synthetic.change(record, where, value)
    record = synthetic.judged(record)
    record["memory"] = {"peak_allocated_bytes": needed_bytes, "peak_reserved_bytes": needed_bytes * 1.08}
    record["_step_s"] = step_s
    if needed_bytes > machine.memory_bytes:
        record |= {
            "status": "out_of_memory",
            "error": "CUDA out of memory",
            "timing": {"started_at": record["timing"]["started_at"]},
            "bound": None,
            "_step_s": step_s[: synthetic.WARMUP],
        }
    return record


def measure(count: int, output: Path) -> bool:
    results, page = output / "results", output / "report.html"
    synthetic.make_many(make, results, range(count))
    command = [sys.executable, "-m", "analysis", "report", str(results), "-o", str(page)]
    found = []
    for name in ("first", "again"):
        begin_s = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        found.append((name, time.perf_counter() - begin_s))
    size = page.stat().st_size
    times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in found)
    print(
        f"{count} runs: {times}; page {size / 1e6:.1f} MB (at most {MOST_S:g} s and {MOST_BYTES / 1e6:g} MB)",
        flush=True,
    )
    return max(seconds for _, seconds in found) <= MOST_S and size <= MOST_BYTES


def main() -> int:
    arguments = sys.argv[1:]
    keep = Path(arguments[arguments.index("--keep") + 1]) if "--keep" in arguments else None
    counts = [int(word) for word in arguments if word.isdigit()] or [100, 1000]
    with tempfile.TemporaryDirectory() as name:
        good = [measure(count, (keep or Path(name)) / str(count)) for count in counts]
        return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
