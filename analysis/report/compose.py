"""Compose the report: the answer first, then its figures and tables, and details in folded sections. Pure."""

from collections.abc import Callable

from analysis.audit.rule import total
from analysis.loading import units
from analysis.loading.tables import rows as rows_of
from analysis.report import answer, content, context, measurements, tuning
from analysis.report.content import Picture, Report, Section, figures_of
from analysis.report.evidence import ReportEvidence
from workload.contract.text import counted

# Sections to act on come first; the sections that support them are folded.
SECTIONS: tuple[Callable[[ReportEvidence], Section], ...] = (
    answer.section,
    tuning.section,
    measurements.throughput,
    measurements.scaling,
    measurements.roofs,
    measurements.variability,
    context.audit,
    context.method,
    measurements.complexity,
    context.environment,
    context.reproduce,
    context.glossary,
)


def compose(evidence: ReportEvidence) -> Report:
    """The report with every section that has content, and facts about its runs below the title."""
    # First the tables that need no results of the other processes, which are still judging the runs.
    evidence.compare()
    runs, every = evidence.results.runs, evidence.material.every
    # If nothing was measured, the configurations that ran or were profiled.
    configurations = len(evidence.material.measured) or len(
        every.drop_duplicates(["env", "task", "variant", "batch_size"])
    )
    facts = [
        counted(len(runs), "run"),
        counted(configurations, "configuration"),
        counted(len(evidence.material.environments), "place"),
        counted(runs["model"].nunique(), "model"),
    ]
    ours = runs[~runs["imported"].eq(True)]
    started = (ours if len(ours) else runs)["started_at"].dropna()
    if len(started):
        facts.append(" to ".join(dict.fromkeys(f"{when:%Y-%m-%d}" for when in (started.min(), started.max()))))
    if evidence.material.unit != units.IMAGES:
        # Not all runs count images: `units: tokens (gpt.py), images (resnet18)`.
        models: dict[str, list[str]] = {}
        for row in rows_of(runs[["model", "unit"]]):
            models.setdefault(units.unit_of(row), []).append(row["model"])
        facts.append("units: " + ", ".join(f"{unit} ({content.listed(names)})" for unit, names in models.items()))
    if evidence.findings:
        facts.append(f"audit: {total(evidence.findings)}")
    sections = [section for build in SECTIONS if (section := build(evidence)).blocks or section.parts]
    placed = {figure.name for section in sections for figure in figures_of(section)}
    rest = [drawn for drawn in evidence.drawn if drawn.name not in placed]
    if rest:
        # Show figures that no section requests by name, too.
        sections.append(Section(name="more", title="More figures", blocks=[Picture(figure=drawn) for drawn in rest]))
    return Report(
        title="Training throughput, and what limits it",
        facts=facts,
        sections=sections,
    )
