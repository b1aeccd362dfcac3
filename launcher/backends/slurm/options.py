"""Options of `launch slurm` in addition to run options. Imports little, because `launch --help` loads this module."""

import re
from dataclasses import dataclass
from enum import StrEnum

from launcher.values import Command, choice
from workload.contract.errors import UsageError
from workload.contract.invocation import examples

DEFAULT_LIMIT_S = 3600
MIN_LIMIT_S, MAX_LIMIT_S = 60, 120 * 86400
# Time formats of sbatch(1): minutes, m:s, h:m:s, days-h, days-h:m, days-h:m:s.
TIME = re.compile(r"(?:(?P<days>\d{1,3})-)?(?P<first>\d{1,6})(?::(?P<second>\d{1,2}))?(?::(?P<third>\d{1,2}))?")
# GPUs in a list of generic resources.
GPUS = re.compile(r"gpu(?::(?P<kind>[A-Za-z][\w.-]*))?(?::(?P<count>\d+))?")
ROOT = "~/.rooflaunch"
EXAMPLES = examples(
    "launch slurm --partition gpu --gres gpu:1 --dry-run --request",
    "launch slurm --host me@login.cluster --partition gpu --image ~/rooflaunch.sif",
)
COMMAND = Command(
    help="""Train on a cluster with Slurm, and collect the bundles.

    The job continues when this command ends, until it finishes or reaches its time limit. Results are in a folder
    that the compute nodes share with the login node.
    """,
    examples=EXAMPLES,
    first=("partition", "time_s"),
    noun="job",
    sent_to="sbatch",
    several_machines=True,
)


class Software(StrEnum):
    """Source of torch on a node. `auto`: for an image, the cluster's container software; else the cluster's Python."""

    AUTO = "auto"
    PYXIS = "pyxis"
    APPTAINER = "apptainer"
    NONE = "none"


def time_s(text: str) -> int:
    """Seconds of a time limit in one of sbatch's formats. Raises `UsageError` for other text."""
    parts = TIME.fullmatch(text)
    seconds = 0
    if parts:
        numbers = [int(parts[name]) for name in ("first", "second", "third") if parts[name] is not None]
        if parts["days"] is not None:
            units: tuple[int, ...] = (3600, 60, 1)
            seconds = int(parts["days"]) * 86400
        else:
            units = {1: (60,), 2: (60, 1), 3: (3600, 60, 1)}[len(numbers)]
        seconds += sum(number * unit for number, unit in zip(numbers, units, strict=False))
    if not MIN_LIMIT_S <= seconds <= MAX_LIMIT_S:
        shown = text.encode("unicode_escape").decode()[:80]
        raise UsageError(
            f"--time must be a time as sbatch reads it, such as 1:30:00, 90 (minutes) or 1-12 (days-hours), from a "
            f"minute to 120 days; got '{shown}'",
            hint="--time 1:00:00",
        )
    return seconds


def time_text(seconds: int) -> str:
    """Time limit in sbatch's format: `1-12:00:00`, `1:30:00`."""
    hours, rest = divmod(seconds, 3600)
    days, hours = divmod(hours, 24)
    clock = f"{hours}:{rest // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """GPUs of one kind of node, such as `gpu:t4:2`."""

    kind: str
    count: int

    def __str__(self) -> str:
        return f"{self.count} x {self.kind or 'GPU'}"


def parse_gres(text: str) -> tuple[Gpus, ...]:
    """GPUs in a text such as `gpu:t4:2(S:0-1),shard:8`; empty for `(null)`."""
    parts = (GPUS.fullmatch(part) for part in re.sub(r"\([^)]*\)", "", text).split(","))
    return tuple(Gpus(kind=part["kind"] or "", count=int(part["count"] or 1)) for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class Where:
    """Cluster: this machine is its login node, or `host` is a login node reached over ssh."""

    host: str | None = choice(
        "login node to submit from, over ssh (default: this machine)", default=None, metavar="USER@HOST"
    )
    port: int | None = choice("ssh port of HOST (default: from ~/.ssh/config)", default=None, metavar="N")
    folder: str | None = choice(
        f"a folder that the compute nodes share with the login node ({ROOT})", default=None, metavar="FOLDER"
    )


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options for sbatch, and for the software on the node. `time_s`: limit of each element of the array."""

    partition: str | None = choice("the partition (the cluster's default)", default=None, metavar="P[,P]")
    account: str | None = choice("the account that pays (your default account)", default=None, metavar="A")
    qos: str | None = choice("quality of service", default=None, metavar="Q")
    constraint: str | None = choice("features that the node must have", default=None, metavar="F")
    gres: str | None = choice(
        "resources of the node (a GPU for each device if the partition has GPUs; none with --cpu)",
        default=None,
        metavar="gpu[:TYPE]:N",
    )
    exclusive: bool = choice("use the whole node, so that no other job disturbs the figures", default=False)
    time_s: int = choice(
        "time limit of the job, as sbatch reads it; --max-time limits a sweep",
        default=DEFAULT_LIMIT_S,
        flag="--time",
        metavar="TIME",
        parse=time_s,
        typed_default="1:00:00",
    )
    at_a_time: int | None = choice(
        "how many jobs of a sweep run at the same time (no limit)", default=None, metavar="N", min=1
    )
    sbatch: tuple[str, ...] = choice(
        "another option of sbatch, for example --sbatch=--mem=16G; repeatable", default=(), metavar="OPTION"
    )
    requeue: bool = choice("start again after a preemption or a failure of the node", default=True)
    container: Software = choice(
        "auto: a container if --image is given, else the cluster's Python", default=Software.AUTO
    )
    image: str | None = choice(
        "HOST/NAME@sha256:… or a .sif or .sqsh file that the nodes can read", default=None, metavar="REF|FILE"
    )
    python: str | None = choice("the nodes' Python with torch (python3)", default=None, metavar="PATH")
    usd_per_h: float | None = choice("price of an hour of a node", default=None, metavar="USD")
