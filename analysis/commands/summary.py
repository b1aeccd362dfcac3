"""`analyze summary`."""

from analysis.commands.shared import FormatOption, ResultsArgument, VerifyOption, load, tell
from workload.contract.errors import ExitCode
from workload.contract.program import WideOption
from workload.contract.tables import TableFormat, render

# \b preserves the line breaks.
EXAMPLES = """\b
Examples:
  analyze summary results
  analyze summary results/tuesday results/wednesday --format csv > summary.csv
"""


def summary(
    *,
    results: ResultsArgument,
    verify: VerifyOption = False,
    output_format: FormatOption = TableFormat.TABLE,
    wide: WideOption = False,
) -> int:
    """List throughput, step time and limit of each configuration in each place."""
    from analysis.loading import units
    from analysis.summary.throughput import COLUMNS, summarize

    loaded = load(results, verify=verify)
    table = summarize(loaded.runs)
    if output_format is TableFormat.TABLE:
        print(render(units.filled(table), units.columns(COLUMNS, table), output_format, wide=wide))
    else:
        print(render(table, COLUMNS, output_format))
    tell(loaded.problems)
    return ExitCode.DONE
