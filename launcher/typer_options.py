"""Options that several commands share, each made from a field of `RunSpec` or of a backend's dataclass."""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer

from launcher.values import flag_of
from workload.contract.errors import UsageError
from workload.contract.invocation import Group
from workload.contract.program import option, plain_message
from workload.contract.spec import Device, Option, options

DEVICE_SWITCHES = {
    Device.CPU: "compute on the CPU",
    Device.CUDA: "on the NVIDIA GPU",
    Device.MPS: "on the Apple GPU",
}


T = TypeVar("T")


def _folder(context: typer.Context, value: Path) -> Path:
    if context.resilient_parsing:
        return value
    from launcher.machine.runtime import require_folder  # noqa: PLC0415 - a help text has no use for it

    return require_folder(value)


OutputOption = Annotated[
    Path,
    option("-o --output", "folder for the bundles", Group.OUTPUT, metavar="DIR", callback=_folder, show_default=True),
]
DryRunOption = Annotated[bool, option("--dry-run", "print the plan and stop", Group.OUTPUT)]


def run_options(command: Callable[..., int], *, without: Collection[str] = ()) -> Callable[..., int]:
    """Give `command` every run option except `without`. It gets the typed options as `typed`, by field name."""
    run = [_parameter(item) for item in options() if item.name not in ("device", *without)]
    devices = [
        keyword(device.value, Annotated[bool, option(f"--{device}", text, Group.PLACE)], default=False)
        for device, text in DEVICE_SWITCHES.items()
    ]
    own = [parameter for parameter in inspect.signature(command).parameters.values() if parameter.name != "typed"]

    @wraps(command)
    def with_run_options(**arguments: Any) -> int:
        values = {item.name: arguments.pop(item.name) for item in run}
        chosen = [device for device in DEVICE_SWITCHES if arguments.pop(device.value)]
        typed = {name: value for name, value in values.items() if value not in (None, [])}
        if len(chosen) > 1:
            flags = " and ".join(f"--{device}" for device in chosen)
            raise UsageError(
                f"a run has one device; got {flags}", hint=f"--{chosen[0]}, or none for the best device found"
            )
        return command(typed=typed | ({"device": chosen[0]} if chosen else {}), **arguments)

    return signed(with_run_options, [*devices, *run, *own])


def run_options_of_side(words: Sequence[str], side: str, *, without: Collection[str]) -> dict[str, object]:
    """Run options in the words of one side of a duel, by field name. Raises `UsageError` for other words."""

    def command(*, typed: dict[str, object]) -> Any:
        return typed

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(context_settings={"help_option_names": []})(run_options(command, without=without))
    try:
        typed: dict[str, object] = typer.main.get_command(app).main([*words], standalone_mode=False)
    except typer.TyperException as error:
        hint = "an option of launch local --help, without --repeats and --profile"
        raise UsageError(f"options of {side}: {plain_message(error, words)}", hint=hint) from error
    return typed


def _parameter(item: Option) -> inspect.Parameter:
    """Parameter for an option; None unless the user typed the option. Values stay text, which `Option.parse` checks."""
    if item.kind is bool:
        info = option(f"{item.flag}/{item.off_flag}", item.help, item.group)
        return keyword(item.name, Annotated[bool | None, info])
    known = "" if item.default is None else f" ({item.default})"
    metavar = "|".join(item.choices) or ("N" if item.is_number else item.name.upper())
    complete = (lambda: list(item.choices)) if item.choices else None
    info = option(item.flag, item.help + known, item.group, metavar=metavar, autocompletion=complete)
    return keyword(item.name, Annotated[list[str] | None if item.is_repeatable else str | None, info])


def keyword(name: str, annotation: Any, default: object = None) -> inspect.Parameter:
    """Parameter of a command from which an option is made."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def signed(command: Callable[..., Any], parameters: Iterable[inspect.Parameter]) -> Callable[..., Any]:
    """Give `command` the signature from which its command line is made; returns `command`."""
    listed = list(parameters)
    command.__signature__ = inspect.Signature(listed)  # type: ignore[attr-defined] # how PEP 362 states a signature
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in listed}
    return command


def declare(command: Callable[..., int], options: list[inspect.Parameter], *, before: str) -> None:
    """Replace the `**` parameter of `command` by these options, which come before its own parameter `before`."""
    own = [
        parameter
        for parameter in inspect.signature(command).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    at = [parameter.name for parameter in own].index(before)
    signed(command, [*own[:at], *options, *own[at:]])


def parameters_of(kind: type, *, group: Group = Group.PLACE, required: bool = True) -> list[inspect.Parameter]:
    """Parameters for the options of `kind`, a dataclass of `choice` fields. With `required` False, all are optional.

    `group`: heading of the options in the help.
    """
    hints = get_type_hints(kind)
    chosen = [item for item in fields(kind) if item.metadata]
    return [_choice_parameter(item, hints[item.name], group=group, required=required) for item in chosen]


def instance_of(kind: type[T], arguments: dict[str, Any]) -> T:
    """Instance of the dataclass from a command's arguments; its fields are removed from `arguments`."""
    chosen = [item for item in fields(kind) if item.metadata]  # type: ignore[arg-type] # a dataclass
    values = {item.name: arguments.pop(item.name) for item in chosen}
    for item in chosen:
        if item.metadata["is_repeatable"]:
            values[item.name] = the_only(flag_of(item), values[item.name])
        elif (parse := item.metadata["parse"]) is not None:
            values[item.name] = parse(values[item.name])
        elif isinstance(item.default, tuple):
            values[item.name] = tuple(values[item.name] or ())
    return kind(**values)


def instances_from(kinds: Sequence[type], words: Sequence[str]) -> list[Any]:
    """Instances of dataclasses whose options are in the words of a command line. Raises `TyperException`."""

    def command(**_: Any) -> None:
        """Do nothing: the command exists for its options."""

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(signed(command, [parameter for kind in kinds for parameter in parameters_of(kind)]))
    with typer.main.get_command(app).make_context("", [*words]) as context:
        arguments = dict(context.params)
    return [instance_of(kind, arguments) for kind in kinds]


def the_only(flag: str, values: list[str] | str | None) -> str | None:
    """Return the value of an option that may be given only once here. Raises `UsageError` if it was repeated."""
    if not isinstance(values, list):
        return values
    if len(values) > 1:
        got = " ".join(f"{flag} {value}" for value in values)
        raise UsageError(
            f"only a run has several machines, and is found at its first one; got {got}", hint=f"{flag} {values[0]}"
        )
    return values[0] if values else None


def _choice_parameter(item: Any, hint: Any, *, group: Group, required: bool) -> inspect.Parameter:
    shown: Mapping[str, Any] = {"rich_help_panel": group, **item.metadata["shown"]}
    flag = flag_of(item)
    is_switch = hint is bool or bool in get_args(hint)
    default = None if item.default is MISSING else item.default
    if get_origin(hint) is tuple:
        hint, default = list[str] | None, None
    if item.metadata["parse"] is not None:
        hint, default = str, item.metadata["typed_default"]
    if item.metadata["is_repeatable"]:
        hint = list[str]
    if item.default is MISSING and not required:
        hint = hint | None
    if is_switch and (default is not False):
        flag = f"{flag}/--no-{flag[2:]}"
    quiet = {"show_default": False} if default is None or default is False else {}
    annotation = Annotated[hint, typer.Option(flag, help=item.metadata["help"], **{**quiet, **shown})]
    if item.default is MISSING and required:
        return inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
    return keyword(item.name, annotation, default)
