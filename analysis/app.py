"""Commands of `analyze`: their options and functions are in the modules of `analysis.commands`.

These modules must not import large packages at the top: `analyze --help` loads neither pandas nor numpy, pyarrow,
altair or google.
"""

import typer

from analysis.commands import audit, fetch, report, tables
from workload.contract.invocation import examples
from workload.contract.program import VersionOption, grouped, help_unless_called

EXAMPLES = examples("analyze example --open", "analyze report results")
app = typer.Typer(
    name="analyze",
    help="Say what ran best, what limits it, and how sure that is.",
    rich_markup_mode=None,
    epilog=EXAMPLES,
)


@app.callback(invoke_without_command=True)
def _analyze(context: typer.Context, *, version: VersionOption = False) -> None:  # noqa: ARG001 - its callback answers
    help_unless_called(context)


app.command("summary", cls=grouped("output_format", "wide"), epilog=tables.SUMMARY_EXAMPLES)(tables.summary)
app.command("roofline", cls=grouped("output_format", "wide"), epilog=tables.ROOFLINE_EXAMPLES)(tables.roofline)
app.command("kernels", cls=grouped("row", "top"), epilog=tables.KERNELS_EXAMPLES)(tables.kernels)
app.command("variance", cls=grouped("part"), epilog=tables.VARIANCE_EXAMPLES)(tables.variance)
app.command("compare", cls=grouped("by", "baseline"), epilog=tables.COMPARE_EXAMPLES)(tables.compare)
app.command("audit", cls=grouped("strict", "claims"), epilog=audit.EXAMPLES)(audit.audit)
app.command("report", cls=grouped("output", "figures"), epilog=report.EXAMPLES)(report.report)
app.command("example", cls=grouped("open_page", "output"), epilog=report.EXAMPLES_OF_EXAMPLE)(report.example)
app.command("import", cls=grouped("model", "batch_size", "gpu"), epilog=fetch.IMPORT_EXAMPLES)(fetch.import_files)
app.command("gpu-truth", cls=grouped("output_format", "wide"), epilog=tables.GPU_TRUTH_EXAMPLES)(tables.gpu_truth)
app.command("fetch", cls=grouped("output", "incomplete", "replace"), epilog=fetch.EXAMPLES)(fetch.run_fetch)
app.command("export", cls=grouped("to", "into"), epilog=fetch.EXPORT_EXAMPLES)(fetch.export)
