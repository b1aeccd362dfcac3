"""Command line of the trainer. Large packages are imported only by the commands that need them.

stdout carries only results: `train` prints the bundle's folder once it exists; other commands print tables or JSON.
"""

import argparse
import gc
import json
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from workload import __version__, log
from workload.arguments import Parser
from workload.contract.errors import (
    ExitCode,
    InterruptedRunError,
    RooflaunchError,
    RunFailedError,
    ToolError,
    UsageError,
    explain_shortage,
)
from workload.contract.invocation import Group, examples
from workload.contract.operating_system import from_checkout
from workload.contract.process import (
    allow_quick_end,
    interruption_deferred,
    pending_interruption,
    raise_if_interrupted,
    stoppable,
)
from workload.contract.ranks import NOTES_FLAG, is_reported_by_parent
from workload.contract.script_words import line_of, read_typed
from workload.contract.spec import (
    SCRIPT_ONLY_OPTIONS,
    Device,
    Option,
    Precision,
    Profile,
    Resolved,
    options,
    resolve,
)
from workload.contract.tables import TableFormat, plain
from workload.contract.trainer import Context, KeptCeilings
from workload.environment import gpu_index
from workload.measure.timing import Timeline
from workload.profile import profiled_script
from workload.run import complexity_command as complexity
from workload.run import ranks, unfinished
from workload.run import script_command as script
from workload.run.ranks import repeat_trainer

EXAMPLES = examples(
    "python -m workload train --model resnet50 --device cuda --precision amp --batch-size 64 -o results",
    "python -m workload complexity --model resnet18 resnet50 --batch-size 32 64 128",
)
TRAIN_EXAMPLES = examples(
    "python -m workload train --model resnet50 --device cuda --profile ncu",
    "python -m workload train --model vit_b_16 --dataset ~/photos --workers 4",
)
CEILINGS_EXAMPLES = examples(
    "python -m workload ceilings",
    "python -m workload ceilings --device cpu --format csv",
)
ENV_EXAMPLES = examples(
    "python -m workload env",
    "python -m workload env --device cpu",
)
MODELS_EXAMPLES = examples(
    "python -m workload models",
    "python -m workload models | grep resnet",
)
PROFILE_TEXT = """Train the configuration of each BUNDLE again for a few steps, and add the profile to the bundle.
Its timing does not change. Prints each bundle that got a profile.

\b
ncu    FLOP and bytes per kernel, by Nsight Compute; needs an NVIDIA GPU and permission to read its counters
torch  time per kernel, or per operator on a CPU, by torch.profiler; needs no privileges
"""
PROFILE_EXAMPLES = examples(
    "python -m workload profile results/RUN --profile torch",
    "python -m rooflaunch profile results/RUN --profile ncu -- train.py --token T",
)

GPU_TRUTH_TEXT = """Check which of this project's assumptions about GPUs are true on this one: counters, clocks, power,
rates, memory and failures. Each part runs in child processes with a time limit, and is a file in DIR/parts; the same
command continues where the last one stopped. Prints the path of an archive of all parts, at most 16 MiB. Without a
GPU it prints what was skipped and why.
"""
GPU_TRUTH_EXAMPLES = examples(
    "python -m workload gpu-truth -o truth --max-seconds 540",
    "python -m workload gpu-truth -o truth --part counters --again",
)
# Default of `gpu-truth --max-seconds`: seconds of wall time after which the command ends.
GPU_TRUTH_S = 1500.0
# Run options that the help lists first.
MOST_USED = ("model", "repeats", "profile")
Command = Callable[[argparse.Namespace, Timeline], int]
TRAINER_PACKAGES = ("torch", "torchvision", "numpy", "psutil")
INSTALL = "pip install 'rooflaunch[trainer]'"


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit code. Only this function prints errors."""
    timeline = Timeline()
    log.to_stderr()
    try:
        with stoppable():
            parsed = parse(argv)
            command: Command = parsed.command
            return command(parsed, timeline)
    except RooflaunchError as error:
        return int(error.exit_code) if is_reported_by_parent(argv) else _report(error)
    except ModuleNotFoundError as error:
        if error.name not in TRAINER_PACKAGES:
            raise
        return _report(ToolError(f"the trainer needs the package {error.name}", hint=INSTALL))
    except (MemoryError, ImportError, RuntimeError, OSError) as error:
        if refused := explain_shortage(error, "before it had a result"):
            return _report(refused)
        raise


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; the result's `script_words` are the words after `--`: a user's script and its arguments.

    Raises `UsageError` if the line is not valid.
    """
    script.refuse_stray(argv)
    ours, theirs = script.split(argv)
    parsed = _parser().parse_args(ours)
    if theirs:
        line, asked = line_of("python -m rooflaunch", argv[0]), getattr(parsed, "devices", None)
        words, devices = read_typed(theirs, Path.cwd(), line, devices=asked)
        parsed.script_words = list(words)
        if devices:
            parsed.devices = str(devices)
    return parsed


