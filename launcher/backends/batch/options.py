"""Options of the command `launch batch`, besides those of the run. Imports little, because `launch --help` loads it."""

from dataclasses import dataclass, fields

from launcher.backends.gcp import options as gcp
from launcher.backends.gcp.options import COMPLETIONS, VmOptions
from launcher.values import Command, choice, limit_s
from workload.contract.invocation import examples

DEFAULT_QUEUE_S = 1800
# https://cloud.google.com/batch/docs/reference/rest/v1/projects.locations.jobs (TaskSpec.maxRetryCount)
MOST_RETRIES = 10
EXAMPLES = examples(
    "launch batch --gpu t4 --region us-central1 --dry-run",
    "launch batch --gpu t4 --region us-central1 --queue-time 2h --detach",
)
COMMAND = Command(
    help="""Train on a VM of Google Cloud Batch, and collect the bundles.

    Batch waits for a free GPU, ends the VM, and starts a task again if its spot VM was taken away. Its logs are in
    the bucket.
    """,
    examples=EXAMPLES,
    first=("region", "gpu"),
    noun="task",
    sent_to="Cloud Batch",
    is_fresh=True,
)


@dataclass(frozen=True, kw_only=True)
class Where:
    """Region, project and bucket to use; a job of Batch belongs to one region."""

    region: str = choice("the region of Batch and of its VMs", metavar="REGION")
    project: str | None = choice(
        "the Google Cloud project (default: that of your credentials)", default=None, metavar="P"
    )
    bucket: str | None = choice("bucket for launches and bundles (PROJECT-rooflaunch)", default=None, metavar="B")


@dataclass(frozen=True, kw_only=True)
class Options(VmOptions):
    """Options of `launch batch` besides those of the run. `zones`: allowed zones of the region; () allows all."""

    zones: tuple[str, ...] = choice(
        "allow this zone of the region; repeatable (all with the GPU)",
        default=(),
        flag="--zone",
        metavar="Z",
        autocompletion=COMPLETIONS.zone_names,
    )
    rerun_preempted: int = choice(
        "start again if the spot VM is taken away, at most N times", default=0, metavar="N", min=0, max=MOST_RETRIES
    )
    queue_time_s: int = choice(
        "cancel the job if no GPU is free within this time",
        default=DEFAULT_QUEUE_S,
        flag="--queue-time",
        metavar="TIME",
        parse=limit_s,
        typed_default="30m",
    )
    external_ip: bool = choice("a public address; without it the subnetwork needs Google Access", default=False)

    def for_vm(self, zones: tuple[str, ...]) -> gcp.Options:
        """Options for `launch gcp` with the same values, restricted to `zones`."""
        shared = {item.name: getattr(self, item.name) for item in fields(VmOptions)}
        return gcp.Options(**{**shared, "zones": zones}, fallback=False)
