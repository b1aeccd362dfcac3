"""Work of the commands `launch <backend>`, and `launch status`, `logs`, `down` and `reap`, for every backend."""

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import typer

from launcher import backends, gpu_choice, run_table
from launcher.jobs import launches, watch
from launcher.jobs.launches import Launch, LaunchState
from launcher.jobs.places import Place, options_of, other_places
from launcher.jobs.run import LaunchOutcome, LeftRunningError, prepared, run
from launcher.jobs.session import OUTPUT_EVERY_S, LaunchProgress, Session
from launcher.machine import runtime
from launcher.protocol.backend import Backend, Condition, Job, Listing, Machine, Machines, Plan, Removed
from launcher.protocol.records import TUNED, log_object, tuning_object
from launcher.script import local_script
from launcher.script.files import ScriptFiles, pack, place_of_data, relative_words
from launcher.script.options import ThereOptions, variables_of
from workload.contract.errors import (
    ExitCode,
    InterruptedRunError,
    NothingToDoError,
    RooflaunchError,
    ToolError,
    UsageError,
)
from workload.contract.invocation import as_typed
from workload.contract.process import stoppable
from workload.contract.script_words import line_of, without_secrets
from workload.contract.spec import RunSpec, resolve
from workload.contract.spent import Spent
from workload.contract.tables import TableFormat, plain
from workload.contract.text import duration, printable, terminal_width, wrapped
from workload.storage.store import MAX_TEXT_BYTES, Store, UnreachableError

ENV_IN_BUCKET = (
    "the values of --env are in the bucket until the launch has ended, and then for as long as it keeps deleted objects"
)
# Time in which the machine of a tuning starts and ends.
AROUND_TUNING_S = 300.0
T = TypeVar("T")
# Column at which the text starts in each line of a backend's plan.
TEXT_COLUMN = 11


@dataclass(frozen=True, kw_only=True)
class Script:
    """A user's own script as it was typed. `is_fresh`: the machines are created for this launch."""

    words: tuple[str, ...]
    options: ThereOptions
    is_fresh: bool

    def packed(self, backend: str, folder: Path, environment: Mapping[str, str]) -> tuple[tuple[str, ...], ScriptFiles]:
        """The script's path (relative to `folder`) and arguments, and the files to send, packed from `folder`."""
        words = relative_words(self.words, folder, line_of("launch", backend))
        data = place_of_data(self.options.data, words, is_fresh=self.is_fresh)
        variables = variables_of(self.options.env, environment)
        script_files = pack(words, folder, include=self.options.include)
        requirements = self._requirements(backend)
        place = local_script.image(requirements) if self.is_fresh else local_script.their_python()
        remarks = (
            *local_script.left_behind(
                words, folder, reached=[folder], why_not=lambda below: script_files.why_not(folder, below)
            ),
            *local_script.unknown_imports(words, folder, place),
            *((ENV_IN_BUCKET,) if variables and self.is_fresh else ()),
        )
        return words, replace(script_files, data=data, variables=variables, requirements=requirements, notes=remarks)

    def _requirements(self, backend: str) -> bytes:
        from launcher.images import build  # noqa: PLC0415 - only with requirements

        name = self.options.requirements
        if name is None:
            return b""
        if not self.is_fresh:
            raise UsageError(
                f"--requirements is for an image that is built here, but '{backend}' uses what is installed there",
                hint="install them into the Python that --python names, or into the image that --image names",
            )
        return build.read(name)


def _hints_name_the_place(command: Callable[..., T]) -> Callable[..., T]:
    """Decorator: add to a hint with commands for launches the options that select the same place."""

    @wraps(command)
    def with_place(place: Place, *words: Any, **options: Any) -> T:
        try:
            return command(place, *words, **options)
        except RooflaunchError as error:
            # A mistake in the options is one of the command that was typed, which names its place already.
            names_launches = any(f"launch {verb}" in error.hint for verb in ("status", "logs", "down", "reap"))
            if place.words and names_launches and not isinstance(error, UsageError):
                error.hint += f" (add {place.words})"
            raise

    return with_place


