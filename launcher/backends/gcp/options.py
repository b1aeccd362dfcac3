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
  launch gcp --gpu t4 --zone us-central1-a --precision amp --profile ncu
  launch gcp --gpu l4 --spot --rerun-preempted 2 --repeats 3 --max-cost 1
  launch gcp --gpu v100 --max-run-time 90m --detach
  launch gcp --gpu t4 --image HOST/PROJECT/NAME@sha256:DIGEST --no-external-ip
  launch gcp --gpu t4 --max-cost 0.50 -- train.py --lr 0.1
"""
COMMAND = Command(
    help="""Train on a VM of Google Cloud, and collect the bundles.

    The VM deletes itself at the end, and the cloud deletes it at its time limit, even if this command is gone.
    """,
    examples=EXAMPLES,
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
        "try this zone first; repeatable (default: every zone with the GPU, known prices first)",
        default=(),
        flag="--zone",
        metavar="Z",
        autocompletion=COMPLETIONS.zone_names,
    )
    vm_image: str | None = choice(
        "image family that the VM boots, Ubuntu or Debian; or the path of an image or family",
        default=None,
        metavar="PROJECT/FAMILY",
    )
    vm_driver: VmDriver | None = choice(
        "whether --vm-image contains a driver (default: yes, except Ubuntu's and Debian's own images)",
        default=None,
        metavar="preinstalled|install",
    )
    secure_boot: bool | None = choice("boot only signed code, the driver included", default=None, show_default="off")
    vtpm: bool | None = choice("a virtual TPM", default=None, show_default="on")
    integrity_monitoring: bool | None = choice(
        "compare each boot with the first boot; needs the vTPM", default=None, show_default="on"
    )
    repository: str | None = choice("repository for the image", default=None, metavar="HOST/NAME")
    service_account: str | None = choice("service account of the VM", default=None, metavar="EMAIL")
    network: str | None = choice("the VM's network (default)", default=None, metavar="NAME")
    subnetwork: str | None = choice("the VM's subnetwork", default=None, metavar="NAME")
