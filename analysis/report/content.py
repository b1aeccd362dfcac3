"""Elements of a report, before it is HTML or Markdown: sections of plain text, tables, figures and commands.

All texts are plain: no character is markup, no matter who wrote the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from analysis.figures import Figure


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """A paragraph; `strong` marks a main result."""

    text: str
    strong: bool = False


@dataclass(frozen=True, kw_only=True)
class Bullets:
    """A list of sentences; `ranked` sentences are numbered."""

    sentences: Sequence[str]
    ranked: bool = False


@dataclass(frozen=True, kw_only=True)
class Heading:
    """Heading of a column; cells of a `numeric` column are aligned to the right."""

    text: str
    numeric: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; a row has one cell per heading. `folded`: the page shows the rows only after a click."""

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
    """Command lines for a shell."""

    lines: Sequence[str]


Block: TypeAlias = Paragraph | Bullets | Table | Picture | Commands


@dataclass(frozen=True, kw_only=True)
class Section:
    """Section of a report; `name`: its anchor in the page, `parts`: subsections. `folded`: opens on request."""

    name: str
    title: str
    blocks: Sequence[Block] = ()
    parts: Sequence["Section"] = ()
    folded: bool = False


@dataclass(frozen=True, kw_only=True)
class Report:
    """The page; `facts` are shown below its title."""

    title: str
    facts: Sequence[str]
    sections: Sequence[Section]

    def figures(self) -> list[Figure]:
        """All figures, in the order of the page."""
        return [figure for section in self.sections for figure in figures_of(section)]


def figures_of(section: Section) -> list[Figure]:
    """Figures of a section and its subsections, in order."""
    figures = [block.figure for block in section.blocks if isinstance(block, Picture)]
    return [*figures, *(figure for part in section.parts for figure in figures_of(part))]
