"""Command line `launch … -- train.py ARGS`: words after `--`, options of a script, and those of `launch local`.

Imports little, because `launch --help` loads this module.
"""

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher import values
from launcher.values import HERE_COMMANDS, Runtime, choice, flag_of
from workload.contract.errors import UsageError
from workload.contract.invocation import Group, as_typed
from workload.contract.program import GroupedCommand
from workload.contract.script_words import DATA, DATA_EXAMPLE, line_of, read_typed, starter_of
from workload.contract.spec import options

if TYPE_CHECKING:
    from launcher.machine.containers import ContainerLimits

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- train.py ARGS", help="a training script of your own, or -m MODULE", show_default=False),
]


# Variables that belong to the machine on which a script runs.
OF_THE_MACHINE = frozenset({"HOME", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "SHELL", "USER"})


@dataclass(frozen=True, kw_only=True)
class HereOptions:
    """Options of a script on this machine."""

    data: str | None = choice(
        f"the script's data; {DATA} in its arguments becomes this folder", default=None, metavar="PATH"
    )
    env: tuple[str, ...] = choice(
        "environment variable that a script in a container gets; repeatable", default=(), metavar="NAME"
    )
    requirements: str | None = choice(
        "more packages for a container, a requirements file of pip", default=None, metavar="FILE"
    )


@dataclass(frozen=True, kw_only=True)
class ThereOptions:
    """Options of a script on another machine."""

    data: str | None = choice(
        f"the script's data, {DATA_EXAMPLE} or a folder there; {DATA} in its arguments becomes its path",
        default=None,
        metavar="PATH",
    )
    env: tuple[str, ...] = choice(
        "environment variable that the script gets; readable in the launch's store until the launch has "
        "ended; repeatable",
        default=(),
        metavar="NAME",
    )
    requirements: str | None = choice(
        "more packages for the image, a requirements file of pip; built as a layer here, and pushed",
        default=None,
        metavar="FILE",
    )
    include: tuple[str, ...] = choice(
        "send these files of the script's folder, not all that git tracks; files that git ignores are never "
        "sent; repeatable",
        default=(),
        metavar="GLOB",
    )


DEVICES = ("cpu", "cuda", "mps")
OFF_SWITCHES = {option.name for option in options() if option.default is False}
# Options of one side of a duel, in front of its script.
SIDE_OPTIONS = ("--change", "--devices", "--machines")
RUN_OPTIONS = {*DEVICES, *(option.name for option in options())}


