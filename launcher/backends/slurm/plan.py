"""Plan of `launch slurm`: the job that will be submitted, before the cluster is contacted. Pure functions.

The script for sbatch comes first; people can read and submit it by hand too.
"""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from launcher.backends.shared_plan import cost_text, prices_of, require_price, run_rows, text_of
from launcher.backends.slurm.options import Options, Software, parse_gres, time_text
from launcher.protocol.records import SCHEMA_VERSION, WORD, Request, Task, region_of
from workload.contract.errors import UsageError
from workload.contract.spec import Device, Resolved, RunSpec
from workload.contract.text import minutes
from workload.storage.ssh import Login

CHECK_LIMIT_S = 300
# Program that checks the cluster's Python; a single line, for use in a shell.
PROBE = (
    "import importlib.metadata as m, sys; "
    "has = {d.metadata['Name'].lower() for d in m.distributions() if d.metadata['Name']}; "
    "lacks = [n for n in ('torch', 'torchvision', 'numpy', 'psutil') if n not in has]; "
    "old = sys.version_info < (3, 11); "
    "print('is Python %d.%d' % sys.version_info[:2] if old else 'lacks ' + ', '.join(lacks) if lacks else 'ok')"
)


@dataclass(frozen=True, kw_only=True)
class NodeSoftware:
    """Software on a compute node; `root`: our folder, absolute or below the user's home (`~/…`).

    `code`: name of our code's version in our folder. `guest`: name of guest.py in our folder; the job copies this file
    to guest.py, which the agent imports for facts from Slurm. `apptainer`: name or path of the program
    apptainer or singularity.
    """

    root: str
    code: str
    guest: str
    container: Software
    python: str
    image: str = ""
    with_gpu: bool = False
    apptainer: str = "apptainer"
    commit: str = ""


def sbatch_words(options: Options, *, gres: str) -> list[str]:
    """Options of sbatch that decide where a job may run; used for the job and for the check of a node."""
    named = {
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "constraint": options.constraint,
        "gres": gres,
    }
    return [f"--{key}={value}" for key, value in named.items() if value]


def cpu_words(options: Options, devices: int) -> list[str]:
    """Option of sbatch for a CPU for each device, unless the user asks for CPUs; Slurm gives a job one by default."""
    is_given = any(word.startswith("--cpus-per-") for word in options.sbatch)
    return [] if devices == 1 or is_given else [f"--cpus-per-task={devices}"]


def job_script(requests: Sequence[Request], options: Options, node: NodeSoftware, *, gres: str) -> str:
    """Script of an array with one element for each request; the array has the first request's name."""
    name = requests[0].name
    # sbatch does not expand `~`, and is called in the user's home: a folder below the home becomes a relative path.
    folder = f"{node.root.removeprefix('~/')}/arrays/{name}"
    devices, nodes = max(request.work.devices for request in requests), RunSpec.from_json(requests[0].spec).machines
    at_a_time = "" if options.at_a_time is None else f"%{options.at_a_time}"
    words = [
        f"--job-name={name}",
        f"--array=1-{len(requests)}{at_a_time}",
        f"--output={folder}/%a.log",
        "--open-mode=append",
        # The agent runs on the first node; srun starts the ranks on all.
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        *(["--ntasks-per-node=1"] if nodes > 1 else []),
        *cpu_words(options, devices),
        f"--time={time_text(options.time_s)}",
        *sbatch_words(options, gres=gres),
        *(["--exclusive"] if options.exclusive else []),
        "--requeue" if options.requeue else "--no-requeue",
        *options.sbatch,
    ]
    elements = "\n".join(_line(request) for request in requests)
    constraint = f"export SLURM_JOB_CONSTRAINTS={shlex.quote(options.constraint)}\n" if options.constraint else ""
    return f"""#!/bin/bash
# rooflaunch: {"one launch" if len(requests) == 1 else f"{len(requests)} launches, an element of the array each"}.
# To submit it by hand, as SCRIPT in your home folder on the login node, once `launch slurm` was used there:
#   mkdir -p {shlex.quote(folder)} && sbatch SCRIPT
{_lines(words)}
set -eu
umask 077
root={_path(node.root)} array={name} index=$SLURM_ARRAY_TASK_ID

# Requests, one line for each element.
mapfile -t elements <<'ELEMENTS'
{elements}
ELEMENTS
request=${{elements[index - 1]}}
name=${{request#*'"name":"'}} name=${{name%%'"'*}}
home=$root/jobs/$name

# Files for the agent; and files for `launch status` that a script submitted by hand would lack.
mkdir -p "$home" "$root/launches/$name"
printf '%s\\n' "$request" >"$home/request.json"
cp "$root/{node.guest}" "$home/guest.py"
[ -e "$root/launches/$name/request.json" ] || cp "$home/request.json" "$root/launches/$name/request.json"
[ -e "$root/launches/$name/startup.log" ] || ln "$root/arrays/$array/$index.log" "$root/launches/$name/startup.log"
[ -e "$home/element" ] || printf '%s %s\\n' "$array" "$index" >"$home/element"
[ -e "$root/arrays/$array/elements" ] ||
  printf '%s\\n' "${{elements[@]}}" | sed 's/^[^,]*,"name":"\\([^"]*\\)".*/\\1/' >"$root/arrays/$array/elements"
echo "booted $(date -u +%Y-%m-%dT%H:%M:%SZ)" >>"$home/phases"

# Time at which Slurm ends the job; older versions of Slurm tell it only through squeue.
export ROOFLAUNCH_END_S=${{SLURM_JOB_END_TIME:-$(SLURM_TIME_FORMAT=%s squeue -h -j "$SLURM_JOB_ID" -o %e || true)}}
{constraint}cd "$home"
{_start(node)}
"""


