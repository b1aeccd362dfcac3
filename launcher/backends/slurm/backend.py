"""Backend `slurm` of `launch`, a cluster with Slurm: its checks, and the preparation of a job.

The login node reports the facts of the cluster. A job is prepared by choosing its software, sending our code, and
checking a compute node once.
"""

import hashlib
import importlib.util
import math
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher.backends.remote_jobs import SSH_PROGRAM
from launcher.backends.slurm.machines import ACCOUNTS, SlurmMachines, explained
from launcher.backends.slurm.options import ROOT, Gpus, Options, Software, Where, parse_gres, time_s
from launcher.backends.slurm.plan import USUAL_PYTHON, Cluster, NodeSoftware, SlurmPlan, check_script, make_plan
from launcher.images import contents
from launcher.protocol.backend import Check, CheckPart, Job
from launcher.values import CPU_FLAVOUR
from workload.contract.errors import RooflaunchError, ToolError, UsageError
from workload.contract.spec import Device
from workload.contract.text import counted, printable
from workload.storage.folder import Folder
from workload.storage.ssh import TRANSFER_LIMIT_S, Connection, Login, SshFolder, parse_login, source_of

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


def look_at(machines: SlurmMachines) -> Site:
    """Facts of the cluster, from one request to the login node. Raises `ToolError` if the node has no Slurm."""
    answer = machines.ask("site")
    if not answer["version"]:
        raise ToolError(f"{NO_SBATCH} on {machines.place}", hint=CURE_SBATCH)
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


def require_room(site: Site, partitions: Sequence[Partition], *, gres: str, limit_s: int, nodes: int = 1) -> None:
    """Raise `UsageError` for a request that the nodes of the partitions can never meet."""
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
    # A job's nodes are of one partition.
    largest = max(partition.nodes for partition in partitions)
    if nodes > largest:
        raise UsageError(
            f"partition {shown} of {site.cluster} has {counted(largest, 'node')}; got --machines {nodes}",
            hint=f"--machines {largest}" if largest > 1 else "another --partition; launch doctor slurm shows them",
        )
    if all(limit_s > partition.limit_s for partition in partitions):
        longest = max(partitions, key=lambda partition: partition.limit_s).limit
        raise UsageError(f"a job of partition {shown} may take {longest}; got {limit_s} s", hint=f"--time {longest}")


PART = CheckPart("slurm")


def checks(machines: SlurmMachines) -> Iterator[Check]:
    """Checks for `launch doctor slurm`."""
    try:
        site = look_at(machines)
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


# --- preparation

GUEST = "launcher/backends/slurm/guest.py"
# Limit for a check: a free node answers within seconds. On a full cluster, the job waits in the queue behind the check.
CHECK_S = 60.0
# Longest wait of one request for the result of a check.
LOOK_S = 5.0
# Check a node again after a day: https://github.com/skypilot-org/skypilot/issues/8830
CHECKED_FOR_S = 24 * 3600.0


def node_of(cluster: Cluster, options: Options) -> NodeSoftware:
    """Software on the nodes, as far as it can be decided without contacting the cluster; for the draft of a plan."""
    code, guest = _code(), source_of(GUEST)
    python = options.python or USUAL_PYTHON
    # On a login node, the launcher's own environment is usually in a folder that the compute nodes see.
    if options.python is None and cluster.login is None and importlib.util.find_spec("torch") is not None:
        python = sys.executable
    usual = Software.APPTAINER if options.image else Software.NONE
    return NodeSoftware(
        root=cluster.root,
        code=_hash(code),
        guest=f"guests/slurm-{_hash(guest.encode())}.py",
        container=usual if options.container is Software.AUTO else options.container,
        python=python,
        image=options.image or "",
        with_gpu=bool(options.gres),
        commit=contents.current_commit(),
    )


