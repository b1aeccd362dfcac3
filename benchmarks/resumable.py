"""Results of a long simulation by part. A killed simulation continues with the parts that it has not measured."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Figures = dict[str, Any]


class Results:
    """File with a line of JSON per part, `{"part": ..., "figures": ...}`; without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path and path.exists() else []
        self._known: dict[str, Figures] = {}
        for line in lines:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                # The last line of a run that was killed while it wrote.
                continue
            self._known[row["part"]] = row["figures"]
        if path and lines:
            path.write_text("".join(_line(part, figures) for part, figures in self._known.items()))

    def known(self, part: str) -> Figures | None:
        """Figures of a part that was measured before; None for another."""
        return self._known.get(part)

    def once(self, part: str, measure: Callable[[np.random.Generator], Figures]) -> Figures:
        """Figures of a part, measured if unknown; its random draws depend only on its name, not on other parts."""
        if part not in self._known:
            figures = measure(np.random.default_rng(zlib.crc32(part.encode())))
            self._known[part] = json.loads(json.dumps(figures))
            if self._path:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a") as file:
                    file.write(_line(part, figures))
        return self._known[part]


def _line(part: str, figures: Figures) -> str:
    return json.dumps({"part": part, "figures": figures}) + "\n"