def _connect(place: Place) -> tuple[Backend, Any]:
    backend = backends.load(place.backend)
    try:
        return backend, backend.settings(place.where)
    except UsageError as error:
        other = other_places(place.backend)
        if not other or any(getattr(place.where, item.name) is not None for item in fields(place.where)):
            raise
        # No option was typed, so perhaps another backend than the default is meant.
        raise UsageError(str(error), hint=f"{error.hint}; for another place: {other}") from error


@_hints_name_the_place
def launch(
    place: Place,
    options: Any,
    typed: Mapping[str, object],
    *,
    script: Script | None,
    detach: bool,
    output: Path,
    dry_run: bool,
    request: bool,
    anyway: bool,
    output_format: TableFormat,
) -> int:
    """Carry out `launch <backend>`. `typed`: run options; `options`: the backend's own options.

    `anyway`: do not ask whether a training step fits the memory of a rented GPU.
    """
    reruns = getattr(options, "rerun_preempted", 0)
    if detach and reruns:
        raise UsageError(
            f"with --detach no command is left to start a preempted VM again; got --rerun-preempted {reruns}",
            hint="one of the two",
        )
    if request and not dry_run:
        raise UsageError("--request needs --dry-run", hint="--dry-run --request")
    draft = _draft(place, options, typed, script, offline=dry_run)
    gpu = getattr(draft.plan, "gpu", None)  # a backend without it does not know the memory
    if gpu and not anyway:
        gpu_choice.refuse_too_large(RunSpec.from_json(draft.plan.request.spec), gpu, output)
    if dry_run:
        print(_shown(draft.plan, draft.script_files, request=request, output_format=output_format))
        return ExitCode.DONE
    outcome, session = _carry_out(draft, output=output, detach=detach)
    return _print_outcome(outcome, draft.plan, place, session.machines, output_format)


@_hints_name_the_place
def tune(
    place: Place,
    options: Any,
    typed: Mapping[str, object],
    *,
    script: Script,
    tuning: Mapping[str, Any],
    output: Path,
) -> bytes:
    """Tune a script at a place. Fetches bundles, evidence and patch into `output`; returns the object with the rows.

    `tuning`: as `launcher.protocol.records.Request` has it. Raises the error of the launch.
    """
    draft = _draft(place, options, typed, script)
    limit_s = draft.plan.request.limit_s
    if tuning["max_time_s"] + AROUND_TUNING_S > limit_s:
        raise UsageError(
            f"the machine ends after {duration(limit_s)}, too early for a tuning of {duration(tuning['max_time_s'])} "
            f"with {duration(AROUND_TUNING_S)} around it",
            hint="a shorter --max-time, or a longer time limit in --on",
        )
    remark = f"a tuning of at most {duration(tuning['max_time_s'])}, in which the run above is repeated with changes"
    request = replace(draft.plan.request, tuning={**tuning, "tries": list(tuning["tries"])})
    files = draft.script_files and replace(draft.script_files, notes=(*draft.script_files.notes, remark))
    draft = replace(draft, plan=draft.plan.renamed(request), script_files=files)
    outcome, session = _carry_out(draft, output=output)
    found = dict[str, bytes]()
    for listed in session.store.objects(tuning_object(outcome.name)):
        found[Path(listed.name).name] = session.store.read(listed.name, most_bytes=MAX_TEXT_BYTES) or b""
    rows = found.pop(TUNED, b"")
    for name, content in found.items():
        (output / name).write_bytes(content)
    for label, text in _closing(outcome, draft.plan, session.machines.noun):
        print(f"{label:<10} {text}", file=sys.stderr)
    if outcome.error:
        raise outcome.error
    return rows


@dataclass(frozen=True, kw_only=True)
class _Draft:
    """Plan of a launch before anything is built, pushed or requested; `settings`: those of the backend."""

    backend: Backend
    settings: Any
    plan: Plan
    script_files: ScriptFiles | None


