"""Facts of a cluster, reported by its login node, to choose software and GPUs and for `launch doctor`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from launcher.backends.slurm.machines import LoginNode, SlurmMachines
from launcher.backends.slurm.options import Gpus, Software, parse_gres, time_s
from launcher.backends.slurm.refusals import ACCOUNTS
from launcher.protocol.checks import Check, CheckPart
from workload.contract.errors import RooflaunchError, ToolError, UsageError
from workload.contract.text import counted, printable

NO_SBATCH = "sbatch is not installed"
CURE_SBATCH = "use a login node of the cluster: launch slurm there, or --host USER@LOGIN-NODE from here"
UNLOCK = (
    "ask the administrator for NVreg_RestrictProfilingToAdminUsers=0 on the nodes, for example of one "
    "partition; without it runs are complete except for the counters of --profile ncu"
)
UNLIMITED_S = float("inf")


@dataclass(frozen=True, kw_only=True)
class Partition:
    """Partition. `limit_s`: time limit of jobs; `preempted`: Slurm's PreemptMode, such as REQUEUE or CANCEL."""

    name: str
    is_default: bool
    is_up: bool
    limit_s: float
    limit: str
    nodes: int
    gpus: tuple[Gpus, ...]
    features: tuple[str, ...]
    preempted: str

    def __str__(self) -> str:
        gpus = ", ".join(map(str, self.gpus)) + " per node" if self.gpus else "no GPU"
        state = "" if self.is_up else ", closed"
        features = f", features {', '.join(self.features)}" if self.features else ""
        return f"{counted(self.nodes, 'node')}, {gpus}, at most {self.limit}{features}{state}"


@dataclass(frozen=True, kw_only=True)
class Site:
    """Facts of a cluster. `accounts`: (account, partition, qos) of this user; empty without accounting."""

    version: str
    root: str
    user: str
    cluster: str
    has_accounting: bool
    array_size: int
    partitions: tuple[Partition, ...]
    accounts: tuple[tuple[str, ...], ...]
    pyxis: bool
    apptainer: str
    apptainer_path: str
    counters: str

    def __str__(self) -> str:
        return f"{self.cluster}, {self.version}, {counted(len(self.partitions), 'partition')}"

    def software_for_images(self) -> Software | None:
        """Software of the cluster that runs images; None if the cluster has no such software."""
        if self.pyxis:
            return Software.PYXIS
        return Software.APPTAINER if self.apptainer_path else None

    def partitions_named(self, names: str | None) -> tuple[Partition, ...]:
        """Partitions of these comma-separated names; None: the default partition. Raises `UsageError` if unknown."""
        if names is None:
            return tuple(partition for partition in self.partitions if partition.is_default)
        by_name = {partition.name: partition for partition in self.partitions}
        for name in names.split(","):
            if name not in by_name:
                raise UsageError(f"{self.cluster} has no partition '{name}'", hint=f"one of {', '.join(by_name)}")
        return tuple(by_name[name] for name in names.split(","))


def look_at(node: LoginNode) -> Site:
    """Ask the login node for all facts at once. Raises `ToolError` if the node has no Slurm."""
    answer = node.ask("site")
    if not answer["version"]:
        raise ToolError(f"{NO_SBATCH} on {node.cluster.place}", hint=CURE_SBATCH)
    config = answer["config"]
    return Site(
        version=printable(answer["version"]),
        root=str(answer["root"]),
        user=str(answer["user"]),
        cluster=printable(config.get("ClusterName", "")) or "the cluster",
        has_accounting=not str(config.get("AccountingStorageType", "")).endswith("/none"),
        array_size=int(config.get("MaxArraySize") or 0),
        partitions=_partitions(answer["partitions"], answer["preempt"]),
        accounts=tuple(tuple(map(str, row)) for row in answer["accounts"]),
        pyxis=bool(answer["pyxis"]),
        apptainer=printable(answer["apptainer"]),
        apptainer_path=str(answer["apptainer_path"]),
        counters=str(answer["counters"]),
    )


