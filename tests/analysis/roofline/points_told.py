"""Roofs and points of runs, as text."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.api import Results
from analysis.roofline.points import points as points_of
from analysis.roofline.roofs import roofs

FIGURES = {
    "flop_per_s": "FLOP/s",
    "flop_per_step": "FLOP/step",
    "intensity_flop_per_byte": "FLOP/byte",
    "fraction_of_roof": "of the roof",
    "fraction_of_peak": "of the peak",
}


def known(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows with None for what is absent."""
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def told(loaded: Results) -> Iterator[str]:
    """Roofs and points of runs."""
    for row in known(roofs(loaded)):
        rates = f"{row['flop_per_s'] / 1e12:.3g} TFLOP/s, {(row['bytes_per_s'] or 0) / 1e9:.4g} GB/s"
        yield f"{row['kind']} roof {rates}, {row['source']}" + (f" [{row['note']}]" if row["note"] else "")
    for row in known(points_of(loaded)):
        facts = [f"{row['source']}, {row['runs']} runs", f"roof {row['roof']}"]
        facts += [f"{heading} {row[name]:.4g}" for name, heading in FIGURES.items() if row[name]]
        facts += ["a lower bound"] if row["flop_is_lower_bound"] else []
        yield f"{row['model']}: {', '.join(facts)}"
        yield f"    limit {row['bound']}: {row['bound_why']}"
        yield from (f"    {name}: {row[name]}" for name in ("busy", "note") if row[name])
