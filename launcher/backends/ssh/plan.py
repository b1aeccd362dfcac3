"""Plan of `launch ssh`: the job and how it will run, before the machine is contacted. Pure functions."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from launcher.backends.shared_plan import cost_text, prices_of, require_price, run_rows, text_of
from launcher.backends.ssh.options import Options
from launcher.protocol.backend import Estimate
from launcher.protocol.records import Request, Task, region_of
from launcher.values import Runtime
from workload.contract.errors import UsageError
from workload.contract.spec import Resolved, RunSpec
from workload.contract.text import minutes
from workload.environment import gpu_index
from workload.storage.ssh import Login, parse_login

# A launch's name contains the first `MOST_NAMED` characters of the host's name, with `NAMED` replaced by a hyphen.
NAMED, MOST_NAMED = re.compile(r"[^a-z0-9]+"), 24
# Placeholder for our folder's path in a dry run, which does not ask the machine for the user's home.
UNASKED_ROOT = "/~/.rooflaunch"


@dataclass(frozen=True, kw_only=True)
class Start:
    """Command that starts the agent. `container`: name of the agent's container; empty without a container."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    container: str = ""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Machine that trains together with the plan's; all but `login` is known only after it was contacted.

    `root`: our folder there. `start`: command of its process, whose last word is replaced by the job's folder.
    `address`: at which the other machines reach it.
    """

    login: Login
    root: str = ""
    start: Start | None = None
    address: str = ""
    machine: str = ""


@dataclass(frozen=True, kw_only=True)
class SshPlan:
    """Plan of a launch; `start` and `machine` are known only after the machine was contacted.

    `beside`: further machines of the run.
    """

    request: Request
    login: Login
    options: Options
    beside: tuple[Beside, ...] = ()
    start: Start | None = None
    machine: str = ""
    runtime: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def submissions(self) -> int:
        """Always 1, because a machine over ssh is never preempted, so a launch is never repeated."""
        return 1

    @property
    def spec(self) -> RunSpec:
        """Spec of the run."""
        return RunSpec.from_json(self.request.spec)

    @property
    def specs(self) -> list[RunSpec]:
        """Specs of all runs."""
        return [run.spec for run in self.request.work.runs]

    @property
    def estimate(self) -> Estimate:
        """Estimate without a time for a run, because the machine's speed is unknown."""
        usd_per_h = usd_per_h_of(self.options)
        most_usd = usd_per_h * self.request.limit_s / 3600 if usd_per_h else None
        return Estimate(limit_s=self.request.limit_s, usd_per_h=usd_per_h, most_usd=most_usd)

    def renamed(self, request: Request) -> "SshPlan":
        """Copy of the plan with another request, as a job with its own folder and container."""
        before, start = self.request.name, self.start
        if start is not None:
            words = tuple(word.replace(before, request.name) for word in start.words)
            start = replace(start, words=words, container=start.container and request.name)
        return replace(self, request=request, start=start)

    def text(self, width: int | None = None) -> str:
        """Plan as text for the user."""
        request = self.request
        rows = [
            *run_rows(request),
            ("job", request.name),
            *(
                ("machine", f"{login}" + (f": {machine}" if machine else ", which was not contacted yet"))
                for login, machine in [
                    (self.login, self.machine),
                    *((each.login, each.machine) for each in self.beside),
                ]
            ),
            ("GPU", "" if self.options.gpu_index is None else f"index {self.options.gpu_index} in nvidia-smi there"),
            ("runtime", self.runtime or _runtime_asked_for(self.options)),
            ("limit", f"{minutes(request.limit_s)}, enforced on the machine even if this command ends"),
            ("cost", cost_text(usd_per_h_of(self.options))),
        ]
        return text_of(rows, self.notes, width)

    def sent_text(self) -> str:
        """Command that starts the job."""
        return "decided after a look at the machine" if self.start is None else shlex.join(self.start.words)

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object, for `--dry-run --format json`."""
        return {
            "host": str(self.login),
            "port": self.login.port,
            "beside": [str(each.login) for each in self.beside],
            "machine": self.machine,
            "runtime": self.runtime,
            "request": asdict(self.request),
            "start": None if self.start is None else asdict(self.start),
            "notes": list(self.notes),
        }


def usd_per_h_of(options: Options) -> float | None:
    """Price of an hour of all machines."""
    return None if options.usd_per_h is None else options.usd_per_h * (1 + len(options.beside))


def make_plan(
    resolved: Resolved, options: Options, login: Login, *, now: datetime, token: str, task: Task | None = None
) -> SshPlan:
    """Make the draft of a plan, without contacting the machine. Raises `UsageError` for invalid options.

    `task`: runs of a sweep, instead of the runs of the resolved spec.
    """
    _check(options)
    beside = _beside(resolved.spec, options, login)
    if beside:
        # The machines' own Python starts the ranks.
        options = replace(options, runtime=Runtime.PROCESS)
    resolved = replace(resolved, spec=_on_gpu(resolved.spec, options))
    task = task.mapped(lambda spec: _on_gpu(spec, options).checked()) if task else None
    label = NAMED.sub("-", login.host.lower())[:MOST_NAMED].strip("-") or "host"
    request = Request(
        name=f"rooflaunch-{label}-{now:%Y%m%d-%H%M%S}-{token}",
        backend="ssh",
        launched_at=now.isoformat(timespec="milliseconds"),
        store=UNASKED_ROOT,
        place=f"ssh-{label}",
        runtime="process",
        limit_s=options.max_run_time_s,
        spec=resolved.spec.to_json(),
        spec_origin=dict(resolved.origin),
        prices=prices_of(usd_per_h_of(options), (region_of(login.host), ""), now),
        options={
            "host": login.host,
            **({"beside": [each.login.host for each in beside]} if beside else {}),
            **({} if options.gpu_index is None else {"gpu_index": options.gpu_index}),
        },
        task=task.to_json(resolved.spec) if task else {},
    )
    return SshPlan(request=request, login=login, options=options, beside=beside)


def _beside(spec: RunSpec, options: Options, login: Login) -> tuple[Beside, ...]:
    """Further machines of the run, at the same port. Raises `UsageError` for options that several cannot have."""
    logins = [login, *(parse_login(host, login.port) for host in options.beside)]
    hosts = " ".join(f"--host {each}" for each in logins)
    is_container = bool(options.image) or options.runtime is Runtime.DOCKER
    for is_broken, message, hint in (
        (
            len({each.host for each in logins}) < len(logins),
            f"each --host is another machine; got {hosts}",
            "--devices 2",
        ),
        (
            spec.machines != len(logins),
            f"a run has a --host for each machine; got --machines {spec.machines} with {hosts}",
            "leave --machines out",
        ),
        (
            is_container,
            f"a container runs on one machine; got --image or --runtime docker with {hosts}",
            "--python PATH",
        ),
        (options.gpu_index is not None, f"--gpu-index is for one machine; got {hosts}", "leave --gpu-index out"),
    ):
        if is_broken and len(logins) > 1:
            raise UsageError(message, hint=hint)
    return tuple(Beside(login=each) for each in logins[1:])


def _on_gpu(spec: RunSpec, options: Options) -> RunSpec:
    """The spec, on CUDA if `--gpu-index` chooses a GPU. Raises `UsageError` if the spec is for another device."""
    return spec if options.gpu_index is None else gpu_index.required(spec, options.gpu_index)


def _runtime_asked_for(options: Options) -> str:
    if options.python or options.runtime is Runtime.PROCESS:
        return f"process: asked for; by {options.python or 'its python3'}"
    if options.image or options.runtime is Runtime.DOCKER:
        return f"docker: asked for; with {options.image or 'the image for this code'}"
    return "auto: an existing image, else the machine's Python, else a new image; decided at the start"


def _check(options: Options) -> None:
    if options.python and (options.runtime == "docker" or options.image):
        raise UsageError(
            f"--python is only for a process, but a container was requested; got --python {options.python}",
            hint="--runtime process, or leave --python out",
        )
    if options.image and options.runtime == "process":
        raise UsageError(f"--image is for a container; got --runtime process with {options.image}", hint="leave it out")
    if options.image and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,511}", options.image):
        raise UsageError(f"'{options.image}' is not an image's name", hint="--image HOST/NAME@sha256:…")
    if options.python is not None and (not options.python or re.search(r"[\x00-\x1f]|^-", options.python)):
        raise UsageError(f"'{options.python}' is not the path of a program", hint="--python /opt/conda/bin/python")
    require_price(options.usd_per_h)
