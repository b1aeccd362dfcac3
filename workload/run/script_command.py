"""Command `python -m rooflaunch script`: reads the command line, runs the script in this process, reports its end.

Standard library only: the script imports torch itself, after setting its own variables.
"""

import logging
import os
import shlex
import sys
from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rooflaunch
from workload import log
from workload.contract import changes
from workload.contract.errors import (
    ExitCode,
    InterruptedRunError,
    OutOfDeviceMemoryError,
    RooflaunchError,
    RunFailedError,
    UsageError,
)
from workload.contract.invocation import Group, as_typed, examples
from workload.contract.operating_system import replace_text
from workload.contract.process import pending_interruption
from workload.contract.ranks import NOTES_FLAG
from workload.contract.record import Status
from workload.contract.spec import SCRIPT_OPTIONS, Profile, RunSpec, options, resolve
from workload.contract.text import counted
from workload.contract.trainer import Context
from workload.environment import gpu_index, host
from workload.measure.timing import Timeline
from workload.run import machines, ranks
from workload.run.ranks import repeat_script, words_of_run
from workload.steps import hooks, program
from workload.steps.program import shown

if TYPE_CHECKING:
    from workload.run.script import MeasuredScript
    from workload.steps.agreement import Agreement

EXAMPLES = examples(
    "python -m rooflaunch script -- train.py --lr 0.1",
    "python -m rooflaunch script --repeats 3 --profile torch -- train.py",
)
TEXT = """Run a PyTorch training script without changes, measure its steps and write a bundle.

The order of backward passes and optimizer steps shows what a step is; it is printed. After the last measured step
the script is ended, as by sys.exit(). Everything after -- belongs to the script.
"""
THEN = ("stop", "continue")
TRACEBACK_HINT = "the script's own message is above; does it run without rooflaunch, under torchrun?"
# Run options that the help lists first.
MOST_USED = ("iterations", "repeats", "profile")
RUN_SCRIPTS = ("script", "profile", "profiled-script")


