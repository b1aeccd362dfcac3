"""Growth of a layer's work (Big-O), by kind of layer: formulas from big_o.toml."""

import tomllib
from functools import cache
from pathlib import Path

SYMBOLS = (
    "N images, C channels in, K out, H x W pixels out, R x S filter, G groups, T tokens of width D, F features; "
    "1 fused multiply-add = 2 FLOP"
)


@cache
def layers() -> list[dict[str, str]]:
    """Rows with the texts `layer` (its kind), `forward`, `order`, `training`, `bytes` and `intensity`."""
    rows: list[dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["layer"]
    return rows
