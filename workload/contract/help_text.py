"""Layout of help texts: headings of options, and lines that fit the terminal. Standard library only."""

import re
import shutil
import textwrap
from enum import StrEnum

from workload.contract.invocation import as_typed
from workload.contract.text import NARROWEST, NO_BREAK

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
    """Break a long command into lines with backslashes; options stay with their values."""
    line = indent + command.strip()
    if len(line) <= width:
        return [line]
    kept = re.sub(r"(?<= )(--?[a-z-]+) (?=[^-])", rf"\1{NO_BREAK}", command)
    *lines, last = wrapped(kept, width - len(" \\"), indent, indent + " " * 4)
    return [*(f"{line} \\" for line in lines), last]
