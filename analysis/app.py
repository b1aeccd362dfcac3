"""Commands of `analyze`: each is a module in `analysis.commands` with its options and its function.

These modules must not import large packages at the top: `analyze --help` loads neither pandas nor numpy, pyarrow,
altair or google.
"""

import typer

from analysis.commands import (
    audit,
    compare,
    fetch,
    gpu_truth,
    import_files,
    kernels,
    predict,
    report,
    roofline,
    summary,
    variance,
)
from workload.contract.program import VersionOption, grouped, help_unless_called

# \b keeps the line breaks of the help text.
EXAMPLES = """\b
Examples:
  analyze example --open
  analyze report results
"""
app = typer.Typer(
    name="analyze",
    help="Say what ran best, what limits it, and how sure that is.",
    rich_markup_mode=None,
    epilog=EXAMPLES,
)


@app.callback(invoke_without_command=True)
def _analyze(context: typer.Context, *, version: VersionOption = False) -> None:  # noqa: ARG001 - its callback answers
    help_unless_called(context)


app.command("summary", cls=grouped("output_format", "wide"), epilog=summary.EXAMPLES)(summary.summary)
app.command("roofline", cls=grouped("output_format", "wide"), epilog=roofline.EXAMPLES)(roofline.roofline)
app.command("predict", cls=grouped("gpu"), epilog=predict.EXAMPLES)(predict.predict)
app.command("kernels", cls=grouped("row", "top"), epilog=kernels.EXAMPLES)(kernels.kernels)
app.command("variance", cls=grouped("part"), epilog=variance.EXAMPLES)(variance.variance)
app.command("compare", cls=grouped("by", "baseline"), epilog=compare.EXAMPLES)(compare.compare)
app.command("audit", cls=grouped("strict", "claims"), epilog=audit.EXAMPLES)(audit.audit)
app.command("report", cls=grouped("output", "figures"), epilog=report.EXAMPLES)(report.report)
app.command("example", cls=grouped("open_page", "output"), epilog=report.EXAMPLES_OF_EXAMPLE)(report.example)
app.command("import", cls=grouped("model", "batch_size", "gpu"), epilog=import_files.EXAMPLES)(
    import_files.import_files
)
app.command("gpu-truth", cls=grouped("output_format", "wide"), epilog=gpu_truth.EXAMPLES)(gpu_truth.gpu_truth)
app.command("fetch", cls=grouped("output", "incomplete", "replace"), epilog=fetch.EXAMPLES)(fetch.run_fetch)
