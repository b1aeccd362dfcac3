"""What a launch is asked for beside the run. Light: the command line shows the defaults."""

from dataclasses import dataclass
from typing import Literal

VmDriver = Literal["preinstalled", "install"]

DEFAULT_LIMIT_S = 3600
# The VM's image, ours (PyTorch with CUDA is 6 GB, and twice that while it is unpacked) and a data set.
DEFAULT_DISK_GB = 100


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `launch gcp` is asked for beside the run. `zones` are those that were named, in their order.

    Of the Shielded VM options None is the cloud's own default.
    """

    gpu: str
    zones: tuple[str, ...] = ()
    spot: bool = False
    machine_type: str | None = None
    gpu_count: int = 1
    max_run_time_s: int = DEFAULT_LIMIT_S
    max_cost_usd: float | None = None
    usd_per_h: float | None = None
    external_ip: bool = True
    fallback: bool = True
    disk_gb: int = DEFAULT_DISK_GB
    rerun_preempted: int = 0
    vm_image: str | None = None
    vm_driver: VmDriver | None = None
    secure_boot: bool | None = None
    vtpm: bool | None = None
    integrity_monitoring: bool | None = None
