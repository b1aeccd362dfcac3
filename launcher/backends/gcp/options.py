"""What a launch is asked for beside the run. Light: the command line shows the defaults."""

from dataclasses import dataclass
from typing import Literal

VmDriver = Literal["preinstalled", "install"]

DEFAULT_LIMIT_S = 3600
# The VM's image, ours (PyTorch with CUDA is 6 GB, and twice that while it is unpacked) and a data set.
DEFAULT_DISK_GB = 100


@dataclass(frozen=True, kw_only=True)
class Where:
    """Which project and bucket is meant."""

    project: str | None = None
    bucket: str | None = None


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
    image: str | None = None
    repository: str | None = None
    service_account: str | None = None
    network: str | None = None
    subnetwork: str | None = None

    @property
    def settings(self) -> dict[str, str | None]:
        """Those that environment and configuration may have too."""
        names = ("repository", "service_account", "network", "subnetwork")
        return {name: getattr(self, name) for name in names}