def add_parser(commands: Any) -> None:
    """Add the command `script` and its options."""
    parser = commands.add_parser(
        "script",
        help="run your own training script and measure its steps",
        description=TEXT,
        epilog=EXAMPLES,
        prog="python -m rooflaunch script",
        usage="%(prog)s [OPTIONS] -- train.py ARGS",
    )
    for option in options():
        if option.name in SCRIPT_OPTIONS and option.name != "device":
            parser.add_option(option, Group.FIRST if option.name in MOST_USED else None)
    parser.groups[Group.SCRIPT].add_argument(
        "--data", metavar="PATH", help="path that replaces {data} in the script's arguments"
    )
    parser.groups[Group.MEASURING].add_argument(
        "--then", metavar="|".join(THEN), default="stop", help="after the last measured step (stop)"
    )
    parser.groups[Group.OUTPUT].add_argument(
        "-o", "--output", metavar="DIR", type=Path, default=Path("results"), help="folder for the bundles (results)"
    )
    parser.groups[Group.PLACE].add_argument(gpu_index.FLAG, metavar="N", type=gpu_index.parsed, help=gpu_index.HELP)
    # Set by launchers: the run's facts; only the bundle's folder is printed to stdout.
    parser.add_argument("--context", help=SUPPRESS)
    # Set for one run of a series: the run's context, and the file to write its bundle's folder to.
    parser.add_argument("--series", help=SUPPRESS)
    parser.add_argument("--bundles", type=Path, help=SUPPRESS)
    parser.add_argument(NOTES_FLAG, type=Path, help=SUPPRESS)
    parser.set_defaults(command=run, script_words=())


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line into the words before and after the first `--`, if the command runs a script.

    Otherwise all words are in the first list, and the second list is empty.
    """
    words = list(argv)
    if words[:1] not in ([name] for name in RUN_SCRIPTS) or "--" not in words:
        return words, []
    place = words.index("--")
    return words[:place], words[place + 1 :]


def refuse_stray(argv: Sequence[str]) -> None:
    """Raise `UsageError` for a script that does not follow `--`."""
    if argv[:1] == ["script"] and "--" not in argv and not {"-h", "--help"} & set(argv):
        stray = next((index for index, word in enumerate(argv) if index and word.endswith(".py")), None)
        if stray is not None:
            line = shlex.join([*argv[1:stray], "--", *argv[stray:]])
            raise UsageError(f"'{argv[stray]}' must stand after --", hint=f"python -m rooflaunch script {line}")


def run(parsed: Namespace, timeline: Timeline) -> int:
    """Measure the script. Returns 0 once every step is taken, else the script's own exit code."""
    if parsed.then not in THEN:
        raise UsageError(f"--then must be one of {', '.join(THEN)}; got '{parsed.then}'", hint="--then continue")
    script = program.resolve(parsed.script_words, data=parsed.data)
    typed = {name: value for name, value in vars(parsed).items() if name in SCRIPT_OPTIONS}
    spec = resolve(typed, {}, None, script=script.words).spec
    changes.require_variables(spec.change, os.environ)
    facts = parsed.context or parsed.series
    context = Context() if facts is None else Context.from_argument(facts)
    if parsed.rank_notes is not None:
        machines.join(parsed.rank_notes)
    place = program.rank_here()
    if place and parsed.rank_notes is None:
        _refuse_for_rank(spec, parsed.gpu_index, place[1])
    if parsed.gpu_index is not None:
        gpu_index.required(spec, parsed.gpu_index)
        # Before the script imports torch. Repeats and the profile are child processes, which inherit the choice.
        gpu_index.use(parsed.gpu_index)
    if spec.repeats > 1 or (spec.profile is not Profile.NONE and not context.profile_later):
        return repeat_script(parsed, spec, script, context)
    if spec.ranks > 1 and place is None:
        words = words_of_run(parsed, spec, context)
        words += ["--bundles", str(parsed.bundles)] if parsed.bundles else []
        ranks.start_script(words, spec, context, parsed.output, is_launched=parsed.context is not None)
        return ExitCode.DONE
    if place is None:
        host.limit_threads(context.cpu_shares)
    elif place[0]:
        # Rank 0 shows the progress. Without a process that reports the ranks' errors, each reports its own.
        log.LOGGER.handlers[0].setLevel(logging.CRITICAL if parsed.rank_notes else logging.ERROR)
    return _measure(parsed, spec, script, context, timeline, place)


def _refuse_for_rank(spec: RunSpec, index: int | None, size: int) -> None:
    """Raise `UsageError` for options that start processes or choose a GPU, in a rank that torchrun has started.

    `index`: the chosen GPU's, if any; `size`: number of ranks.
    """
    typed = {
        "--devices": spec.devices > 1,
        "--machines": spec.machines > 1,
        "--repeats": spec.repeats > 1,
        "--profile": spec.profile is not Profile.NONE,
        gpu_index.FLAG: index is not None,
    }
    for flag in (flag for flag, is_typed in typed.items() if is_typed):
        raise UsageError(
            f"torchrun has started this process as one of {size} ranks, where {flag} cannot be used",
            hint=f"leave {flag} out; or without torchrun: python -m rooflaunch script --devices {size} -- train.py",
        )


