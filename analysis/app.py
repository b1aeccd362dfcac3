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
    rerun,
    roofline,
    summary,
    variance,
)
from workload.contract.program import VersionOption, help_unless_called

app = typer.Typer(
    name="analyze",
    help="Say what ran best, what limits it, and how sure that is.",
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _analyze(context: typer.Context, *, version: VersionOption = False) -> None:  # noqa: ARG001 - its callback answers
    help_unless_called(context)


app.command("summary", epilog=summary.EXAMPLES)(summary.summary)
app.command("roofline", epilog=roofline.EXAMPLES)(roofline.roofline)
app.command("predict", epilog=predict.EXAMPLES)(predict.predict)
app.command("kernels", epilog=kernels.EXAMPLES)(kernels.kernels)
app.command("variance", epilog=variance.EXAMPLES)(variance.variance)
app.command("compare", epilog=compare.EXAMPLES)(compare.compare)
app.command("audit", epilog=audit.EXAMPLES)(audit.audit)
app.command("report", epilog=report.EXAMPLES)(report.report)
app.command("example", epilog=report.EXAMPLES_OF_EXAMPLE)(report.example)
app.command("rerun", epilog=rerun.EXAMPLES)(rerun.rerun)
app.command("import", epilog=import_files.EXAMPLES)(import_files.import_files)
app.command("gpu-truth", epilog=gpu_truth.EXAMPLES)(gpu_truth.gpu_truth)
app.command("fetch", epilog=fetch.EXAMPLES)(fetch.run_fetch)
