"""This project's terms and their meanings, from one table for docs/glossary.md and the report. Standard library only.

python -m analysis.report.glossary > docs/glossary.md
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

INTRODUCTION = """\
# Glossary

The words of tables, messages and reports, each with one meaning everywhere.
"""
NEXT = "Next: [how often the audit is wrong](false-alarms.md).\n"


@dataclass(frozen=True, kw_only=True)
class Word:
    """A term with its meaning; `in_report`: the last section of the report explains this term."""

    word: str
    meaning: str
    in_report: bool


def load() -> dict[str, list[Word]]:
    """Terms by title of their group, in the order of the file."""
    table = tomllib.loads(Path(__file__).with_name("glossary.toml").read_text(encoding="utf-8"))
    return {
        group["title"]: [
            Word(word=word, meaning=row["meaning"], in_report=row.get("report", False))
            for word, row in group["words"].items()
        ]
        for group in table["group"].values()
    }


def page() -> str:
    """The text of docs/glossary.md."""
    parts = [INTRODUCTION]
    for title, words in load().items():
        rows = "\n".join(f"- **{word.word}**: {word.meaning}" for word in words)
        parts.append(f"## {title}\n\n{rows}\n")
    return "\n".join([*parts, NEXT])


if __name__ == "__main__":
    print(page(), end="")
