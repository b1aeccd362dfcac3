"""`analyze report`, and `analyze example`: the report on bundles that come with the package."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import analysis
from analysis.commands.shared import (
    PeaksOption,
    ResultsArgument,
    VerifyOption,
    load,
    print_problems,
    use_peaks,
)
from workload.contract.errors import ExitCode, UsageError
from workload.contract.invocation import Group, examples
from workload.contract.operating_system import replacing
from workload.contract.program import option
from workload.contract.text import counted, printable

if TYPE_CHECKING:
    from analysis.loading.index import Problem
    from analysis.report.content import Report

EXAMPLES = examples("analyze report results", "analyze report results/t4 results/l4 -o t4-l4.html --figures figures")
EXAMPLES_OF_EXAMPLE = examples(
    "analyze example --open", "analyze example -o build/example.html --figures build/figures"
)

# Endings of the page's name that ask for the course report.
COURSE_SUFFIXES = (".md", ".markdown")

PageOption = Annotated[
    Path,
    option(
        "-o --output", "the page; FILE.md: a course report to complete", Group.OUTPUT, metavar="FILE", show_default=True
    ),
]
FiguresOption = Annotated[
    Path | None, option("--figures", "folder for the figures as PNG and SVG", Group.OUTPUT, metavar="DIR")
]


class Bars(StrEnum):
    """Names of `analysis.figures.registry.Bars`, repeated because the command line needs them without Altair."""

    INTERVAL = "interval"
    SD = "sd"


BarsOption = Annotated[
    Bars,
    option(
        "--bars",
        "bars of throughput figures: 95 % interval, or mean ± 1 standard deviation",
        Group.OUTPUT,
        show_default=True,
    ),
]
MarkdownOption = Annotated[
    Path | None, option("--markdown", "file for the report as Markdown", Group.OUTPUT, metavar="FILE")
]


def report(
    *,
    results: ResultsArgument,
    output: PageOption = Path("report.html"),
    figures: FiguresOption = None,
    markdown: MarkdownOption = None,
    bars: BarsOption = Bars.INTERVAL,
    peaks: PeaksOption = None,
    verify: VerifyOption = False,
) -> int:
    """Write a self-contained page: the answer first, then the measurements behind it.

    With -o FILE.md: a course report in Markdown, its sections filled as far as the data go, and its figures in the
    folder figures beside it. Sentences that only you can write are marked TO WRITE and listed at the end.
    """
    return _report(results, output=output, figures=figures, markdown=markdown, bars=bars, verify=verify, peaks=peaks)


def example(
    *,
    output: PageOption = Path("example.html"),
    figures: FiguresOption = None,
    markdown: MarkdownOption = None,
    open_page: Annotated[
        bool, option("--open", "open the page in a browser if this is a terminal", Group.OUTPUT)
    ] = False,
) -> int:
    """The finished report over bundles that come with the package: small models on a CPU."""
    import shutil
    import tempfile
    import webbrowser
    from importlib import resources

    with resources.as_file(resources.files("analysis") / "example") as bundles, tempfile.TemporaryDirectory() as folder:
        # A copy, because loading writes an index into the results folder, and the package may be read-only.
        copy = Path(folder) / "example"
        try:
            shutil.copytree(bundles, copy)
        except FileNotFoundError as error:
            raise UsageError(
                f"the example's bundles are not installed: '{bundles}' does not exist", hint="reinstall rooflaunch"
            ) from error
        code = _report(
            [copy], output=output, figures=figures, markdown=markdown, bars=Bars.INTERVAL, verify=True, peaks=None
        )
    if open_page and sys.stdout.isatty():
        webbrowser.open(output.resolve().as_uri())
    return code


def _report(
    folders: Sequence[Path],
    *,
    output: Path,
    figures: Path | None,
    markdown: Path | None,
    bars: Bars,
    verify: bool,
    peaks: Path | None,
) -> int:
    """Write the page or the course report and, on request, figures and Markdown; print the paths of the files.

    A course report prints also the gaps that are left to its author, who may have completed it: it is never replaced.
    """
    if output == markdown:
        hint = "--markdown with another FILE, or without -o"
        raise UsageError(f"-o and --markdown name the same file '{output}'", hint=hint)
    for path, flag in ((output, "-o"), (markdown, "--markdown")):
        if path is not None:
            _require_writable(path, option=flag)
    problems: Sequence[Problem]
    is_course = output.suffix.lower() in COURSE_SUFFIXES
    if is_course:
        if output.exists():
            raise UsageError(
                f"report '{output}' exists, and writing it again would lose the sentences that you wrote",
                hint="-o with another FILE.md, or remove the file",
            )
        figures = figures or output.parent / "figures"
        loaded = load(folders, verify=verify, peaks=peaks)
        from analysis.figures import registry
        from analysis.report import template
        from analysis.report.compose import compose
        from analysis.report.evidence import gather

        evidence = gather(loaded, on_stage=_progress, bars=registry.Bars(bars))
        composed, problems = compose(evidence), loaded.problems
        text = template.render(composed, evidence, figures=_relative(figures, output))
    else:
        composed, problems = _composed(folders, bars=bars, verify=verify, peaks=peaks)
        from analysis.report import html

        _progress("page")
        text = html.render(composed)
    from analysis.figures import export

    written = [output, *([figures] if figures else []), *([markdown] if markdown else [])]
    if figures:
        drawn = composed.figures()
        _progress(f"{len(drawn)} figures as PNG and SVG")
        export.save(drawn, figures)
    _write(output, text, option="-o")
    if markdown:
        from analysis.report.template import as_markdown

        where = _relative(figures, markdown) if figures else None
        _write(markdown, as_markdown(composed, figures=where), option="--markdown")
    for path in written:
        print(printable(str(path)))
    print_problems(problems)
    if is_course:
        gaps = template.gaps(text)
        heading = f"to write   {counted(len(gaps), 'gap')} for you (TO WRITE) in {printable(str(output))}:"
        print("\n           ".join([heading, *gaps]), file=sys.stderr)
    return ExitCode.DONE


def _relative(figures: Path, text: Path) -> str:
    return Path(os.path.relpath(figures, text.parent)).as_posix()


def _composed(
    folders: Sequence[Path], *, bars: Bars, verify: bool, peaks: Path | None
) -> "tuple[Report, Sequence[Problem]]":
    """The report and the problems of its bundles: of a single folder as it was kept, if no file has changed."""
    from analysis import figures
    from analysis.loading import processes
    from analysis.report import kept

    use_peaks(peaks)
    root = folders[0] if len(folders) == 1 and not verify and bars is Bars.INTERVAL else None
    key = kept.key_of(root) if root else None
    if root and key:
        # Another process begins to make the page's JavaScript libraries.
        figures.begin_libraries()
        if found := kept.load(root, key):
            return found
    # The processes that read bundles judge the runs later: they have imported most of the modules for it already.
    with processes.reused():
        loaded = analysis.load(*folders, verify=verify, peaks=peaks)
        # Only now: without bundles, `load` raises an error, and no page is made.
        figures.begin_libraries()
        # A kept report does not need these imports.
        from analysis.figures import registry
        from analysis.report.compose import compose
        from analysis.report.evidence import gather

        evidence = gather(loaded, on_stage=_progress, bars=registry.Bars(bars))
        if root and key:
            # Other processes are still judging the runs.
            evidence = replace(evidence, drawn=kept.drawn(evidence.drawn))
        report = compose(evidence)
    if root and key:
        report = kept.store(root, key, report, loaded.problems)
    return report, loaded.problems


def _progress(stage: str) -> None:
    if sys.stderr.isatty():
        print(f"report     {stage}", file=sys.stderr, flush=True)


def _require_writable(path: Path, *, option: str) -> None:
    """Raise `UsageError` if the page at `path` cannot be written, before bundles are read; creates no file."""
    there = next((parent for parent in path.parents if parent.exists()), Path())
    reason = f"'{path}' is a folder" if path.is_dir() else f"'{there}' is a file"
    if not path.is_dir() and there.is_dir():
        reason = "" if os.access(there, os.W_OK | os.X_OK) else f"you may not write to '{there}'"
    if reason:
        raise UsageError(
            f"report '{path}' cannot be written: {reason}", hint=f"{option} FILE, with a file that you may write"
        )


def _write(path: Path, text: str, *, option: str) -> None:
    """Replace the file in one step, so that a reader never sees half a page; unpaired surrogates become `?`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, shared=True, durable=False) as file:
            file.write(text.encode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(
            f"report '{path}' cannot be written: {error.strerror or error}",
            hint=f"{option} FILE, with a file that you may write",
        ) from error
