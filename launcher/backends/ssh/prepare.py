"""Preparation of a job: look at the machine, choose a runtime, and send our code or provide an image."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from launcher.backends.ssh import site as sites
from launcher.backends.ssh.machines import SshMachines
from launcher.backends.ssh.options import Options
from launcher.backends.ssh.plan import SshPlan, Start
from launcher.backends.ssh.site import Site
from launcher.images import contents
from launcher.images.build import NEEDED_BYTES as BUILD_BYTES
from launcher.kinds import Runtime
from launcher.machine.runtime import CPU_FLAVOUR, NO_COMPILER, NO_MPS
from workload.contract.errors import ToolError, UsageError
from workload.contract.spec import Device, RunSpec
from workload.environment import gpu_index
from workload.storage.ssh import TRANSFER_LIMIT_S

BUILD_LIMIT_S = 3600.0
SOCKET = "/var/run/docker.sock"
# Mount point of the machine's root in the agent's container.
HOST = "/host"


def prepare(draft: SshPlan, machines: SshMachines) -> SshPlan:
    """Make the final plan from the draft. Raises `ToolError` if the machine cannot run the job."""
    specs, options = draft.specs, draft.options
    code = contents.make_recipe(contents.require_flavour(CPU_FLAVOUR)).context()
    code_name = hashlib.sha256(code).hexdigest()[:16]
    site = sites.look_at(machines, python=options.python or sites.USUAL_PYTHON, code=code_name)
    if options.gpu_index is not None:
        hint = "`launch doctor ssh` lists the GPUs, counted from 0"
        gpu_index.require_known(options.gpu_index, range(len(site.gpus)), place=machines.place, hint=hint)
        site = replace(site, gpus=(site.gpus[options.gpu_index],))
    _require_possible(machines.place, site, specs, draft.request.work.devices)
    with_gpu = bool(site.gpus) and any(spec.device in (Device.CUDA, Device.AUTO) for spec in specs)
    runtime, why = _runtime(machines.place, options, specs, site, with_gpu=with_gpu)
    if not site.has_code:
        machines.ask("code", payload=code, within_s=TRANSFER_LIMIT_S, code=code_name, size=len(code))
    name, image = draft.request.name, ""
    if runtime is Runtime.PROCESS:
        start = _process(site, code_name, name)
    else:
        image = _image(machines, options, site, code_name, flavour=site.flavour if with_gpu else CPU_FLAVOUR)
        start = _container(site, image, name)
    launched = datetime.fromtimestamp(machines.now_s(), UTC)
    request = replace(
        draft.request,
        launched_at=launched.isoformat(timespec="milliseconds"),
        store=site.root,
        runtime=runtime.value,
        image=image,
    )
    return replace(draft, request=request, start=start, machine=str(site), runtime=f"{runtime}: {why}")


def _require_possible(place: str, site: Site, specs: Sequence[RunSpec], devices: int) -> None:
    if not site.is_writable:
        raise ToolError(
            f"no permission to write to {site.root} on {place}", hint="ask the machine's owner for a folder"
        )
    if site.free_bytes < sites.NEEDED_BYTES:
        free = f"{site.free_bytes / 1e6:.0f} MB are free in {site.root} on {place}"
        raise ToolError(f"{free}; a run needs {sites.NEEDED_BYTES / 1e6:.0f} MB", hint="free some space on the machine")
    if any(spec.device is Device.CUDA for spec in specs) and not site.gpus:
        raise ToolError(f"nvidia-smi shows no GPU on {place}", hint="--cpu, or another machine")
    on_gpus = bool(site.gpus) and any(spec.device in (Device.CUDA, Device.AUTO) for spec in specs)
    has = {"CPU": site.cpus, **({"GPU": len(site.gpus)} if on_gpus else {})}
    for kind, count in has.items():
        if 0 < count < devices:
            hint = f"--devices {count}" if count > 1 else "leave --devices out"
            raise UsageError(f"each device needs a {kind}, and {place} has {count}; got --devices {devices}", hint=hint)


def _runtime(
    place: str, options: Options, specs: Sequence[RunSpec], site: Site, *, with_gpu: bool
) -> tuple[Runtime, str]:
    """Runtime for all runs, and a text on it. If none is requested: one that is ready, else Docker with a new image."""
    no_process = site.why_no_process()
    no_container = NO_COMPILER if any(spec.compile for spec in specs) else ""
    if any(spec.device is Device.MPS for spec in specs):
        no_container = NO_MPS
    wants_container = bool(options.image) or options.runtime is Runtime.DOCKER
    if no_container and wants_container:
        raise UsageError(f"{no_container}; a container was requested", hint="--runtime process")
    if options.python or options.runtime is Runtime.PROCESS:
        if no_process:
            raise ToolError(f"no process can run on {place}: {no_process}", hint=sites.PYTHON_CURE)
        return Runtime.PROCESS, f"asked for; {site.python_shown}"
    why_not = no_container or site.why_no_container(with_gpu=with_gpu)
    is_built = bool(site.images.get(site.flavour if with_gpu else CPU_FLAVOUR))
    if not wants_container and not no_process and (why_not or not is_built):
        return Runtime.PROCESS, site.python_shown
    if why_not and wants_container:
        hint = "--runtime process, or launch doctor ssh, which shows what is missing"
        raise ToolError(f"no container can run on {place}: {why_not}", hint=hint)
    if why_not:
        raise ToolError(f"nothing can run on {place}: {why_not}, and {no_process}", hint=sites.PYTHON_CURE)
    image = options.image or ("the image for this code" if is_built else "a new image, built on the machine")
    return Runtime.DOCKER, f"Docker {site.docker['version']} with {image}"


def _process(site: Site, code_name: str, name: str) -> Start:
    """Command that starts the agent with the machine's own Python, from the code that was sent."""
    home, commit = f"{site.root}/jobs/{name}", contents.current_commit()
    environment = {"PYTHONPATH": f"{site.root}/code/{code_name}", "PYTHONDONTWRITEBYTECODE": "1"}
    return Start(
        words=(str(site.python["path"]), "-u", "-m", "launcher.agent", home),
        environment=environment | ({"ROOFLAUNCH_COMMIT": commit} if commit else {}),
    )


