"""`analyze predict`."""

import sys
from typing import TYPE_CHECKING, Annotated

from analysis.commands.shared import PeaksOption, ResultsArgument, VerifyOption, load, print_problems
from workload.contract.errors import ExitCode
from workload.contract.help_text import Group
from workload.contract.program import FormatOption, WideOption, option
from workload.contract.tables import Column, Role, TableFormat, facts, render
from workload.contract.text import percent

if TYPE_CHECKING:
    import pandas as pd

EXAMPLES = """\b
Examples:
  analyze predict results --gpu l4 --gpu v100
  analyze predict results --gpu a100 --format csv > predicted.csv
"""
PRINTED = (
    *facts(gpu="GPU", model="model", batch_size="batch", precision="precision", place="work from"),
    Column(name="device_name", heading="device of that run", role=Role.FACT, detail=True),
    Column(name="tier", heading="tier"),
    Column(name="predicted_step_s_low", heading="predicted from", unit="s", prefixed=True, digits=3),
    Column(name="predicted_step_s_high", heading="to", unit="s", prefixed=True, digits=3),
    Column(name="predicted_roof_step_s_low", heading="at the roofs from", unit="s", prefixed=True, digits=3),
    Column(name="predicted_roof_step_s_high", heading="to", unit="s", prefixed=True, digits=3),
    Column(name="overhead_added_s", heading="gaps added", unit="s", prefixed=True, digits=3, optional=True),
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
    """Predict the step time on GPUs that were not run, as an interval, from the work of the steps of other runs."""
    from analysis.roofline import predictions

    loaded = load(results, verify=verify, peaks=peaks)
    table = predictions.predict(loaded, gpu)
    names = [Column(name=name, heading=name) for name in predictions.COLUMNS]
    print(render(table, PRINTED if output_format is TableFormat.TABLE else names, output_format, wide=wide))
    sys.stdout.flush()
    print(f"note       predicted, not measured; {_coverage(table[table['tier'].notna()])}", file=sys.stderr)
    print_problems([*loaded.problems, *loaded.kernel_problems])
    return ExitCode.DONE


def _coverage(predicted: "pd.DataFrame") -> str:
    """Sentence on the share of published steps that such intervals contain."""
    from analysis.roofline.predictions import Tier, errors, kind_of

    known = {kind: errors()[kind] for kind in sorted({kind_of(name) for name in predicted["precision"]})}
    shares = ", ".join(f"{percent(row.covered)} of {row.checked} in {kind}" for kind, row in known.items())
    others = sorted({*predicted["tier"]} - {Tier.MODEL})
    unknown = f"; too few were published for the tier {' and '.join(others)}" if others else ""
    inside = f"intervals by a model contain, of the published steps on GPUs left out, {shares}"
    return f"{inside}{unknown} (docs/predictions.md)"
