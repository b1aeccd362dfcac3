"""Runs on this machine: make a plan first, then run the trainer in a child process or in a container."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.docker_engine import Container
from launcher.machine import containers, runtime
from launcher.machine.containers import DRIVER_PARAMETERS, ContainerLimits
from launcher.machine.runtime import Choice, Workplace
from launcher.machine.watcher import Watcher, repeated_every
from launcher.values import Runtime
from workload.contract import bundle, changes
from workload.contract.bundle import Bundle
from workload.contract.errors import BundleError, ExitCode, RooflaunchError, ToolError
from workload.contract.process import run_child
from workload.contract.record import to_json
from workload.contract.script_words import script_name, without_secrets
from workload.contract.spec import Profile, Resolved, RunSpec, arguments
from workload.contract.text import counted, printable, span
from workload.contract.trainer import Context, Forks
from workload.environment import gpu_index as gpu_indices
from workload.run import unfinished


@dataclass(frozen=True, kw_only=True)
class LocalPlan:
    """The complete plan of `launch local`. `profiles`: a profile pass follows the timing run.

    `notes`: remarks on a script, made before it runs.
    """

    spec: RunSpec
    origin: Mapping[str, str]
    choice: Choice
    limits: ContainerLimits
    output: Path
    command: tuple[str, ...]
    context: Context
    container: Container | None = None
    driver_parameters: Path = DRIVER_PARAMETERS
    profiles: bool = False
    workplace: Workplace | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plan as JSON values, for `--dry-run --format json`."""
        image = self.choice.image
        return {
            "spec": {**self.spec.to_json(), "script": list(without_secrets(self.spec.script))},
            "spec_origin": dict(self.origin),
            "runtime": self.choice.runtime,
            "runtime_reason": self.choice.why,
            "image": None if image is None else {"id": image.id, "tags": list(image.tags), "digest": image.digest},
            "output": str(self.output),
            "command": runtime.shown_words(self._words()),
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """Text of the plan, with the command quoted for a shell."""
        times = "one run" if self.spec.repeats == 1 else f"{self.spec.repeats} runs, each in its own process"
        image = self.choice.image
        lines = {
            "plan": f"{self.spec.title}, on {self.spec.where}; {times}",
            "set by": ", ".join(f"{name}: {source}" for name, source in self.origin.items()) or "all defaults",
            "runtime": f"{self.choice.runtime} ({self.choice.why})",
            **({"image": image.name} if image else {}),
            "bundles": f"{self.output}/",
            "command": self.command_text(),
        }
        rows = [*lines.items(), *(("note", note) for note in self.notes)]
        return "\n".join(f"{name:<10} {text}" for name, text in rows)

    def command_text(self) -> str:
        """Command to repeat the run by hand, without `--context`, which only records the plan in the bundle."""
        words = runtime.shown_words(self._words())
        index = words.index("--context")
        return shlex.join(words[:index] + words[index + 2 :])

    def _words(self) -> list[str]:
        if self.container:
            return self.container.as_words()
        settings = (
            [f"{name}={value}" for name, value in runtime.script_variables(self.spec).items()] if self.workplace else []
        )
        return [*(["env", *settings] if settings else []), *self.command]


@dataclass(frozen=True, kw_only=True)
class LocalOutcome:
    """Outcome of a plan. `bundles`: the sealed bundles; `error`: error of a trainer that was killed, else None."""

    exit_code: int
    bundles: tuple[Bundle, ...]
    error: RooflaunchError | None = None

    def to_json(self) -> dict[str, Any]:
        """run.json of every bundle, with the bundle's folder as `path`."""
        runs = [{"path": str(sealed.path), **to_json(sealed.record)} for sealed in self.bundles]
        return {"exit_code": self.exit_code, "runs": runs}


def make_plan(
    resolved: Resolved,
    choice: Choice,
    *,
    output: Path,
    limits: ContainerLimits,
    outside: Mapping[str, Mapping[str, Any]] | None = None,
    backend: str = "local",
    place: str | None = None,
    driver_parameters: Path = DRIVER_PARAMETERS,
    context: Context | None = None,
    workplace: Workplace | None = None,
    gpu_index: int | None = None,
) -> LocalPlan:
    """Plan of `launch local`; changes nothing. `outside`: facts on the host that a container cannot see.

    `backend` and `place`: names for the run's record. `driver_parameters`: file in which the host's NVIDIA driver lists
    its parameters. `context`: further facts for the trainer if the run belongs to a task. `workplace`: folder and data
    of a user's own script; by default the current folder. `gpu_index`: the GPU to use, as nvidia-smi counts. Raises
    `UsageError` for an index if the run uses no NVIDIA GPU.
    """
    spec = resolved.spec if gpu_index is None else gpu_indices.required(resolved.spec, gpu_index)
    gpu = () if gpu_index is None else (gpu_indices.FLAG, str(gpu_index))
    if spec.script:
        workplace = workplace or Workplace(folder=Path.cwd())
        workplace.require(spec.script)
        context = replace(context or Context(), script_commit=workplace.commit)
    context = replace(
        context or Context(),
        backend=backend,
        place=place,
        runtime_reason=choice.why,
        spec_origin=dict(resolved.origin),
        outside=outside or {},
    )
    profiles = spec.profile is not Profile.NONE and not context.profile_later
    container = None
    if choice.runtime is Runtime.DOCKER:
        spec, context = containers.place_paths(spec), _container_context(choice, spec, context, gpu_index)
        command = _trainer_words(spec, workplace, output.absolute(), context)
        container = containers.describe(
            choice, spec, output=output, command=command, limits=limits, gpu_index=gpu_index
        )
        if workplace:
            container = containers.for_script(container, spec, workplace)
    else:
        changes.require_new_variables(spec.change, os.environ)
        # With -P, because the working folder may have a module `workload` of the user's own.
        trainer = runtime.SCRIPT_TRAINER if workplace else ("-P", "-m", "workload")
        command = (sys.executable, *trainer, *_trainer_words(spec, workplace, output, context, gpu))
    return LocalPlan(
        spec=spec,
        origin=resolved.origin,
        choice=choice,
        limits=limits,
        output=output,
        command=command,
        context=context,
        container=container,
        driver_parameters=driver_parameters,
        profiles=profiles,
        workplace=workplace,
    )


def _trainer_words(
    spec: RunSpec, workplace: Workplace | None, output: Path, context: Context, gpu: Sequence[str] = ()
) -> tuple[str, ...]:
    if workplace:
        return runtime.script_command(spec, workplace, output=output, context=context, gpu=gpu)
    return ("train", *arguments(spec), *gpu, "-o", str(output), "--context", context.to_argument())


def _container_context(choice: Choice, spec: RunSpec, context: Context, gpu_index: int | None) -> Context:
    """Context with facts on the container of the trainer; any profile is left to another container.

    A container with one GPU counts that GPU as 0, so the trainer gets its index on this machine as a fact.
    """
    assert choice.image is not None
    assert choice.engine is not None
    facts = {
        "engine": f"Docker {choice.engine.version}",
        "image": choice.image.name,
        "image_digest": choice.image.id,
        "registry_digest": choice.image.digest or None,
        "base": choice.image.labels.get("rooflaunch.base"),
    }
    device = {"gpu_index": gpu_index}
    return replace(
        context,
        runtime=choice.runtime,
        outside={**context.outside, "container": facts, **({} if gpu_index is None else {"device": device})},
        profile_later=spec.profile is not Profile.NONE,
    )


def run(plan: LocalPlan, *, watcher: Watcher | None = None, forks: Forks | None = None) -> LocalOutcome:
    """Run the trainer to its end. The trainer prints progress and errors to our stderr.

    `watcher`: receives the progress, which is otherwise printed on the terminal; the caller then handles signals.
    `forks`: starts the trainer as a fork if it can.
    """
    return (
        _run_process(plan, watcher, forks) if plan.container is None else _run_container(plan, plan.container, watcher)
    )


def _run_process(plan: LocalPlan, watcher: Watcher | None, forks: Forks | None) -> LocalOutcome:
    folders: list[Path] = []

    def keep(line: str) -> None:
        # A script may change its working folder, so the printed path is not used, only the bundle's name in it.
        folders.append(plan.output / Path(line).name if plan.workplace else Path(line))
        if watcher:
            watcher.on_bundle(folders[-1])

    try:
        folder, variables = None, dict[str, str]()
        if plan.workplace:
            folder = plan.workplace.folder
            variables = {**plan.workplace.variables, **runtime.script_variables(plan.spec)}
        is_quiet = bool(plan.workplace) and watcher is None and not sys.stderr.isatty()
        with repeated_every(lambda passed_s: _print_steps(plan, folders, passed_s)) if is_quiet else nullcontext():
            # A trainer that profiles or that starts ranks should hold neither torch nor a GPU while its own processes
            # run.
            forking = None if forks is None or plan.profiles or plan.spec.ranks > 1 else forks.child
            ended = run_child(
                plan.command, on_line=keep, follower=watcher, folder=folder, variables=variables, forking=forking
            )
    finally:
        if watcher:
            watcher.on_ended()
    if ended.code == ExitCode.DONE and ended.signal is None:
        return LocalOutcome(exit_code=ended.code, bundles=tuple(bundle.read(folder) for folder in folders))
    return _broken_off(plan, ended.code, ended.error(), folders)


def _print_steps(plan: LocalPlan, folders: list[Path], passed_s: float) -> None:
    """Print how many steps of a script are measured, because the script itself may print nothing for a long time.

    Called if stderr is no terminal.
    """
    steps = 0
    with suppress(OSError):
        steps = (folders[-1] / bundle.STEPS).read_bytes().count(b"\n") - 1 if folders else 0
    measured = (
        f"{span(round(passed_s))}, {counted(steps, 'step') + ' so far' if steps > 0 else 'no step is measured yet'}"
    )
    print(f"script     {script_name(plan.spec.script)}: {measured}", file=sys.stderr, flush=True)


def _broken_off(plan: LocalPlan, code: int, error: RooflaunchError | None, folders: list[Path]) -> LocalOutcome:
    """Outcome of a run that ended early, with its bundles sealed; a failed repeat without a bundle gets one."""
    settled = unfinished.seal_all(code, error, folders, output=plan.output, spec=plan.spec, context=plan.context)
    return LocalOutcome(exit_code=code if error is None else error.exit_code, bundles=_sealed(settled), error=error)


def _run_container(plan: LocalPlan, container: Container, watcher: Watcher | None) -> LocalOutcome:
    engine, folders = plan.choice.engine, list[Path]()
    assert engine is not None
    for folder in map(Path, container.writable):
        bundle.make_output(folder, shown=plan.output if folder == plan.output.absolute() else folder)
    home = plan.output.absolute()

    def keep(line: str) -> None:
        folders.append(plan.output / Path(line).relative_to(home))
        if watcher:
            watcher.on_bundle(folders[-1])

    try:
        ended = containers.follow(engine, container, on_line=keep, watcher=watcher)
    except ToolError as lost:
        if not folders:
            raise
        raise ToolError(f"{lost}; its measurements are in '{folders[-1]}'", hint=lost.hint) from lost
    error = containers.explain(ended, plan.limits)
    if error or ended.exit_code != ExitCode.DONE:
        return _broken_off(plan, ended.exit_code, error, folders)
    code: int = ExitCode.DONE
    if plan.profiles:
        code = _profile(plan, container, home / folders[0].name, watcher)
    return LocalOutcome(exit_code=code, bundles=_sealed(folders))


def _profile(plan: LocalPlan, timing: Container, folder: Path, watcher: Watcher | None) -> int:
    """Do the profile pass in a container of its own, the only container that may read GPU counters.

    Returns `INTERRUPTED` after Ctrl-C, else `DONE`: a run without its profile is complete too.
    """
    engine = plan.choice.engine
    assert engine is not None
    restricted = plan.spec.profile is Profile.NCU and containers.counters_restricted(plan.driver_parameters)
    words = runtime.script_profile_words(plan.spec, plan.workplace) if plan.workplace else ()
    container = containers.for_profile(timing, ("profile", str(folder), *words), restricted=restricted)
    print(shlex.join(runtime.shown_words(container.as_words())), file=sys.stderr)
    try:
        ended = containers.follow(engine, container, on_line=lambda _: None, watcher=watcher)
    except ToolError as error:
        print(f"warning: the run is complete, but without a profile: {printable(str(error))}", file=sys.stderr)
        return ExitCode.DONE
    code = ExitCode.INTERRUPTED if ended.signal is not None else ended.exit_code
    # With exit code TOOL, the profile pass itself has printed why there is no profile.
    if code not in (ExitCode.DONE, ExitCode.TOOL, ExitCode.INTERRUPTED):
        print(f"warning: the profile pass ended with exit code {code}; the run is complete", file=sys.stderr)
    return ExitCode.INTERRUPTED if code == ExitCode.INTERRUPTED else ExitCode.DONE


def _sealed(folders: list[Path]) -> tuple[Bundle, ...]:
    """Complete bundles; the trainer has printed why any other is incomplete."""
    complete = []
    for folder in folders:
        with suppress(BundleError):
            complete.append(bundle.read(folder))
    return tuple(complete)
