"""One table of words, for docs/glossary.md and the report."""

import re
from pathlib import Path
from typing import Any

from analysis.report import context
from analysis.report.compose import SECTIONS
from analysis.report.content import Table
from docs import glossary
from workload.contract.verdict import Bound

ROOT = Path(__file__).parents[3]


def test_the_page_is_made_from_the_table() -> None:
    assert (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8") == glossary.page(), (
        "python docs/glossary.py > docs/glossary.md"
    )


def test_each_word_has_one_short_meaning() -> None:
    words = [item for group in context.glossary_words().values() for item in group.items()]
    assert len(dict(words)) == len(words)
    for word, row in words:
        assert re.fullmatch(r"[A-Z1].*\.", row["meaning"]), word
        assert len(re.findall(r"[.:;?] ", row["meaning"])) <= 3, word


def test_the_bounds_of_verdicts_are_explained() -> None:
    assert {str(bound) for bound in Bound} <= {word for group in context.glossary_words().values() for word in group}


def test_the_report_explains_its_words() -> None:
    assert context.glossary in SECTIONS
    evidence: Any = None  # the words are the same for all
    [table] = context.glossary(evidence).blocks
    assert isinstance(table, Table)
    shown = [row[0] for row in table.rows]
    assert {"roof", "ridge", "intensity", "overhead", "block", "ceiling", "peak", "limit", "MFU"} <= set(shown)
    assert "steal" not in shown, "the report explains what it says, not every word"
