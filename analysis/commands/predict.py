"""`analyze predict`."""

import sys
from typing import Annotated

from analysis.commands.shared import PeaksOption, ResultsArgument, VerifyOption, load, print_problems
from workload.contract.errors import ExitCode
from workload.contract.help_text import Group
from workload.contract.program import FormatOption, WideOption, option
from workload.contract.tables import Column, Role, TableFormat, facts, render

EXAMPLES = """\b
Examples:
  analyze predict results --gpu l4 --gpu v100
  analyze predict results --gpu a100 --format csv > predicted.csv
"""
PRINTED = (
    *facts(gpu="GPU", model="model", batch_size="batch", precision="precision", place="work from"),
    Column(name="device_name", heading="device of that run", role=Role.FACT, detail=True),
    Column(name="tier", heading="tier"),
    Column(name="predicted_roof_step_s_low", heading="at the roofs from", unit="s", prefixed=True, digits=3),
    Column(name="predicted_roof_step_s_high", heading="to", unit="s", prefixed=True, digits=3),
    Column(name="note", heading="note", optional=True, role=Role.NOTE),
)


def predict(
    *,
    results: ResultsArgument,
    gpu: Annotated[
        list[str], option("--gpu", "the GPU, such as l4, v100 or a100; repeatable", Group.RESULTS, metavar="NAME")
    ],
    verify: VerifyOption = False,
    peaks: PeaksOption = None,
    output_format: FormatOption = TableFormat.TABLE,
    wide: WideOption = False,
) -> int:
    """Least step time on GPUs that were not run: the work of the measured steps at the GPU's roofs."""
    from analysis.roofline import predictions

    loaded = load(results, verify=verify, peaks=peaks)
    table = predictions.predict(loaded, gpu)
    names = [Column(name=name, heading=name) for name in predictions.COLUMNS]
    print(render(table, PRINTED if output_format is TableFormat.TABLE else names, output_format, wide=wide))
    sys.stdout.flush()
    for precision in sorted({*table.loc[table["tier"].notna(), "precision"]}):
        print(f"note       predicted, not measured: {predictions.longer_than_roofs(precision)}", file=sys.stderr)
    print_problems([*loaded.problems, *loaded.kernel_problems])
    return ExitCode.DONE
