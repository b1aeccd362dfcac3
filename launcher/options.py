"""Options of several commands. RUN OPTIONS are one parameter per field of `RunSpec`, so that the two never differ."""

import inspect
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from typing import Annotated, Any

import typer

from workload.contract.errors import UsageError
from workload.contract.spec import Device, Option, options

DEVICE_SWITCHES = (Device.CPU, Device.CUDA, Device.MPS)


class Format(StrEnum):
    """How a result is printed on stdout."""

    TABLE = "table"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="what stdout gets")]


def run_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give `command` every run option; it receives what the user typed as `given`, by field name."""
    run = [_parameter(option) for option in options() if option.name != "device"]
    devices = [_device_switch(device) for device in DEVICE_SWITCHES]
    signature = inspect.signature(command)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "given"]

    @wraps(command)
    def with_run_options(**arguments: Any) -> int:
        given = {item.name: arguments.pop(item.name) for item in run}
        chosen = [device for device in DEVICE_SWITCHES if arguments.pop(device.value)]
        typed = {name: value for name, value in given.items() if value is not None}
        return command(given=typed | _one_device(chosen), **arguments)

    with_run_options.__signature__ = signature.replace(parameters=[*devices, *run, *own])  # type: ignore[attr-defined] # how PEP 362 lets a wrapper state its signature
    with_run_options.__annotations__ = {item.name: item.annotation for item in (*devices, *run, *own)}
    return with_run_options


def _one_device(chosen: list[Device]) -> dict[str, Device]:
    if len(chosen) > 1:
        flags = " and ".join(f"--{device}" for device in chosen)
        raise UsageError(f"a run has one device; got {flags}", hint=f"--{chosen[0]}, or none for the best device found")
    return {"device": chosen[0]} if chosen else {}


def _device_switch(device: Device) -> inspect.Parameter:
    text = {Device.CPU: "compute on the CPU", Device.CUDA: "on the NVIDIA GPU", Device.MPS: "on the Apple GPU"}
    info = typer.Option(f"--{device}", help=text[device], show_default=False)
    return _keyword(device.value, Annotated[bool, info], default=False)


def _parameter(option: Option) -> inspect.Parameter:
    """A parameter whose value is None unless the user typed it; values stay text, which `Option.parse` checks."""
    if option.kind is bool:
        info = typer.Option(f"{option.flag}/{option.off_flag}", help=option.help, show_default=False)
        return _keyword(option.name, Annotated[bool | None, info])
    known = "" if option.default is None else f" ({option.default})"
    metavar = "|".join(option.choices) or ("N" if option.is_number else option.name.upper())
    complete = (lambda: list(option.choices)) if option.choices else None
    info = typer.Option(option.flag, metavar=metavar, help=option.help + known, autocompletion=complete)
    return _keyword(option.name, Annotated[str | None, info])


def _keyword(name: str, annotation: Any, default: object = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
