"""Reports that are kept beside the index of their folder, and used again until a file of a bundle changes.

The file `.analysis/report.json.gz` has the content of a report as JSON, and not the page: when a page is made of it,
all texts are escaped, so that somebody who may write into the folder cannot put a script into the page. The key of a
report is a hash of the sources (`code_version`), of the peaks in use, and of the size, time and inode of
every file of every bundle. The file is a cache, replaced as a whole. If it is absent, damaged or of another key, the
report is made again.
"""

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from analysis.figures import Figure
from analysis.loading import index
from analysis.loading.index import Problem
from analysis.report import content
from analysis.report.content import Report
from workload.contract import peaks
from workload.contract.files import replacing

FILE = "report.json.gz"


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
    """Hash of everything that the report of this folder depends on; None if no report is kept for so few bundles."""
    version = index.code_version()
    candidates, problems = index.find(str(root))
    if version is None or len(candidates) < index.FEWEST:
        return None
    digest = hashlib.sha256(version)
    for text in (
        str(root),
        peaks.digest(),
        *map(str, problems),
        *(line for each in candidates for line in _states(each.folder)),
    ):
        digest.update(f"{len(text)} {text}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def load(root: Path, key: str) -> tuple[Report, Sequence[Problem]] | None:
    """The kept report with this key, and the problems of its bundles; None if there is none."""
    try:
        document = json.loads(gzip.decompress((root / index.FOLDER / FILE).read_bytes()))
        return (_made(document["report"]), _made(document["problems"])) if document["key"] == key else None
    except (OSError, EOFError, zlib.error, ValueError, TypeError, KeyError, RecursionError):
        return None


def store(root: Path, key: str, report: Report, problems: Sequence[Problem]) -> Report:
    """Keep a report, unless its bundles have changed in the meantime; return it with charts in the form of `Drawn`."""
    document = {"key": key, "report": _plain(report), "problems": _plain(problems)}
    if key_of(root) == key:
        with suppress(OSError), replacing(root / index.FOLDER / FILE, shared=True, durable=False) as file:
            file.write(gzip.compress(json.dumps(document).encode(), 1))
    made: Report = _made(document["report"])
    return made


def drawn(figures: Sequence[Figure]) -> list[Figure]:
    """Figures with their charts as JSON text, in place of objects of Altair."""
    from analysis.figures.export import specification  # noqa: PLC0415 - Altair

    return [replace(figure, chart=Drawn(text=json.dumps(specification(figure)))) for figure in figures]


def _states(folder: str) -> list[str]:
    """Path, size, modification time and inode of each file of a bundle, as text."""
    paths = [f"{parent}/{name}" for parent, _, names in os.walk(folder) for name in names]
    return [f"{path} {index.state(path)}" for path in sorted(paths)]


def _plain(part: Any) -> Any:
    """A part of a report as JSON."""
    if isinstance(part, Figure) and not isinstance(part.chart, Drawn):
        part = drawn([part])[0]
    if is_dataclass(part):
        values = {field.name: _plain(getattr(part, field.name)) for field in fields(part)}
        return {"part": type(part).__name__, **values}
    return list(map(_plain, part)) if isinstance(part, list | tuple) else part


def _made(plain: Any) -> Any:
    """A part of a report from JSON."""
    if isinstance(plain, dict):
        return PARTS[plain["part"]](**{name: _made(value) for name, value in plain.items() if name != "part"})
    return list(map(_made, plain)) if isinstance(plain, list) else plain
