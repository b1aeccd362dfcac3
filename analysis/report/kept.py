"""Reports that are kept beside the index of their folder (`cache`), and used again until a file of a bundle changes.

The file `.analysis/report.parquet` has the content of a report as JSON, and not the page: when a page is made of it,
all texts are escaped, so that somebody who may write into the folder cannot put a script into the page. The key of a
report is a hash of the state of every file of every bundle, and of the evidence files of tunings.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis.figures import Figure
from analysis.loading import index
from analysis.loading.index import Problem
from analysis.report import content, tuning
from analysis.report.content import Report

FILE = "report.parquet"
SCHEMA = pa.schema([("key", pa.string()), ("report", pa.string())])


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A chart that was already made into Vega-Lite, as JSON. It takes the place of the Altair chart in a figure."""

    text: str

    def to_dict(self, *, validate: bool) -> Any:  # noqa: ARG002 - as of an Altair chart
        """The chart as Vega-Lite."""
        return json.loads(self.text)


PARTS = {
    part.__name__: part
    for part in (
        *(content.Paragraph, content.Bullets, content.Heading, content.Table, content.Picture, content.Commands),
        *(content.Section, Report, Figure, Drawn, Problem),
    )
}


def key_of(root: Path) -> str | None:
    """Hash of the files of this folder's bundles; None if no report is kept for so few bundles."""
    candidates, problems = index.find(str(root))
    if len(candidates) < index.FEWEST:
        return None
    digest = hashlib.sha256()
    folders = (walked for each in candidates for walked in os.walk(each.folder))
    paths = sorted(f"{parent}/{name}" for parent, _, names in folders for name in names)
    paths += sorted({f"{Path(each.folder).parent}/{tuning.FILE}" for each in candidates})
    for text in (str(root), *map(str, problems), *(f"{path} {index.state(path)}" for path in paths)):
        digest.update(f"{len(text)} {text}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def load(root: Path, key: str) -> tuple[Report, Sequence[Problem]] | None:
    """The kept report with this key, and the problems of its bundles; None if there is none."""
    table = index.load_table(root / index.FOLDER / FILE, SCHEMA)
    try:
        row = (table or SCHEMA.empty_table()).to_pylist()[0]
        report, problems = _made(json.loads(row["report"])) if row["key"] == key else (None, ())
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return None
    return report and (report, problems)


def store(root: Path, key: str, report: Report, problems: Sequence[Problem]) -> Report:
    """Keep a report, unless its bundles have changed in the meantime; return it with charts in the form of `Drawn`."""
    text = json.dumps(_plain([report, problems]))
    if key_of(root) == key:
        index.store_table(root / index.FOLDER / FILE, pa.table([[key], [text]], schema=SCHEMA))
    made: Report = _made(json.loads(text))[0]
    return made


def drawn(figures: Sequence[Figure]) -> list[Figure]:
    """Figures with their charts as JSON text, in place of objects of Altair."""
    from analysis.figures.export import specification  # noqa: PLC0415 - Altair

    return [replace(figure, chart=Drawn(text=json.dumps(specification(figure)))) for figure in figures]


def _plain(part: Any) -> Any:
    if isinstance(part, Figure) and not isinstance(part.chart, Drawn):
        part = drawn([part])[0]
    if is_dataclass(part):
        values = {field.name: _plain(getattr(part, field.name)) for field in fields(part)}
        return {"part": type(part).__name__, **values}
    return list(map(_plain, part)) if isinstance(part, list | tuple) else part


def _made(plain: Any) -> Any:
    if isinstance(plain, dict):
        return PARTS[plain["part"]](**{name: _made(value) for name, value in plain.items() if name != "part"})
    return list(map(_made, plain)) if isinstance(plain, list) else plain
