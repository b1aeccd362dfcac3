"""`analyze gpu-truth`: check this project's claims against the evidence of one GPU."""

from pathlib import Path
from typing import Annotated

import typer

from workload.contract.errors import ExitCode
from workload.contract.installation import from_checkout
from workload.contract.program import FormatOption, WideOption
from workload.contract.tables import TableFormat

EXAMPLES = """\b
Examples:
  analyze gpu-truth gpu-truth
  analyze gpu-truth gpu-truth.tar.gz --format csv > claims.csv
"""


def gpu_truth(
    *,
    evidence: Annotated[
        Path, typer.Argument(metavar="EVIDENCE", help="folder or archive of python -m workload gpu-truth")
    ],
    output_format: FormatOption = TableFormat.TABLE,
    wide: WideOption = False,
) -> int:
    """Check this project's claims on GPUs against the evidence of one GPU: claim, expected, found, verdict."""
    claims = from_checkout("benchmarks.gpu_truth.claims", "gpu-truth")
    print(claims.table(evidence, output_format, wide=wide))
    # Disproved claims are a result, not an error.
    return ExitCode.DONE
