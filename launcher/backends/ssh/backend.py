"""Backend `ssh` of `launch`: jobs on a machine that the user can log in to, its checks, and the preparation of a job.

remote.py reports the facts of the machine. A job is prepared by choosing a runtime, and sending our code or building
an image.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

from launcher.backends.remote_jobs import SSH_PROGRAM, RemoteJobs
from launcher.backends.ssh.options import Options, Where
from launcher.backends.ssh.plan import Beside, SshPlan, Start, make_plan
from launcher.images import contents
from launcher.images.build import NEEDED_BYTES as BUILD_BYTES
from launcher.machine.runtime import NO_COMPILER, NO_MPS
from launcher.protocol.backend import (
    Check,
    CheckPart,
    Condition,
    Job,
    Leftover,
    Listing,
    Machine,
    Submitted,
    Tell,
)
from launcher.protocol.records import NAME, Request
from launcher.script import files as script_files
from launcher.values import CPU_FLAVOUR, Runtime
from workload.contract import further
from workload.contract.errors import NoCapacityError, ToolError, UsageError
from workload.contract.spec import Device, RunSpec
from workload.contract.text import counted, printable
from workload.environment import gpu_index
from workload.storage.ssh import (
    TRANSFER_LIMIT_S,
    Connection,
    Login,
    LostError,
    SshFolder,
    parse_login,
    source_of,
)

ROOT = "~/.rooflaunch"
KEEPER = "launcher/backends/ssh/keeper.py"
FURTHER = "launcher.agent.further"
# Limit per job for stopping: remote.py waits for the end of each job, which may take nearly a minute.
STOP_LIMIT_S = 90.0
# Time that an agent has to end after SIGTERM, before it is killed.
GRACE_S = 30.0
# Delay after which a job past its deadline is a leftover: the keeper ends a job some seconds late.
LATE_S = 60.0


class SshMachines(RemoteJobs):
    """Jobs on one machine reached over ssh, which runs one job at a time."""

    program, prefix = SSH_PROGRAM, "ssh"

    def __init__(
        self,
        connection: Connection,
        *,
        connect: Callable[[Login], Connection] = Connection,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(connection, ROOT, where=connection.login.host, monotonic=monotonic)
        self._login, self._connect = connection.login, connect
        self._store = SshFolder(connection, ROOT)

    @property
    def place(self) -> str:
        return str(self._login)

    def _end(self, names: Sequence[str]) -> Mapping[str, str]:
        """First SIGTERM, then SIGKILL; remote.py checks whether any process is left."""
        within_s = STOP_LIMIT_S * max(1, len(names))
        stopped: Mapping[str, str] = self.ask("stop", names=names, grace_s=GRACE_S, within_s=within_s)["stopped"]
        return stopped

    def submit(self, plan: SshPlan, tell: Tell) -> Submitted:
        """Start the job in a session of its own. Raises `NoCapacityError` if the machine runs another job of ours."""
        assert plan.start is not None
        begun: list[tuple[SshMachines, Machine]] = []
        listed: list[dict[str, Any]] = []
        start, files = plan.start, dict[str, str]()
        try:
            for number, each in enumerate(plan.beside, 2):
                there, password = self.of(each.login), secrets.token_hex(16)
                tell(f"starting the job on {there.place}")
                begun.append((there, there.begin_beside(plan, each, number, password, self._store)))
                where = {"address": each.address, "port": there.port_of(begun[-1][1].name), "password": password}
                listed.append({"name": each.login.host, **where})
            tell(f"starting the job on {self.place}")
            if listed:
                files[further.FILE] = json.dumps({"name": self._login.host, "further": listed})
                path = f"{plan.request.store}/jobs/{plan.request.name}/{further.FILE}"
                start = replace(start, environment={**start.environment, further.VARIABLE: path})
            return Submitted(machines=(self._begin(plan.request, start, files),))
        except BaseException:  # includes Ctrl-C
            for there, job in begun:
                there.stop([job])
            raise

    def of(self, login: Login) -> "SshMachines":
        """Make the client for jobs on another machine, with a connection of its own."""
        return SshMachines(self._connect(login), connect=self._connect)

    def _begin(self, request: Request, start: Start, files: Mapping[str, str]) -> Machine:
        """Start a job. `files`: private files in its folder, by name. Raises `NoCapacityError` if another one runs."""
        answer = self.ask(
            "start",
            name=request.name,
            request=request.to_bytes().decode(),
            keeper=source_of(KEEPER),
            words=list(start.words),
            environment=dict(start.environment),
            container=start.container,
            limit_s=request.limit_s,
            grace_s=GRACE_S,
            files=dict(files),
        )
        if "busy" in answer:
            other = printable(answer["busy"]) or "another job of rooflaunch"
            raise NoCapacityError(
                f"{self.place} is busy with {other}: two runs at the same time would disturb each other",
                hint=f"launch logs {other} -f, or launch down {other}",
            )
        machine = self._machine(answer["job"])
        if machine is None:
            raise ToolError(f"the job did not start on {self.place}", hint=f"launch logs {request.name}")
        return machine

    def begin_beside(self, plan: SshPlan, beside: Beside, number: int, password: str, first: SshFolder) -> Machine:
        """Start the process of a further machine, with the script's files from the store of the first machine."""
        request, script = plan.request, dict(plan.request.script)
        files = {further.FILE: json.dumps({"address": beside.address, "password": password})}
        if script:
            script_files.copy_archive(request, first, self._store)
        if script.get("env"):
            files[further.SECRETS] = json.dumps(script_files.variables_in(request, first))
            script["env"] = []
        request = replace(request, name=f"{request.name}-m{number}", store=beside.root, script=script)
        assert beside.start is not None
        start = replace(beside.start, words=(*beside.start.words[:-1], f"{beside.root}/jobs/{request.name}"))
        return self._begin(request, start, files)

    def port_of(self, name: str) -> int:
        """Port at which the process of a further machine listens. Raises `ToolError` if it has ended."""
        port = int(self.ask("port", name=name)["port"])
        if not port:
            log = f"{ROOT}/launches/{name}/startup.log"
            raise ToolError(f"the job on {self.place} does not listen", hint=f"{self._login.command()} cat {log}")
        return port

    def look(self, names: Mapping[str, Sequence[str]] | None = None) -> Listing[Machine]:
        wanted = None if names is None else [name for name in names if NAME.fullmatch(name)]
        host = self._login.host
        try:
            answer = self.ask("look", names=wanted)["jobs"]
        except LostError:
            return Listing(unreachable=(host,))
        jobs = [job for job in map(self._machine, answer) if job and NAME.fullmatch(job.name)]
        known = {machine.name for machine in jobs}
        jobs += [Machine(name=name, zone=host, condition=Condition.GONE) for name in names or () if name not in known]
        return Listing(there=tuple(jobs))

    def leftovers(self) -> Listing[Leftover]:
        """Jobs that run past their time limit, because the keeper, which enforces the limit, was killed."""
        why = "the job is past its limit, but still running"
        return self.look().overdue(self.now_s(), late_s=LATE_S, kind=self.noun, why=why)

    def _machine(self, job: Mapping[str, Any]) -> Machine | None:
        try:
            name, created_s, deadline_s = str(job["name"]), float(job["created_s"]), float(job["deadline_s"])
            is_running = bool(job["is_running"])
        except (KeyError, TypeError, ValueError):  # the job's file is damaged, or not ours
            return None
        return Machine(
            name=name,
            zone=self._login.host,
            condition=Condition.RUNNING if is_running else Condition.GONE,
            status="running" if is_running else "ended",
            created_s=created_s,
            deadline_s=deadline_s,
            why=str(job.get("why", "")),
        )


