"""Repeats of a run, and its profile: each is a separate process. Standard library only.

The process that starts them holds neither torch nor a GPU.
"""

import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from workload import log
from workload.contract.errors import ExitCode, InterruptedRunError
from workload.contract.invocation import SCRIPTS, TRAINER
from workload.contract.process import ChildEnd, handled_by, raise_if_interrupted, run_child
from workload.contract.spec import Profile, Resolved, RunSpec, arguments
from workload.contract.trainer import Context
from workload.run import unfinished
from workload.steps.program import Program

# Function that runs the trainer or the script once, with the facts of one repeat; returns its end, and the bundles that
# it opened.
RunOnce = Callable[[Context], tuple[ChildEnd, list[Path]]]


def repeat_trainer(resolved: Resolved, context: Context, output: Path) -> int:
    """Train the configuration `repeats` times, as its spec says, then profile it; print the folder of each bundle."""
    spec, alone = resolved.spec, replace(resolved.spec, repeats=1)

    def run_once(context: Context) -> tuple[ChildEnd, list[Path]]:
        opened: list[Path] = []

        def note_and_print(folder: Path | str) -> None:
            opened.append(Path(folder))
            print(folder, flush=True)

        ended = run_child(
            [*TRAINER, "train", *arguments(alone), "-o", str(output), "--context", context.to_argument()],
            on_line=note_and_print,
        )
        known = [*opened]
        settled = unfinished.seal_all(ended.code, ended.error(), known, output=output, spec=alone, context=context)
        for folder in settled[len(known) :]:
            note_and_print(folder)
        return ended, opened

    context = replace(context, spec_origin=context.spec_origin or dict(resolved.origin))
    return _repeated(run_once, spec, context)


def repeat_script(parsed: Namespace, spec: RunSpec, program: Program, context: Context) -> int:
    """Run a user's script as often as requested, each time from its start, then profile it."""
    is_profiled = spec.profile is not Profile.NONE
    log.LOGGER.info(
        "script     %s runs from its start %s to be measured%s: it writes and sends everything %d times",
        program.name,
        "once" if spec.repeats == 1 else f"{spec.repeats} times",
        " and once more for the profile" if is_profiled else "",
        spec.repeats + is_profiled,
    )
    return _repeated(
        lambda context: _script_once(words_of_run(parsed, spec, context), program),
        spec,
        context,
        [*([] if parsed.data is None else ["--data", parsed.data]), "--", *program.words],
    )


def _repeated(run_once: RunOnce, spec: RunSpec, context: Context, words: Sequence[str] = ()) -> int:
    """Run a configuration as often as its spec says, then profile its first bundle; return the exit code.

    The first failure ends the repeats. `words`: of the command `profile`, with a user's own script and its arguments,
    which the bundle keeps without secrets.
    """
    folders: list[Path] = []
    for number in range(1, spec.repeats + 1):
        raise_if_interrupted()
        facts = replace(context, profile_later=True)
        if spec.repeats > 1:  # a single run keeps the repeat's number from the launcher
            log.LOGGER.info("repeat %d of %d", number, spec.repeats)
            facts = replace(facts, repeat=number, repeats=spec.repeats)
        ended, opened = run_once(facts)
        folders += opened
        if failure := ended.error():
            raise failure
        if ended.code != ExitCode.DONE:
            if spec.repeats > 1 and ended.code != ExitCode.INTERRUPTED:
                log.LOGGER.error("repeat %d of %d ended with exit code %d", number, spec.repeats, ended.code)
            return ended.code
    if spec.profile is Profile.NONE or context.profile_later or not folders:
        return ExitCode.DONE
    # Ignore the output: the folder of the bundle has been printed already.
    ended = run_child([*SCRIPTS, "profile", str(folders[0]), *words], on_line=lambda _: None)
    failure = ended.error()
    if isinstance(failure, InterruptedRunError):
        raise failure
    if failure:
        # A failed profile leaves a complete run.
        log.LOGGER.error("note       the run is complete, but without a profile: %s", failure)
    return ExitCode.INTERRUPTED if ended.code == ExitCode.INTERRUPTED else ExitCode.DONE


def words_of_run(parsed: Namespace, spec: RunSpec, context: Context) -> list[str]:
    """Options of `python -m rooflaunch script` for one run."""
    words = ["-o", str(parsed.output), *arguments(spec), "--then", parsed.then]
    words += [] if parsed.data is None else ["--data", parsed.data]
    # With --context, a run prints only its bundle's folder, for a launcher; with --series, a run prints its results.
    return [*words, "--series" if parsed.context is None else "--context", context.to_argument()]


def _script_once(words: Sequence[str], program: Program) -> tuple[ChildEnd, list[Path]]:
    """Run the script once; return its end and the bundles that it opened.

    The script uses this process's input and output.
    """
    signals: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _: object) -> None:
        signals.append(number)
        if child is not None and not _comes_from_the_terminal():
            child.send_signal(number)

    with tempfile.TemporaryDirectory() as folder, handled_by(pass_on):
        bundles = Path(folder) / "bundles"
        command = [*SCRIPTS, "script", *words, "--bundles", str(bundles)]
        child = subprocess.Popen([*command, "--", *program.words])
        code = child.wait()
        lines = bundles.read_text(encoding="utf-8").splitlines() if bundles.is_file() else []
    ended = ChildEnd(code=code, signal=signals[0] if signals else None, out_of_memory=False)
    return ended, [Path(line) for line in lines]


def _comes_from_the_terminal() -> bool:
    """Whether a signal has reached the child too: for Ctrl-C a terminal signals every process in the foreground."""
    if sys.platform == "win32":
        return True
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
