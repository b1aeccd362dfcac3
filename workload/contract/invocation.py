"""Our commands as this user can type them, and the layout of help texts. Standard library only.

Messages and hints name a command in its plain form, `launch build`. A bundle, a record or a report keeps that
form, because its reader is at another machine. Text for the person at this terminal is passed through `as_typed` first:
`.venv/bin/launch build` if the scripts are not on PATH.
"""

import json
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from workload.contract.text import NARROWEST, NO_BREAK

# Beginnings of commands with this process's Python: SCRIPTS runs a user's script, TRAINER our trainer. With -P Python
# does not import from its working folder, where a user may have a `workload` of their own.
PYTHON = (sys.executable, *(("-P",) if sys.flags.safe_path else ()))
SCRIPTS = (*PYTHON, "-m", "rooflaunch")
TRAINER = (*PYTHON, "-m", "workload")
MODULES = {"launch": "launcher", "analyze": "analysis"}
# Only a program's name with one of these words after it is a command: "launch again" is plain English. A test checks
# that every command is in this table.
COMMANDS = {
    "launch": [
        "local", "duel", "tune", "gcp", "aws", "ssh", "slurm", "batch", "sweep", "gpus", "build", "doctor", "status",
        "logs", "down", "reap",
    ],
    "analyze": [
        "summary", "roofline", "kernels", "variance", "compare", "audit", "report", "example",
        "import", "gpu-truth", "fetch", "export",
    ],
}  # fmt: skip
# Option of the program itself, as in `launch --help`.
OPTION = "--?[a-z]+"
PACKAGES = ("rooflaunch", "workload", *MODULES.values())
# A program's name that follows a part of a path, as in `bin/launch`, is not changed.
START = r"(?<![\w./\\-])"
OURS = re.compile(
    "|".join(f"{START}{program}(?= (?:{'|'.join((*names, OPTION))})\\b)" for program, names in COMMANDS.items())
    + f"|{START}python(?= -m (?:{'|'.join(PACKAGES)})\\b)"
    + f"|{START}pip install (?:rooflaunch\\b|'rooflaunch\\[\\w+\\]')"
)
PIP, QUOTE = "pip install ", "'"
# Packages needed by a copy of our code on another machine, where rooflaunch is not installed as a package.
TRAINERS = "torch torchvision numpy psutil"
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Call:
    """Facts on the start of this process.

    `started`: sys.argv[0]. `scripts`: folder of this installation's programs. `path`: variable PATH. `folder`: working
    folder.
    """

    started: str
    python: str
    scripts: str
    path: str
    folder: str


def this_call() -> Call:
    """Facts on the start of this process."""
    import sysconfig  # noqa: PLC0415 - milliseconds that only a message needs, here and below

    return Call(
        started=sys.argv[0],
        python=sys.executable,
        scripts=sysconfig.get_path("scripts"),
        path=os.environ.get("PATH", os.defpath),
        folder=os.getcwd(),  # noqa: PTH109 - text, as everything here
    )


def as_typed(text: str, call: Call | None = None) -> str:
    """`text` with each of our commands in the form that works at this terminal."""
    if not OURS.search(text):
        return text
    call = call or this_call()
    return OURS.sub(lambda match: _typed(match[0], call), text)


def document(name: str) -> str:
    """Path of a file of this project, such as `infra/gcp/README.md`.

    If the file is absent: its name and the web address of the repository, or an empty text without a known address.
    """
    path = ROOT / name
    if path.exists():
        return _short(str(path), str(Path.cwd()))
    from importlib import metadata  # noqa: PLC0415

    try:
        links = metadata.metadata("rooflaunch").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        links = []
    address = next((link.partition(", ")[2] for link in links if link.startswith("Repository,")), "")
    return f"{name} in {address}" if address else ""


def _typed(plain: str, call: Call) -> str:
    if plain.startswith(PIP):
        return _installing(plain, call)
    return _python(call) if plain == "python" else _program(plain, call)


def _installing(plain: str, call: Call) -> str:
    return f"{_python(call)} -m {PIP}{_requirement(plain.removeprefix(PIP).strip(QUOTE), call)}"


def _requirement(name: str, call: Call) -> str:
    """Requirement for pip in place of `rooflaunch[gcp]`: this checkout or wheel, because no index has rooflaunch."""
    extra = name.removeprefix("rooflaunch")
    if (ROOT / "pyproject.toml").is_file():
        below = os.path.relpath(ROOT, call.folder) if Path(call.folder).is_relative_to(ROOT) else str(ROOT)
        return f"--editable {shlex.quote(f'{below}{extra}')}"
    from importlib import metadata  # noqa: PLC0415

    try:
        installed = metadata.distribution("rooflaunch")
    except metadata.PackageNotFoundError:
        return TRAINERS
    if text := installed.read_text("direct_url.json"):
        origin = json.loads(text)
        vcs = origin.get("vcs_info", {})
        url = f"{vcs['vcs']}+{origin['url']}@{vcs['commit_id']}" if vcs else origin["url"]
        return shlex.quote(f"{name} @ {url}")
    return shlex.join(_packages(installed.requires or [], extra.strip("[]")))


