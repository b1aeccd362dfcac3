"""The last sections of docs/published-tables.md: all places and all else in the reports, from published_items.toml."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ITEMS = Path(__file__).with_suffix(".toml")


def items() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Everything that each report shows, uses or promises, by the report's letter."""
    return tomllib.loads(ITEMS.read_text(encoding="utf-8"))


def section() -> Iterator[str]:
    """Lines of the page's last two sections: a row per place, and a row per item that is no place."""
    rows = [(letter, row) for letter, shown in items().items() for row in shown]
    yield ""
    yield "## Every place of the reports, and how to run there"
    yield ""
    yield from table(
        ("report", "place", "command", "page", "remark"),
        [
            (letter, _cell(row["item"]), _command(row), _page(row), row.get("note", ""))
            for letter, row in rows
            if row.get("place")
        ],
    )
    yield ""
    yield "## Everything else in the reports, and what gives it here"
    yield ""
    yield "Rows of `docs/published_items.toml`; D is a fourth report, a template. RESULTS is a folder of bundles."
    yield "Columns are named TABLE.COLUMN: `runs` is `analysis.load(...).runs`, `points` and `roofs` belong to `analyze"
    yield "roofline`, `within` to `analyze variance`; `steps` and `telemetry` are files of a bundle; the others are the"
    yield "tables of the commands of that name."
    yield ""
    yield from table(
        ("report", "what it shows, uses or promises", "command", "remark"),
        [(letter, _cell(row["item"]), _command(row), _remark(row)) for letter, row in rows if not row.get("place")],
    )


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines of a table."""
    for cells in (heading, ["---"] * len(heading), *rows):
        yield f"| {' | '.join(cells)} |"


def _command(row: Mapping[str, Any]) -> str:
    return f"`{row['command']}`" if "command" in row else ""


def _page(row: Mapping[str, Any]) -> str:
    return f"[{row['page']}]({row['page']})" if "page" in row else ""


def _remark(row: Mapping[str, Any]) -> str:
    more = [f"figure `{row['figure']}`"] if "figure" in row else []
    more += [f"columns {', '.join(f'`{name}`' for name in row['columns'])}"] if "columns" in row else []
    more += [row["note"]] if "note" in row else []
    return "; ".join(more)


def _cell(text: str) -> str:
    return text.replace("<", "&lt;").replace(">", "&gt;").replace("_", "\\_")
