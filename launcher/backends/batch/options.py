"""Options of the command `launch batch`, besides those of the run. Imports little, because `launch --help` loads it."""

from dataclasses import dataclass, field, fields

from launcher.backends.gcp.options import COMPLETIONS
from launcher.backends.gcp.options import Options as VmOptions
from launcher.values import Command, choice, limit_s

DEFAULT_QUEUE_S = 1800
# https://cloud.google.com/batch/docs/reference/rest/v1/projects.locations.jobs (TaskSpec.maxRetryCount)
MOST_RETRIES = 10
# \b: the help shows these lines without wrapping them.
EXAMPLES = """\b
Examples:
  launch batch --gpu t4 --region us-central1 --dry-run
  launch batch --gpu t4 --region us-central1 --queue-time 2h --detach
"""
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
_VM = {item.name: item for item in fields(VmOptions)}


def _as_gcp(name: str) -> object:
    """Dataclass field for the option `name`, a copy of the field of `launch gcp` with the same default."""
    item = _VM[name]
    return field(metadata=item.metadata, default=item.default)


@dataclass(frozen=True, kw_only=True)
class Where:
    """Region, project and bucket to use; a job of Batch belongs to one region."""

    region: str = choice("the region of Batch and of its VMs", metavar="REGION")
    project: str | None = choice(
        "the Google Cloud project (default: that of your credentials)", default=None, metavar="P"
    )
    bucket: str | None = choice("bucket for launches and bundles (PROJECT-rooflaunch)", default=None, metavar="B")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `launch batch` besides those of the run. `zones`: allowed zones of the region; () allows all."""

    gpu: str = choice("the GPU of the VM", metavar="t4|l4|v100|a100|…", autocompletion=COMPLETIONS.gpu_names)
    zones: tuple[str, ...] = choice(
        "allow this zone of the region; repeatable (all with the GPU)",
        default=(),
        flag="--zone",
        metavar="Z",
        autocompletion=COMPLETIONS.zone_names,
    )
    spot: bool = _as_gcp("spot")  # type: ignore[assignment] # a field, as dataclass takes it
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
    machine_type: str | None = _as_gcp("machine_type")  # type: ignore[assignment]
    gpu_count: int = _as_gcp("gpu_count")  # type: ignore[assignment]
    max_run_time_s: int = _as_gcp("max_run_time_s")  # type: ignore[assignment]
    max_cost_usd: float | None = _as_gcp("max_cost_usd")  # type: ignore[assignment]
    usd_per_h: float | None = _as_gcp("usd_per_h")  # type: ignore[assignment]
    disk_gb: int = _as_gcp("disk_gb")  # type: ignore[assignment]
    external_ip: bool = choice("a public address; without it the subnetwork needs Google Access", default=False)
    image: str | None = _as_gcp("image")  # type: ignore[assignment]
    repository: str | None = _as_gcp("repository")  # type: ignore[assignment]
    service_account: str | None = _as_gcp("service_account")  # type: ignore[assignment]
    network: str | None = _as_gcp("network")  # type: ignore[assignment]
    subnetwork: str | None = _as_gcp("subnetwork")  # type: ignore[assignment]

    def for_vm(self, zones: tuple[str, ...]) -> VmOptions:
        """Options for `launch gcp` with the same values, restricted to `zones`."""
        shared = {name: getattr(self, name) for name in _VM if hasattr(self, name)}
        return VmOptions(**{**shared, "zones": zones, "fallback": False})