# Oldest Python that runs our code.
LEAST_PYTHON = (3, 11)
PACKAGES = ("torch", "torchvision", "numpy", "psutil")
USUAL_PYTHON = "python3"
# Disk space for a run: our code has 2 MB, and a bundle with a profile 100 MB, stored twice until the job has ended.
NEEDED_BYTES = 10**9


@dataclass(frozen=True, kw_only=True)
class Site:
    """Facts of a machine. `python`: path, version and packages of one Python; `images`: ids of images by flavour.

    `address`: at which other machines of its network reach it.
    """

    host: str
    root: str
    is_writable: bool
    has_code: bool
    free_bytes: int
    cpus: int
    user: str
    gpus: tuple[tuple[str, ...], ...]
    docker: Mapping[str, Any]
    images: Mapping[str, str]
    python: Mapping[str, Any]
    address: str = ""

    def __str__(self) -> str:
        gpus = ", ".join(gpu[0] for gpu in self.gpus) or "no NVIDIA GPU"
        return f"{self.host}, {counted(self.cpus, 'CPU')}, {gpus}, {self.free_bytes / 1e9:.0f} GB free"

    @property
    def flavour(self) -> str:
        """Flavour of image for the first GPU, empty if no flavour supports this GPU; without a GPU, the CPU flavour."""
        if not self.gpus:
            return CPU_FLAVOUR
        major, _, minor = self.gpus[0][1].partition(".")
        flavour = contents.flavour_for((int(major), int(minor))) if (major + minor).isdigit() else None
        return flavour.name if flavour else ""

    @property
    def python_shown(self) -> str:
        """Text such as `/usr/bin/python3 3.11.2 with torch 2.5.1`."""
        version = ".".join(map(str, self.python.get("version", ())))
        return f"{self.python.get('path', '')} {version} with torch {self.python.get('torch') or 'missing'}"

    def why_no_process(self) -> str:
        """Reason why the machine's Python cannot run the trainer; empty if it can."""
        if error := self.python.get("error"):
            return f"the machine's Python cannot be used: {error}"
        if tuple(self.python["version"][:2]) < LEAST_PYTHON:
            return f"{self.python_shown}: Python {'.'.join(map(str, LEAST_PYTHON))} or newer is needed"
        missing = [name for name in PACKAGES if not self.python.get(name)]
        return f"{self.python['path']} lacks {', '.join(missing)}" if missing else ""

    def why_no_container(self, *, with_gpu: bool) -> str:
        """Reason why the machine's Docker engine cannot run the trainer; empty if it can."""
        if not self.docker["version"]:
            refused = "the machine's Docker engine refuses our user, or does not answer"
            return refused if self.docker["is_installed"] else "the machine has no Docker"
        if with_gpu and not self.docker["has_gpus"]:
            return "the machine's Docker engine cannot give containers access to the GPU"
        return "" if self.flavour else f"no image has code for the GPU {self.gpus[0][0]}"


