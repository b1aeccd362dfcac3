"""Render the report as Markdown, with figures as separate files. No content of a bundle becomes markup."""

import re
from collections.abc import Iterator, Sequence
from typing import assert_never
from urllib.parse import quote

from analysis.report.content import Block, Bullets, Commands, Paragraph, Picture, Report, Section, Table
from analysis.report.words import readable

# Every character that starts inline markup in CommonMark, GFM or their common extensions; pandoc makes a dash of `--`.
SPECIAL = re.compile(r"-(?=-)|(?<=-)-|[\\`*\[\]<>|~$&{}]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|://|@|\bwww\.")
# Marks that start a list, heading, rule or block at the beginning of a line.
LEADING = re.compile(r"^([#+=:-]+(?=\s|$)|:::|\d+[.)](?=\s|$))")


def render(report: Report, *, figures: str | None) -> str:
    """The report as Markdown; `figures`: path of the pictures relative to the file, None for texts without pictures."""
    lines = [f"# {escape(report.title)}", "", escape(" · ".join(report.facts)), ""]
    for section in report.sections:
        lines += _section(section, 2, figures)
    return "\n".join(lines).rstrip() + "\n"


def escape(text: str) -> str:
    """`text` on one line, with every character that could be markup escaped by a backslash or an entity."""
    line = readable(" ".join(text.split()))
    # A number of a list keeps its digits: the backslash stands before the point.
    return LEADING.sub(lambda match: re.sub(r"(?=\D)", r"\\", match[1], count=1), SPECIAL.sub(_inline, line))


def _inline(match: re.Match[str]) -> str:
    character = match[0]
    if character in ENTITIES:
        return ENTITIES[character]
    # GFM turns bare addresses into links; a backslash before the punctuation prevents that.
    return (
        character.replace(":", "\\:") if character == "://" else ("www\\." if character == "www." else f"\\{character}")
    )


ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def _section(section: Section, level: int, figures: str | None) -> Iterator[str]:
    yield f"{'#' * level} {escape(section.title)}"
    yield ""
    for block in section.blocks:
        yield from block_lines(block, figures)
        yield ""
    for part in section.parts:
        yield from _section(part, level + 1, figures)


def block_lines(block: Block, figures: str | None, *, attributes: str = "") -> Iterator[str]:
    """Lines of a block; `figures`: path of the pictures, None for texts alone; `attributes`: of each picture."""
    match block:
        case Paragraph():
            yield escape(block.text)
        case Bullets():
            yield from (f"{'1.' if block.ranked else '-'} {escape(item)}" for item in block.sentences)
        case Table():
            yield from _table(block)
        case Picture():
            figure = block.figure
            if figures is not None:
                yield f"![{escape(figure.title)}]({quote(f'{figures}/{figure.name}.png')}){attributes}"
                yield ""
            yield f"**{escape(figure.title)}.** {escape(figure.caption)}"
            yield ""
            yield f"In words: {escape(figure.text)}"
        case Commands():
            longest = max((len(run) for line in block.lines for run in re.findall(r"`+", line)), default=0)
            fence = "`" * max(3, longest + 1)
            yield f"{fence}sh"
            yield from map(readable, block.lines)
            yield fence
        case _:
            assert_never(block)


def _table(table: Table) -> Iterator[str]:
    yield f"*{escape(table.caption)}*"
    yield ""
    if not table.rows:
        yield "(no rows)"
        return
    yield _row([heading.text for heading in table.headings])
    yield "|" + "|".join(" ---: " if heading.numeric else " --- " for heading in table.headings) + "|"
    for row in table.rows:
        yield _row(row)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(escape(cell) for cell in cells)} |"
