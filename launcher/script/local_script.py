"""A user's own script on this machine: where it runs, its data, and notes for its plan.

The notes name arguments that are files which are not sent, and imports that may not be installed.
"""

import ast
import importlib.metadata
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

from launcher.images import contents
from launcher.machine.runtime import Choice, Workplace, choose, gpu_capability
from launcher.script.files import module_spec
from launcher.script.options import HereOptions, LocalOptions, variables_of
from launcher.values import Runtime
from workload.contract.errors import ToolError, UsageError
from workload.contract.script_words import DATA, Line, line_of, main_file, script_name
from workload.contract.spec import Device, RunSpec

# A script with more modules is a whole library, whose first modules already show which packages are missing.
MOST_MODULES = 300
# Imports whose package has another name: those in our images, and those that scripts import most.
PACKAGE_OF: Mapping[str, str] = {
    "PIL": "pillow",
    "yaml": "pyyaml",
    "pynvml": "nvidia-ml-py",
    "cv2": "opencv-python",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
}
# Imports of packages that are installed together with PyTorch, and of PyTorch itself.
WITH_TORCH = frozenset({"functorch", "torch", "torchgen", "torchvision", "triton"})
# Imports of our own packages in a script.
OURS = frozenset({"rooflaunch", "workload"})
_installed = cache(importlib.metadata.packages_distributions)


@dataclass(frozen=True, kw_only=True)
class Installation:
    """Python or image in which the script's imports must be installed.

    `has`: returns whether an import of this name is known to be installed. `cannot_find`: words that end the note
    `imports a, b, which ...` on other imports, such as `the image may not have`.
    """

    has: Callable[[str], bool]
    cannot_find: str


def this_python(folder: Path) -> Installation:
    """The Python that runs `launch`; it also finds the modules in `folder`."""

    def has(name: str) -> bool:
        try:
            return bool(PathFinder.find_spec(name, [str(folder)]) or importlib.util.find_spec(name))
        except ValueError:  # a loaded module without a spec, such as `__main__`: it is there
            return True

    return Installation(has=has, cannot_find=f"this Python, {sys.executable}, does not have")


def image(requirements: bytes) -> Installation:
    """Image built for this code, with the packages of `--requirements`."""
    known = packages_of(contents.requirements()) | packages_of(requirements.decode(errors="replace"))
    return Installation(
        has=lambda name: name in WITH_TORCH or any(package in known for package in _packages(name)),
        cannot_find="the image may not have (--requirements FILE adds packages)",
    )


def their_python() -> Installation:
    """Python of another machine: only the packages of our trainer are known to be installed."""
    trainer = {"numpy", "psutil"} | WITH_TORCH
    return Installation(has=lambda name: name in trainer, cannot_find="the Python there may not have")


def packages_of(requirements: str) -> frozenset[str]:
    """Normalized package names in a pip requirements list."""
    names = re.findall(r"^\s*([A-Za-z0-9][\w.-]*)", requirements, re.MULTILINE)
    return frozenset(map(_normal, names))


def _packages(name: str) -> Iterator[str]:
    """Packages that may provide the import `name`.

    They are the package of this name, the package that the table `PACKAGE_OF` names, and the packages installed here
    that provide the import.
    """
    yield _normal(name)
    yield _normal(PACKAGE_OF.get(name, name))
    yield from map(_normal, _installed().get(name, ()))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def unknown_imports(words: Sequence[str], folder: Path, there: Installation) -> Iterator[str]:
    """Note that names packages which the script imports and which `there` may lack; no note without such packages."""
    missing = sorted(name for name in imports(words, folder) if not there.has(name))
    if missing:
        yield f"imports {', '.join(missing)}, which {there.cannot_find}"


def imports(words: Sequence[str], folder: Path) -> set[str]:
    """Packages that the script and its own modules always import; imports inside `try` or a condition do not count."""
    if words[0] == "-m":
        root, waiting = folder, list(_files(words[1], folder))
    else:
        main = (folder / words[0]).resolve()
        root, waiting = main.parent, [main]
    packages, seen = set[str](), set[Path]()
    while waiting and len(seen) < MOST_MODULES:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for name, is_own in _imported(path, root):
            waiting += _files(name, root)
            top = name.partition(".")[0]
            if not is_own and not (root / top).is_dir() and not (root / f"{top}.py").is_file():
                packages.add(top)
    return packages - sys.stdlib_module_names - OURS


def _files(module: str, root: Path) -> Iterator[Path]:
    folder = root
    for part in module.split("."):
        yield from (path for path in (folder / part / "__init__.py", folder / f"{part}.py") if path.is_file())
        folder /= part
    if (main := folder / "__main__.py").is_file():
        yield main