PYTHON_CURE = (
    "--python with the path of a Python that has these packages, or install them: pip install torch torchvision "
    "numpy psutil"
)


@cache
def inputs_by_flavour() -> Mapping[str, str]:
    """Value of an image's label `rooflaunch.inputs` if the image fits this code, by flavour."""
    return {name: contents.make_recipe(flavour).inputs_hash for name, flavour in contents.load_flavours().items()}


def look_at(machines: SshMachines, *, python: str = USUAL_PYTHON, code: str = "none") -> Site:
    """Request all facts from the machine at once; `code`: version of our code whose presence is reported."""
    inputs = inputs_by_flavour()
    labels = [[f"{contents.FLAVOUR_LABEL}={name}", f"{contents.INPUTS_LABEL}={text}"] for name, text in inputs.items()]
    answer = machines.ask("facts", python=python, code=code, labels=labels)
    return Site(
        host=str(answer["host"]),
        root=str(answer["root"]),
        is_writable=bool(answer["is_writable"]),
        has_code=bool(answer["has_code"]),
        free_bytes=int(answer["free_bytes"]),
        cpus=int(answer["cpus"] or 0),
        user=str(answer["user"]),
        gpus=tuple(tuple(map(str, gpu)) for gpu in answer["gpus"]),
        docker=answer["docker"],
        images=dict(zip(inputs, answer["docker"]["images"], strict=False)),
        python=answer["site"],
        address=str(answer["address"]),
    )


