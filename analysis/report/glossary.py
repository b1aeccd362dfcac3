"""This project's terms and their meanings, from one table for docs/glossary.md and the report. Standard library only.

python -m analysis.report.glossary > docs/glossary.md
"""

import tomllib
from pathlib import Path
from typing import Any

INTRODUCTION = """\
# Glossary

The words of tables, messages and reports, each with one meaning everywhere.
"""
NEXT = "Next: [how often the audit is wrong](false-alarms.md).\n"


def load() -> dict[str, dict[str, dict[str, Any]]]:
    """Terms with their `meaning`, by title of their group; if `report` is true, the page explains the term, too."""
    table = tomllib.loads(Path(__file__).with_name("glossary.toml").read_text(encoding="utf-8"))
    return {group["title"]: group["words"] for group in table["group"].values()}


def page() -> str:
    """The text of docs/glossary.md."""
    parts = [INTRODUCTION]
    for title, words in load().items():
        rows = "\n".join(f"- **{word}**: {row['meaning']}" for word, row in words.items())
        parts.append(f"## {title}\n\n{rows}\n")
    return "\n".join([*parts, NEXT])


if __name__ == "__main__":
    print(page(), end="")
