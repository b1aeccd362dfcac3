"""The commands of `analyze`: their options. What one does is in `analysis.commands.<name>`, imported when it runs.

A module there that is light itself may declare its options too, as `fetch` does.
Nothing heavy may be imported here: `analyze --help` loads neither pandas nor numpy, pyarrow, altair or google.
"""

from pathlib import Path
from typing import Annotated

import typer

from analysis.by import By
from analysis.commands import fetch
from analysis.part import Part
from workload.contract.program import VersionOption, WideOption, help_unless_called
from workload.contract.tables import Format

app = typer.Typer(
    name="analyze",
    help="Say what ran best, what limits it, and how sure that is.",
    rich_markup_mode=None,
)

# \b keeps the lines as they are.
SUMMARY_EXAMPLES = """\b
Examples:
  analyze summary results
  analyze summary results/tuesday results/wednesday --format csv > summary.csv
"""
ROOFLINE_EXAMPLES = """\b
Examples:
  analyze roofline results
  analyze roofline results --format csv > points.csv
"""
KERNELS_EXAMPLES = """\b
Examples:
  analyze kernels results
  analyze kernels somebody_elses_ncu.csv --by kernel --top 10
"""
VARIANCE_EXAMPLES = """\b
Examples:
  analyze variance results
  analyze variance results --part causes --format csv > causes.csv
"""
COMPARE_EXAMPLES = """\b
Examples:
  analyze compare results
  analyze compare results --by precision
  analyze compare results --by zone --allow-mixed driver_version
"""
AUDIT_EXAMPLES = """\b
Examples:
  analyze audit results
  analyze audit results --strict && analyze report results
  analyze audit --claims published.csv

Exit code with --strict: 10 where an error or a warning was found; notes do not count.
"""
REPORT_EXAMPLES = """\b
Examples:
  analyze report results
  analyze report results/t4 results/l4 -o t4-l4.html --figures figures --markdown t4-l4.md
"""
EXAMPLE_EXAMPLES = """\b
Examples:
  analyze example --open
  analyze example -o build/example.html --figures build/figures
"""
IMPORT_EXAMPLES = """\b
Examples:
  analyze import iterations.csv --gpu "Tesla T4"
  analyze import ncu.csv --model resnet50 --batch-size 64 --precision fp32 --profile-steps 4
"""

TRUTH_EXAMPLES = """\b
Examples:
  analyze gpu-truth gpu-truth
  analyze gpu-truth gpu-truth.tar.gz --format csv > claims.csv
"""

ResultsArgument = Annotated[
    list[Path], typer.Argument(metavar="RESULTS...", help="folders of bundles, nested ones too, or single bundles")
]
FormatOption = Annotated[Format, typer.Option("--format", help="what stdout gets")]
VerifyOption = Annotated[
    bool, typer.Option("--verify", help="check every file again, also those that look unchanged", show_default=False)
]


@app.callback(invoke_without_command=True)
def _analyze(context: typer.Context, *, version: VersionOption = False) -> None:  # noqa: ARG001 - its callback answers
    help_unless_called(context)


@app.command("summary", epilog=SUMMARY_EXAMPLES)
def summary(
    *,
    results: ResultsArgument,
    verify: VerifyOption = False,
    output_format: FormatOption = Format.TABLE,
    wide: WideOption = False,
) -> int:
    """One line per configuration and place: throughput, step time, what limits it."""
    from analysis.commands.summary import run

    return run(results, verify=verify, form=output_format, wide=wide)


@app.command("roofline", epilog=ROOFLINE_EXAMPLES)
def roofline(
    *,
    results: ResultsArgument,
    verify: VerifyOption = False,
    output_format: FormatOption = Format.TABLE,
    wide: WideOption = False,
) -> int:
    """Where each step stands below the roofs of its machine, what limits it, and what moves it."""
    from analysis.commands.roofline import run

    return run(results, verify=verify, form=output_format, wide=wide)


@app.command("kernels", epilog=KERNELS_EXAMPLES)
def kernels(
    *,
    paths: Annotated[
        list[Path], typer.Argument(metavar="RESULTS...", help="folders of bundles, or files of Nsight Compute")
    ],
    by: Annotated[By, typer.Option("--by", help="what a row sums up")] = By.FAMILY,
    top: Annotated[
        int | None, typer.Option("--top", metavar="N", help="the N longest of each profile", show_default=False)
    ] = None,
    verify: VerifyOption = False,
    output_format: FormatOption = Format.TABLE,
    wide: WideOption = False,
) -> int:
    """Which kernels a profiled step spends its time in, their FLOP/s and FLOP per byte."""
    from analysis.commands.kernels import run

    return run(paths, by=by, top=top, verify=verify, form=output_format, wide=wide)


