"""Options of the command `launch gcp`, besides those of the run. Imports little, because `launch --help` loads it."""

from dataclasses import dataclass

from launcher.backends.rented_options import Completions, RentedOptions
from launcher.choice import Command, choice

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
    """Options of `launch gcp` besides those of the run. `zones`: the zones named by the user, in order."""

    gpu: str = choice("the GPU of the VM", metavar="t4|l4|v100|a100|…", autocompletion=COMPLETIONS.gpu_names)
    zones: tuple[str, ...] = choice(
        "try this zone first; repeatable (all, those with known prices first)",
        default=(),
        flag="--zone",
        metavar="Z",
        autocompletion=COMPLETIONS.zone_names,
    )
    repository: str | None = choice("repository for the image", default=None, metavar="HOST/NAME")
    service_account: str | None = choice("service account of the VM", default=None, metavar="EMAIL")
    network: str | None = choice("the VM's network (default)", default=None, metavar="NAME")
    subnetwork: str | None = choice("the VM's subnetwork", default=None, metavar="NAME")
