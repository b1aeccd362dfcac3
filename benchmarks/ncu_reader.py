"""Our reader of an ncu CSV against pyarrow, which only splits the file into columns; in turn, in new processes.

python benchmarks/ncu_reader.py                              1,000,000 launches x 20 metrics: about 3 minutes
python benchmarks/ncu_reader.py --layout long --launches 100000
python benchmarks/ncu_reader.py --layout long --launches 69240 --metrics 5 --what import     125 MB, to a bundle

`--marks` writes numbers as 2,433,449. `--what import` makes a bundle of the file: a copy, its checksums, the table.
`--cpu-time` counts what the processors worked, on a machine that others use too. Seconds are those of the call, without
imports; memory is what the call added to the process. pyarrow gets the easiest job there is: from the first row on,
with types of its own choice.
"""

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import paired
import pyarrow.csv

from analysis.importing import UserFacts, import_file
from analysis.readers import ncu

PAGE_BYTES = resource.getpagesize()
RANGE = "PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
IDENTITY = (
    f'"ID","Process ID","Process Name","Host Name","thread Domain:Push/Pop_Range:{RANGE}",'
    f'"Id:Domain:Start/Stop_Range:{RANGE}","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC"'
)
OPERATIONS = [f"{kind}{operation}" for kind in "dfh" for operation in ("add", "mul", "fma")]
# Name, unit, and how large its values get; none is below a tenth of it, so that no clock or rate is impossible.
METRICS = [
    ("dram__bytes.sum", "byte", 10**7),
    ("dram__bytes_read.sum", "byte", 10**7),
    ("dram__bytes_write.sum", "byte", 10**7),
    ("gpu__time_duration.sum", "ns", 10**6),
    ("l1tex__t_bytes.sum", "byte", 10**8),
    ("lts__t_bytes.sum", "byte", 10**8),
    ("profiler__replayer_passes", "pass", 5),
    ("sm__cycles_elapsed.max", "cycle", 10**6),
    ("sm__inst_executed_pipe_tensor.sum", "inst", 10**6),
    ("sm__ops_path_tensor_src_fp16_dst_fp32.sum", "", 10**10),
    ("sm__ops_path_tensor_src_tf32_dst_fp32.sum", "", 10**10),
    *((f"smsp__sass_thread_inst_executed_op_{each}_pred_on.sum", "inst", 10**9) for each in OPERATIONS),
]
XMMA = (
    "sm80_xmma_{}_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize{}x128x16_stage4_warpsize2x2x1_g1_"
    "tensor16x8x8_execute_kernel__5x_cudnn"
)
ATEN = (
    "void at::native::vectorized_elementwise_kernel<(int){}, at::native::BinaryFunctor<float, float, float, "
    "at::native::binary_internal::{}<float>>, std::array<char *, (unsigned long)3>>(int, T2, T3)"
)
CUDNN = "void cudnn::bn_{0}_1C11_singleread<float, (int)512, (bool)1, (int)1, (int)2>(cudnn::bn_{0}_1C11_args<T1>)"
NAMES = [
    *(
        f"ampere_sgemm_{rows}x{columns}_{form}"
        for rows in (32, 64)
        for columns in (32, 64)
        for form in ("nn", "nt", "tn")
    ),
    *(XMMA.format(way, size) for way in ("fprop", "dgrad", "wgrad") for size in (64, 128, 256)),
    *(ATEN.format(width, functor) for width in (2, 4) for functor in ("MulFunctor", "AddFunctor", "DivFunctor")),
    *(CUDNN.format(way) for way in ("fw_tr", "bw")),
]
BLOCK_ROWS = 10_000