def _draft(
    place: Place, options: Any, typed: Mapping[str, object], script: Script | None, *, offline: bool = False
) -> _Draft:
    """Plan a launch; reports errors in the options before anything is requested."""
    backend = backends.load(place.backend)
    words, script_files = script.packed(place.backend, Path.cwd(), os.environ) if script else ((), None)
    resolved = resolve(typed, os.environ, Path.cwd(), script=words)
    if not options_of(place.backend).COMMAND.several_machines and not getattr(options, "beside", ()):
        runtime.require_one_machine(resolved.spec, place.backend)
    runtime.require_model(resolved.spec.model)
    runtime.require_data(resolved.spec, is_here=False)
    runtime.require_profile(resolved.spec)
    settings = backend.settings(place.where, options, offline=offline)
    # The draft has its name and time from this machine's clock; the launched plan has both from the place's clock.
    job = Job(resolved=resolved, token=secrets.token_hex(3))
    now = datetime.fromtimestamp(time.time(), UTC)
    plan = backend.plan(job, options, settings, now=now, offline=offline)
    if script_files:
        plan = plan.renamed(replace(plan.request, script=script_files.facts()))
    return _Draft(backend=backend, settings=settings, plan=plan, script_files=script_files)


def _carry_out(draft: _Draft, *, output: Path, detach: bool = False) -> tuple[LaunchOutcome, Session]:
    """Launch, follow, and fetch the bundles into `output`."""
    backend, script_files = draft.backend, draft.script_files
    try:
        # Once a machine was requested, `LeftRunningError` or another error replaces this message.
        with stoppable("nothing was submitted; run the same command again"):
            machines, store = backend.machines(draft.settings), backend.store(draft.settings)
            plan = prepared(backend, draft.plan, machines, script_files)
            print(_text(plan, script_files, terminal_width(sys.stderr)), file=sys.stderr)
            progress = LaunchProgress(sys.stderr, machines.now_s)
            session = Session(machines=machines, store=store, on_event=progress)
            try:
                return run(session, plan, output=output, detach=detach, script_files=script_files), session
            finally:
                progress.clear()
    except LeftRunningError as left:
        _ask_whether_to_keep(left, session)
        raise


def _shown(plan: Plan, script_files: ScriptFiles | None, *, request: bool, output_format: TableFormat) -> str:
    """Output of a dry run, without the secrets in a script's arguments."""
    spec = plan.request.spec
    if spec.get("script"):
        plan = plan.renamed(replace(plan.request, spec={**spec, "script": without_secrets(spec["script"])}))
    if output_format is not TableFormat.TABLE:
        values = plan.to_json()
        if script_files:
            values = {**values, "notes": [*values.get("notes", ()), *script_files.notes]}
        return plain(values, output_format)
    return _text(plan, script_files, terminal_width(sys.stdout)) + (f"\n\n{plan.sent_text()}" if request else "")


def _text(plan: Plan, script_files: ScriptFiles | None, width: int | None) -> str:
    remarks = script_files.notes if script_files else ()
    return "\n".join([plan.text(width), *(wrapped(text, width, indent=TEXT_COLUMN, first="note") for text in remarks)])


