"""Small files as ncu writes them, built from cells."""

from collections.abc import Mapping, Sequence
from pathlib import Path

STARTED = "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
PUSHED = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
TIME, DRAM = "gpu__time_duration.sum", "dram__bytes.sum"
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
FADD, FMUL, FFMA = (SASS.format(operation) for operation in ("fadd", "fmul", "ffma"))
TENSOR_PIPE = "sm__inst_executed_pipe_tensor.sum"
# Metrics with their units, and a launch's cells: 1 us, 1 + 2 + 2 x 10 FLOP, 64 bytes.
COUNTS = {TIME: "ns", FADD: "inst", FMUL: "inst", FFMA: "inst", DRAM: "byte"}
ROW = ["1000", "1", "2", "10", "64"]

IDENTITY = ("ID", "Process ID", "Kernel Name", "Block Size", "Grid Size", "Device", "CC")
LONG = (*IDENTITY, "Section Name", "Metric Name", "Metric Unit", "Metric Value")
DETAILS = (*LONG, "Rule Name", "Rule Type", "Rule Description")


def line(cells: Sequence[object]) -> str:
    """Every cell in quotes, as ncu does."""
    return ",".join('"{}"'.format(str(cell).replace('"', '""')) for cell in cells) + "\n"


def who(launch: object = 0, name: str = "k", process: object = 11, capability: str = "8.0") -> tuple[object, ...]:
    """The identity cells of a launch."""
    return (launch, process, name, "(256, 1, 1)", "(50, 1, 1)", "0", capability)


def wide(
    metrics: Mapping[str, str],
    rows: Sequence[Sequence[object]],
    *,
    names: Sequence[str] = (),
    extra: Sequence[str] = (),
    capability: str = "8.0",
) -> str:
    """A raw page: units by metric, and the cells of each launch, those of the `extra` identity columns first."""
    text = line([*IDENTITY, *extra, *metrics]) + line([*[""] * (len(IDENTITY) + len(extra)), *metrics.values()])
    for launch, cells in enumerate(rows):
        text += line([*who(launch, names[launch] if names else "k", capability=capability), *cells])
    return text


def long(rows: Sequence[tuple[int, str, str, object]], *, process: object = 11) -> str:
    """Launch, metric, unit and value of each row."""
    return line(LONG) + "".join(
        line([*who(launch, process=process), "Command line profiler metrics", *rest]) for launch, *rest in rows
    )


def save(folder: Path, text: str | bytes, name: str = "kernels.csv") -> Path:
    """Write a file."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path
