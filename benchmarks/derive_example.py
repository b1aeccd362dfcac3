"""The runs of other people that `analyze example` shows, as sums: `derive_example.py SHARED_DATA FOLDER`.

The files themselves have no licence and stay where they are. A profile becomes a row per kernel class with time,
FLOP by instruction and DRAM bytes; a log of iterations becomes its first and its last time stamp.
"""

import csv
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from analysis.importing import import_file
from analysis.importing.bundle import UserFacts
from analysis.readers import ncu
from analysis.readers.ncu.metrics import family, is_backward
from workload.contract import bundle

COUNTERS = {
    "duration": ("gpu__time_duration.sum", "ns", 1e9),
    "fp32_add": ("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", "inst", 1.0),
    "fp32_mul": ("smsp__sass_thread_inst_executed_op_fmul_pred_on.sum", "inst", 1.0),
    "fp32_fma": ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "inst", 1.0),
    "dram_read": ("dram__bytes_read.sum", "byte", 1.0),
    "dram_write": ("dram__bytes_write.sum", "byte", 1.0),
}
# A name of NVIDIA's libraries in full would fill the page.
NAME_CHARACTERS = 60


def classes(path: Path, room: Path) -> Iterator[list[str]]:
    """Header, units, and a row per class of kernels: the name of its longest kernel, and the class's sums."""
    yield ["ID", "Kernel Name", *(metric for metric, _, _ in COUNTERS.values())]
    yield ["", "", *(unit for _, unit, _ in COUNTERS.values())]
    with path.open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.reader(file) if len(line) > 1]
    header = lines[0]
    identity, name = header.index("ID"), header.index("Kernel Name")
    by_class: dict[tuple[str, bool], list[list[str]]] = defaultdict(list)
    units = [line for line in lines[1:] if not line[identity]]
    for line in lines[1:]:
        if line[identity]:
            by_class[family(line[name]), is_backward(line[name])].append(line)
    for number, rows in enumerate(by_class.values()):
        part = room / "class.csv"
        with part.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([header, *units, *rows])
        found = ncu.read(part)
        names = list(found.kernels.sort_values("duration_s", ascending=False)["name"])
        # A name that is cut must still tell the class.
        cut = next((short for one in names if family(short := one[:NAME_CHARACTERS]) == family(one)), names[0])
        launches = f"{cut}, one of {len(names)} launches of its class"
        sums = [round(found.totals[role] * factor) for role, (_, _, factor) in COUNTERS.items()]
        yield [str(number), launches, *map(str, sums)]


def whole_log(path: Path) -> Iterator[list[str]]:
    """The first time stamp and the last, with the wall time of an iteration between them."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    began, ended = (float(row["timestamp"]) for row in (rows[0], rows[-1]))
    step_ms = f"{1e3 * (ended - began) / (len(rows) - 1):.1f}"
    yield ["model", "batch_size", "iter_idx", "iter_time_ms", "timestamp"]
    for index, at in ((0, began), (len(rows) - 1, ended)):
        yield [rows[0]["model"], rows[0]["batch_size"], str(index), step_ms, f"{at:.3f}"]


def add(
    content: Sequence[Sequence[str]], name: str, given: UserFacts, notes: Sequence[str], room: Path, out: Path
) -> None:
    """Import a derived table, and say in the bundle where it comes from."""
    path = room / name
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(content)
    for folder in import_file(path, given, output=out):
        record = bundle.read_record(folder)
        (folder / bundle.MANIFEST).unlink()
        bundle.write_record(folder, replace(record, notes=[*notes, *record.notes]))
        bundle.seal(folder)
        print(folder)


def main(shared: Path, out: Path) -> None:
    """Derive the bundles of the T4's log, and of the profiles of the L4 and the V100."""
    sums = "sums per class of kernels, derived from the ncu profile"
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        add(
            list(whole_log(shared / "iterations/t4_resnet18_b128.csv")),
            "t4_resnet18_b128.csv",
            UserFacts(precision="fp32", gpu="Tesla T4", dataset="imagenette"),
            [
                "from the log of iterations of github.com/dhairyamishra/cloud-training-and-analysis-nyu25",
                "no profile: FLOP by formula; a step is the wall time of an iteration, waits for data included",
            ],
            room,
            out,
        )
        add(
            list(classes(shared / "ncu/l4_resnet18_long_nvtx.csv", room)),
            "l4_resnet18_b64.csv",
            UserFacts(model="resnet18", batch_size=64, precision="fp32", gpu="NVIDIA L4", dataset="cifar10"),
            [
                f"{sums} of github.com/taytwkim/nn-perf, roofline/csv/a1-rep.csv",
                "no kernel of the backward pass is in the profile: FLOP, bytes and time are a part of a step",
            ],
            room,
            out,
        )
        add(
            list(classes(shared / "ncu/v100_resnet50_wide.csv", room)),
            "v100_resnet50_b1.csv",
            UserFacts(model="resnet50", batch_size=1, precision="fp32", gpu="Tesla V100-SXM2-16GB"),
            [f"{sums} of github.com/Hyperion101010/proj1, v100/shivam/resnet50.csv"],
            room,
            out,
        )


if __name__ == "__main__":
    main(*map(Path, islice(sys.argv, 1, 3)))