def _measure(
    parsed: Namespace,
    spec: RunSpec,
    script: program.Program,
    context: Context,
    timeline: Timeline,
    place: tuple[int, int] | None,
) -> int:
    """Run the script in this process, and measure it. `place`: number of this rank, and number of all ranks."""
    is_launched, notes = parsed.context is not None, parsed.rank_notes
    announce = _announcer(parsed, to_stdout=is_launched)
    measured: MeasuredScript | None = None
    agreement: Agreement | None = None

    def listen() -> None:
        nonlocal agreement, measured
        with shown():
            from workload.run.script import MeasuredScript  # noqa: PLC0415 - imports torch, as the script just has
            from workload.steps.agreement import Agreement  # noqa: PLC0415

        agreement = Agreement(*place) if place else None
        measured = MeasuredScript(
            spec,
            script,
            context,
            timeline,
            output=parsed.output,
            announce=announce,
            goes_on=parsed.then == "continue",
            agreement=agreement,
            shows=not is_launched,
            leaves_failures=notes is not None,
        )
        rooflaunch.listen(measured.step_log)
        measured.changes.install()
        hooks.install(measured.step_log, measured.losses)
        if agreement:
            agreement.hooks.install(measured.session.refuse)
        _observe_exits(measured, script.name)

    def seal_for_rank_0() -> None:
        if agreement and agreement.rank == 1 and agreement.processes and notes is None:
            ranks.seal_for_rank_0(Path(agreement.folder), agreement.processes)

    log.LOGGER.info("script     %s: looking for its training step", script.name)
    timeline.enter("script")
    hooks.when_imported("torch", listen)
    with ranks.noted(notes, seal_for_rank_0) if place else nullcontext():
        try:
            end = program.run_script(script, lambda error: agreement.explain(error) if agreement else None)
            if measured:
                return _close(measured, script, end, is_launched=is_launched)
        except InterruptedRunError as error:
            # The signal may have come after the script's end, before its bundle was sealed.
            if measured:
                measured.close(Status.INTERRUPTED, str(error))
            raise
        if end.code and notes:
            what = f"rank {os.environ['RANK']}: {script.name} {_how(end)} before it imported torch"
            raise RunFailedError(what, hint=TRACEBACK_HINT)
        if end.code:
            _log_failure_before_torch(script, end)
            return ExitCode.RUN_FAILED if is_launched else end.code
        raise RunFailedError(
            f"{script.name} ended without importing torch in this process: nothing was measured",
            hint="name the script that trains, not a script that starts it",
        )


def _announcer(parsed: Namespace, *, to_stdout: bool) -> Callable[[Path], None]:
    files = [parsed.bundles and parsed.bundles.absolute(), parsed.rank_notes and parsed.rank_notes / ranks.BUNDLE_NOTE]
    stdout = None
    if to_stdout:
        # Only the folder goes to stdout: the script's own output goes to stderr.
        with suppress(OSError, ValueError):
            stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
            sys.stdout.flush()
            os.dup2(2, 1)

    def announce(folder: Path) -> None:
        machines.write_hosts(folder)
        for path in filter(None, files):
            replace_text(path, f"{folder}\n", durable=False)
        if to_stdout:
            print(folder, file=stdout, flush=True)

    return announce


def _observe_exits(measured: "MeasuredScript", name: str) -> None:
    """Seal the bundle if the script calls `os._exit`; log a note if it replaces itself by another program."""
    leave = os._exit
    process = os.getpid()

    def seal_and_leave(code: int) -> Any:
        if os.getpid() == process:
            with suppress(Exception):
                measured.close(Status.FAILED, f"{name} ended by os._exit({code})")
        leave(code)

    os._exit = seal_and_leave  # type: ignore[assignment]
    for other in ("execv", "execve"):
        original = getattr(os, other)

        def become(*args: Any, original: Any = original) -> Any:
            if os.getpid() == process and measured.session.active:
                log.LOGGER.warning("note       %s replaces itself by another program, which is not measured", name)
            return original(*args)

        setattr(os, other, become)


def _close(measured: "MeasuredScript", script: program.Program, end: program.End, *, is_launched: bool) -> int:
    session = measured.session
    measured.step_log.flush_events(is_over=True)
    session.active = False
    if interruption := pending_interruption() or (end.error if isinstance(end.error, InterruptedRunError) else None):
        measured.close(Status.INTERRUPTED, str(interruption))
        raise interruption
    if isinstance(end.error, RooflaunchError) and not measured.is_sealed:
        # An explanation of the script's own error.
        session.refusal = session.refusal or end.error
    if session.refusal:
        measured.close(Status.FAILED, str(session.refusal))
        if session.goes_on:
            # The refusal was logged when it was raised.
            return session.refusal.exit_code
        raise session.refusal
    if measured.is_sealed:
        # The measurement is complete, whatever the script did afterwards.
        return ExitCode.DONE if is_launched else end.code
    if end.code:
        return _failed(measured, script, end, is_launched=is_launched)
    if session.bug:
        measured.close(Status.FAILED, f"a bug in rooflaunch: {session.bug!r}")
        raise session.bug
    if measured.measured_steps:
        try:
            measured.end_early()
        except RooflaunchError as error:
            measured.close(Status.FAILED, str(error))
            raise
        return ExitCode.DONE
    raise _error_without_steps(measured, script)


