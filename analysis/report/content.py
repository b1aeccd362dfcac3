"""What a report is made of, before it is HTML or Markdown: sections of plain text, tables, figures and commands.

Every text is plain: nothing in it is markup, whoever wrote it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from analysis.figures.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """One paragraph; a `strong` one is what the reader came for."""

    text: str
    strong: bool = False


@dataclass(frozen=True, kw_only=True)
class Bullets:
    """Sentences, one below the other; `ranked` ones are numbered."""

    sentences: Sequence[str]
    ranked: bool = False


@dataclass(frozen=True, kw_only=True)
class Heading:
    """A column: `numeric` cells stand to the right."""

    text: str
    numeric: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """`rows` of cells, one per heading; a `folded` one opens on request on screen."""

    caption: str
    headings: Sequence[Heading]
    rows: Sequence[Sequence[str]]
    folded: bool = False


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure, drawn in the page."""

    figure: Figure


@dataclass(frozen=True, kw_only=True)
class Commands:
    """Lines for a shell."""

    lines: Sequence[str]


Block: TypeAlias = Paragraph | Bullets | Table | Picture | Commands


@dataclass(frozen=True, kw_only=True)
class Section:
    """`name` is its address in the page; `parts` are sections of the next level; a `folded` one opens on request."""

    name: str
    title: str
    blocks: Sequence[Block] = ()
    parts: Sequence["Section"] = ()
    folded: bool = False


@dataclass(frozen=True, kw_only=True)
class Report:
    """The page: `facts` stand below its title."""

    title: str
    facts: Sequence[str]
    sections: Sequence[Section]

    def figures(self) -> list[Figure]:
        """In the order of the page."""
        return [figure for section in self.sections for figure in figures_of(section)]


def figures_of(section: Section) -> list[Figure]:
    """Those of a section and its parts, in their order."""
    return [block.figure for block in _blocks(section) if isinstance(block, Picture)]


def _blocks(section: Section) -> list[Block]:
    return [*section.blocks, *(block for part in section.parts for block in _blocks(part))]
