"""`analyze report`."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.commands.shared import load, tell
from analysis.figures import export
from analysis.report import html, markdown
from analysis.report.compose import compose
from analysis.report.evidence import gather
from workload.contract.errors import ExitCode, UsageError
from workload.contract.text import printable


def run(
    folders: Sequence[Path], *, output: Path, figures: Path | None, markdown_file: Path | None, verify: bool
) -> int:
    """Write the page, and where asked its figures and its Markdown; print what was written."""
    results = load(folders, verify=verify)
    evidence = gather(results, on_stage=_progress)
    report = compose(evidence)
    _progress("page")
    _write(output, html.render(report), option="-o")
    print(printable(str(output)))
    drawn = report.figures()
    if figures is not None:
        _progress(f"{len(drawn)} figures as PNG and SVG")
        export.save(drawn, figures)
        print(printable(str(figures)))
    if markdown_file is not None:
        where = _seen_from(markdown_file, figures) if figures else None
        _write(markdown_file, markdown.render(report, figures=where), option="--markdown")
        print(printable(str(markdown_file)))
    tell(results.problems)
    return ExitCode.DONE


def _progress(stage: str) -> None:
    if sys.stderr.isatty():
        print(f"report     {stage}", file=sys.stderr, flush=True)


def _seen_from(file: Path, folder: Path) -> str:
    """`folder` relative to the folder of `file`, with slashes."""
    return Path(os.path.relpath(folder, file.parent)).as_posix()


def _write(path: Path, text: str, *, option: str) -> None:
    """Replaced as a whole: a reader never sees half a page. Half of a surrogate pair, which JSON can name, is a `?`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(text, encoding="utf-8", errors="replace", newline="\n")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"report '{path}' cannot be written: {error.strerror or error}",
            hint=f"{option} FILE, one that you may write",
        ) from error