@app.command("variance", epilog=VARIANCE_EXAMPLES)
def variance(
    *,
    results: ResultsArgument,
    part: Annotated[
        Part | None, typer.Option("--part", help="one table; CSV holds one: between", show_default=False)
    ] = None,
    verify: VerifyOption = False,
    output_format: FormatOption = Format.TABLE,
    wide: WideOption = False,
) -> int:
    """How much runs and their steps vary, and why."""
    from analysis.commands.variance import run

    return run(results, part=part, verify=verify, form=output_format, wide=wide)


@app.command("compare", epilog=COMPARE_EXAMPLES)
def compare(
    *,
    results: ResultsArgument,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="COLUMN",
            help="place, device_name, precision, runtime, torch, …; default: the first in which runs differ",
            show_default=False,
        ),
    ] = None,
    allow_mixed: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-mixed", metavar="COLUMN", help="pool runs that differ in it; may be repeated", show_default=False
        ),
    ] = None,
    verify: VerifyOption = False,
    output_format: FormatOption = Format.TABLE,
    wide: WideOption = False,
) -> int:
    """Which is faster by how much, how sure that is, and which difference would have been seen."""
    from analysis.commands.compare import run

    return run(results, by=by, allow_mixed=allow_mixed or (), verify=verify, form=output_format, wide=wide)


@app.command("audit", epilog=AUDIT_EXAMPLES)
def audit(
    *,
    results: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RESULTS...]", help="as for the others; may be left out with --claims"),
    ] = None,
    claims: Annotated[
        Path | None,
        typer.Option("--claims", metavar="FILE.csv", help="published figures to audit as well", show_default=False),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="exit code 10 for errors and warnings", show_default=False)
    ] = False,
    verify: VerifyOption = False,
    output_format: FormatOption = Format.TABLE,
) -> int:
    """What is wrong with the measurements: the figure, the rule it breaks, why it matters, the cure."""
    from analysis.commands.audit import run

    return run(results or (), claims=claims, strict=strict, verify=verify, form=output_format)


@app.command("report", epilog=REPORT_EXAMPLES)
def report(
    *,
    results: ResultsArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="the page")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option("--figures", metavar="DIR", help="also as PNG and SVG", show_default=False)
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="also as Markdown", show_default=False)
    ] = None,
    verify: VerifyOption = False,
) -> int:
    """One self-contained page: the answer first, then everything it rests on."""
    from analysis.commands.report import run

    return run(results, output=output, figures=figures, markdown_file=markdown, verify=verify)


@app.command("example", epilog=EXAMPLE_EXAMPLES)
def example(
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="the page")] = Path("example.html"),
    figures: Annotated[
        Path | None, typer.Option("--figures", metavar="DIR", help="also as PNG and SVG", show_default=False)
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="also as Markdown", show_default=False)
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="open it in a browser, on a terminal", show_default=False)
    ] = False,
) -> int:
    """The finished report over bundles that come with the package: small models on a CPU."""
    from analysis.commands.example import run

    return run(output=output, figures=figures, markdown_file=markdown, open_page=open_page)


@app.command("import", epilog=IMPORT_EXAMPLES)
def import_files(
    *,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="per-iteration logs or ncu output, as CSV")],
    model: Annotated[
        str | None, typer.Option(metavar="M", help="the model, where the file does not say", show_default=False)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(metavar="N", help="images per step, where the file does not say", show_default=False)
    ] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="fp32|tf32|amp|bf16", help="of the run, if known", show_default=False)
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help='the device, as "Tesla T4"', show_default=False)
    ] = None,
    profile_steps: Annotated[
        int | None, typer.Option(metavar="N", help="training steps in an ncu profile, if known", show_default=False)
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="folder for the bundles")] = Path("results"),
) -> int:
    """Make bundles of other people's logs and profiles; prints the folder of each."""
    from analysis.commands.import_files import run
    from analysis.importing import Given

    given = Given(model=model, batch_size=batch_size, precision=precision, gpu=gpu, profile_steps=profile_steps)
    return run(files, given, output=output)


@app.command("gpu-truth", epilog=TRUTH_EXAMPLES)
def gpu_truth(
    *,
    evidence: Annotated[
        Path, typer.Argument(metavar="EVIDENCE", help="folder or archive of python -m workload gpu-truth")
    ],
    output_format: FormatOption = Format.TABLE,
    wide: WideOption = False,
) -> int:
    """What one GPU says of this project's claims on GPUs: claim, expected, found, verdict."""
    from analysis.commands.gpu_truth import run

    return run(evidence, form=output_format, wide=wide)


app.command("fetch", epilog=fetch.EXAMPLES)(fetch.run_fetch)
