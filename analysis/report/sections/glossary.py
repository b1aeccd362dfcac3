"""Section with the meaning of the report's words."""

from analysis.report.content import Heading, Section, Table
from analysis.report.evidence import ReportEvidence
from analysis.report.glossary import load


def section(_: ReportEvidence) -> Section:
    """The words of docs/glossary.md that the report uses."""
    rows = [(word.word, word.meaning) for words in load().values() for word in words if word.in_report]
    headings = (Heading(text="word"), Heading(text="means"))
    table = Table(caption="The words of this page", headings=headings, rows=rows)
    return Section(name="words", title="Words", blocks=[table], folded=True)