def _code() -> bytes:
    return contents.make_recipe(contents.require_flavour(CPU_FLAVOUR)).context()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def prepare(draft: SlurmPlan, machines: SlurmMachines) -> SlurmPlan:
    """Make the final plan from the draft. Raises `UsageError` or `ToolError` if the cluster cannot run the job."""
    options = draft.options
    site = look_at(machines)
    partitions = site.partitions_named(options.partition)
    with_gpus = bool(partitions) and all(partition.gpus for partition in partitions)
    usual_gres = f"gpu:{draft.request.work.devices}" if with_gpus and draft.spec.device is Device.AUTO else ""
    gres = draft.gres or usual_gres
    require_room(site, partitions, gres=gres, limit_s=options.time_s, nodes=draft.spec.machines)
    software, why = _chosen_software(site, options, draft.node.python)
    software_there = replace(
        draft.node,
        root=site.root,
        container=software,
        with_gpu=bool(parse_gres(gres.partition(",")[0])),
        apptainer=site.apptainer_path or draft.node.apptainer,
    )
    _send(machines, software_there)
    launched = datetime.fromtimestamp(machines.now_s(), UTC)
    # CANCEL if any of the job's partitions cancels preempted jobs: such a job must record its own end.
    is_cancelled = any(partition.preempted == "CANCEL" for partition in partitions)
    preempted = "CANCEL" if is_cancelled else next((partition.preempted for partition in partitions), "")
    request = replace(
        draft.request,
        launched_at=launched.isoformat(timespec="milliseconds"),
        store=site.root,
        options={**draft.request.options, **({"preempted": preempted} if preempted.isalpha() else {})},
    )
    notes = (
        ("preempted jobs of this partition are cancelled, not started again: PreemptMode=CANCEL",)
        if is_cancelled and options.requeue
        else ()
    )
    plan = replace(
        draft,
        request=request,
        node=software_there,
        gres=gres,
        site=str(site),
        software=why,
        most_elements=site.array_size,
        notes=(*draft.notes, *notes),
    )
    return _checked(plan, machines)


def _chosen_software(site: Site, options: Options, python: str) -> tuple[Software, str]:
    """Container software to use, and a text on what runs the job. Without an image, the software is `NONE`."""
    if not options.image:
        return Software.NONE, f"the nodes' own {python}"
    requested = options.container
    available = site.software_for_images()
    if requested is Software.AUTO and available is None:
        raise ToolError(
            f"{site.cluster} has neither Pyxis nor Apptainer on its login node, but an image needs one of them",
            hint="--python PATH instead of --image; or --container apptainer if only the nodes have Apptainer",
        )
    if requested is Software.PYXIS and not site.pyxis:
        raise ToolError(
            f"srun of {site.cluster} has no --container-image: Pyxis is not set up",
            hint="--container apptainer, or --python PATH instead of --image",
        )
    chosen = available if requested is Software.AUTO and available is not None else requested
    if chosen is Software.APPTAINER and str(options.image).endswith(".sqsh"):
        raise UsageError(f"Apptainer reads .sif files; got --image {options.image}", hint="launch build --sif FILE")
    if chosen is Software.PYXIS and str(options.image).endswith(".sif"):
        raise UsageError(
            f"Pyxis reads .sqsh files and registries; got --image {options.image}", hint="--container apptainer"
        )
    how = "Pyxis" if chosen is Software.PYXIS else site.apptainer or "Apptainer"
    return chosen, f"{options.image}, by {how}"


def _send(machines: SlurmMachines, node: NodeSoftware) -> None:
    facts = machines.ask("facts", program=SSH_PROGRAM, python=USUAL_PYTHON, code=node.code, labels=[])
    if not facts["is_writable"]:
        raise ToolError(
            f"no permission to write to {node.root} on {machines.place}",
            hint="--folder FOLDER, one of yours that the nodes share",
        )
    if not facts["has_code"]:
        code = _code()
        machines.ask(
            "code", program=SSH_PROGRAM, payload=code, within_s=TRANSFER_LIMIT_S, code=node.code, size=len(code)
        )
    machines.ask("put", path=node.guest, text=source_of(GUEST))


def _checked(plan: SlurmPlan, machines: SlurmMachines) -> SlurmPlan:
    """Check a compute node before the job is submitted, once a day for the same request.

    If no node is free, return a plan whose job waits in the queue until the check has succeeded.
    """
    options, node = plan.options, plan.node
    requested = (options.partition, options.account, options.qos, options.constraint, plan.gres)
    subject = _hash(repr((requested, node.container, node.image, node.python, node.root)).encode())
    if machines.ask("checked", subject=subject, for_s=CHECKED_FOR_S)["is_known"]:
        return plan
    name = f"check-{secrets.token_hex(6)}"
    begun = machines.ask("check", name=name, script=check_script(name, options, node, gres=plan.gres))
    if "refused" in begun and not options.sbatch:
        raise explained(begun["refused"], machines.place)
    if "refused" in begun:
        # The site may require an option that the user gave for the job by --sbatch, which the check leaves out.
        note = f"no node was checked first: {explained(begun['refused'], machines.place)}"
        return replace(plan, notes=(*plan.notes, note))
    job = str(begun["job"])
    try:
        answer = {"job": job, **_awaited(machines, name, job)}
    except BaseException:  # includes Ctrl-C: the check is no longer needed
        with suppress(RooflaunchError):
            machines.ask("drop", job=job)
        raise
    if answer["waits"]:
        state = printable(answer["state"])
        note = f"no node is free now ({state}): the job waits until check {job} has tested a node"
        return replace(plan, after=job, notes=(*plan.notes, note))
    _require_good(answer, plan, machines.place)
    machines.ask("put", path=f"checks/{subject}.good", text=answer["answer"])
    return plan


