"""Options of the command `launch gcp`, besides those of the run, and the settings of Google Cloud.

Each setting comes from an option, a variable `ROOFLAUNCH_<NAME>`, a key of the `[gcp]` table of rooflaunch.toml, or
the project's name. The project itself may come from the user's application-default credentials. Imports little, because
`launch --help` loads this module.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.backends.rented_options import Completions, MachineOptions, RentedOptions, SettingSources
from launcher.values import Command, choice
from workload.contract.errors import UsageError
from workload.contract.invocation import examples
from workload.contract.spec import ENVIRONMENT_PREFIX

EXAMPLES = examples("launch gcp --gpu t4 --dry-run", "launch gcp --gpu t4 --max-cost 0.50 -- train.py --lr 0.1")
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
class VmOptions(MachineOptions):
    """Options of a VM of Google Cloud, which `launch gcp` and `launch batch` share."""

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


@dataclass(frozen=True, kw_only=True)
class Options(VmOptions, RentedOptions):
    """Options of `launch gcp` besides those of the run."""


TABLE = "gcp"
# Placeholder for a project in a plan that is only shown: no project id has capitals.
ANY_PROJECT = "PROJECT"
CREDENTIALS = "application-default credentials"
DEFAULT = "default"
RESOURCE_NAME = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
PROJECT = r"[a-z][-a-z0-9]{4,28}[a-z0-9]"
# Patterns of Google's names, each with a description and an example. They keep quotes, blanks, line breaks and `$` out
# of requests.
RULES = {
    "project": (PROJECT, "a project id of 6 to 30 lower-case letters, digits and -", "my-project"),
    "bucket": (
        r"[a-z0-9][-._a-z0-9]{1,220}[a-z0-9]",
        "a bucket's name of lower-case letters, digits, -, _ and . without a folder",
        "my-project-rooflaunch",
    ),
    "repository": (
        r"[a-z0-9][-.a-z0-9]{0,252}(?::[0-9]{1,5})?(?:/[a-z0-9][-._a-z0-9]{0,127}){1,8}",
        "HOST/PATH without a tag",
        "us-central1-docker.pkg.dev/my-project/rooflaunch/trainer",
    ),
    "service_account": (
        rf"(?:[a-z][-a-z0-9]{{4,28}}[a-z0-9]@{PROJECT}\.iam|[0-9]{{1,20}}-compute@developer)\.gserviceaccount\.com",
        "the e-mail address of a service account",
        "rooflaunch-vm@my-project.iam.gserviceaccount.com",
    ),
    "network": (
        rf"(?:projects/{PROJECT}/global/networks/)?{RESOURCE_NAME}",
        "a network's name, or projects/PROJECT/global/networks/NAME",
        "rooflaunch",
    ),
    "subnetwork": (
        rf"(?:(?:projects/{PROJECT}/)?regions/[a-z]+-[a-z]+[0-9]{{1,2}}/subnetworks/)?{RESOURCE_NAME}",
        "a subnetwork's name, or regions/REGION/subnetworks/NAME",
        "regions/us-central1/subnetworks/rooflaunch",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Checked settings. `network`: None means the project's network `default`."""

    project: str
    bucket: str
    repository: str
    service_account: str
    network: str | None = None
    subnetwork: str | None = None


SOURCES = SettingSources(table=TABLE, prefix=ENVIRONMENT_PREFIX, rules=RULES, address="gs://")


def resolve_settings(
    options: Mapping[str, str | None],
    environment: Mapping[str, str],
    config_folder: Path | None,
    *,
    default_project: Callable[[], str | None],
) -> tuple[Settings, Mapping[str, str]]:
    """Settings, and the origin of each by name. `default_project` is called only if no other source names a project.

    Raises `UsageError` for a value that breaks its rule, an unknown key of the table, and a missing project.
    """
    values, origins = SOURCES.given(options, environment, config_folder)
    if "project" not in values:
        hint = "--project PROJECT, or gcloud auth application-default login"
        if not (found := default_project()):
            raise UsageError("no project is set, and the credentials name none", hint=hint)
        if found != ANY_PROJECT:
            SOURCES.checked("project", found, where=f"{CREDENTIALS}: ", hint=hint)
        values["project"], origins["project"] = found, CREDENTIALS
    project = values["project"]
    defaults = {
        "bucket": f"{project}-rooflaunch",
        "repository": f"us-central1-docker.pkg.dev/{project}/rooflaunch/trainer",
        "service_account": f"rooflaunch-vm@{project}.iam.gserviceaccount.com",
    }
    for name, value in defaults.items():
        values.setdefault(name, value)
        origins.setdefault(name, DEFAULT)
    return Settings(**values), origins