def _container(site: Site, image: str, name: str) -> Start:
    """Command that starts the agent in a container from `image`."""
    home = f"{site.root}/jobs/{name}"
    words = ["docker", "run", "--rm", "--name", name, "--user", site.user]
    words += ["--volume", f"{SOCKET}:{SOCKET}", "--group-add", str(site.docker["group"])]
    words += ["--volume", f"/:{HOST}:ro", "--volume", f"{site.root}:{site.root}", "--network", "host"]
    words += ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]  # noqa: S108 - in the container
    words += ["--stop-timeout", "25", "--entrypoint", "python", image, "-m", "launcher.agent", home, HOST]
    return Start(words=tuple(words), environment={}, container=name)


def _image(machines: SshMachines, options: Options, site: Site, code_name: str, *, flavour: str) -> str:
    """Id of the image: `--image` if given, else the image for this code, built if the machine lacks it."""
    if options.image:
        answer = machines.ask("image", image=options.image, within_s=BUILD_LIMIT_S)
        if not answer["id"]:
            raise ToolError(
                f"{machines.place} neither has the image '{options.image}' nor can pull it",
                hint="leave --image out: the machine then builds the image for this code",
            )
        return str(answer["id"])
    if built := site.images.get(flavour):
        return built
    if site.free_bytes < BUILD_BYTES:
        free = f"{site.free_bytes / 1e9:.1f} GB are free on {machines.place}"
        raise ToolError(f"{free}; a build needs {BUILD_BYTES // 10**9} GB", hint="docker system prune on the machine")
    recipe = contents.make_recipe(contents.require_flavour(flavour), commit=contents.current_commit())
    arguments = recipe.build_args()
    words = ["--tag", recipe.tag, "--label", f"{contents.INPUTS_LABEL}={recipe.inputs_hash}"]
    words += [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    answer = machines.ask("build", code=code_name, words=words, within_s=BUILD_LIMIT_S)
    if answer["code"]:
        last = next((line.strip() for line in reversed(answer["last"]) if line.strip()), "no message")
        raise ToolError(
            f"the image cannot be built on {machines.place}: {last}",
            hint=f"the whole log is {answer['log']} on {machines.place}; or --runtime process --python PATH",
        )
    return str(machines.ask("image", image=recipe.tag)["id"])