def checks(machines: SshMachines) -> Iterator[Check]:
    """Checks for `launch doctor ssh`."""
    part = CheckPart("ssh")
    try:
        site = look_at(machines)
    except ToolError as error:
        yield part.failed("connection", error)
        return
    yield part.ok("connection", f"{machines.place} answers: {site}")
    if not site.is_writable:
        yield part.problem("disk", f"{site.root} is not writable", "ask the machine's owner for a folder")
    elif site.free_bytes < NEEDED_BYTES:
        yield part.problem("disk", f"{site.free_bytes / 1e6:.0f} MB free in {site.root}", "free a GB in this folder")
    else:
        yield part.ok(
            "disk", f"{site.free_bytes / 1e9:.0f} GB free in {site.root}; a build needs {BUILD_BYTES // 10**9}"
        )
    for name, capability, driver, memory in site.gpus:
        yield part.ok("GPU", f"{name}, compute capability {capability}, driver {driver}, {memory}")
    if not site.gpus:
        yield part.note("GPU", "nvidia-smi shows no GPU: runs use the CPU")
    no_process, no_container = site.why_no_process(), site.why_no_container(with_gpu=bool(site.gpus))
    # A process or a container is enough, so only the lack of both is a problem.
    missing = part.problem if no_process and no_container else part.note
    yield missing("process", no_process, PYTHON_CURE) if no_process else part.ok("process", site.python_shown)
    if no_container:
        yield missing("container", no_container, "install Docker on the machine, or --runtime process")
    else:
        built = (
            "has the image for this code" if site.images.get(site.flavour) else "will build the image at the first run"
        )
        yield part.ok("container", f"Docker {site.docker['version']} {built}")
    if running := [job.name for job in machines.look()]:
        cure = "jobs are not queued here: launch again when the running job has ended"
        yield part.note("jobs", f"runs now: {', '.join(running)}", cure)
    else:
        yield part.ok("jobs", "none runs")


# --- preparation

BUILD_LIMIT_S = 3600.0
SOCKET = "/var/run/docker.sock"
# Mount point of the machine's root in the agent's container.
HOST = "/host"


def prepare(draft: SshPlan, machines: SshMachines) -> SshPlan:
    """Make the final plan from the draft. Raises `ToolError` if the machine cannot run the job."""
    specs, options = draft.specs, draft.options
    code = contents.make_recipe(contents.require_flavour(CPU_FLAVOUR)).context()
    code_name = hashlib.sha256(code).hexdigest()[:16]
    places = [machines, *(machines.of(each.login) for each in draft.beside)]
    sites = [look_at(each, python=options.python or USUAL_PYTHON, code=code_name) for each in places]
    if options.gpu_index is not None:
        hint = "`launch doctor ssh` lists the GPUs, counted from 0"
        gpu_index.require_known(options.gpu_index, range(len(sites[0].gpus)), place=machines.place, hint=hint)
        sites[0] = replace(sites[0], gpus=(sites[0].gpus[options.gpu_index],))
    site, by_place = sites[0], {each.place: site for each, site in zip(places, sites, strict=True)}
    with_gpu = bool(site.gpus) and any(spec.device in (Device.CUDA, Device.AUTO) for spec in specs)
    for place, each in by_place.items():
        _require_possible(place, each, specs, draft.request.work.devices)
    (runtime, why), *_ = [_runtime(place, options, specs, each, with_gpu=with_gpu) for place, each in by_place.items()]
    _require_alike(by_place, specs)
    for there, each in zip(places, sites, strict=True):
        if not each.has_code:
            there.ask("code", payload=code, within_s=TRANSFER_LIMIT_S, code=code_name, size=len(code))
    name, image = draft.request.name, ""
    if runtime is Runtime.PROCESS:
        start = _process(site, code_name, f"{site.root}/jobs/{name}")
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
    beside = [
        replace(each, root=at.root, machine=str(at), address=at.address, start=_process(at, code_name, "HOME", FURTHER))
        for each, at in zip(draft.beside, sites[1:], strict=True)
    ]
    return replace(
        draft, request=request, start=start, beside=tuple(beside), machine=str(site), runtime=f"{runtime}: {why}"
    )


