"""Small results folders for the report: a few models, batches, precisions and environments, with repeats."""

from pathlib import Path
from typing import Any

from benchmarks.synthetic_bundles import make

# Throughput follows from `images` over `measured_s`; the steps themselves stay those of the maker.
PLACES = {
    "gcp-t4-us-central1-a": ("Tesla T4", "7.5", 1.0, 0.5),
    "gcp-l4-us-central1-a": ("NVIDIA L4", "8.9", 2.0, 0.7),
}
HOSTILE = '</script><img src=x onerror="document.title=1">\'"`|[a](javascript:alert(1))\u202e\x1b[31m{{7*7}}'


def matrix(folder: Path, *, repeats: int = 3) -> Path:
    """Two places x two models x batches of 16, 32 and 64, as fast as their place, larger batches a little faster."""
    number = 0
    for place, (device, capability, speed, usd_per_h) in PLACES.items():
        for model, flop in (("resnet18", 1e10), ("mobilenet_v2", 2e9)):
            for batch in (16, 32, 64):
                for repeat in range(repeats):
                    number += 1
                    rate = 1e12 / flop * speed * (1 + batch / 64) * (1 + 0.01 * repeat)
                    make(folder, number, **_changes(place, device, capability, usd_per_h, model, flop, batch, rate))
    return folder


def _changes(
    place: str, device: str, capability: str, usd_per_h: float, model: str, flop: float, batch: int, rate: float
) -> dict[str, Any]:
    step_s = batch / rate
    return {
        "spec__model": model,
        "spec__batch_size": batch,
        "environment__place": place,
        "environment__device__name": device,
        "environment__device__compute_capability": capability,
        "timing__images": batch * 100,
        "timing__measured_s": step_s * 100,
        "timing__step_s": {"n": 100, "median": step_s, "p5": 0.99 * step_s, "p95": 1.02 * step_s},
        "complexity__train_flop_per_step": flop * batch,
        "complexity__train_flop_per_image": flop,
        "complexity__bytes_per_step_lower": 1e8 * batch,
        "complexity__bytes_per_step_upper": 4e8 * batch,
        "cost": {"usd_per_h": usd_per_h},
    }


def hostile(folder: Path) -> Path:
    """Two runs in which every text that a report may show tries to be markup, a path or a command."""
    for number, batch in ((1, 16), (2, 32)):
        make(
            folder,
            number,
            spec__model=HOSTILE,
            spec__batch_size=batch,
            spec__precision=HOSTILE,
            spec__dataset=HOSTILE,
            environment__place=f"../../{HOSTILE}",
            environment__backend=HOSTILE,
            environment__runtime=HOSTILE,
            environment__host={
                "hostname": HOSTILE,
                "os": HOSTILE,
                "kernel": HOSTILE,
                "cpu_model": HOSTILE,
                "hypervisor": HOSTILE,
                "dataset_storage": {"kind": HOSTILE},
            },
            environment__device={"type": "cuda", "name": HOSTILE, "driver_version": HOSTILE},
            environment__software={
                "torch": HOSTILE,
                "python": HOSTILE,
                "commit": HOSTILE,
                "cuda_build": HOSTILE,
                "packages": [HOSTILE, str(batch)],
            },
            environment__cloud={"zone": HOSTILE, "machine_type": HOSTILE},
            environment__container={"image_digest": HOSTILE},
            complexity__flop_by_op={HOSTILE: 1},
            bound__bound=HOSTILE,
            bound__why=HOSTILE,
            notes=[HOSTILE],
        )
    broken = make(folder, 3, status="out_of_memory", error=HOSTILE, spec__model=HOSTILE)
    assert broken.is_dir()
    return folder
