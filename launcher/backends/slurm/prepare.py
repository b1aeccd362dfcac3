"""Preparation of a job: look at the cluster, choose its software, send our code, and check a compute node once."""

import hashlib
import importlib.util
import math
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from launcher.backends.slurm import site as sites
from launcher.backends.slurm.machines import SSH_PROGRAM, LoginNode, SlurmMachines
from launcher.backends.slurm.options import Options, Software, parse_gres
from launcher.backends.slurm.plan import USUAL_PYTHON, Cluster, SlurmPlan
from launcher.backends.slurm.refusals import explained
from launcher.backends.slurm.script import NodeSoftware, check_script
from launcher.backends.slurm.site import Partition, Site
from launcher.images import contents
from launcher.machine.runtime import CPU_FLAVOUR
from workload.contract.errors import RooflaunchError, ToolError, UsageError
from workload.contract.spec import Device
from workload.contract.text import printable
from workload.storage.ssh import TRANSFER_LIMIT_S, source_of

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
    login_node, options = machines.node, draft.options
    site = sites.look_at(login_node)
    partitions = site.partitions_named(options.partition)
    gres = draft.gres or _usual_gres(draft, partitions)
    sites.require_room(site, partitions, gres=gres, limit_s=options.time_s)
    software, why = _software(site, options, draft.node.python)
    software_there = replace(
        draft.node,
        root=site.root,
        container=software,
        with_gpu=bool(parse_gres(gres.partition(",")[0])),
        apptainer=site.apptainer_path or draft.node.apptainer,
    )
    _send(login_node, software_there)
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


def _usual_gres(draft: SlurmPlan, partitions: tuple[Partition, ...]) -> str:
    """A GPU for each device if every partition has GPUs and the device is `auto`; else empty."""
    with_gpus = bool(partitions) and all(partition.gpus for partition in partitions)
    return f"gpu:{draft.request.work.devices}" if with_gpus and draft.spec.device is Device.AUTO else ""


def _software(site: Site, options: Options, python: str) -> tuple[Software, str]:
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


def _send(login_node: LoginNode, node: NodeSoftware) -> None:
    """Send our code and guest.py, unless the cluster has them."""
    facts = login_node.ask("facts", program=SSH_PROGRAM, python=USUAL_PYTHON, code=node.code, labels=[])
    if not facts["is_writable"]:
        raise ToolError(
            f"no permission to write to {node.root} on {login_node.cluster.place}",
            hint="--folder FOLDER, one of yours that the nodes share",
        )
    if not facts["has_code"]:
        code = _code()
        login_node.ask(
            "code", program=SSH_PROGRAM, payload=code, within_s=TRANSFER_LIMIT_S, code=node.code, size=len(code)
        )
    login_node.ask("put", path=node.guest, text=source_of(GUEST))


def _checked(plan: SlurmPlan, machines: SlurmMachines) -> SlurmPlan:
    """Check a compute node before the job is submitted, once a day for the same request.

    If no node is free, return a plan whose job waits in the queue until the check has succeeded.
    """
    options, node = plan.options, plan.node
    requested = (options.partition, options.account, options.qos, options.constraint, plan.gres)
    subject = _hash(repr((requested, node.container, node.image, node.python, node.root)).encode())
    if machines.node.ask("checked", subject=subject, for_s=CHECKED_FOR_S)["is_known"]:
        return plan
    name = f"check-{secrets.token_hex(6)}"
    begun = machines.node.ask("check", name=name, script=check_script(name, options, node, gres=plan.gres))
    if "refused" in begun and not options.sbatch:
        raise explained(begun["refused"], machines.place)
    if "refused" in begun:
        # The site may require an option that the user gave for the job by --sbatch, which the check leaves out.
        note = f"no node was checked first: {explained(begun['refused'], machines.place)}"
        return replace(plan, notes=(*plan.notes, note))
    job = str(begun["job"])
    try:
        answer = {"job": job, **_awaited(machines.node, name, job)}
    except BaseException:  # includes Ctrl-C: the check is no longer needed
        with suppress(RooflaunchError):
            machines.node.ask("drop", job=job)
        raise
    if answer["waits"]:
        state = printable(answer["state"])
        note = f"no node is free now ({state}): the job waits until check {job} has tested a node"
        return replace(plan, after=job, notes=(*plan.notes, note))
    _require_good(answer, plan, machines.place)
    machines.node.ask("put", path=f"checks/{subject}.good", text=answer["answer"])
    return plan


def _awaited(login_node: LoginNode, name: str, job: str) -> dict[str, Any]:
    """Wait for a check by short requests, so that Ctrl-C works. Key `waits` of the result: the check has not ended."""
    answer: dict[str, Any] = {}
    for _ in range(math.ceil(CHECK_S / LOOK_S)):
        answer = login_node.ask("await", name=name, job=job, wait_s=min(LOOK_S, CHECK_S))
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
