"""Options of the command `launch aws`, besides those of the run, and the settings of AWS.

Each setting comes from an option, a variable `ROOFLAUNCH_AWS_<NAME>`, a key of the `[aws]` table of rooflaunch.toml, or
the account's number and the region. The region may also come from AWS's own variables and configuration file. Imports
little, because `launch --help` loads this module.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.backends.rented_options import Completions, RentedOptions, SettingSources
from launcher.values import Command, choice
from workload.contract.errors import UsageError
from workload.contract.invocation import examples
from workload.contract.spec import ENVIRONMENT_PREFIX

EXAMPLES = examples("launch aws --gpu t4 --dry-run", "launch aws --gpu t4 --max-cost 0.50 -- train.py --lr 0.1")
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


# Placeholder for the account's number in a plan that is only shown.
ANY_ACCOUNT = "account"
DEFAULT = "default"
CONFIGURATION = "AWS configuration"
# Region of a user who has named none anywhere; the only one with known prices for all GPUs.
USUAL_REGION = "us-east-1"
ROLE = r"[\w+=,.@-]{1,64}"
# Patterns of AWS's names, each with a description and an example. They keep quotes, blanks and line breaks out.
RULES = {
    "region": (r"[a-z]{2}(?:-[a-z]+){1,2}-[0-9]", "a region's name such as us-east-1", "us-east-1"),
    "bucket": (
        r"[a-z0-9][-.a-z0-9]{1,61}[a-z0-9]",
        "a bucket's name of lower-case letters, digits, - and . without a folder",
        "my-rooflaunch",
    ),
    "repository": (
        r"[a-z0-9][-.a-z0-9]{0,252}(?::[0-9]{1,5})?(?:/[a-z0-9][-._a-z0-9]{0,127}){1,8}",
        "HOST/PATH without a tag",
        "123456789012.dkr.ecr.us-east-1.amazonaws.com/rooflaunch/trainer",
    ),
    "instance_profile": (ROLE, "the name of an instance profile", "rooflaunch-vm"),
    "schedule_role": (ROLE, "the name of a role", "rooflaunch-schedule"),
    "security_group": (r"sg-[0-9a-f]{8,17}|[A-Za-z0-9][\w.:/()#,@+=&;{}!$*-]{0,254}", "a security group", "rooflaunch"),
    "subnet": (r"subnet-[0-9a-f]{8,17}", "a subnet's id", "subnet-0123456789abcdef0"),
    "ami_parameter": (
        r"/[\w./-]{1,500}",
        "the name of an SSM parameter with an AMI's id",
        "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
    ),
}
SOURCES = SettingSources(table="aws", prefix=f"{ENVIRONMENT_PREFIX}AWS_", rules=RULES, address="s3://")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Checked settings. `subnet` None: one of the default VPC; `ami_parameter` None: AWS's own.

    `account`: number of the account, which the schedule role's ARN needs.
    """

    region: str
    account: str
    bucket: str
    repository: str
    instance_profile: str
    schedule_role: str
    security_group: str
    subnet: str | None = None
    ami_parameter: str | None = None

    @property
    def schedule_role_arn(self) -> str:
        """ARN of the role with which EventBridge Scheduler ends a VM."""
        return f"arn:aws:iam::{self.account}:role/{self.schedule_role}"


def resolve_settings(
    options: Mapping[str, str | None],
    environment: Mapping[str, str],
    config_folder: Path | None,
    *,
    account: Callable[[str], str],
) -> tuple[Settings, Mapping[str, str]]:
    """Settings, and the origin of each by name. `account`: asks a region for the number of the credentials' account.

    Raises `UsageError` for a value that breaks its rule and an unknown key of the table.
    """
    values, origins = SOURCES.given(options, environment, config_folder)
    if "region" not in values:
        region = configured_region(environment)
        where = f"{CONFIGURATION}: "
        hint = f"--region {USUAL_REGION}"
        values["region"] = SOURCES.checked("region", region or USUAL_REGION, where=where, hint=hint)
        origins["region"] = CONFIGURATION if region else DEFAULT
    number = account(values["region"])
    for name, value in _defaults(number, values["region"]).items():
        values.setdefault(name, value)
        origins.setdefault(name, DEFAULT)
    return Settings(account=number, **values), origins


def configured_region(environment: Mapping[str, str]) -> str | None:
    """Region of AWS's own variables, else of the profile in AWS's configuration file, which boto3 would use."""
    import configparser  # noqa: PLC0415 - milliseconds that a help text has no use for

    if region := environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION"):
        return region
    profile = environment.get("AWS_DEFAULT_PROFILE") or environment.get("AWS_PROFILE") or "default"
    path = environment.get("AWS_CONFIG_FILE") or "~/.aws/config"
    if path.startswith("~/"):
        path = (environment.get("HOME") or environment.get("USERPROFILE") or "") + path[1:]
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, ValueError) as error:
        raise UsageError(f"{path}: not readable: {error}", hint="--region us-east-1, or aws configure") from error
    section = "default" if profile == "default" else f"profile {profile}"
    return parser.get(section, "region", fallback=None)


def _defaults(account: str, region: str) -> dict[str, str]:
    return {
        "bucket": f"rooflaunch-{account}-{region}",
        "repository": f"{account}.dkr.ecr.{region}.amazonaws.com/rooflaunch/trainer",
        "instance_profile": "rooflaunch-vm",
        "schedule_role": "rooflaunch-schedule",
        "security_group": "rooflaunch",
    }