def _awaited(machines: SlurmMachines, name: str, job: str) -> dict[str, Any]:
    """Wait for a check by short requests, so that Ctrl-C works. Key `waits` of the result: the check has not ended."""
    answer: dict[str, Any] = {}
    for _ in range(math.ceil(CHECK_S / LOOK_S)):
        answer = machines.ask("await", name=name, job=job, wait_s=min(LOOK_S, CHECK_S))
        if not answer["waits"]:
            break
    return answer


def _require_good(answer: Mapping[str, Any], plan: SlurmPlan, place: str) -> None:
    node, state = plan.node, printable(answer["state"]) or "ended"
    facts = dict(line.partition(" ")[::2] for line in answer["answer"].splitlines())
    if not facts:
        raise ToolError(
            f"the compute nodes do not see {node.root} of {place}, or may not write there: the check (job "
            f"{answer['job']}) wrote no file ({state})",
            hint="--folder FOLDER, which login node and nodes share under the same path, for example on a scratch disk",
        )
    where = printable(facts.get("node", "a node"))
    if facts.get("image") == "unreadable":
        raise ToolError(
            f"the image {node.image} cannot be read on {where}", hint="put it into a folder that the nodes share"
        )
    if facts.get("apptainer") == "missing":
        raise ToolError(
            f"{where} has no Apptainer", hint="--python PATH instead of --image, or ask the administrator for Apptainer"
        )
    python = facts.get("python", "ok")
    if python != "ok":
        raise ToolError(
            f"{node.python} on {where} cannot run the trainer: {printable(python) or 'Python printed nothing'}",
            hint="--python with the path of a Python with torch, torchvision, numpy and psutil in a folder that "
            "the nodes see",
        )


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """Backend `slurm`; tests replace `connect`."""

    name: str = "slurm"
    connect: Callable[[Login], Connection] = Connection

    def settings(self, where: Where, options: Options | None = None, *, offline: bool = False) -> Cluster:
        """Cluster that the options select. Raises `UsageError` for an invalid folder or an unsafe host name."""
        del options, offline
        folder = where.folder or ROOT
        parts = folder.split("/")
        if parts[0] not in ("", "~") or not any(parts[1:]) or ".." in parts or not folder.isprintable():
            hint = "--folder /scratch/me/rooflaunch"
            raise UsageError(f"--folder must be a full path that begins with / or ~/; got {folder!r}", hint=hint)
        folder = folder.rstrip("/")
        if where.host is None:
            if where.port is not None:
                raise UsageError(f"--port needs --host; got only --port {where.port}", hint="--host USER@HOST")
            return Cluster(login=None, root=str(Path(folder).expanduser()))
        return Cluster(login=parse_login(where.host, where.port), root=folder)

    def plan(self, job: Job, options: Options, settings: Cluster, *, now: datetime, offline: bool = False) -> SlurmPlan:
        del offline
        node = node_of(settings, options)
        return make_plan(job.resolved, options, settings, node, now=now, token=job.token, task=job.task)

    def prepare(self, draft: SlurmPlan, machines: SlurmMachines) -> SlurmPlan:
        return prepare(draft, machines)

    def machines(self, settings: Cluster) -> SlurmMachines:
        return SlurmMachines(settings, connect=self.connect)

    def store(self, settings: Cluster) -> Folder | SshFolder:
        """Store in the shared folder. A missing folder is created: a local one now, a remote one at the first write."""
        if settings.login:
            return SshFolder(self.connect(settings.login), settings.root)
        root = Path(settings.root)
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ToolError(
                f"'{root}' cannot be made: {error.strerror}", hint="--folder FOLDER, with a folder that the nodes share"
            ) from error
        return Folder(root)

    def checks(self, where: Where) -> Iterator[Check]:
        return checks(self.machines(self.settings(where)))


backend = Slurm()
