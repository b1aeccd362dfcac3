"""Evidence made by hand, and what a reader of a report meets."""

from collections.abc import Mapping
from typing import Any

from analysis.report.content import Bullets, Commands, Paragraph, Picture, Section, Table
from analysis.report.evidence import ReportEvidence, gather
from tests.analysis.by_hand import results


def of(*runs: Mapping[str, Any]) -> ReportEvidence:
    return gather(results(*runs))


def texts(section: Section, *, cells: bool = True) -> list[str]:
    """Everything that a reader of the section meets, one entry per sentence or cell; without `cells` no cells."""
    lines: list[str] = [section.title]
    for block in section.blocks:
        match block:
            case Paragraph():
                lines.append(block.text)
            case Bullets():
                lines += block.sentences
            case Table():
                lines += [block.caption, *(cell for row in block.rows for cell in row if cells)]
            case Picture():
                lines += [block.figure.title, block.figure.caption, block.figure.text]
            case Commands():
                lines += block.lines
    return [*lines, *(text for part in section.parts for text in texts(part, cells=cells))]