def _packages(requires: Sequence[str], extra: str) -> Iterator[str]:
    """Packages of an extra of rooflaunch, including the packages of other extras that the extra names."""
    for requirement in requires:
        package, _, condition = map(str.strip, requirement.partition(";"))
        if condition != (f'extra == "{extra}"' if extra else ""):
            continue
        if package.startswith("rooflaunch["):
            yield from _packages(requires, package.removeprefix("rooflaunch[").rstrip("]"))
        else:
            yield package


def _program(name: str, call: Call) -> str:
    """Command for `launch` or `analyze`: its name, a path to it, or `python -m launcher`.

    If the running command is `launch` or `analyze`, the result has the same form.
    """
    started = Path(call.started)
    if started.name == "__main__.py" and started.parent.name in MODULES.values():
        return f"{_python(call)} -m {MODULES[name]}"
    folder = os.path.dirname(call.started) if started.stem in MODULES else call.scripts  # noqa: PTH120 - "" is no "."
    if _is_on_path(name, folder, call):
        return name
    if os.access(Path(call.folder, folder, name), os.X_OK):
        return _short(os.path.join(folder, name), call.folder)  # noqa: PTH118 - a Path drops the dot of ./launch
    return f"{_python(call)} -m {MODULES[name]}"


def _python(call: Call) -> str:
    folder = os.path.dirname(call.python)  # noqa: PTH120
    usual = (name for name in ("python", "python3") if _is_on_path(name, folder, call))
    return next(usual, _short(call.python, call.folder) if call.python else "python")


def _is_on_path(name: str, folder: str, call: Call) -> bool:
    """Whether a shell finds the program `name` in `folder`.

    Symbolic links are resolved in folders, not in the program: python in a venv links to another folder's python.
    """
    import shutil  # noqa: PLC0415

    known = shutil.which(name, path=call.path)
    return known is not None and Path(known).parent.resolve() == Path(call.folder, folder).resolve()


def _short(path: str, folder: str) -> str:
    """Path quoted for a shell, relative to `folder` if that is shorter."""
    short = min(path, os.path.relpath(path, folder), key=len) if Path(path).is_absolute() else path
    is_bare = short != path and not os.path.dirname(short)  # noqa: PTH120
    return shlex.quote(f"./{short}" if is_bare else short)


# --- help texts: headings of options, and lines that fit the terminal


# Wider lines of text are hard to read.
WIDEST_HELP = 100
# On a narrower terminal an option's description stands below the option instead of beside it.
TWO_COLUMNS_FROM = 64
# Mark at the beginning of a paragraph that keeps its line breaks.
NO_REWRAP = "\b"
# Width of the column of options. A longer option has a line of its own, above its description.
OPTION_WIDTH = 30


class Group(StrEnum):
    """Headings of a command's options, in the order of the help; `FIRST` has its arguments and most used options."""

    FIRST = "Most used"
    SCRIPT = "Your own script"
    MODEL = "Model and data"
    IMAGE = "Container image"
    MEASURING = "Measuring"
    RESULTS = "Results that are read"
    PLACE = "Place"
    OUTPUT = "Output"


def examples(*commands: str) -> str:
    """End of a command's help, which keeps its line breaks."""
    return "\n".join([NO_REWRAP, "Examples:", *(f"  {command}" for command in commands), ""])


def width() -> int:
    """Width of the help: the terminal's, 40 to 100 characters."""
    return min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST_HELP)


def paragraph(text: str, width: int, indent: str) -> list[str]:
    """Lines of a paragraph, of at most `width` characters, each after `indent`.

    A paragraph that begins with `NO_REWRAP` keeps its line breaks, and has our commands as this user can type them. Its
    lines that begin with a blank are commands: a long command is continued with backslashes, as a shell reads it.
    """
    if not text.startswith(NO_REWRAP):
        return wrapped(" ".join(text.split()), width, indent)
    shown = as_typed(text.removeprefix(NO_REWRAP).strip("\n"))
    lines: list[str] = []
    for line in shown.splitlines():
        margin = indent + " " * (len(line) - len(line.lstrip()))
        lines += (_continued if line[:1] == " " else wrapped)(line, width, margin) or [""]
    return lines


def wrapped(text: str, width: int, indent: str, later_indent: str | None = None) -> list[str]:
    """Lines of at most `width` characters; a longer word has a line of its own."""
    later_indent = indent if later_indent is None else later_indent
    lines = textwrap.wrap(
        text.strip(),
        width,
        initial_indent=indent,
        subsequent_indent=later_indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(NO_BREAK, " ") for line in lines]


def _continued(command: str, width: int, indent: str) -> list[str]:
    line = indent + command.strip()
    if len(line) <= width:
        return [line]
    kept = re.sub(r"(?<= )(--?[a-z-]+) (?=[^-])", rf"\1{NO_BREAK}", command)
    *lines, last = wrapped(kept, width - len(" \\"), indent, indent + " " * 4)
    return [*(f"{line} \\" for line in lines), last]