def _report(error: RooflaunchError) -> int:
    log.LOGGER.error("%s", error.report())
    return error.exit_code


def _parser() -> Parser:
    prog = "python -m workload"
    parser = Parser(
        prog=prog,
        usage="%(prog)s COMMAND [OPTIONS]",
        description="Measure the training step of a script or of a torchvision model, and what limits it.",
        epilog=EXAMPLES,
    )
    version = f"rooflaunch {__version__}"
    parser.groups[Group.OUTPUT].add_argument("--version", action="version", version=version, help="print the version")
    commands = parser.add_subparsers(title="Commands", prog=prog, metavar="COMMAND", required=True)
    _add_train(commands)
    script.add_parser(commands)
    _add_profile(commands)
    # Add the internal command `profiled-step`, which a profile pass starts.
    step = _add_command(commands, "profiled-step", _profiled_step)
    for option in options():
        step.add_option(option)
    step.add_argument("--mode", required=True)
    step.add_argument("--report", type=Path, required=True)
    step.add_argument("--owner", type=int, required=True)
    step.add_argument("--warmup-steps", type=int)
    profiled_script.add_parser(commands)
    _add_ceilings(commands)
    complexity.add_options(
        _add_command(
            commands,
            "complexity",
            complexity.run,
            help="count FLOP, activations and bytes of a model, without training",
            description=complexity.TEXT,
            epilog=complexity.EXAMPLES,
        )
    )
    truth = _add_command(
        commands,
        "gpu-truth",
        _gpu_truth,
        help="check assumptions about GPUs on this machine's GPU",
        description=GPU_TRUTH_TEXT,
        epilog=GPU_TRUTH_EXAMPLES,
    )
    first, measuring = truth.groups[Group.FIRST], truth.groups[Group.MEASURING]
    first.add_argument(
        "-o", "--output", metavar="DIR", type=Path, default=Path("gpu-truth"), help="folder for the results (gpu-truth)"
    )
    first.add_argument(
        "--max-seconds", type=float, default=GPU_TRUTH_S, metavar="N", help=f"end after this time ({GPU_TRUTH_S:g})"
    )
    first.add_argument("--part", action="append", default=[], metavar="NAME", help="only this part; repeatable")
    measuring.add_argument("--again", action="store_true", help="repeat parts that exist already")
    measuring.add_argument(
        "--quick", action="store_true", help="tiny models and short loads: to try the collector itself"
    )
    text = "print hardware and software of this machine, as JSON"
    environment = _add_command(commands, "env", _environment, help=text, epilog=ENV_EXAMPLES)
    _add_device(environment, Group.FIRST)
    _add_command(commands, "models", _models, help="list the models that can be trained", epilog=MODELS_EXAMPLES)
    return parser


def _add_command(commands: Any, name: str, run: Command, **texts: str) -> Parser:
    """Add a command with its `help`, `description` and `epilog`; a command without `help` is not listed."""
    description = {"description": f"{texts['help'][0].upper()}{texts['help'][1:]}."} if "help" in texts else {}
    parser: Parser = commands.add_parser(name, **{**description, **texts})
    parser.set_defaults(command=run)
    return parser


def _add_device(parser: Parser, group: Group) -> None:
    devices = "|".join(Device)
    parser.groups[group].add_argument(
        "--device", choices=tuple(Device), default=Device.AUTO, metavar=devices, help="device to use (the best found)"
    )


def _add_train(commands: Any) -> None:
    train = _add_command(
        commands,
        "train",
        _train,
        help="run one configuration and write a bundle",
        description="Train one configuration and write a bundle; prints the bundle's folder.",
        epilog=TRAIN_EXAMPLES,
    )
    for option in options():
        if option.name not in SCRIPT_ONLY_OPTIONS:
            train.add_option(option, Group.FIRST if option.name in MOST_USED else None)
    # Device switches, which `launch local` has too.
    switches = train.groups[Group.PLACE].add_mutually_exclusive_group()
    for device in (Device.CPU, Device.CUDA, Device.MPS):
        switches.add_argument(
            f"--{device}",
            dest="device",
            action="store_const",
            const=str(device),
            default=argparse.SUPPRESS,
            help=f"same as --device {device}",
        )
    train.groups[Group.OUTPUT].add_argument(
        "-o", "--output", metavar="DIR", type=Path, default=Path("results"), help="folder for the bundles (results)"
    )
    _add_gpu_index(train)
    train.add_argument("--context", help=argparse.SUPPRESS)
    train.add_argument(NOTES_FLAG, type=Path, help=argparse.SUPPRESS)


