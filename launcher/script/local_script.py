"""A user's own script on this machine: where it runs, and its data."""

import importlib.util
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from launcher.kinds import Runtime
from launcher.machine.local_options import LocalOptions
from launcher.machine.runtime import Choice, choose, gpu_capability
from launcher.machine.script import Workplace
from launcher.script import notes
from launcher.script.command import HereOptions, variables_of
from workload.contract.errors import ToolError, UsageError
from workload.contract.script import main_file, script_name
from workload.contract.spec import Device, RunSpec

EXAMPLE = "launch local -- train.py --lr 0.1"


def choice_of(
    spec: RunSpec, options: LocalOptions, of_script: HereOptions, folder: Path, *, is_dry: bool = False
) -> Choice:
    """Runtime of a run on this machine, whose image has the packages of --requirements; a dry run does not build it.

    `folder`: the script's folder. Raises `UsageError` or `ToolError` if the run cannot be had in this way.
    """
    runtime, packages = options.asked_runtime(), of_script.requirements
    if packages is not None and runtime is Runtime.PROCESS:
        raise UsageError(
            f"--requirements is for an image, but a process uses this Python, {sys.executable}",
            hint=shlex.join([sys.executable, "-m", "pip", "install", "--requirement", packages]),
        )
    runtime = runtime if packages is None else Runtime.DOCKER
    choice = choose(runtime, spec, image=options.image, flavour=options.flavour, gpu_index=options.gpu_index)
    if spec.script and choice.runtime is Runtime.DOCKER:
        require_visible(spec.script, folder)
    elif spec.script:
        require_module(spec.script, folder)
        if not is_dry:
            require_gpu(spec)
    if packages is None:
        return choice
    from launcher.images import layer  # noqa: PLC0415 - only with requirements

    requirements = layer.read(packages)
    assert choice.engine is not None
    assert choice.image is not None
    image = choice.image if is_dry else layer.layered(choice.engine, choice.image, requirements)
    return replace(choice, image=image, why=f"{choice.why}, with the packages of {packages}")


def require_gpu(spec: RunSpec, capability: Callable[[], object] = gpu_capability) -> None:
    """Raise `ToolError` if --cuda is given without a GPU: the script would silently take the CPU."""
    if spec.device is Device.CUDA and capability() is None:
        raise ToolError("nvidia-smi shows no GPU here; got --cuda", hint="--cpu, or launch doctor gpu")


def require_module(words: Sequence[str], folder: Path) -> None:
    """Raise `UsageError` if `-m` names a module that Python cannot find here. Imports nothing."""
    if words[0] != "-m":
        return
    name = script_name(words)
    spec = _module_spec(name, folder)
    if spec is None:
        raise UsageError(
            f"no module '{name}' for this Python, {sys.executable}, or in {folder}",
            hint=f"cd to the module's folder, or {shlex.join([sys.executable, '-m', 'pip', 'list'])}",
        )
    locations = spec.submodule_search_locations
    if locations is not None and PathFinder.find_spec(f"{name}.__main__", locations) is None:
        raise UsageError(f"'{name}' is a package without __main__.py", hint=f"-m {name}.train, a module in it")


def _module_spec(name: str, folder: Path, *, is_local: bool = False) -> ModuleSpec | None:
    """Specification of the module `name`; None if the module is not found.

    Searches `folder` and, unless `is_local`, Python's own search path.
    """
    top, *rest = name.split(".")
    try:
        spec = PathFinder.find_spec(top, [str(folder)]) or (None if is_local else importlib.util.find_spec(top))
    except ValueError:  # an empty name, or a loaded module that came from no file
        return None
    for part in rest:
        top = f"{top}.{part}"
        locations = spec.submodule_search_locations if spec else None
        spec = PathFinder.find_spec(top, locations) if locations is not None else None
    return spec


def notes_of(words: Sequence[str], options: HereOptions, workplace: Workplace, runtime: Runtime) -> tuple[str, ...]:
    """Notes for the plan: imports that are missing, and files that a container does not see."""
    if runtime is not Runtime.DOCKER:
        return tuple(notes.unknown_imports(words, workplace.folder, notes.this_python(workplace.folder)))
    from launcher.images import layer  # noqa: PLC0415 - only for a container

    packages = layer.read(options.requirements) if options.requirements else b""
    module = script_name(words)
    unseen = words[0] == "-m" and _module_spec(module, workplace.folder, is_local=True) is None
    reached = [workplace.folder, *([Path(workplace.data)] if workplace.data else [])]
    return (
        *([f"no module '{module}' is in this folder; perhaps the image has it"] if unseen else []),
        *notes.left_behind(words, workplace.folder, reached=reached, why_not=lambda _: ""),
        *notes.unknown_imports(words, workplace.folder, notes.image(packages)),
    )


def require_visible(words: Sequence[str], folder: Path) -> None:
    """Raise `UsageError` if a container would not see the script: it sees only the user's folder."""
    path = main_file(words, folder, example=EXAMPLE, python="the image's Python")
    if path is not None and not path.resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            f"'{words[0]}' is outside of this folder, {folder}, and a container sees only this folder",
            hint=f"cd {path.resolve().parent}, then run the same with -- {path.name}; or --runtime process",
        )


def workplace_of(
    words: Sequence[str], options: HereOptions, folder: Path, environment: Mapping[str, str], *, example: str = EXAMPLE
) -> Workplace:
    """Folder, data and variables for a script, run in `folder`. Raises `UsageError` if script or data is missing."""
    main_file(words, folder, example=example, python=f"this Python, {sys.executable}")
    variables = variables_of(options.env, environment)
    return Workplace(folder=folder, data=folder_of_data(options.data), variables=variables)


def folder_of_data(typed: str | None) -> str:
    """Absolute path of `--data`; empty without the option. Raises `UsageError` if no such folder exists."""
    if typed is None:
        return ""
    if "://" in typed:
        raise UsageError(
            f"--data must be a folder of this machine; got '{typed}'",
            hint="copy the data to a folder first, and name the folder",
        )
    data = Path(typed).expanduser().resolve()
    if not data.exists():
        raise UsageError(f"no data at '{typed}'", hint="--data FOLDER, with a folder that exists")
    return str(data)
