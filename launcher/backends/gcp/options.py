"""Options of the command `launch gcp`, besides those of the run. Imports little, because `launch --help` loads it."""

from dataclasses import dataclass
from typing import Literal

from launcher.backends.rented_options import Completions, RentedOptions
from launcher.choice import Command, choice

VmDriver = Literal["preinstalled", "install"]

# \b: the help shows these lines without wrapping them.
EXAMPLES = """\b
Examples:
  launch gcp --gpu t4 --dry-run
  launch gcp --gpu t4 --max-cost 0.50 -- train.py --lr 0.1
"""
COMMAND = Command(
    help="""Train on a VM of Google Cloud, and collect the bundles.

    The VM deletes itself at the end, and the cloud deletes it at its time limit in any case.
    """,
    examples=EXAMPLES,
    first=("gpu", "max_cost_usd"),
    noun="VM",
    sent_to="Compute Engine",
    is_fresh=True,
)
COMPLETIONS = Completions(gpus="launcher.backends.gcp.gpus")


@dataclass(frozen=True, kw_only=True)
class Where:
    """Project and bucket to use."""

    project: str | None = choice(
        "the Google Cloud project (default: that of your credentials)", default=None, metavar="P"
    )
    bucket: str | None = choice("bucket for launches and bundles (PROJECT-rooflaunch)", default=None, metavar="B")


@dataclass(frozen=True, kw_only=True)
class Options(RentedOptions):
    """Options of `launch gcp` besides those of the run. `zones`: the zones named by the user, in order.

    None in a Shielded VM option means the cloud's own default.
    """

    gpu: str = choice("the GPU of the VM", metavar="t4|l4|v100|a100|…", autocompletion=COMPLETIONS.gpu_names)
    zones: tuple[str, ...] = choice(
        "try this zone first; repeatable (all, those with known prices first)",
        default=(),
        flag="--zone",
        metavar="Z",
        autocompletion=COMPLETIONS.zone_names,
    )
    vm_image: str | None = choice(
        "image family of Ubuntu or Debian, or an image's path, that boots", default=None, metavar="PROJECT/FAMILY"
    )
    vm_driver: VmDriver | None = choice(
        "preinstalled or install: the driver of --vm-image", default=None, metavar="KIND"
    )
    secure_boot: bool | None = choice("boot only signed code, the driver included", default=None, show_default="off")
    vtpm: bool | None = choice("a virtual TPM", default=None, show_default="on")
    integrity_monitoring: bool | None = choice(
        "compare each boot with the first one; needs the vTPM", default=None, show_default="on"
    )
    repository: str | None = choice("repository for the image", default=None, metavar="HOST/NAME")
    service_account: str | None = choice("service account of the VM", default=None, metavar="EMAIL")
    network: str | None = choice("the VM's network (default)", default=None, metavar="NAME")
    subnetwork: str | None = choice("the VM's subnetwork", default=None, metavar="NAME")
