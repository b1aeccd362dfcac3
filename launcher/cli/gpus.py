"""`launch gpus`: the GPUs that a launch can have, with prices and peaks.

This module imports little, because `launch --help` loads it.
"""

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.backends import BACKENDS
from workload.contract import tables
from workload.contract.errors import ExitCode, UsageError
from workload.contract.invocation import Group, as_typed, examples
from workload.contract.program import FormatOption, SamplesOption, WideOption, grouped, option
from workload.contract.spec import Precision
from workload.contract.tables import Column, TableFormat
from workload.contract.text import terminal_width, wrapped

if TYPE_CHECKING:
    from launcher.backends.shared_plan import MachineType
    from workload.contract.prices import VmPrice

# Clouds with a module `gpus`.
CLOUDS = ("gcp", "aws")
UNKNOWN, NOT_SOLD = "unknown", "not sold"
GPU_NOTES = (
    "fp32 to bf16: the vendors' dense peaks in TFLOP/s; -: not supported by the GPU. GB/s: peak of its memory",
    "USD/h: the VM with its GPUs, without disk, address and traffic; a run's cost: launch gcp --gpu t4 --dry-run",
    "(8) after a machine: it has 8 GPUs, and its price is that of all",
    "spot: cheaper, but may be taken away at any time; on aws that of the dearest zone",
    "not sold: on demand only by reservation",
    "zones and unrounded figures: launch gpus --format json",
    "which of them suits a run of yours: launch gpus --for results",
)
RATES = tuple(f"{precision}_flop_per_s" for precision in Precision)
# Columns of JSON and CSV: every figure; unknown figures are absent.
GPU_DATA = tuple(
    Column(name=name, heading=name)
    for name in (
        *("gpu", "machine_type", "gpus", "vcpus", "memory_gb", *RATES, "bytes_per_s", "region", "usd_per_h"),
        *("usd_per_h_spot", "sold_on_demand", "read", "source", "zones", "provider"),
    )
)
GPU_COLUMNS = (
    Column(name="provider", heading="cloud"),
    Column(name="gpu", heading="GPU"),
    Column(name="machine_type", heading="machine"),
    Column(name="region", heading="region"),
    Column(name="usd_per_h", heading="USD/h"),
    Column(name="usd_per_h_spot", heading="spot"),
    Column(name="read", heading="as of"),
    Column(name="memory_gb", heading="GB"),
    Column(name="bytes_per_s", heading="GB/s"),
    *(Column(name=f"{precision}_flop_per_s", heading=precision) for precision in Precision),
)


def gpu_rows() -> Iterator[dict[str, Any]]:
    """Yield a row for each price in prices.toml.

    A GPU without a price gets a row for its default machine type. Unknown values are None. Rows of the same GPU in
    different clouds follow each other.
    """
    offers = [(cloud, gpu) for cloud in CLOUDS for gpu in _table(cloud).load().values()]
    for name in dict.fromkeys(gpu.name for _, gpu in offers):
        for cloud, gpu in offers:
            for price in (gpu.prices or (None,)) if gpu.name == name else ():
                machine = gpu.machine_types[price.machine_type if price else gpu.default_machine_type]
                yield _row(cloud, gpu, machine, price)


def _table(cloud: str) -> Any:
    return importlib.import_module(f"{BACKENDS[cloud]}.gpus")


def _row(cloud: str, gpu: Any, machine: "MachineType", price: "VmPrice | None") -> dict[str, Any]:
    from workload.contract import peaks

    device = {row.gpu: row for row in peaks.gpus()}[gpu.device]
    flop_per_s = {peak.precision: peak.tflop_per_s * 1e12 for peak in device.peaks}
    return {
        "provider": cloud,
        "gpu": gpu.name,
        "device": gpu.device,
        "machine_type": machine.name,
        "memory_gb": gpu.memory_gb,
        **{f"{precision}_flop_per_s": flop_per_s.get(precision) for precision in Precision},
        "bytes_per_s": device.bytes_per_s,
        "vcpus": machine.vcpus,
        "sold_on_demand": not machine.spot_only,
        "zones": list(gpu.zones),
        "gpus": price.gpus if price else machine.gpus[0],
        **{name: getattr(price, name, None) for name in ("region", "usd_per_h", "usd_per_h_spot", "read", "source")},
    }


def gpus_text(form: TableFormat, *, wide: bool = False) -> str:
    """The table as text in the format `form`. TABLE adds notes below the table, wrapped to the terminal's width."""
    found = list(gpu_rows())
    if form is not TableFormat.TABLE:
        return tables.render(found, GPU_DATA, form)
    sources = dict.fromkeys(f"as of {row['read']}: {row['source']}" for row in found if row["read"])
    refused = (f"not offered: {name}*, which {why}" for name, why in _table("aws").table().refused.items())
    notes = [wrapped(as_typed(note), terminal_width(sys.stdout)) for note in (*sources, *refused, *GPU_NOTES)]
    return "\n".join([tables.render([_for_people(row) for row in found], GPU_COLUMNS, form, wide=wide), "", *notes])


def _for_people(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **row,
        **{rate: None if row[rate] is None else f"{row[rate] / 1e12:g}" for rate in RATES},
        "bytes_per_s": round(row["bytes_per_s"] / 1e9),
        "machine_type": row["machine_type"] + (f" ({row['gpus']})" if row["gpus"] > 1 else ""),
        "region": row["region"] or UNKNOWN,
        "usd_per_h": _usd(row["usd_per_h"], UNKNOWN if row["sold_on_demand"] else NOT_SOLD),
        "usd_per_h_spot": _usd(row["usd_per_h_spot"], UNKNOWN),
    }


def _usd(usd_per_h: float | None, otherwise: str) -> str:
    return otherwise if usd_per_h is None else f"{usd_per_h:.3f}"


GPUS_EXAMPLES = examples("launch gpus --for results --samples 1.28M", "launch gpus --format csv > gpus.csv")


def show_gpus(
    *,
    results: Annotated[
        Path | None,
        option(
            "--for",
            "which of them suits a run: a bundle, or the newest run with counted memory in a folder of bundles",
            Group.RESULTS,
            metavar="RESULTS",
        ),
    ] = None,
    samples: SamplesOption = None,
    wide: WideOption = False,
    output_format: FormatOption = TableFormat.TABLE,
) -> int:
    """Show the GPUs that a launch can have, their peaks, and what they cost.

    With --for, show for a run's training step whether it fits their memory, the largest batch that does, how long it
    takes, and what an epoch costs. The prices and peaks come from tables of this program, each with its source and
    date.
    """
    if results is not None:
        from launcher import gpu_choice

        print(gpu_choice.answer(results, gpu_rows(), samples, output_format, wide=wide))
    elif samples:
        raise UsageError(
            "--samples needs --for, the run that takes so many", hint="launch gpus --for results --samples 1.28M"
        )
    else:
        print(gpus_text(output_format, wide=wide))
    return ExitCode.DONE


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("gpus", cls=grouped("results", "samples", "wide"), epilog=GPUS_EXAMPLES)(show_gpus)
