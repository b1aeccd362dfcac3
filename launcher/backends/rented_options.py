"""Options that `launch gcp` and `launch aws` share. Imports little, because `launch --help` loads it."""

import importlib
from dataclasses import dataclass
from typing import Any

from launcher.choice import choice
from launcher.sizes import limit_s

DEFAULT_LIMIT_S = 3600
# Room for the machine's image, the container image (PyTorch with CUDA: 6 GB, 12 GB while it is unpacked), a data set.
DEFAULT_DISK_GB = 100


@dataclass(frozen=True, kw_only=True)
class Completions:
    """Words that complete an unfinished command line of a cloud. `gpus`: name of the module with the cloud's GPUs."""

    gpus: str

    def gpu_names(self) -> list[str]:
        """Names of all GPUs that a VM can have."""
        return list(importlib.import_module(self.gpus).load())

    def zone_names(self, ctx: Any) -> list[str]:
        """Zones with the GPU that the command line names; without a valid GPU, the zones of all GPUs."""
        known = importlib.import_module(self.gpus).load()
        row = known.get(str(ctx.params.get("gpu")))
        return sorted({zone for gpu in ([row] if row else known.values()) for zone in gpu.zones})


@dataclass(frozen=True, kw_only=True)
class RentedOptions:
    """Options besides those of the run; a cloud's own options follow. `zones`: those named by the user, in order."""

    gpu: str = choice("the GPU of the VM")
    zones: tuple[str, ...] = choice("try this zone first; repeatable", default=(), flag="--zone", metavar="Z")
    fallback: bool = choice("try other zones too if the named ones have no free GPU", default=True)
    spot: bool = choice("cheaper, but may be taken away at any time", default=False)
    rerun_preempted: int = choice(
        "start again if the spot VM is taken away, at most N times", default=0, metavar="N", min=0, max=20
    )
    machine_type: str | None = choice("machine type instead of the GPU's usual one", default=None, metavar="M")
    gpu_count: int = choice("least number of GPUs of the VM (as many as --devices)", default=1, metavar="N", min=1)
    max_run_time_s: int = choice(
        "delete the VM after this time; --max-time limits a sweep",
        default=DEFAULT_LIMIT_S,
        flag="--max-run-time",
        metavar="TIME",
        parse=limit_s,
        typed_default="60m",
    )
    max_cost_usd: float | None = choice(
        "cost limit of the launch: its time limit is lowered to keep it", default=None, flag="--max-cost", metavar="USD"
    )
    usd_per_h: float | None = choice("your own price per hour of VM, disk and address", default=None, metavar="USD")
    disk_gb: int = choice("size of the VM's disk", default=DEFAULT_DISK_GB, metavar="GB")
    external_ip: bool = choice("a public address; without it the network needs Cloud NAT", default=True)
    image: str | None = choice(
        "run this image, by digest, instead of the one for this code", default=None, metavar="REF"
    )
