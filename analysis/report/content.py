"""Elements of a report before it is HTML or Markdown, and the formats of its figures.

All texts are plain: no character is markup, no matter who wrote the text.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pandas as pd

from analysis.figures import Figure, labels
from analysis.loading import units
from workload.contract.tables import Column, Role, facts, number
from workload.contract.text import LARGE_PREFIXES, SECONDS_MATTER_UP_TO_S, SMALL_PREFIXES, counted, printable, span


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


ABSENT = "\N{EN DASH}"
# Tables with more rows, which do not fit on a screen, are folded.
ROWS_UNFOLDED = 24
# Maximum number of characters of a text; a bundle may contain a text of any length.
MOST_CHARACTERS = 5000


# Columns that name a configuration as the charts do.
AS_IN_CHARTS = (
    *facts(env="place", task="model"),
    Column(name="batch_size", heading="batch", digits=0),
    *facts(variant="precision"),
)


def is_known(value: Any) -> bool:
    """Whether a value is present and, if it is a number, finite."""
    if value is None:
        return False
    return not (isinstance(value, float) and not math.isfinite(value)) and value is not pd.NaT and value is not pd.NA


def readable(text: str) -> str:
    """A single line of limited length, without characters that move, hide or reorder the text around it."""
    more = len(text) - MOST_CHARACTERS
    return printable(text) if more <= 0 else f"{printable(text[:MOST_CHARACTERS])}… ({more} more characters)"


def figure(value: Any, digits: int = 3) -> str:
    """A number without a unit, or a dash if unknown; charts are in `analysis.figures`."""
    return number(float(value), digits) if is_known(value) else ABSENT


def si(value: Any, unit: str, digits: int = 3, prefixes: Sequence[tuple[float, str]] = LARGE_PREFIXES) -> str:
    """A number with prefix and unit: `79.2 GFLOP/s`."""
    if not is_known(value):
        return ABSENT
    factor, prefix = next((row for row in prefixes if abs(float(value)) >= row[0]), prefixes[-1])
    return f"{number(float(value) / factor, digits)} {prefix}{unit}"


def seconds(value: Any) -> str:
    """A duration with its unit: `12.3 ms`."""
    return si(value, "s", prefixes=SMALL_PREFIXES)


def percent(value: Any, digits: int = 2) -> str:
    return f"{number(100 * float(value), digits)} %" if is_known(value) else ABSENT


def quotient(dividend: Any, divisor: Any) -> float | None:
    """The quotient of two numbers; None if one is unknown or the divisor is 0."""
    return float(dividend) / float(divisor) if is_known(dividend) and is_known(divisor) and divisor else None


def text(value: Any) -> str:
    """The text of a cell; a dash if the value is unknown. Long texts are not cut."""
    if not is_known(value):
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def between(low: Any, high: Any, digits: int = 3) -> str:
    """A range: `12.1 to 12.9`, or a dash if unknown."""
    return f"{figure(low, digits)} to {figure(high, digits)}" if is_known(low) and is_known(high) else ABSENT


def rate_with_interval(row: Mapping[str, Any], field: str = "images_per_s", unit: str | None = None) -> str:
    """`123 images/s (95 % interval 120 to 126, 3 runs)`, or the reason why there is no interval."""
    shown = f"{figure(row[field], 4)} {unit or f'{units.unit_of(row)}/s'}"
    if is_known(row.get(f"{field}_low")):
        ends = between(row[f"{field}_low"], row[f"{field}_high"], 4)
        return f"{shown} (95 % interval {ends}, {counted(int(row['runs']), 'run')})"
    reason = row.get("interval")
    return f"{shown} ({text(reason) if is_known(reason) else 'no interval'})"


def with_device(row: Mapping[str, Any]) -> str:
    """The environment, with its device if the name does not contain it: readers cannot know what `gcp-3` is."""
    device = row.get("device_name")
    if not is_known(device) or str(device).lower() in row["env"].lower():
        return str(row["env"])
    return f"{row['env']} ({labels.shown(device)})"


def listed(names: Iterable[Any], limit: int = 12, separator: str = ", ") -> str:
    """Distinct known names in order, at most `limit`, with the number of further ones."""
    every = list(dict.fromkeys(text(name) for name in names if is_known(name)))
    more = [f"and {len(every) - limit} more"] if len(every) > limit else []
    return separator.join([*every[:limit], *more]) or ABSENT


def table(caption: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> Table:
    """Make a table of the report: a row for each mapping, with texts by `cell`; columns without a value are dropped."""
    cells = {column: [cell(column, row.get(column.name)) for row in rows] for column in columns}
    kept = [column for column in columns if not rows or any(shown != ABSENT for shown in cells[column])]
    return Table(
        caption=caption,
        headings=[
            Heading(
                text=column.heading
                if column.prefixed or column.unit in ("", "%")
                else f"{column.heading}, {column.unit}",
                numeric=column.role is Role.FIGURE,
            )
            for column in kept
        ],
        rows=[[cells[column][index] for column in kept] for index in range(len(rows))],
        folded=len(rows) > ROWS_UNFOLDED,
    )


def cell(column: Column, value: Any) -> str:
    """A value in its column's format, with a suitable prefix; `digits=0` is for counts and plain settings.

    Text is unchanged, so that a column of figures may also contain intervals.
    """
    if isinstance(value, str) or column.role is not Role.FIGURE:
        return text(value)
    if column.unit == "%":
        return percent(value, column.digits)
    if column.prefixed:
        if column.unit == "s":
            return span(value) if is_known(value) and value >= SECONDS_MATTER_UP_TO_S else seconds(value)
        return si(value, column.unit, column.digits).strip()
    return figure(value, column.digits) if column.digits else text(value)