def _partitions(rows: Sequence[Sequence[str]], preempted: Mapping[str, str]) -> tuple[Partition, ...]:
    """Partitions from rows of sinfo, which has one row for each kind of node in a partition."""
    by_name: dict[str, list[Sequence[str]]] = {}
    for row in rows:
        if len(row) == 8:  # noqa: PLR2004 - the fields of SINFO in remote.py
            by_name.setdefault(row[0].rstrip("*"), []).append(row)
    return tuple(
        Partition(
            name=printable(name),
            is_default=kinds[0][0].endswith("*"),
            is_up=kinds[0][1] == "up",
            limit=kinds[0][2],
            limit_s=_limit_s(kinds[0][2]),
            nodes=sum(int(row[3]) for row in kinds),
            gpus=tuple(dict.fromkeys(gpus for row in kinds for gpus in parse_gres(row[4]))),
            features=tuple(dict.fromkeys(word for row in kinds for word in row[5].split(",") if word != "(null)")),
            preempted=preempted.get(name, ""),
        )
        for name, kinds in by_name.items()
    )


def _limit_s(text: str) -> float:
    try:
        return time_s(text)
    except UsageError:
        return UNLIMITED_S


def require_room(site: Site, partitions: Sequence[Partition], *, gres: str, limit_s: int) -> None:
    """Raise `UsageError` for a request that no node of the partitions can ever meet."""
    if not partitions:
        return
    shown = ", ".join(partition.name for partition in partitions)
    [wanted] = parse_gres(gres.partition(",")[0]) or [None]
    available = [gpus for partition in partitions for gpus in partition.gpus]
    if wanted and not available:
        others = [partition.name for partition in site.partitions if partition.gpus]
        hint = f"--partition {others[0]}" if others else "no partition has a GPU: use --cpu"
        raise UsageError(f"partition {shown} of {site.cluster} has no GPU; --gres {gres} was asked for", hint=hint)
    if wanted and not any(wanted.kind in ("", gpus.kind) and wanted.count <= gpus.count for gpus in available):
        listed = ", ".join(dict.fromkeys(f"gpu:{gpus.kind}:{gpus.count}" for gpus in available))
        message = f"partition {shown} of {site.cluster} has {listed}; got --gres {gres}"
        raise UsageError(message, hint=f"--gres {listed}")
    if all(limit_s > partition.limit_s for partition in partitions):
        longest = max(partitions, key=lambda partition: partition.limit_s).limit
        raise UsageError(f"a job of partition {shown} may take {longest}; got {limit_s} s", hint=f"--time {longest}")


PART = CheckPart("slurm")


def checks(machines: SlurmMachines) -> Iterator[Check]:
    """Checks for `launch doctor slurm`."""
    try:
        site = look_at(machines.node)
    except RooflaunchError as error:
        yield PART.failed("login node", error)
        return
    yield PART.ok("login node", f"{machines.place}: {site.version}, cluster {site.cluster}, folder {site.root}")
    for partition in site.partitions:
        name = f"partition {partition.name}{' (default)' if partition.is_default else ''}"
        yield PART.ok(name, str(partition)) if partition.is_up else PART.note(name, str(partition))
    if not any(partition.gpus for partition in site.partitions):
        yield PART.note(
            "GPUs", "no partition reports a GPU", "--cpu; or ask the administrator whether GresTypes=gpu is set"
        )
    yield _software(site)
    if site.counters == "1":
        yield PART.note("counters", "for administrators only on this node (RmProfilingAdminOnly: 1)", UNLOCK)
    elif site.counters == "0":
        yield PART.ok("counters", "open to every user on this node; each run reports its own node")
    else:
        yield PART.note("counters", "this node has no NVIDIA driver; each run reports its own node", UNLOCK)
    yield from _accounts(site)
    running = [job.name for job in machines.look()]
    yield PART.ok("jobs", f"{counted(len(running), 'job')} of rooflaunch there" if running else "none there")


def _software(site: Site) -> Check:
    found = [*(["Pyxis (srun --container-image)"] if site.pyxis else []), *([site.apptainer] if site.apptainer else [])]
    if found:
        return PART.ok("containers", ", ".join(found))
    return PART.note(
        "containers",
        "neither Pyxis nor Apptainer on this node",
        "runs use the cluster's Python: --python with the path of a Python with torch in a folder that the nodes see",
    )


def _accounts(site: Site) -> Iterator[Check]:
    if not site.has_accounting:
        yield PART.note(
            "accounting", "off: Slurm knows only for some minutes how a job ended; after that our own records are used"
        )
        return
    yield PART.ok("accounting", f"on; an array has at most {max(0, site.array_size - 1)} elements")
    names = sorted({row[0] for row in site.accounts if row and row[0]})
    if names:
        yield PART.ok("accounts", f"of {site.user}: {', '.join(map(printable, names))}")
    else:
        yield PART.note(
            "accounts", f"none of {site.user} is known", f"if sbatch requires an account: --account NAME ({ACCOUNTS})"
        )
