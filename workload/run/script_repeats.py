"""Repeats of a script and its profile: each is a separate process that runs the script from its start.

This process holds neither torch nor a GPU. Standard library only.
"""

import os
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from workload import log
from workload.contract.errors import ExitCode
from workload.contract.interrupt import ChildEnd, check, handled_by
from workload.contract.invocation import SCRIPTS
from workload.contract.spec import Context, Profile
from workload.run.profile_start import profile_first
from workload.steps.program import Program

# Options of `python -m rooflaunch script` that are passed unchanged to every process of the series.
PASSED = ("warmup", "iterations", "min_seconds", "samples_per_step", "data", "then", "profile_steps")


def run(parsed: Namespace, script: Program, context: Context, *, repeats: int, profile: Profile) -> int:
    """Run the script `repeats` times, then profile it. Returns the first failed run's exit code, else the profile's."""
    _announce(script.name, repeats, profile)
    folders: list[Path] = []
    for repeat in range(1, repeats + 1):
        check()
        told = replace(context, profile_later=True)
        if repeats > 1:
            log.LOGGER.info("repeat %d of %d", repeat, repeats)
            told = replace(told, repeat=repeat, repeats=repeats)
        ended, opened = _one(_words(parsed, profile, told), script)
        if failure := ended.error():
            raise failure
        if ended.code != ExitCode.DONE:
            if repeats > 1 and ended.code != ExitCode.INTERRUPTED:
                log.LOGGER.error("repeat %d of %d ended with exit code %d", repeat, repeats, ended.code)
            return ended.code
        folders += opened
    if profile is Profile.NONE or context.profile_later or not folders:
        return ExitCode.DONE
    return profile_first(str(folders[0]), script.words, data=parsed.data)


def _announce(name: str, repeats: int, profile: Profile) -> None:
    times = repeats + (profile is not Profile.NONE)
    profiled = " and once more for the profile" if profile is not Profile.NONE else ""
    measured = "once" if repeats == 1 else f"{repeats} times"
    log.LOGGER.info(
        "script     %s runs from its start %s to be measured%s: what it writes or sends happens %d times",
        name,
        measured,
        profiled,
        times,
    )


def _words(parsed: Namespace, profile: Profile, context: Context) -> list[str]:
    """Options of `python -m rooflaunch script` for one run."""
    words = ["-o", str(parsed.output), "--profile", str(profile)]
    for name in PASSED:
        if getattr(parsed, name) is not None:
            words += ["--" + name.replace("_", "-"), str(getattr(parsed, name))]
    words += [] if parsed.ceilings else ["--no-ceilings"]
    words += ["--fresh-ceilings"] if parsed.fresh_ceilings else []
    # A launcher reads our stdout, where only bundles may be named.
    return [*words, "--series" if parsed.context is None else "--context", context.to_argument()]


def _one(words: Sequence[str], script: Program) -> tuple[ChildEnd, list[Path]]:
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
        child = subprocess.Popen([*command, "--", *script.words])
        code = child.wait()
        lines = bundles.read_text(encoding="utf-8").splitlines() if bundles.is_file() else []
    ended = ChildEnd(code=code, signal=signals[0] if signals else None, out_of_memory=False)
    return ended, [Path(line) for line in lines]


def _comes_from_the_terminal() -> bool:
    """Whether a signal has reached the child too: for Ctrl-C a terminal signals every process in the foreground."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