def _imported(path: Path, root: Path) -> Iterator[tuple[str, bool]]:
    """Imports of a module when it is loaded, as pairs: dotted name, and whether the import is relative."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # the script itself will report the error
    package = path.parent.relative_to(root).parts if path.is_relative_to(root) else ()
    for node in _at_load(tree.body):
        if isinstance(node, ast.Import):
            yield from ((alias.name, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *filter(None, [node.module])])
            names = (".".join(filter(None, [base, alias.name])) for alias in node.names)
            yield from ((name, node.level > 0) for name in names)


def _at_load(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run whenever a module is loaded: none in functions, in `try`, or in most conditions."""
    for node in body:
        yield node
        is_of_main = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        if isinstance(node, ast.With | ast.ClassDef | ast.If) and (is_of_main or not isinstance(node, ast.If)):
            yield from _at_load(node.body)


def left_behind(
    words: Sequence[str], folder: Path, *, reached: Sequence[Path], why_not: Callable[[str], str]
) -> Iterator[str]:
    """Note for each argument that names a file or folder which exists here but not where the script runs.

    `reached`: folders that the script can read. `why_not`: returns the reason why a path below `folder` is not sent;
    empty if the path is sent.
    """
    for word in words[2 if words[0] == "-m" else 1 :]:
        value = word.partition("=")[2] if word.startswith("-") else word
        path = folder / os.path.expanduser(value)  # noqa: PTH111 - takes any text
        if not value or DATA in value or value == os.devnull or not os.path.exists(path):  # noqa: PTH110 - the same
            continue
        real = path.resolve()
        if not any(real.is_relative_to(each.resolve()) for each in reached):
            yield f"'{value}' in the arguments is outside of this folder and is not sent: use --data for data"
        elif real.is_relative_to(folder.resolve()) and (why := why_not(real.relative_to(folder.resolve()).as_posix())):
            yield f"'{value}' in the arguments is not sent: {why}"


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
    from launcher.images import build  # noqa: PLC0415 - only with requirements

    requirements = build.read(packages)
    assert choice.engine is not None
    assert choice.image is not None
    image = choice.image if is_dry else build.layered(choice.engine, choice.image, requirements)
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
    spec = module_spec(name, folder)
    if spec is None:
        raise UsageError(
            f"no module '{name}' for this Python, {sys.executable}, or in {folder}",
            hint=f"cd to the module's folder, or {shlex.join([sys.executable, '-m', 'pip', 'list'])}",
        )
    locations = spec.submodule_search_locations
    if locations is not None and PathFinder.find_spec(f"{name}.__main__", locations) is None:
        raise UsageError(f"'{name}' is a package without __main__.py", hint=f"-m {name}.train, a module in it")


def notes_of(words: Sequence[str], options: HereOptions, workplace: Workplace, runtime: Runtime) -> tuple[str, ...]:
    """Notes for the plan: imports that are missing, and files that a container does not see."""
    if runtime is not Runtime.DOCKER:
        return tuple(unknown_imports(words, workplace.folder, this_python(workplace.folder)))
    from launcher.images import build  # noqa: PLC0415 - only for a container

    packages = build.read(options.requirements) if options.requirements else b""
    module = script_name(words)
    unseen = words[0] == "-m" and module_spec(module, workplace.folder, is_local=True) is None
    reached = [workplace.folder, *([Path(workplace.data)] if workplace.data else [])]
    return (
        *([f"no module '{module}' is in this folder; perhaps the image has it"] if unseen else []),
        *left_behind(words, workplace.folder, reached=reached, why_not=lambda _: ""),
        *unknown_imports(words, workplace.folder, image(packages)),
    )


def require_visible(words: Sequence[str], folder: Path) -> None:
    """Raise `UsageError` if a container would not see the script: it sees only the user's folder."""
    line = line_of("launch", "local")
    path = main_file(words, folder, line)
    if path is not None and not path.resolve().is_relative_to(folder.resolve()):
        there = shlex.quote(str(path.resolve().parent))
        raise UsageError(
            f"'{words[0]}' is outside of this folder, {folder}, and a container sees only this folder",
            hint=f"cd {there}, then {line([path.name, *words[1:]])}; or --runtime process",
        )


def workplace_of(
    words: Sequence[str], options: HereOptions, folder: Path, environment: Mapping[str, str], line: Line | None = None
) -> Workplace:
    """Folder, data and variables for a script, run in `folder`. Raises `UsageError` if script or data is missing.

    `line`: returns the user's command with other words for the script, by default of `launch local`.
    """
    main_file(words, folder, line or line_of("launch", "local"))
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
