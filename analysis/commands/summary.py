"""`analyze summary`."""

from analysis.commands.shared import PeaksOption, ResultsArgument, VerifyOption, load, print_problems, rendered
from workload.contract.errors import ExitCode
from workload.contract.program import FormatOption, WideOption
from workload.contract.tables import TableFormat

# \b preserves the line breaks.
EXAMPLES = """\b
Examples:
  analyze summary results
  analyze summary results/tuesday results/wednesday --format csv > summary.csv
"""


def summary(
    *,
    results: ResultsArgument,
    peaks: PeaksOption = None,
    verify: VerifyOption = False,
    output_format: FormatOption = TableFormat.TABLE,
    wide: WideOption = False,
) -> int:
    """List throughput, step time and limit of each configuration in each place."""
    from analysis.summary.throughput import COLUMNS, summarize

    loaded = load(results, verify=verify, peaks=peaks)
    print(rendered(summarize(loaded.runs), COLUMNS, output_format, wide=wide))
    print_problems(loaded.problems)
    return ExitCode.DONE