def _add_profile(commands: Any) -> None:
    profile = _add_command(
        commands,
        "profile",
        _profile,
        help="profile the configuration of complete bundles, each in a new process",
        description=PROFILE_TEXT,
        epilog=PROFILE_EXAMPLES,
    )
    profile.usage = "%(prog)s [OPTIONS] BUNDLE... [-- train.py ARGS]"
    profile.groups[Group.FIRST].add_argument(
        "bundles", metavar="BUNDLE", type=Path, nargs="+", help="folder of a completed run"
    )
    for option in _profile_options():
        # Remove the defaults: options that the user leaves out are taken from the bundle.
        profile.add_option(replace(option, default=None), Group.FIRST if option.name in MOST_USED else Group.MEASURING)
    profile.groups[Group.SCRIPT].add_argument(
        "--data", metavar="PATH", help="path that replaces {data} in the arguments of a script"
    )
    _add_gpu_index(profile)
    profile.set_defaults(script_words=())


def _profile_options() -> list[Option]:
    return [option for option in options() if option.name.startswith("profile") or option.name == "ncu_metrics"]


def _add_gpu_index(parser: Parser) -> None:
    parser.groups[Group.PLACE].add_argument(gpu_index.FLAG, metavar="N", type=gpu_index.parsed, help=gpu_index.HELP)


def _add_ceilings(commands: Any) -> None:
    text = "measure the best FLOP/s and bytes/s of this machine"
    ceilings = _add_command(commands, "ceilings", _ceilings, help=text, epilog=CEILINGS_EXAMPLES)
    _add_device(ceilings, Group.FIRST)
    ceilings.groups[Group.FIRST].add_argument(
        "--precision",
        choices=tuple(Precision),
        metavar="|".join(Precision),
        action="append",
        help="only this precision; repeatable",
    )
    ceilings.add_format(Group.FIRST)
    _add_gpu_index(ceilings)
    # Set for a user's script: the folder of its bundles, which keeps ceilings, and which of those may be used.
    ceilings.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    ceilings.add_argument("--kept", type=KeptCeilings, default=KeptCeilings.HOUR, help=argparse.SUPPRESS)


def _train(parsed: argparse.Namespace, timeline: Timeline) -> int:
    allow_quick_end()
    typed = _typed_options(parsed)
    if parsed.context is None:
        context, resolved = Context(), resolve(typed, os.environ, Path.cwd())
    else:
        # The launcher has read the environment and the configuration; the origins of the options are in the context.
        context, resolved = Context.from_argument(parsed.context), resolve(typed, {}, None)
    if parsed.gpu_index is not None:
        resolved = replace(resolved, spec=gpu_index.required(resolved.spec, parsed.gpu_index))
        gpu_index.use(parsed.gpu_index)
    if parsed.rank_notes is not None:
        ranks.run(resolved, context, parsed.output, timeline, parsed.rank_notes)
        return ExitCode.DONE
    profiled_here = resolved.spec.profile is not Profile.NONE and not context.profile_later
    if resolved.spec.repeats > 1 or profiled_here:
        return repeat_trainer(resolved, context, parsed.output)
    if resolved.spec.ranks > 1:
        ranks.start(resolved, context, parsed.output)
        return ExitCode.DONE
    return _train_once(resolved, context, parsed.output, timeline)


def _typed_options(parsed: argparse.Namespace) -> dict[str, object]:
    known = {option.name for option in options()}
    return {name: value for name, value in vars(parsed).items() if name in known}


def _train_once(resolved: Resolved, context: Context, output: Path, timeline: Timeline) -> int:
    """Train once.

    A failed run leaves a bundle, except after a mistake of the user, or a signal before the bundle was opened.
    """
    opened: list[Path] = []

    def announce(folder: Path) -> None:
        opened.append(folder)
        print(folder, flush=True)

    try:
        from workload.environment.collect import SectionsBeside  # noqa: PLC0415 - needs psutil

        # The facts are collected while torch is imported.
        beside = SectionsBeside()
        with _without_collections():
            from workload.run import train  # noqa: PLC0415 - imports torch, which takes seconds
        raise_if_interrupted()
        train.run(resolved, context, output, timeline, beside=beside, announce=announce)
    except Exception as error:
        failure = pending_interruption() or explain_shortage(error, "before its first step") or error
        with interruption_deferred():
            # After `RunFailedError` the bundle is sealed already, or the disk is full.
            if opened and not isinstance(failure, RunFailedError):
                unfinished.seal(opened[0], resolved.spec, context, failure)
            user_mistakes = UsageError | ToolError | InterruptedRunError | ModuleNotFoundError
            if not opened and not isinstance(failure, user_mistakes):
                print(unfinished.write_new(output, resolved.spec, context, failure), flush=True)
        if failure is error:
            raise
        raise failure from error
    finally:
        # Otherwise libraries would report the frozen objects as leaked when Python exits.
        gc.unfreeze()
    return ExitCode.DONE


