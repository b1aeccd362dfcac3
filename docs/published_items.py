"""The last section of docs/published-tables.md: everything in the reports, from docs/published_items.toml."""  # noqa: INP001

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ITEMS = Path(__file__).with_suffix(".toml")


def items() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Everything that each report shows, uses or promises, by the report's letter."""
    return tomllib.loads(ITEMS.read_text(encoding="utf-8"))


def section() -> Iterator[str]:
    """Lines of the page's last section: a row per item."""
    yield ""
    yield "## Everything in the reports, and what gives it here"
    yield ""
    yield "Rows of `docs/published_items.toml`; D is a fourth report, a template. RESULTS is a folder of bundles."
    yield "Columns are named TABLE.COLUMN: `runs` is `analysis.load(...).runs`, `points` and `roofs` belong to `analyze"
    yield "roofline`, `within` to `analyze variance`; `steps` and `telemetry` are files of a bundle; the others are the"
    yield "tables of the commands of that name."
    yield ""
    rows = []
    for letter, shown in items().items():
        for row in shown:
            more = [f"figure `{row['figure']}`"] if "figure" in row else []
            more += [f"columns {', '.join(f'`{name}`' for name in row['columns'])}"] if "columns" in row else []
            more += [row["note"]] if "note" in row else []
            rows.append(
                (letter, _cell(row["item"]), f"`{row['command']}`" if "command" in row else "", "; ".join(more))
            )
    heading = ("report", "what it shows, uses or promises", "command", "remark")
    for cells in (heading, ["---"] * len(heading), *rows):
        yield f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return text.replace("<", "&lt;").replace(">", "&gt;").replace("_", "\\_")
