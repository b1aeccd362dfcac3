"""The trainer's command line. Nothing heavy is imported before a command needs it.

stdout carries results only: `train` prints the bundle's folder as soon as it exists, the others their table or JSON.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from workload import __version__, bundle, log
from workload.errors import ExitCode, RooflaunchError, ToolError, UsageError
from workload.interrupt import killed_error, run_child, stoppable
from workload.spec import Context, Device, Option, Precision, Resolved, arguments, options, resolve
from workload.timeline import Timeline

EXAMPLES = """examples:
  python -m workload train
  python -m workload train --model resnet50 --device cuda --precision amp --batch-size 64 -o results
  python -m workload train --model vit_b_16 --dataset ~/photos --workers 4
  python -m workload ceilings --device cpu --format json
"""


TRAINER_PACKAGES = ("torch", "torchvision", "numpy", "psutil")
INSTALL = "pip install 'rooflaunch[trainer]'"


class _Parser(argparse.ArgumentParser):
    """argparse with our two-line errors."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"{self.prog} --help")


def main(argv: Sequence[str]) -> int:
    """Run one command; the only place that prints an error."""
    timeline = Timeline()
    log.to_stderr()
    try:
        parsed = _parser().parse_args(argv)
        command: Callable[[argparse.Namespace, Timeline], int] = parsed.command
        return command(parsed, timeline)
    except RooflaunchError as error:
        return _report(error)
    except ModuleNotFoundError as error:
        if error.name not in TRAINER_PACKAGES:
            raise
        return _report(ToolError(f"the trainer needs the package {error.name}", hint=INSTALL))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone; there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE


def _report(error: RooflaunchError) -> int:
    log.LOGGER.error("%s", error.report())
    return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m workload",
        description="Train a vision model for a few steps and measure what limits it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rooflaunch {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_train(commands)
    _add_ceilings(commands)
    environment = commands.add_parser("env", help="print what identifies this machine, as JSON", allow_abbrev=False)
    environment.add_argument("--device", choices=tuple(Device), default=Device.AUTO)
    environment.set_defaults(command=_environment)
    models = commands.add_parser("models", help="list the models that can be trained", allow_abbrev=False)
    models.set_defaults(command=_models)
    return parser


def _add_train(commands: Any) -> None:
    train = commands.add_parser(
        "train",
        help="run one configuration and leave a bundle",
        description="Train one configuration and leave a bundle; prints the bundle's folder.",
        allow_abbrev=False,
    )
    for option in options():
        _add_option(train, option)
    train.add_argument("-o", "--output", type=Path, default=Path("results"), help="where bundles go (results)")
    train.add_argument("--context", help=argparse.SUPPRESS)
    train.set_defaults(command=_train)


def _add_option(parser: argparse.ArgumentParser, option: Option) -> None:
    """Options given are in the namespace, options not given are absent."""
    absent = argparse.SUPPRESS
    if option.kind is bool:
        turn_on = "" if option.default else f"; off: {option.off_flag}"
        parser.add_argument(
            option.flag,
            dest=option.name,
            action="store_const",
            const=True,
            default=absent,
            help=option.help + turn_on,
        )
        text = f"leave out: {option.help}" if option.default else argparse.SUPPRESS
        parser.add_argument(
            option.off_flag, dest=option.name, action="store_const", const=False, default=absent, help=text
        )
        return
    metavar = "|".join(option.choices) or ("N" if option.kind is int else option.name.upper())
    known = "" if option.default is None else f" ({option.default})"
    text = argparse.SUPPRESS if option.hidden else option.help + known
    parser.add_argument(option.flag, dest=option.name, metavar=metavar, default=absent, help=text)


def _add_ceilings(commands: Any) -> None:
    ceilings = commands.add_parser(
        "ceilings",
        help="measure the FLOP/s and bytes/s that this machine reaches at best",
        allow_abbrev=False,
    )
    ceilings.add_argument("--device", choices=tuple(Device), default=Device.AUTO)
    ceilings.add_argument("--precision", choices=tuple(Precision), action="append", help="only this one; repeatable")
    ceilings.add_argument("--format", choices=("table", "json"), default="table")
    ceilings.set_defaults(command=_ceilings)


def _train(parsed: argparse.Namespace, timeline: Timeline) -> int:
    known = {option.name for option in options()}
    given = {name: value for name, value in vars(parsed).items() if name in known}
    if parsed.context is None:
        context, resolved = Context(), resolve(given, os.environ, Path.cwd())
    else:
        # The launcher has read the environment and the configuration, and says so in the context.
        context, resolved = Context.from_argument(parsed.context), resolve(given, {}, None)
    if resolved.spec.repeats > 1:
        return _repeat(resolved, context, parsed.output)
    return _train_once(resolved, context, parsed.output, timeline)


def _train_once(resolved: Resolved, context: Context, output: Path, timeline: Timeline) -> int:
    with stoppable():
        from workload import train  # noqa: PLC0415 - imports torch, which takes seconds

        timeline.enter("prepare")
        job = train.prepare(resolved, context)
        timeline.enter("environment")
        folder = bundle.create(output, job.run_id(timeline.started_at))
        print(folder, flush=True)
        with bundle.guarded_writes(folder), log.to_file(folder / bundle.LOG):
            train.execute(job, folder, timeline)
    return ExitCode.DONE


def _repeat(resolved: Resolved, context: Context, output: Path) -> int:
    """Each repeat is a process of its own; the first that breaks off ends the series with its exit code."""
    origin = context.spec_origin or dict(resolved.origin)
    count = resolved.spec.repeats
    words = arguments(replace(resolved.spec, repeats=1))
    for repeat in range(1, count + 1):
        log.LOGGER.info("repeat %d of %d", repeat, count)
        told = replace(context, repeat=repeat, repeats=count, spec_origin=origin).to_argument()
        command = [sys.executable, "-m", "workload", "train", *words, "-o", str(output), "--context", told]
        code = run_child(command)
        if code < 0:
            raise killed_error(-code)
        if code != ExitCode.DONE:
            log.LOGGER.error("repeat %d of %d ended with exit code %d", repeat, count, code)
            return code
    return ExitCode.DONE


def _ceilings(parsed: argparse.Namespace, _: Timeline) -> int:
    from workload import ceilings, device, instructions  # noqa: PLC0415 - imports torch

    chosen = device.choose(Device(parsed.device))
    precisions = [Precision(each) for each in parsed.precision or Precision]
    if chosen is Device.CPU:
        with suppress(UsageError):  # then the table says that the precision is unavailable
            for dtype in {ceilings.DTYPES[precision] for precision in precisions}:
                if note := instructions.hold_back(dtype):
                    log.LOGGER.info("note       %s", note)
    measured = ceilings.measure(chosen, precisions=precisions, progress=log.LOGGER.info)
    if parsed.format == "json":
        print(json.dumps(measured.to_json(), indent=1))
    else:
        print(ceilings.table(measured))
    return ExitCode.DONE


def _environment(parsed: argparse.Namespace, _: Timeline) -> int:
    from workload import device  # noqa: PLC0415 - imports torch
    from workload.environment.collect import collect  # noqa: PLC0415 - imports torch

    facts = collect(device=device.choose(Device(parsed.device)))
    print(json.dumps(facts, indent=1))
    return ExitCode.DONE


def _models(_: argparse.Namespace, __: Timeline) -> int:
    from workload import models  # noqa: PLC0415 - imports torch

    print("\n".join(models.names()))
    return ExitCode.DONE