def _line(request: Request) -> str:
    return json.dumps({"schema_version": SCHEMA_VERSION, **asdict(request)}, separators=(",", ":"))


def _lines(words: Sequence[str]) -> str:
    return "\n".join(f"#SBATCH {word}" for word in words)


def _path(path: str) -> str:
    """Quote a path for the shell; `~/` becomes `"$HOME"/`."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def _start(node: NodeSoftware) -> str:
    """Shell lines that replace the shell by the agent, so that Slurm's signals reach the agent."""
    agent = '-u -m launcher.agent "$home"'
    if node.container is Software.PYXIS:
        return (
            f'exec srun --ntasks=1 --container-image={_path(node.image)} --container-mounts="$root:$root" \\\n'
            f'  --no-container-mount-home --container-workdir="$home" python {agent}'
        )
    if node.container is Software.APPTAINER:
        prefix = "SINGULARITYENV" if node.apptainer.endswith("singularity") else "APPTAINERENV"
        gpu = " --nv" if node.with_gpu else ""
        image = node.image if _is_file(node.image) else f"docker://{node.image}"
        return (
            "for variable in ${!SLURM@} ${!CUDA@} ${!NVIDIA@} ${!ROOFLAUNCH@}; do\n"
            f'  export "{prefix}_$variable=${{!variable}}"\n'
            "done\n"
            f'exec {shlex.quote(node.apptainer)} exec --cleanenv --no-home{gpu} --bind "$root:$root" --pwd "$home" \\\n'
            f"  {_path(image)} python {agent}"
        )
    commit = f" ROOFLAUNCH_COMMIT={node.commit}" if node.commit else ""
    return (
        f'export PYTHONPATH="$root/code/{node.code}" PYTHONDONTWRITEBYTECODE=1{commit}\n'
        f"exec {_path(node.python)} {agent}"
    )


def _is_file(image: str) -> bool:
    return image.startswith(("/", "~/"))


def check_script(name: str, options: Options, node: NodeSoftware, *, gres: str) -> str:
    """Script of a short job that records what a compute node sees of our folder, the image, and Python.

    `--sbatch` options are left out: options such as `--hold` or `--begin` would keep the check in the queue.
    """
    words = [
        "--job-name=rooflaunch-check",
        f"--output={node.root}/checks/{name}.log",
        "--nodes=1",
        "--ntasks=1",
        f"--time={time_text(CHECK_LIMIT_S)}",
        "--no-requeue",
        *sbatch_words(options, gres=gres),
    ]
    looks = ['echo "node $(hostname -s)"']
    if _is_file(node.image):
        looks.append(f'if [ -r {_path(node.image)} ]; then echo "image ok"; else echo "image unreadable"; fi')
    if node.container is Software.APPTAINER:
        looks.append(
            f"command -v {shlex.quote(node.apptainer)} >/dev/null && echo apptainer ok || echo apptainer missing"
        )
    if node.container is Software.NONE:
        looks.append(f'echo "python $({_path(node.python)} -c {shlex.quote(PROBE)} 2>&1 | tail -n 1)"')
    looked = "\n".join(f"  {look}" for look in looks)
    return f"""#!/bin/bash
{_lines(words)}
folder={_path(node.root)}/checks
[ "$(cat "$folder/{name}.token")" = {name} ] || exit 3
{{
{looked}
}} >"$folder/{name}.new"
mv "$folder/{name}.new" "$folder/{name}.answer"
"""


# --- the plan

