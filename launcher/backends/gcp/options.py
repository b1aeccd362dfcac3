"""Options of the command `launch gcp`, besides those of the run. Light: `launch --help` loads it."""

from dataclasses import dataclass
from typing import Any, Literal

from launcher.choice import Command, choice
from launcher.sizes import limit_s

VmDriver = Literal["preinstalled", "install"]

DEFAULT_LIMIT_S = 3600
# Room for the VM's image, for ours (PyTorch with CUDA: 6 GB, twice that while it is unpacked) and a data set.
DEFAULT_DISK_GB = 100
# \b keeps the lines as they are.
EXAMPLES = """\b
Examples:
  launch gcp --gpu t4 --dry-run
  launch gcp --gpu t4 --zone us-central1-a --precision amp --profile ncu
  launch gcp --gpu l4 --spot --rerun-preempted 2 --repeats 3 --max-cost 1
  launch gcp --gpu v100 --max-run-time 90m --detach
  launch gcp --gpu t4 --image HOST/PROJECT/NAME@sha256:DIGEST --no-external-ip
  launch gcp --gpu t4 --max-cost 0.50 -- train.py --lr 0.1
"""
COMMAND = Command(
    help="""Train on a VM of Google Cloud, and bring the bundles home.

    The VM deletes itself at its end, and the cloud deletes it at its time limit, whatever becomes of this command.
    """,
    examples=EXAMPLES,
    noun="VM",
    sent_to="Compute Engine",
    is_fresh=True,
)


def gpu_names() -> list[str]:
    """Names of all GPUs that a VM can have."""
    from launcher.backends.gcp import gpus  # noqa: PLC0415 - for those who complete a line

    return list(gpus.load())


def zone_names(ctx: Any) -> list[str]:
    """Zones of the GPU on the command line so far, else of every GPU."""
    from launcher.backends.gcp import gpus  # noqa: PLC0415 - for those who complete a line

    known = gpus.load()
    row = known.get(str(ctx.params.get("gpu")))
    return sorted({zone for gpu in ([row] if row else known.values()) for zone in gpu.zones})


@dataclass(frozen=True, kw_only=True)
class Where:
    """Project and bucket to use."""

    project: str | None = choice("the Google Cloud project (that of your credentials)", default=None, metavar="P")
    bucket: str | None = choice("where launches and bundles lie (PROJECT-rooflaunch)", default=None, metavar="B")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `launch gcp` besides those of the run. `zones`: those named by the user, in their order.

    None in a Shielded VM option means the cloud's own default.
    """

    gpu: str = choice("which GPU the VM has", metavar="t4|l4|v100|a100|…", autocompletion=gpu_names)
    zones: tuple[str, ...] = choice(
        "try this zone first; again for more (every zone with the GPU, known prices first)",
        default=(),
        flag="--zone",
        metavar="Z",
        autocompletion=zone_names,
    )
    fallback: bool = choice("other zones too if the named ones have none free", default=True)
    spot: bool = choice("cheaper, and may be taken back at any time", default=False)
    rerun_preempted: int = choice(
        "start a spot VM that was taken back again, N times at most", default=0, metavar="N", min=0, max=20
    )
    machine_type: str | None = choice("instead of the GPU's usual one", default=None, metavar="M")
    gpu_count: int = choice("GPUs of the VM; a run uses one", default=1, metavar="N", min=1)
    max_run_time_s: int = choice(
        "when the cloud deletes the VM, as 60m or 1h30m",
        default=DEFAULT_LIMIT_S,
        flag="--max-run-time",
        metavar="TIME",
        parse=limit_s,
        typed_default="60m",
    )
    max_cost_usd: float | None = choice(
        "lower the time limit to what this buys", default=None, flag="--max-cost", metavar="USD"
    )
    usd_per_h: float | None = choice("your own price per hour of VM, disk and address", default=None, metavar="USD")
    disk_gb: int = choice("size of the VM's disk", default=DEFAULT_DISK_GB, metavar="GB")
    external_ip: bool = choice("without one the network needs Cloud NAT", default=True)
    image: str | None = choice(
        "run this image, by digest, instead of the one for this code", default=None, metavar="REF"
    )
    vm_image: str | None = choice(
        "what the VM boots, Ubuntu or Debian; or an image's or a family's path", default=None, metavar="PROJECT/FAMILY"
    )
    vm_driver: VmDriver | None = choice(
        "whether --vm-image has a driver (it has, but for Ubuntu's and Debian's own)",
        default=None,
        metavar="preinstalled|install",
    )
    secure_boot: bool | None = choice("boot signed code alone; the driver too", default=None, show_default="off")
    vtpm: bool | None = choice("a virtual TPM", default=None, show_default="on")
    integrity_monitoring: bool | None = choice(
        "compare each boot with the first one; needs the vTPM", default=None, show_default="on"
    )
    repository: str | None = choice("where the image is pushed to", default=None, metavar="HOST/NAME")
    service_account: str | None = choice("what the VM acts as", default=None, metavar="EMAIL")
    network: str | None = choice("the VM's network (default)", default=None, metavar="NAME")
    subnetwork: str | None = choice("the VM's subnetwork", default=None, metavar="NAME")

    @property
    def settings(self) -> dict[str, str | None]:
        """Settings that environment and configuration may have too."""
        names = ("repository", "service_account", "network", "subnetwork")
        return {name: getattr(self, name) for name in names}
