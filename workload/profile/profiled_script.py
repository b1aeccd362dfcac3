"""Runs a measured script again from its start to profile it, after checking that it is unchanged.

Standard library only: the script imports torch.
"""

import os
import shlex
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rooflaunch
from workload.contract import changes
from workload.contract.bundle import Bundle
from workload.contract.errors import ExitCode, RooflaunchError, RunFailedError, UsageError
from workload.contract.invocation import SCRIPTS
from workload.contract.record import ScriptFacts
from workload.contract.script_words import DATA, HIDDEN, redacted, with_home
from workload.contract.spec import Precision, Profile, RunSpec
from workload.measure.timing import Timeline
from workload.profile.command import WARMUP_STEPS, Mode, end_with
from workload.steps import hooks, program
from workload.steps.program import shown

if TYPE_CHECKING:
    from workload.profile.script_tools import ProfiledScript


def words_of(bundle: Bundle, typed: Sequence[str], kind: Profile, *, data: str | None = None) -> tuple[str, ...]:
    """Script and arguments of a bundle, in the form that runs on this machine.

    `typed`: script and arguments as typed by the user; `data`: value for `{data}`. Raises `UsageError` if `typed`
    differs from the bundle's arguments, or if the script's files have changed.
    """
    script = bundle.record.spec.script
    if script is None:
        if typed:
            raise UsageError(
                f"'{bundle.path}' is not a run of your own script", hint="leave out -- and everything after it"
            )
        return ()
    words = tuple(typed) or tuple(with_home(word) for word in argv(script))
    line = f"python -m rooflaunch profile {shlex.quote(str(bundle.path))} --profile {kind} -- {script.command}"
    if not typed and any(HIDDEN in word for word in words):
        raise UsageError(
            f"'{bundle.path}' keeps no secrets, but its script needs one: {script.command}",
            hint=f"give script and arguments again: {line}",
        )
    if redacted(words) != argv(script):
        raise UsageError(
            f"'{bundle.path}' is a run of: {script.command}; got: {shlex.join(redacted(words))}", hint=line
        )
    if data is None and any(DATA in word for word in words):
        raise UsageError(
            f"'{bundle.path}' does not record the path for {DATA} in: {script.command}",
            hint=f"python -m rooflaunch profile {shlex.quote(str(bundle.path))} --profile {kind} --data PATH",
        )
    try:
        folder = program.resolve(words).folder
    except UsageError as error:
        raise UsageError(
            f"the script of '{bundle.path}' cannot be found: {error}",
            hint=f"run this in the folder in which the script was measured: {line.partition(' -- ')[0]}",
        ) from error
    for name, sha256 in (script.files or {}).items():
        path = folder / name
        if not path.is_file() or program.sha256_of(path) != sha256:
            what = "has changed" if path.is_file() else "is gone"
            raise UsageError(
                f"{name} {what} since '{bundle.path}' was measured: a profile needs the same script",
                hint=f"measure the script again: python -m rooflaunch script --profile {kind} -- {script.command}",
            )
    return words


def argv(script: ScriptFacts) -> tuple[str, ...]:
    """Script and arguments as the bundle keeps them, without secrets."""
    return tuple(str(word) for word in script.argv or ())


def spec_of(bundle: Bundle) -> RunSpec:
    """Spec of a script's run with the fields that a profile pass needs; the other fields have no meaning."""
    spec = bundle.record.spec
    # fp64 is not a `Precision`. fp32 stands in: products in fp64 use no tensor cores that another precision would
    # count.
    precision = Precision(str(spec.precision)) if spec.precision in set(Precision) else Precision.FP32
    kept = {"model": spec.model, "device": spec.device, "batch_size": spec.batch_size, "warmup": spec.warmup}
    kept |= {"iterations": spec.iterations, "profile": spec.profile, "profile_steps": spec.profile_steps}
    kept |= {"ncu_metrics": spec.ncu_metrics, "change": spec.change}
    return RunSpec.from_json(kept | {"precision": precision})


def command(
    words: Sequence[str],
    spec: RunSpec,
    mode: Mode,
    report: Path,
    owner: int,
    warmup_steps: int | None = None,
    data: str | None = None,
) -> list[str]:
    """Command of a process that runs the script, profiles its steps, and ends with the process `owner`.

    Under ncu the script warms up for as many steps as our own trainer, or for fewer if the measured run was short.
    """
    most = (spec.warmup or 0) + (spec.iterations or 1) - spec.profile_steps
    usual = (spec.warmup or 0) if mode is Mode.TRACE else max(1, min(WARMUP_STEPS, most))
    options = ["--mode", mode, "--report", str(report), "--owner", str(owner), "--steps", str(spec.profile_steps)]
    options += ["--warmup-steps", str(warmup_steps or usual), "--precision", spec.precision]
    options += [] if data is None else ["--data", data]
    options += [] if spec.change is None else ["--change", spec.change]
    return [*SCRIPTS, "profiled-script", *options, "--", *words]


def add_parser(commands: Any) -> None:
    """Add the internal command `profiled-script`, which a profile pass starts; `--help` does not list the command."""
    parser = commands.add_parser("profiled-script")
    parser.add_argument("--mode", type=Mode, required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--owner", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warmup-steps", type=int, required=True)
    parser.add_argument("--precision", type=Precision, required=True)
    parser.add_argument("--data")
    parser.add_argument("--change")
    parser.set_defaults(command=run, script_words=())


def run(parsed: Namespace, _: Timeline) -> int:
    """Profile the script's steps and write the report. Raises the error that prevented a report."""
    began_s = time.perf_counter()
    end_with(parsed.owner)
    changes.require_variables(parsed.change, os.environ)
    script = program.resolve(parsed.script_words, data=parsed.data)
    profiled: list[ProfiledScript] = []

    def listen() -> None:
        with shown():
            from workload.profile.script_tools import ProfiledScript, Request  # noqa: PLC0415 - imports torch
            from workload.steps.changes import Changes  # noqa: PLC0415 - the same

        request = Request(
            mode=parsed.mode,
            report=parsed.report.absolute(),
            steps=parsed.steps,
            warmup=parsed.warmup_steps,
            precision=parsed.precision,
            began_s=began_s,
        )
        profiled.append(ProfiledScript(request, script))
        rooflaunch.listen(profiled[0].session)
        Changes(parsed.change, script.folder).install()
        hooks.install(profiled[0].session)

    hooks.when_imported("torch", listen)
    end = program.run_script(script)
    if profiled and profiled[0].is_done:
        profiled[0].write()
        return ExitCode.DONE
    raise _error_without_profile(script, end.code, end.error, profiled[0] if profiled else None)


def _error_without_profile(
    script: program.Program, code: int, error: BaseException | None, profiled: "ProfiledScript | None"
) -> Exception:
    if profiled and profiled.session.refusal:
        return profiled.session.refusal
    if isinstance(error, RooflaunchError):
        return error
    if profiled and profiled.session.bug:
        return profiled.session.bug
    if code or profiled is None:
        how = f"failed with {type(error).__name__}" if isinstance(error, Exception) else f"ended with exit code {code}"
        return RunFailedError(
            f"{script.name} {how} when it ran again", hint="the script's output is in the log of the profile"
        )
    return profiled.error_without_profile()