def _how(end: program.End) -> str:
    is_exit = end.error is None or isinstance(end.error, SystemExit)
    return f"ended with exit code {end.code}" if is_exit else f"failed with {type(end.error).__name__}"


def _log_failure_before_torch(script: program.Program, end: program.End) -> None:
    log.LOGGER.error("error: %s failed before it imported torch; nothing was measured", script.name)
    if isinstance(end.error, ModuleNotFoundError) and end.error.name == "torch":
        log.LOGGER.error("hint: %s", as_typed("pip install 'rooflaunch[trainer]'"))


def _failed(measured: "MeasuredScript", script: program.Program, end: program.End, *, is_launched: bool) -> int:
    """Seal the bundle of a script that failed, and log an error; the script has shown its traceback itself.

    Returns the exit code.
    """
    from workload.environment import device  # noqa: PLC0415 - torch is there by now

    steps, what = measured.measured_steps, f"{script.name} {_how(end)}"
    after = f"after {counted(steps, 'measured step')}" if measured.folder else "before its training step was known"
    kept = f"; the bundle has these steps: {measured.folder}" if steps else ""
    is_memory = isinstance(end.error, Exception) and device.is_out_of_memory(end.error)
    with suppress(RooflaunchError):
        measured.close(Status.OUT_OF_MEMORY if is_memory else Status.FAILED, f"{what} {after}")
    if measured.leaves_failures:
        failure = OutOfDeviceMemoryError if is_memory else RunFailedError
        hint = "a smaller batch size" if is_memory else TRACEBACK_HINT
        raise failure(f"rank {os.environ['RANK']}: {what} {after}", hint=hint)
    log.LOGGER.error("error: %s %s%s", what, after, kept)
    if not is_launched:
        return end.code
    return OutOfDeviceMemoryError.exit_code if is_memory else RunFailedError.exit_code


def _error_without_steps(measured: "MeasuredScript", script: program.Program) -> RooflaunchError:
    """Error for a script that ended without failure, but has no measured step."""
    session = measured.session
    if error := session.captures.error(is_marked=session.is_marked, is_over=True):
        measured.close(Status.FAILED, str(error))
        return error
    if measured.folder:
        measured.close(Status.FAILED, "the script ended in its warm-up")
        return RunFailedError(
            f"{script.name} ended after {counted(session.optimizer_steps, 'optimizer step')}, before its first measured"
            " step",
            hint="--warmup 0 --iterations 3, or more epochs",
        )
    steps, passes, gradients = session.optimizer_steps, session.backward_passes, session.gradients
    if steps:
        return RunFailedError(
            f"{script.name} ended after {counted(steps, 'optimizer step')}: too few to find out what a step is, count"
            " its FLOP and measure it",
            hint=f"let the script make more steps (smaller batches, more epochs); or {program.STEP_HINT}",
        )
    if passes or gradients:
        made = (
            f"made {counted(passes, 'backward pass')} and"
            if passes
            else (f"took gradients {counted(gradients, 'time')} by torch.autograd.grad, and made")
        )
        return UsageError(f"{script.name} {made} no step of an optimizer of torch.optim", hint=program.STEP_HINT)
    return RunFailedError(
        f"{script.name} ended without a backward pass or an optimizer step in this process",
        hint="name the script that trains. One that starts its own training processes (torch.multiprocessing) cannot "
        "be measured: let it read torchrun's variables RANK and WORLD_SIZE, and use --devices N",
    )