USUAL_PYTHON = "python3"
THIS_LOGIN_NODE = "this login node"
# Valid value of an sbatch option: one word that does not look like an option.
VALUE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_@%+=.,:*/()&|!\[\]-]{0,511}")
GRES = re.compile(r"[a-z][a-z0-9_]*(:[A-Za-z][A-Za-z0-9_.-]*)?(:[1-9][0-9]{0,3})?(,[A-Za-z0-9_.:,-]+)?")
# Valid option of sbatch: one line, without a further option in it.
SBATCH = re.compile(r"--[a-z][a-z0-9-]*(=[^\x00-\x1f\x7f]{1,512})?")
OURS = (
    *("--array", "--job-name", "--output", "--error", "--open-mode", "--time", "--wrap", "--requeue", "--no-requeue"),
    "--nodes",
)
IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+#-]{0,511}")
FILE = re.compile(r"(?:~/|/)[^\x00-\x1f\x7f]{1,1023}")
# Text on when Slurm restarts a job with --requeue, by the PreemptMode of the job's partition ("": not yet known).
RESTARTS = {
    "": "a node's failure, and after a preemption unless its partition cancels preempted jobs",
    "REQUEUE": "a preemption or a node's failure",
    "CANCEL": "a node's failure",
}


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Cluster to use; `login`: None if this machine is its login node; `root`: our folder on the cluster."""

    login: Login | None
    root: str

    @property
    def place(self) -> str:
        """Name of the login node in messages."""
        return str(self.login) if self.login else THIS_LOGIN_NODE


@dataclass(frozen=True, kw_only=True)
class SlurmPlan:
    """Plan of a launch; `node`, `gres` and `site` are final only after the cluster was contacted.

    `after`: job number of the check of a node that must succeed before this job starts; empty without such a check.
    """

    request: Request
    cluster: Cluster
    options: Options
    node: NodeSoftware
    gres: str
    site: str = ""
    software: str = ""
    most_elements: int = 0
    after: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def submissions(self) -> int:
        """Always 1, because Slurm itself starts a preempted job again."""
        return 1

    @property
    def zone(self) -> str:
        """Partitions of a waiting job, joined by `+`; empty for the default partition."""
        return (self.options.partition or "").replace(",", "+")

    @property
    def spec(self) -> RunSpec:
        """Spec of the run."""
        return RunSpec.from_json(self.request.spec)

    def renamed(self, request: Request) -> "SlurmPlan":
        """Copy of the plan with another request, as a job of its own."""
        return replace(self, request=request)

    def text(self, width: int | None = None) -> str:
        """Plan as text for the user."""
        request, options = self.request, self.options
        mode = request.options.get("preempted", "")
        again = f"missing runs are started again after {RESTARTS.get(mode, RESTARTS['CANCEL'])}"
        rows = [
            *run_rows(request),
            ("job", request.name),
            ("cluster", f"{self.cluster.place}" + (f": {self.site}" if self.site else ", which was not contacted yet")),
            ("asks for", self._asked_for()),
            ("software", self.software or self._software_asked_for()),
            ("folder", f"{self.node.root}, which the nodes must see under the same path"),
            ("limit", f"{minutes(request.limit_s)} ({time_text(request.limit_s)}), enforced by Slurm"),
            ("ends", again if options.requeue else "not started again after a preemption"),
            ("cost", cost_text(usd_per_h(options, self.spec))),
        ]
        return text_of(rows, self.notes, width)

    def _asked_for(self) -> str:
        options = self.options
        devices = self.request.work.devices
        gpus = "a GPU" if devices == 1 else f"{devices} GPUs"
        gres = self.gres or ("no GPU" if self.spec.device is Device.CPU else f"{gpus} if the partition has any")
        words = [f"partition {options.partition}" if options.partition else "the default partition", gres]
        words += [f"{name} {value}" for name in ("account", "qos", "constraint") if (value := getattr(options, name))]
        cpus = cpu_words(options, devices)
        words += [f"{self.spec.machines} nodes"] if self.spec.machines > 1 else []
        return ", ".join([*words, *(["the whole node"] if options.exclusive else []), *cpus, *options.sbatch])

    def _software_asked_for(self) -> str:
        options = self.options
        if options.image:
            how = "Pyxis or Apptainer" if options.container is Software.AUTO else str(options.container)
            return f"the image {options.image}, by {how}"
        return f"the nodes' own {self.node.python}"

    def sent_text(self) -> str:
        """Script that `sbatch` would read to submit this job."""
        return job_script([self.request], self.options, self.node, gres=self.gres)

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object, for `--dry-run --format json`."""
        return {
            "host": self.cluster.place,
            "site": self.site,
            "software": self.software,
            "gres": self.gres,
            "request": asdict(self.request),
            "script": self.sent_text(),
            "notes": list(self.notes),
        }


def usd_per_h(options: Options, spec: RunSpec) -> float | None:
    """Price of an hour of the job, whose run may have several nodes."""
    return None if options.usd_per_h is None else options.usd_per_h * spec.machines


