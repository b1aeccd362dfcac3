"""Options of the command `launch aws`, besides those of the run. Imports little, because `launch --help` loads it."""

from dataclasses import dataclass

from launcher.backends.rented_options import Completions, RentedOptions
from launcher.choice import Command, choice

# \b: the help shows these lines without wrapping them.
EXAMPLES = """\b
Examples:
  launch aws --gpu t4 --dry-run
  launch aws --gpu t4 --max-cost 0.50 -- train.py --lr 0.1
"""
COMMAND = Command(
    help="""Train on a VM of EC2, and collect the bundles.

    The VM ends itself when the run is over; a timer on it and a schedule of EventBridge end it at its time limit.
    """,
    examples=EXAMPLES,
    first=("gpu", "max_cost_usd"),
    noun="VM",
    sent_to="EC2",
    is_fresh=True,
)
COMPLETIONS = Completions(gpus="launcher.backends.aws.gpus")


@dataclass(frozen=True, kw_only=True)
class Where:
    """Region and bucket to use; all VMs of a launch are in one region."""

    region: str | None = choice("the AWS region (default: that of your credentials)", default=None, metavar="REGION")
    bucket: str | None = choice(
        "bucket for launches and bundles (rooflaunch-ACCOUNT-REGION)", default=None, metavar="B"
    )


@dataclass(frozen=True, kw_only=True)
class Options(RentedOptions):
    """Options of `launch aws` besides those of the run. `zones`: ids or names of zones, in order."""

    gpu: str = choice("the GPU of the VM", metavar="t4|l4|a10g|a100|…", autocompletion=COMPLETIONS.gpu_names)
    zones: tuple[str, ...] = choice(
        "try this zone first, by id or by name; repeatable (all of the region)",
        default=(),
        flag="--zone",
        metavar="Z",
        autocompletion=COMPLETIONS.zone_names,
    )
    external_ip: bool = choice("a public address; without it the subnet needs NAT or endpoints", default=True)
    ami: str | None = choice(
        "AMI that the VM boots (the newest Deep Learning Base AMI)", default=None, metavar="ami-ID"
    )
    repository: str | None = choice("repository for the image", default=None, metavar="HOST/NAME")
    instance_profile: str | None = choice("instance profile of the VM (rooflaunch-vm)", default=None, metavar="NAME")
    schedule_role: str | None = choice(
        "role that ends the VM at its limit (rooflaunch-schedule)", default=None, metavar="NAME"
    )
    security_group: str | None = choice("security group of the VM (rooflaunch)", default=None, metavar="NAME|sg-ID")
    subnet: str | None = choice("subnet of the VM, in one zone (the zone's own)", default=None, metavar="subnet-ID")
