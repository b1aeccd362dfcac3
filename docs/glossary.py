"""Writes glossary.md, the project's terms and their meanings: `python docs/glossary.py > docs/glossary.md`."""

from analysis.report.context import glossary_words

INTRODUCTION = """\
# Glossary

The words of tables, messages and reports, each with one meaning everywhere.
"""
NEXT = "Next: [how often the audit is wrong](false-alarms.md).\n"


def page() -> str:
    """The text of docs/glossary.md."""
    parts = [INTRODUCTION]
    for title, words in glossary_words().items():
        rows = "\n".join(f"- **{word}**: {row['meaning']}" for word, row in words.items())
        parts.append(f"## {title}\n\n{rows}\n")
    return "\n".join([*parts, NEXT])


if __name__ == "__main__":
    print(page(), end="")