def make_plan(
    resolved: Resolved,
    options: Options,
    cluster: Cluster,
    node: NodeSoftware,
    *,
    now: datetime,
    token: str,
    task: Task | None,
) -> SlurmPlan:
    """Make the draft of a plan, without contacting the cluster. Raises `UsageError` for invalid options."""
    spec, partitions = resolved.spec, (options.partition or "").split(",")
    devices = task.devices if task else spec.devices
    _check(options, spec, devices)
    request = Request(
        name=f"rooflaunch-slurm-{now:%Y%m%d-%H%M%S}-{token}",
        backend="slurm",
        launched_at=now.isoformat(timespec="milliseconds"),
        store=node.root if node.root.startswith("/") else f"/{node.root}",
        place="slurm",
        runtime="process",
        limit_s=options.time_s,
        spec=spec.to_json(),
        spec_origin=dict(resolved.origin),
        prices=prices_of(usd_per_h(options, spec), sorted({"", *map(region_of, partitions)}), now),
        options=_recorded(options, cluster),
        task=task.to_json(spec) if task else {},
    )
    default = f"gpu:{devices}" if spec.device is Device.CUDA else ""
    return SlurmPlan(request=request, cluster=cluster, options=options, node=node, gres=options.gres or default)


def _recorded(options: Options, cluster: Cluster) -> dict[str, Any]:
    """Options to store in the launch's record. A text that is not a word or a list of words is left out."""
    values: dict[str, Any] = {
        "host": cluster.login.host if cluster.login else "",
        "account": options.account or "",
        "qos": options.qos or "",
        "container": str(options.container),
        "requeue": options.requeue,
        "exclusive": options.exclusive,
    }
    lists = {"partition": options.partition or "", "constraint": options.constraint or "", "gres": options.gres or ""}
    split = {name: [part for part in re.split(r"[,&|]", text) if WORD.fullmatch(part)] for name, text in lists.items()}
    return {
        name: value for name, value in values.items() if not isinstance(value, str) or WORD.fullmatch(value)
    } | split


def _check(options: Options, spec: RunSpec, devices: int) -> None:
    for name in ("partition", "account", "qos", "constraint"):
        value = getattr(options, name)
        if value is not None and not VALUE.fullmatch(value):
            raise UsageError(f"--{name} must be one word, as sbatch takes it; got {value!r}", hint=f"--{name} NAME")
    if options.gres is not None and not GRES.fullmatch(options.gres):
        raise UsageError(f"--gres must be like gpu:1 or gpu:a100:2; got {options.gres!r}", hint="--gres gpu:1")
    gpus = parse_gres(options.gres or "")
    if gpus and sum(kind.count for kind in gpus) < devices:
        raise UsageError(
            f"each device needs a GPU; got --devices {devices} with --gres {options.gres}",
            hint=f"--gres {':'.join(filter(None, ('gpu', gpus[0].kind, str(devices))))}, or leave --gres out",
        )
    for word in options.sbatch:
        if not SBATCH.fullmatch(word):
            raise UsageError(
                f"--sbatch takes one long option of sbatch; got {word!r}",
                hint="--sbatch OPTION, repeated for each option",
            )
        if word.partition("=")[0] in OURS:
            raise UsageError(
                f"{word.partition('=')[0]} is set by launch slurm itself; got {word!r}", hint="leave it out"
            )
    if spec.device is Device.CPU and options.gres and options.gres.startswith("gpu"):
        raise UsageError(f"--cpu needs no GPU; got --gres {options.gres}", hint="one of the two")
    if spec.device is Device.MPS:
        raise UsageError("no node of a cluster has Apple's GPU; got --mps", hint="--cuda, or --cpu")
    require_price(options.usd_per_h)
    _check_software(options, spec.machines)


def _check_software(options: Options, machines: int) -> None:
    if machines > 1 and options.image:
        raise UsageError(
            f"several machines need the nodes' own Python: in a container no srun starts the ranks; got --machines "
            f"{machines} with --image {options.image}",
            hint="--python PATH instead of --image",
        )
    image, container, python = options.image, options.container, options.python
    if container in (Software.PYXIS, Software.APPTAINER) and not image:
        hint = "--image HOST/NAME@sha256:… or a .sif or .sqsh file"
        raise UsageError(f"--container {container} needs an image", hint=hint)
    if container is Software.NONE and image:
        raise UsageError(f"--image is for a container; got --container none with {image}", hint="leave it out")
    if python and image:
        both = f"--python is for runs without an image, which has its own Python; got --python {python} with --image"
        raise UsageError(both, hint="one of the two")
    if image and not (IMAGE.fullmatch(image) or FILE.fullmatch(image)):
        raise UsageError(f"{image!r} is neither an image's name nor the full path of a file", hint="--image ~/my.sif")
    if python is not None and (not python or re.search(r"[\x00-\x1f]|^-", python)):
        raise UsageError(f"{python!r} is not the path of a program", hint="--python ~/torch/bin/python")
