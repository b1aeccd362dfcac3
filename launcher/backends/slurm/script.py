"""Makes the script for sbatch, which people can read and submit by hand too. Pure functions.

The script has the request of each element in a line of its own, so a job needs only the script and our code in the
shared folder.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from launcher.backends.slurm.options import Options, Software, time_text
from launcher.protocol.records import SCHEMA_VERSION, Request

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
    devices = max(request.work.devices for request in requests)
    at_a_time = "" if options.at_a_time is None else f"%{options.at_a_time}"
    words = [
        f"--job-name={name}",
        f"--array=1-{len(requests)}{at_a_time}",
        f"--output={folder}/%a.log",
        "--open-mode=append",
        "--nodes=1",
        "--ntasks=1",
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
