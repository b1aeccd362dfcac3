"""Our pages: the commands in their console blocks with the output shown below each, and their other blocks."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block; `line`: number of its first line of text."""

    page: str
    line: int
    language: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Command:
    """A line after `$ `, without its comment; `shown`: the lines below it in the same block."""

    page: str
    line: int
    text: str
    shown: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def names() -> list[str]:
    """Paths of all pages: README first, then those that it links."""
    return [
        "README.md",
        *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md")),
        "infra/aws/README.md",
        "infra/gcp/README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
    ]


def blocks(page: str) -> Iterator[Block]:
    """Every fenced block of a page."""
    start, language, margin, lines = None, "", 0, list[str]()
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), start=1):
        if start is not None and line.strip() == "```":
            yield Block(page=page, line=start, language=language, text="\n".join(lines))
            start = None
        elif start is not None:
            lines.append(line[margin:])
        elif fence := re.fullmatch(r"(\s*)```(\w*)", line):
            start, margin, language, lines = number + 1, len(fence[1]), fence[2], []
    assert start is None, f"{page}:{start}: a block without an end"


def commands(page: str) -> list[Command]:
    """Every command of the page's console blocks, in order."""
    return [command for block in blocks(page) if block.language == "console" for command in _commands(block)]


def distinct_commands() -> list[Command]:
    """Commands of all pages, each once: a page may repeat another's."""
    first: dict[str, Command] = {}
    for page in names():
        for command in commands(page):
            first.setdefault(command.text, command)
    return list(first.values())


def _commands(block: Block) -> Iterator[Command]:
    text, at, shown = "", 0, list[str]()
    for number, line in enumerate(block.text.splitlines(), start=block.line):
        if line.startswith("$ "):
            if text:
                yield Command(page=block.page, line=at, text=text, shown=tuple(shown))
            text, at, shown = _without_comment(line[2:]), number, []
        else:
            assert text, f"{block.page}:{number}: a console block starts with a command: $ …"
            shown.append(line)
    yield Command(page=block.page, line=at, text=text, shown=tuple(shown))


def _without_comment(line: str) -> str:
    return re.split(r"\s+#\s", line, maxsplit=1)[0].rstrip()