def changes_before(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split one side of a duel into the `SIDE_OPTIONS` in front of its script, and the script with its arguments.

    Options without a script are left as they are.
    """
    at = 0
    while words[at : at + 1] and words[at].partition("=")[0] in SIDE_OPTIONS:
        at += 1 if "=" in words[at] else 2
    has_script = words[at : at + 1] == ["-m"] or not "".join(words[at : at + 1] or ["-"]).startswith("-")
    return (list(words[:at]), list(words[at:])) if has_script else ([], list(words))


class ScriptCommand(GroupedCommand):
    """A command whose line may end in `-- train.py ARGS`; the words after `--` belong to the script."""

    example = "-- train.py --lr 0.1"
    # The run options are many, and the same for every command: the help of `launch local` alone lists them.
    lists_run_options = False
    # Word between the two scripts of a duel.
    separator: str | None = None
    # Other commands refuse `--machines` in words.
    has_machines = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before `--` as usual; the words after `--` become the parameter `words`."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        separator = args.index("--") if "--" in args else len(args)
        options, script = args[:separator], args[separator + 1 :]
        at = next((number for number, word in enumerate(options) if word.endswith(".py")), None)
        if separator == len(args) and at is not None:
            # With the program that starts the script, as in `launch local python train.py`; --python names a Python.
            starts = (number for number in range(at) if starter_of(options[number:], Path.cwd()))
            at = next((number for number in starts if options[:number][-1:] != ["--python"]), at)
            line = shlex.join([*options[:at], "--", *options[at:]])
            raise UsageError(f"'{options[at]}' must stand after --", hint=f"{ctx.command_path} {line}")
        if separator < len(args) and not script:
            raise UsageError("no script after --", hint=f"{ctx.command_path} {self.example}")
        rest = super().parse_args(ctx, options)
        if stray := ctx.params.get("words"):
            expanded = "put * in quotes, so that the shell does not replace it: --include '*.py'"
            hint = expanded if script else f"{ctx.command_path} --help"
            raise UsageError(f"Got unexpected extra argument(s) ({' '.join(stray)})", hint=hint)
        ctx.params["words"] = self._read(ctx, script)
        return rest

    def _read(self, ctx: Any, words: list[str]) -> list[str]:
        """The words after `--` without programs that start a script; their number of processes becomes `--devices`."""
        middle = words.index(self.separator) if self.separator in words else len(words)
        sides, ends = [words[:middle], words[middle + 1 :]], words[middle : middle + 1]
        line = line_of("launch", ctx.info_name)
        for number, typed in enumerate(sides):
            own, side = changes_before(typed) if self.separator else ([], typed)
            if side[:1] != ["-m"] and "".join(side[:1]).startswith("-"):
                continue  # options of a duel's side

            def line_of_side(meant: Sequence[str], number: int = number, own: Sequence[str] = own) -> str:
                return line([*sides[0], *ends, *own, *meant] if number else [*own, *meant, *ends, *sides[1]])

            asked, is_here = ctx.params.get("devices"), ctx.info_name in HERE_COMMANDS
            script, devices = read_typed(side, Path.cwd(), line_of_side, devices=asked, is_here=is_here)
            if devices:
                ctx.params["devices"] = str(devices)
            sides[number] = [*own, *script]
        return [*sides[0], *ends, *sides[1]]

    def rows_by_heading(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """Rows of the help by heading; that of the model's options says that a script refuses them."""
        rows = super().rows_by_heading(ctx)
        if not self.lists_run_options:
            rows[Group.FIRST].append(("run options", as_typed("launch local --help")))
        return {heading + ", without a script" * (heading == Group.MODEL): below for heading, below in rows.items()}

    def help_row(self, parameter: Any, ctx: Any) -> tuple[str, str] | None:
        """Name and description of an option; the devices share a row."""
        if parameter.name == "machines":
            return super().help_row(parameter, ctx) if self.has_machines else None
        if not self.lists_run_options and parameter.name in RUN_OPTIONS and parameter.name not in self.first:
            return None
        if parameter.name in DEVICES:
            names = ", ".join(f"--{device}" for device in DEVICES)
            return (names, "device to compute on (the best one found)") if parameter.name == DEVICES[0] else None
        row = super().help_row(parameter, ctx)
        # If a switch is off by default, `--no-…` only overrides a file or an environment variable: not shown.
        return (parameter.opts[0], row[1]) if row and parameter.name in OFF_SWITCHES else row


class MachinesCommand(ScriptCommand):
    """A command whose runs may have several machines."""

    has_machines = True


def variables_of(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The named variables with their values.

    Raises `UsageError` for a variable that is unset, or that the machine sets itself.
    """
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(
                f"--env takes only the name of a variable that is set here; got '{name}'", hint="--env HF_TOKEN"
            )
        if name in OF_THE_MACHINE or name.startswith("ROOFLAUNCH_"):
            raise UsageError(f"{name} is set by the machine itself; got --env {name}", hint=f"leave --env {name} out")
        if name not in environment:
            raise UsageError(f"--env {name}: this variable is not set here", hint=f"export {name}=VALUE")
    return {name: environment[name] for name in names}


def refuse_without_script(options: Any, words: list[str] | None) -> None:
    """Raise `UsageError` for an option of a script if there is no script."""
    for item in fields(options):
        if not words and getattr(options, item.name):
            flag = flag_of(item)
            raise UsageError(f"{flag} is only for your own script", hint=f"leave {flag} out, or add -- train.py")


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """Options of `launch local`. `image` and `flavour` ask for a container.

    A limit of None allows as much as the machine has.
    """

    runtime: Runtime = choice(
        "auto: a container if its image is built, else a process",
        default=Runtime.AUTO,
        metavar="|".join(Runtime),
        show_default=False,
    )
    image: str | None = choice("run this image", default=None, metavar="NAME")
    flavour: str | None = choice("use the image of this flavour", default=None, metavar="cpu|cuda|volta")
    shm_size: str = choice(
        "a container's /dev/shm, for each device", default=values.text(values.DEFAULT_SHM_BYTES), metavar="SIZE"
    )
    memory: str | None = choice("a container's memory limit, for example 8g", default=None, metavar="SIZE")
    cpus: float | None = choice("a container's CPU limit, for example 1.5", default=None, metavar="N")
    gpu_index: int | None = choice("the GPU with this index in nvidia-smi", default=None, metavar="N", min=0)

    def limits(self) -> "ContainerLimits":
        """Limits of the container. Raises `UsageError` for a text that is no limit."""
        from launcher.machine.containers import ContainerLimits  # noqa: PLC0415 - a help text has no use for it

        if self.cpus is not None and not (math.isfinite(self.cpus) and self.cpus > 0):
            raise UsageError(f"--cpus must be a positive number; got '{self.cpus:g}'", hint="--cpus 1.5")
        return ContainerLimits(
            shm_bytes=values.parse_bytes(self.shm_size, flag="--shm-size", example="2g"),
            memory_bytes=(
                None if self.memory is None else values.parse_bytes(self.memory, flag="--memory", example="8g")
            ),
            cpus=self.cpus,
        )

    def asked_runtime(self) -> Runtime:
        """Requested runtime. An image, a flavour or a limit asks for a container.

        Raises `UsageError` if two options contradict each other.
        """
        is_limited = self.limits() != LocalOptions().limits()
        asked = {"image": self.image, "flavour": self.flavour, "limits": is_limited}
        for_a_container = [name for name, is_asked in asked.items() if is_asked]
        if self.runtime is Runtime.PROCESS and for_a_container:
            raise UsageError(
                f"{' and '.join(for_a_container)} cannot be used with --runtime process: only containers have them",
                hint="--runtime docker, or leave them out",
            )
        return Runtime.DOCKER if for_a_container else self.runtime