def is_terminal() -> bool:
    """Whether somebody can be asked a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _ask_whether_to_keep(left: LeftRunningError, session: Session) -> None:
    """Ask on a terminal whether to keep the machine or delete it; without an answer the machine is kept.

    Raises `InterruptedRunError` once the machine is deleted, `ToolError` if that cannot be confirmed.
    """
    name = left.machine.name
    try:
        if not is_terminal() or typer.confirm(f"\nKeep '{name}' running?", default=True, err=True):
            return
    except (typer.Abort, KeyboardInterrupt):
        return
    if not all(removed.gone for removed in session.machines.stop([left.machine])):
        raise ToolError(f"'{name}' is not confirmed to be gone", hint=f"launch down {name}") from left
    error = f"the {session.machines.noun} was deleted on Ctrl-C"
    watch.settle(session.store, name, left.machine.zone, ExitCode.INTERRUPTED, error, now_s=session.now_s())
    raise InterruptedRunError(f"interrupted; '{name}' is deleted", hint="launch again") from left


def _print_outcome(
    outcome: LaunchOutcome, plan: Plan, place: Place, machines: Machines, output_format: TableFormat
) -> int:
    if output_format is not TableFormat.TABLE:
        print(plain(outcome.to_json(), output_format, rows_of="runs"))
    elif outcome.detached:
        rows = [("launch", outcome.name), ("zone", outcome.zone)]
        rows += [("next", place.command(words)) for words in (f"status {outcome.name}", f"logs {outcome.name} -f")]
        print(as_typed("\n".join(f"{label:<8} {text}" for label, text in rows)))
    else:
        lines = [run_table.render(outcome.bundles, width=terminal_width(sys.stdout))] if outcome.bundles else []
        print("\n".join([*lines, *(f"  {label:<13} {text}" for label, text in _closing(outcome, plan, machines.noun))]))
    if outcome.error:
        raise outcome.error
    return outcome.exit_code


def _closing(outcome: LaunchOutcome, plan: Plan, noun: str) -> list[tuple[str, str]]:
    price = plan.request.price(outcome.zone)
    cost = "unknown: no price for this zone" if price is None else f"unknown: the start of the {noun} is not recorded"
    if price is not None and outcome.usd is not None:
        per_h = f"{price.whole_usd_per_h:.4g} USD per hour as of {price.read}"
        since = f"from {outcome.billed_from} to {outcome.billed_to}"
        cost = f"{outcome.usd:.3f} USD {since}, at {per_h}; without {price.uncounted}"
    machine = f"{plan.request.machine_type} in {outcome.zone}" if plan.request.machine_type else outcome.zone
    # A machine that is not rented has no price.
    rows = [(noun, machine), *([("cost", cost)] if plan.request.prices or plan.request.machine_type else [])]
    runs = [Spent.of(run.record) for run in outcome.bundles]
    if any(run.runs for run in runs):
        upload = launches.upload_of(plan.request, outcome.zone, outcome.phases)
        rows.append(("time", Spent.total([*runs, upload]).text()))
    if outcome.attempts > 1:
        rows.append(("attempts", f"{outcome.attempts}, the last one counted"))
    if outcome.tried:
        rows.append(("tried", ", ".join(f"{attempt.zone}: {attempt.code}" for attempt in outcome.tried)))
    return rows


@_hints_name_the_place
def show_status(place: Place, *, name: str | None, every: bool, output_format: TableFormat) -> int:
    """Carry out `launch status`."""
    session = _session(place)
    if name is not None:
        launch = launches.launch_named(session, _find(session, name))
        now_s = session.now_s()
        text = as_typed(launches.render_one(launch, session.store, now_s, command=place.command))
        _warn_of_stopped(place, [launch], now_s)
        print(text if output_format is TableFormat.TABLE else plain(launch.to_json(), output_format))
        return ExitCode.DONE
    listing = launches.list_launches(session, limit=None if every else launches.SHOWN)
    now_s, noun = session.now_s(), session.machines.noun
    _warn_of_stopped(place, listing.there, now_s)
    if listing.unreachable:
        zones, kind = ", ".join(listing.unreachable), session.store.kind
        print(
            f"warning: no answer from {zones}: a {noun} there without a record in the {kind} is not shown",
            file=sys.stderr,
        )
    if output_format is not TableFormat.TABLE:
        print(plain([launch.to_json() for launch in listing], output_format))
    elif listing.there:
        print(launches.render(listing.there, now_s))
    elif not listing.unreachable:
        address = session.store.locate("").rstrip("/")
        print(f"no launch in {address}, and no {noun} of a launch in {session.machines.place}", file=sys.stderr)
    return ExitCode.DONE


def _warn_of_stopped(place: Place, shown: Sequence[Launch], now_s: float) -> None:
    machines = [launch.seen.machine for launch in shown if launch.seen.machine]
    stopped = [machine.name for machine in machines if machine.stopped_for_good(now_s)]
    if stopped:
        vms = "a VM is" if len(stopped) == 1 else f"{len(stopped)} VMs are"
        left = f"warning: {vms} stopped, and the cloud does not delete stopped VMs: {', '.join(stopped)}"
        print(f"{left}\nhint: {as_typed(place.command('reap'))}", file=sys.stderr)


def output_of(session: Session, name: str, *, follow: bool) -> Iterator[tuple[str, str]]:
    """Output of a launch's machine while it exists, then the log that it left in the store, each with its source.

    `follow`: wait for further output until the machine is gone. Raises `NothingToDoError` if there is no output.
    """
    launch = launches.launch_named(session, name)
    while follow and launch.state is LaunchState.REQUESTED:
        session.sleep(OUTPUT_EVERY_S)
        launch = launches.launch_named(session, name)
    machine, last_line = launch.seen.machine, ""
    if machine is not None:
        for part in session.printed(machine, follow=follow):
            text = _without_controls(part)
            last_line = next((line for line in reversed(text.splitlines()) if line.strip()), last_line)
            yield "serial port", text
        if not follow:
            return
    log = session.store.read(log_object(name), most_bytes=MAX_TEXT_BYTES)
    if log is None and not last_line:
        reason = f": {launch.why}" if launch.why else ""
        raise NothingToDoError(f"'{name}' left no log; it is {launch.state}{reason}", hint=f"launch status {name}")
    lines = _without_controls((log or b"").decode(errors="replace")).splitlines(keepends=True)
    if last_line:
        # Only the lines after the last one that was shown. The serial port puts a prefix in front of each line.
        shown = [
            index for index, line in enumerate(lines) if line.strip() and last_line.rstrip().endswith(line.strip())
        ]
        lines = lines[shown[-1] + 1 :] if shown else []
    if lines:
        yield "startup.log", "".join(lines)


def _without_controls(text: str) -> str:
    """`text` without characters that control a terminal, because others wrote the log. Lines and tabs are kept."""
    return "".join(character for character in text if character.isprintable() or character in "\n\t")


@_hints_name_the_place
def show_logs(place: Place, *, name: str, follow: bool, output_format: TableFormat) -> int:
    """Carry out `launch logs`."""
    session = _session(place)
    launch_name = _find(session, name)
    for number, (source, text) in enumerate(output_of(session, launch_name, follow=follow)):
        row = {"launch": launch_name, "source": source, "text": text}
        match output_format:
            case TableFormat.TABLE:
                print(text, end="", flush=True)
            case TableFormat.JSON:
                print(json.dumps(row), flush=True)
            case TableFormat.CSV:
                heading, _, line = plain([row], output_format).partition("\n")
                print(line if number else f"{heading}\n{line}", flush=True)
    return ExitCode.DONE


@_hints_name_the_place
def take_down(place: Place, *, names: Sequence[str], every: bool, yes: bool, output_format: TableFormat) -> int:
    """Carry out `launch down`."""
    if bool(names) == every:
        raise UsageError("launch down takes either launches or --all", hint="launch down RUN, or --all")
    backend, settings = _connect(place)
    machines, store = backend.machines(settings), _store_or_none(backend, settings)
    listing = machines.look()
    chosen, unknown, without = (list(listing), [], []) if every else _chosen(names, listing, machines, store)
    if every and chosen and not yes:
        _confirm_all(chosen, machines)
    removed = watch.down(chosen, machines, store) + unknown
    _erase_variables(store, machines, down=[*(machine.name for machine in chosen), *without])
    unlisted = listing.unreachable if every else ()
    nothing = f"no {machines.noun} of a launch in {machines.place}"
    return _print_removed(removed, output_format, nothing=nothing, unlisted=unlisted)


def _chosen(
    words: Sequence[str], listing: Listing[Machine], machines: Machines, store: Store | None
) -> tuple[list[Machine], list[Removed], list[str]]:
    """Machines that the words mean, machines in zones that do not answer, and names without a machine.

    A name without a machine is reported on stderr.
    """
    by_name = {machine.name: machine for machine in listing}
    chosen: dict[str, Machine] = {}
    unknown: dict[str, Removed] = {}
    without: list[str] = []
    for word in words:
        name = _named(word, list(by_name), listing, store)
        machine = by_name.get(name)
        unanswered: Sequence[str] = ()
        if machine is None and listing.unreachable and store is not None:
            zones = launches.unlisted(listing, launches.read_records(store, name, None))
            machine, unanswered = _look_again(machines, name, zones)
        if machine is not None:
            chosen[name] = machine
        elif unanswered:
            unknown[name] = Removed.unanswered(machines.noun, name, unanswered)
        else:
            without.append(name)
            print(f"'{name}' has no {machines.noun}: it is gone already", file=sys.stderr)
    return list(chosen.values()), list(unknown.values()), without


def _erase_variables(store: Store | None, machines: Machines, *, down: Sequence[str] = ()) -> None:
    for name in watch.erase_variables(store, machines, down=down) if store is not None else ():
        print(f"erased the variables (--env) of '{name}', which has no {machines.noun}", file=sys.stderr)


def _named(word: str, names: list[str], listing: Listing[Machine], store: Store | None) -> str:
    try:
        return launches.find(word, names)
    except NothingToDoError:
        with suppress(NothingToDoError):
            if store is not None:
                return launches.find(word, launches.known_names(store))
        if not listing.unreachable:
            raise
        unanswered = ", ".join(listing.unreachable)
        raise ToolError(
            f"it is unknown whether '{printable(word)}' has a VM: {unanswered} does not answer",
            hint="run the same command again; launch status shows what is left",
        ) from None


def _look_again(machines: Machines, name: str, zones: Sequence[str]) -> tuple[Machine | None, Sequence[str]]:
    """Ask only `zones` for the machine. Returns the machine, None if not found, and the zones that do not answer."""
    if not zones:
        return None, ()
    try:
        listing = machines.look({name: zones})
    except UnreachableError:
        return None, zones
    existing = (machine for machine in listing if machine.condition is not Condition.GONE)
    return next(existing, None), listing.unreachable


def _confirm_all(chosen: Sequence[Machine], machines: Machines) -> None:
    noun, count = machines.noun, len(chosen)
    for machine in chosen:
        print(f"{machine.name}  {machine.zone}  {machine.status}", file=sys.stderr)
    question = f"Delete {f'this {noun}' if count == 1 else f'these {count} {noun}s'} in {machines.place}?"
    if not is_terminal():
        raise UsageError(f"--all deletes {count} {noun}s, but there is no terminal to ask", hint="--all --yes")
    if not typer.confirm(question, default=False, err=True):
        raise InterruptedRunError(
            f"cancelled; no {noun} was deleted", hint=f"launch down RUN deletes the {noun} of one launch"
        )


@_hints_name_the_place
def reap(place: Place, *, dry_run: bool, output_format: TableFormat) -> int:
    """End and delete all leftovers of launches at a place, print them, and return the exit code.

    `dry_run`: only print them.
    """
    backend, settings = _connect(place)
    machines = backend.machines(settings)
    leftovers = machines.leftovers()
    nothing = f"no machine or disk of a launch is stopped or past its limit in {machines.place}"
    if not dry_run:
        removed = machines.stop(leftovers.there)
        _erase_variables(_store_or_none(backend, settings), machines)
        return _print_removed(removed, output_format, nothing=nothing, unlisted=leftovers.unreachable)
    if output_format is not TableFormat.TABLE:
        print(plain([asdict(leftover) for leftover in leftovers], output_format))
    elif leftovers.there or not leftovers.unreachable:
        print("\n".join(f"{item.kind} {item.name} in {item.zone}: {item.why}" for item in leftovers) or nothing)
    watch.require_gone((), leftovers.unreachable)
    return ExitCode.DONE


def _print_removed(
    removed: Sequence[Removed], output_format: TableFormat, *, nothing: str, unlisted: Sequence[str] = ()
) -> int:
    gone = [f"{item.kind} {item.name} in {item.zone} is gone" for item in removed if item.gone]
    if output_format is not TableFormat.TABLE:
        print(plain([asdict(item) for item in removed], output_format))
    elif gone or not (removed or unlisted):
        print("\n".join(gone) or nothing)
    watch.require_gone(removed, unlisted)
    return ExitCode.DONE


def _session(place: Place) -> Session:
    backend, settings = _connect(place)
    return Session(machines=backend.machines(settings), store=backend.store(settings))


def _store_or_none(backend: Backend, settings: Any) -> Store | None:
    """The store; None after a warning if it cannot be opened, so that a machine can be ended without its record."""
    try:
        store: Store = backend.store(settings)
    except RooflaunchError as error:
        print(f"warning: {printable(str(error))}", file=sys.stderr)
        return None
    return store


def _find(session: Session, word: str) -> str:
    names = launches.known_names(session.store)
    names += [machine.name for machine in session.machines.look() if machine.name not in set(names)]
    return launches.find(word, names)