@contextmanager
def _without_collections() -> Iterator[None]:
    """Import modules without garbage collections, and leave the modules out of later ones.

    The modules live as long as the process. Of the time to import torch and torchvision, collections take a quarter.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _profile(parsed: argparse.Namespace, _: Timeline) -> int:
    from workload.profile import profile_bundle  # noqa: PLC0415 - `--help` needs none of it
    from workload.profile.command import was_interrupted  # noqa: PLC0415

    if parsed.gpu_index is not None:
        gpu_index.use(parsed.gpu_index)
    known = {option.name: option for option in _profile_options()}
    typed = {name: known[name].parse(value) for name, value in vars(parsed).items() if name in known}
    request, code = profile_bundle.ProfileRequest(**typed), ExitCode.DONE
    for folder in parsed.bundles:
        raise_if_interrupted()
        collected = profile_bundle.profile(folder, request, parsed.script_words, data=parsed.data)
        if collected.is_collected:
            print(folder, flush=True)
        else:
            code = ExitCode.TOOL
        if was_interrupted(collected):
            return ExitCode.INTERRUPTED
    return code


def _profiled_step(parsed: argparse.Namespace, _: Timeline) -> int:
    from workload.profile import profiled_step  # noqa: PLC0415
    from workload.profile.command import Mode  # noqa: PLC0415
    from workload.run import train  # noqa: PLC0415 - imports torch, which takes seconds

    spec = resolve(_typed_options(parsed), {}, None).spec
    try:
        profiled_step.run(Mode(parsed.mode), spec, parsed.report, owner=parsed.owner, warmup_steps=parsed.warmup_steps)
    except Exception as error:
        explained = train.explain(error, spec)
        if explained is error:
            raise
        # The traceback is for the pass's log; the user gets only the message.
        traceback.print_exception(error)
        raise explained from error
    return ExitCode.DONE


def _ceilings(parsed: argparse.Namespace, _: Timeline) -> int:
    wanted = Device(parsed.device)
    if parsed.gpu_index is not None:
        wanted = gpu_index.required_device(wanted, parsed.gpu_index)
        gpu_index.use(parsed.gpu_index)
    from workload.environment import device  # noqa: PLC0415 - imports torch
    from workload.measure import ceiling_rates, ceilings  # noqa: PLC0415 - imports torch

    chosen = wanted if parsed.cache else device.choose(wanted)
    precisions = [Precision(each) for each in parsed.precision or (() if parsed.cache else Precision)]
    for dtype in dict.fromkeys(ceilings.DTYPES[precision] for precision in precisions if chosen is Device.CPU):
        with suppress(UsageError):  # the table then shows the precision as unavailable
            if note := device.hold_back(dtype):
                log.LOGGER.info("note       %s", note)
    settings: dict[str, Any] = {
        "precisions": precisions,
        "sample": ceilings.sensors_of(chosen),
        "progress": log.LOGGER.info,
    }
    if parsed.cache:
        kept, age_s = ceilings.cached_or_measure(parsed.cache, device=chosen, kept=parsed.kept, **settings)
        print(json.dumps(kept.to_json() | {"age_s": age_s}))
        return ExitCode.DONE
    measured = ceilings.measure(chosen, **settings)
    form = TableFormat(parsed.format)
    print(ceiling_rates.table(measured) if form is TableFormat.TABLE else plain(measured.to_json(), form))
    return ExitCode.DONE


def _gpu_truth(parsed: argparse.Namespace, _: Timeline) -> int:
    collect = from_checkout("benchmarks.gpu_truth.collect", "gpu-truth")
    limits = {"max_seconds": parsed.max_seconds, "again": parsed.again, "quick": parsed.quick}
    return int(collect.run(parsed.output, only=parsed.part, **limits))


def _environment(parsed: argparse.Namespace, _: Timeline) -> int:
    from workload.environment import device  # noqa: PLC0415 - imports torch
    from workload.environment.collect import collect  # noqa: PLC0415 - needs psutil
    from workload.environment.machine import HostSystem  # noqa: PLC0415

    facts = collect(device=device.device_facts(HostSystem(), device.choose(Device(parsed.device))))
    print(json.dumps(facts, indent=1))
    return ExitCode.DONE


def _models(_: argparse.Namespace, __: Timeline) -> int:
    from workload.model import models  # noqa: PLC0415 - imports torch

    print("\n".join(models.names()))
    return ExitCode.DONE