def write(path: Path, layout: str, launches: int, *, marks: bool) -> None:
    """Write a file as ncu does; it repeats a block of different launches under new IDs."""
    draw = random.Random(0)
    form = "{:,}" if marks else "{}"
    rows = [
        (identity(draw), [form.format(draw.randrange(limit // 10, limit)) for _, _, limit in METRICS])
        for _ in range(BLOCK_ROWS)
    ]
    with path.open("w", encoding="utf-8") as file:
        file.write("==PROF== Connected to process 11884 (/usr/bin/python3.12)\n")
        if layout == "wide":
            file.write(f"{IDENTITY},{quoted([name for name, _, _ in METRICS])}\n")
            file.write(f"{quoted([''] * 13)},{quoted([unit for _, unit, _ in METRICS])}\n")
            lines = [f'"{who},{quoted(values)}\n' for who, values in rows]
        else:
            file.write(f'{IDENTITY},"Section Name","Metric Name","Metric Unit","Metric Value"\n')
            lines = ["\n".join(long_rows(who, values)) + "\n" for who, values in rows]
        for launch in range(launches):
            file.write(lines[launch % BLOCK_ROWS].replace("\0", str(launch)))


def identity(draw: random.Random) -> str:
    part = draw.choice(["data", "forward", "backward", "optimizer"])
    step = f'{draw.randrange(1, 9)}  ""<default domain>:step 0 {part}:none:none:none:none:none:none"" '
    cells = ["11884", "python3.12", "127.0.0.1", "", step, draw.choice(NAMES), "1", "7"]
    return f'\0",{quoted([*cells, "(256, 1, 1)", f"({draw.randrange(1, 5000)}, 1, 1)", "0", "8.0"])}'


def long_rows(who: str, values: list[str]) -> Iterator[str]:
    for (name, unit, _), value in zip(METRICS, values, strict=True):
        yield f'"{who},{quoted(["Command line profiler metrics", name, unit, value])}'


def quoted(cells: list[str]) -> str:
    return ",".join(f'"{cell}"' for cell in cells)


# --- in a process of its own


def read_by_pyarrow(path: Path) -> object:
    # One line of messages, the header, and in a wide table a row of units.
    after_names = 1 if path.name.startswith("wide") else 0
    options = pyarrow.csv.ReadOptions(skip_rows=1, skip_rows_after_names=after_names)
    return pyarrow.csv.read_csv(path, options)


def import_it(path: Path) -> object:
    given = UserFacts(model="resnet18", batch_size=32, precision="fp32", gpu="Tesla T4", profile_steps=1)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        return import_file(path, given, output=Path(folder))


READERS: dict[str, Callable[[Path], object]] = {"ours": ncu.read, "import": import_it, "pyarrow": read_by_pyarrow}


def run_here(reader: str, path: Path, clock: Callable[[], float]) -> None:
    """Print the seconds that the call took, and the bytes that it added at most."""
    before = resident_bytes()
    peak = [before]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = clock()
    result = READERS[reader](path)
    seconds = clock() - began
    done.set()
    watcher.join()
    assert result is not None
    print(seconds, peak[0] - before)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


@dataclass
class Measured:
    """Seconds and bytes of every call, by reader."""

    path: Path
    options: list[str]
    seconds: dict[str, list[float]] = field(default_factory=lambda: {reader: [] for reader in READERS})
    memory: dict[str, list[int]] = field(default_factory=lambda: {reader: [] for reader in READERS})

    def run(self, reader: str) -> float:
        command = [sys.executable, __file__, "--reader", reader, "--file", str(self.path), *self.options]
        took, added = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        self.seconds[reader].append(float(took))
        self.memory[reader].append(int(added))
        return float(took)

    def report(self, reader: str) -> str:
        times, most = self.seconds[reader], max(self.memory[reader])
        share = most / self.path.stat().st_size
        took = f"best {min(times):.2f} s, median {median(times):.2f} s"
        return f"{reader}: {took}; memory {most / 1e6:.0f} MB, {share:.2f} of the file"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=1_000_000)
    parser.add_argument("--layout", choices=["wide", "long"], default="wide")
    parser.add_argument("--marks", action="store_true", help="thousands marks")
    parser.add_argument("--metrics", type=int, default=len(METRICS), help="the first so many")
    parser.add_argument("--what", choices=["ours", "import"], default="ours", help="read it, or make a bundle of it")
    parser.add_argument("--cpu-time", action="store_true", help="instead of the time that passes")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--reader", choices=list(READERS), help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reader:
        run_here(arguments.reader, arguments.file, time.process_time if arguments.cpu_time else time.perf_counter)
        return
    del METRICS[arguments.metrics :]
    what, options = arguments.what, ["--cpu-time"] if arguments.cpu_time else []
    with tempfile.TemporaryDirectory() as folder:
        measured = Measured(Path(folder) / f"{arguments.layout}.csv", options)
        write(measured.path, arguments.layout, arguments.launches, marks=arguments.marks)
        ratios = paired.measure(lambda: measured.run(what), lambda: measured.run("pyarrow"), pairs=arguments.pairs)
        size = measured.path.stat().st_size
        print(f"{arguments.layout}, {arguments.launches} launches x {len(METRICS)} metrics, {size / 1e6:.0f} MB")
        print("\n".join(map(measured.report, (what, "pyarrow"))))
    print(paired.report(f"{what} / pyarrow", ratios))


if __name__ == "__main__":
    main()
