"""The whole report as content: the answer first, then the sections of a lab report. Pure."""

from collections.abc import Callable

import pandas as pd

from analysis import units
from analysis.figures.figure import Figure
from analysis.report import words
from analysis.report.content import Picture, Report, Section, figures_of
from analysis.report.evidence import ReportEvidence
from analysis.report.sections import (
    answer,
    complexity,
    context,
    design,
    discussion,
    glossary,
    measurements,
    rooflines,
    variability,
)

# The order of the lab reports that this one answers: design, complexity, measurement, roofline, analysis, environment.
SECTIONS: tuple[Callable[[ReportEvidence], Section], ...] = (
    answer.section,
    design.section,
    complexity.section,
    measurements.section,
    variability.section,
    rooflines.section,
    discussion.section,
    context.environment,
    context.audit,
    context.limits,
    context.reproduce,
    glossary.section,
)


def compose(evidence: ReportEvidence) -> Report:
    """Every section, and below the title what the report is about."""
    runs = evidence.results.runs
    facts = [
        words.counted(len(runs), "run"),
        words.counted(_configurations(evidence), "configuration"),
        words.counted(len(evidence.material.environments), "environment"),
        words.counted(runs["model"].nunique(), "model"),
    ]
    days = _days(runs["started_at"].dropna())
    sections = [build(evidence) for build in SECTIONS]
    placed = {figure.name for section in sections for figure in figures_of(section)}
    rest = [drawn for drawn in evidence.drawn if isinstance(drawn, Figure) and drawn.name not in placed]
    if rest:
        # A figure that no section asks for by name is shown all the same.
        sections.append(Section(name="more", title="More figures", blocks=[Picture(figure=drawn) for drawn in rest]))
    report = Report(
        title="Training throughput, and what limits it",
        facts=[*facts, *([days] if days else []), *_units(runs)],
        sections=sections,
    )
    return units.worded_content(report, units.common(runs["unit"]))


def _units(runs: pd.DataFrame) -> list[str]:
    """`units: tokens (gpt.py), images (resnet18)`, where not all runs count images."""
    if units.common(runs["unit"]) == units.IMAGES:
        return []
    models: dict[str, list[str]] = {}
    for row in words.rows_of(runs[["model", "unit"]]):
        models.setdefault(units.of(row), []).append(row["model"])
    return ["units: " + ", ".join(f"{unit} ({words.listed(names)})" for unit, names in models.items())]


def _configurations(evidence: ReportEvidence) -> int:
    """Those that were measured; where none was, those that ran or were profiled."""
    every = evidence.material.every
    return len(evidence.material.measured) or len(every.drop_duplicates(["env", "task", "variant", "batch_size"]))


def _days(started: "pd.Series[pd.Timestamp]") -> str | None:
    if started.empty:
        return None
    first, last = (f"{when:%Y-%m-%d}" for when in (started.min(), started.max()))
    return first if first == last else f"{first} to {last}"