def _require_alike(sites: Mapping[str, Site], specs: Sequence[RunSpec]) -> None:
    """Raise `UsageError` for machines whose ranks cannot train together."""
    torch = {place: str(site.python.get("torch")) for place, site in sites.items()}
    if len(set(torch.values())) > 1:
        listed = "; ".join(f"{version} on {place}" for place, version in torch.items())
        hint = "--python with the path of a Python that has the same torch on all machines"
        raise UsageError(f"the machines have different versions of torch: {listed}", hint=hint)
    without = [place for place, site in sites.items() if not site.gpus]
    if 0 < len(without) < len(sites) and any(spec.device is not Device.CPU for spec in specs):
        raise UsageError(
            f"{', '.join(without)} has no NVIDIA GPU, and the other machines have", hint="--cpu, or other machines"
        )


def _require_possible(place: str, site: Site, specs: Sequence[RunSpec], devices: int) -> None:
    if not site.is_writable:
        raise ToolError(
            f"no permission to write to {site.root} on {place}", hint="ask the machine's owner for a folder"
        )
    if site.free_bytes < NEEDED_BYTES:
        free = f"{site.free_bytes / 1e6:.0f} MB are free in {site.root} on {place}"
        raise ToolError(f"{free}; a run needs {NEEDED_BYTES / 1e6:.0f} MB", hint="free some space on the machine")
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
            raise ToolError(f"no process can run on {place}: {no_process}", hint=PYTHON_CURE)
        return Runtime.PROCESS, f"asked for; {site.python_shown}"
    why_not = no_container or site.why_no_container(with_gpu=with_gpu)
    is_built = bool(site.images.get(site.flavour if with_gpu else CPU_FLAVOUR))
    if not wants_container and not no_process and (why_not or not is_built):
        return Runtime.PROCESS, site.python_shown
    if why_not and wants_container:
        hint = "--runtime process, or launch doctor ssh, which shows what is missing"
        raise ToolError(f"no container can run on {place}: {why_not}", hint=hint)
    if why_not:
        raise ToolError(f"nothing can run on {place}: {why_not}, and {no_process}", hint=PYTHON_CURE)
    image = options.image or ("the image for this code" if is_built else "a new image, built on the machine")
    return Runtime.DOCKER, f"Docker {site.docker['version']} with {image}"


def _process(site: Site, code_name: str, home: str, module: str = "launcher.agent") -> Start:
    commit = contents.current_commit()
    environment = {"PYTHONPATH": f"{site.root}/code/{code_name}", "PYTHONDONTWRITEBYTECODE": "1"}
    return Start(
        words=(str(site.python["path"]), "-u", "-m", module, home),
        environment=environment | ({"ROOFLAUNCH_COMMIT": commit} if commit else {}),
    )


def _container(site: Site, image: str, name: str) -> Start:
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


@dataclass(frozen=True, kw_only=True)
class Ssh:
    """Backend `ssh`; tests replace `connect`."""

    name: str = "ssh"
    connect: Callable[[Login], Connection] = Connection

    def settings(self, where: Where, options: Options | None = None, *, offline: bool = False) -> Login:
        """Login that the options select. Raises `UsageError` for an unsafe host name."""
        del options, offline
        return parse_login(where.host, where.port)

    def plan(self, job: Job, options: Options, settings: Login, *, now: datetime, offline: bool = False) -> SshPlan:
        del offline
        return make_plan(job.resolved, options, settings, now=now, token=job.token, task=job.task)

    def prepare(self, draft: SshPlan, machines: SshMachines) -> SshPlan:
        return prepare(draft, machines)

    def machines(self, settings: Login) -> SshMachines:
        return SshMachines(self.connect(settings), connect=self.connect)

    def store(self, settings: Login) -> SshFolder:
        return SshFolder(self.connect(settings), ROOT)

    def checks(self, where: Where) -> Iterator[Check]:
        return checks(self.machines(self.settings(where)))


backend = Ssh()
