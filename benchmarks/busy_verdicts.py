"""How often does the verdict on a busy machine equal that of the idle machine, and the known limit of the workload?

    python benchmarks/busy_verdicts.py run --loads 0,2 --lines busy.jsonl      12 workloads, 15 to 30 s each per load
    python benchmarks/busy_verdicts.py table --lines busy.jsonl

A load is the number of busy processes beside two CPUs. The limit of each workload follows from what a step does (see
`WORKLOADS`). `expected` is the limit by the rules of workload/contract/verdict.py, computed again from FLOP, bytes and
CPU time of the run. The same command goes on after the runs in the file. Load 0 needs an idle machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

# Name: known limit, its reason.
WORKLOADS = {
    "product": ("compute", "products of 1024 x 1024 matrices"),
    "elementwise": ("memory", "an addition for each three floats, of arrays that are larger than any cache"),
    "gather": ("neither", "rows of 64 bytes at random places: each waits for memory, whose bandwidth is not used"),
    "tiny": ("neither", "matrices of 8 x 8: calls take the time"),
    "sleeping": ("input", "the data set sleeps for 50 ms, the step takes a few ms"),
    "decoding": ("input", "the data set decodes photos in the same process, the step is small"),
    "python": ("overhead", "a Python loop over 32,768 numbers in each step"),
    "attention": ("compute", "projections of 1024 x 1024 and 256 tokens: products take most of the time"),
    "frozen": ("memory", "411 MB of frozen weights are read for one sample: 2 FLOP for each 4 bytes"),
    "mixed": ("neither", "about a third of the time each for products, large additions, and sines in the cache"),
    "disk": ("input", "each sample reads 16 MB that the system does not keep in memory"),
    "one_thread": ("compute", "the product with one thread"),
}
STEPS = 40


def work(name: str) -> None:
    """Train for some steps: the script that is measured."""
    import torch  # noqa: PLC0415 - the other commands need no torch
    from torch import nn  # noqa: PLC0415

    torch.manual_seed(0)
    if name == "one_thread":
        torch.set_num_threads(1)
    head: nn.Module = nn.Linear(16, 4)
    samples: Any = [torch.randn(1, 16)] * STEPS
    arrays = [[torch.randn(20_000_000) for _ in range(3)] for _ in range({"elementwise": 4, "mixed": 3}.get(name, 0))]
    table, places = torch.randn(4_000_000, 16), torch.randint(4_000_000, (40_000,))
    small, numbers, sines = torch.eye(8), torch.randn(100_000), torch.empty(100_000)
    match name:
        case "product" | "one_thread":
            head, samples = nn.Linear(1024, 1024), [torch.randn(1024, 1024)] * STEPS
        case "attention":
            head = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True)
            samples = [torch.randn(2, 256, 1024)] * STEPS
        case "frozen":
            head = nn.Sequential(nn.Linear(25_088, 4096).requires_grad_(requires_grad=False), nn.Linear(4096, 10))
            samples = [torch.randn(1, 25_088)] * STEPS
        case "mixed":
            head, samples = nn.Linear(1024, 1024), [torch.randn(768, 1024)] * STEPS
    before: dict[str, Callable[[], object]] = {
        "elementwise": lambda: [torch.add(b, c, out=a) for a, b, c in arrays],
        "gather": lambda: [table[places] for _ in range(8)],
        "tiny": lambda: [small @ small for _ in range(2000)],
        "python": lambda: sum(number * number for number in range(32_768)),
        "mixed": lambda: (before["elementwise"](), [torch.sin(numbers, out=sines) for _ in range(150)]),
    }
    samples = slow_samples(name) if name in {"sleeping", "decoding", "disk"} else samples
    data = torch.utils.data.DataLoader(samples, batch_size=None)
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-6)
    for inputs in data:
        before.get(name, lambda: None)()
        optimizer.zero_grad()
        head(inputs).square().mean().backward()
        optimizer.step()


def slow_samples(name: str) -> Any:
    """Data set whose samples take a while."""
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415

    photo, file = Path("photo.jpg"), Path("file")
    Image.fromarray(np.random.default_rng(0).integers(256, size=(1024, 1024, 3), dtype=np.uint8)).save(photo)
    file.write_bytes(os.urandom(16_000_000))
    os.sync()

    class Slow(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return STEPS

        def __getitem__(self, index: int) -> Any:
            match name:
                case "sleeping":
                    time.sleep(0.05)
                case "decoding":
                    Image.open(photo).convert("L").resize((16, 16))
                case "disk":
                    with file.open("rb") as opened:
                        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                        opened.read()
            return torch.randn(1, 16)

    return Slow()


@contextmanager
def busy(load: int) -> Iterator[None]:
    """Busy processes beside this one: `load` for each two CPUs."""
    loop = [sys.executable, "-c", "while True: pass"]
    with ExitStack() as others:
        for _ in range(load * max(1, (os.cpu_count() or 2) // 2)):
            others.callback(others.enter_context(subprocess.Popen(loop)).kill)
        yield


def measure(name: str, load: int) -> dict[str, Any]:
    """One run of a workload: its verdict, and the figures from which it follows."""
    from workload.contract import bundle  # noqa: PLC0415

    profile = ["--profile", "torch"] if name == "python" else []
    with tempfile.TemporaryDirectory() as folder, busy(load):
        command = [str(Path(sys.executable).with_name("launch")), "local", "--cpu", *profile, "-o", "results"]
        words = [*command, "--", str(Path(__file__).resolve()), "work", name]
        subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        [path] = [manifest.parent for manifest in Path(folder, "results").glob("*/MANIFEST.json")]
        run = bundle.read(path).record
    said, timing, of = run.bound, run.timing, run.complexity
    assert said and timing.step_s and of  # noqa: PT018
    rates = (run.ceilings.compute("fp32"), run.ceilings.copy()) if run.ceilings else (None, None)
    line = {"name": name, "load": load, "average": os.getloadavg()[0], **asdict(said)}
    line |= {"used": timing.cpus_used, "waited": timing.cpus_waited, "threads": run.environment.device.threads}
    line |= {"step_s": timing.step_s.median, "mean_s": timing.step_s.mean, "flop": of.train_flop_per_step}
    line |= {"bytes": of.bytes_per_step_lower, "roofs": [rate and (rate.roof_per_s, rate.cpus) for rate in rates]}
    return {**line, "expected": expected(line)}


def expected(of: dict[str, Any]) -> str | None:
    """Limit by FLOP, bytes and the part of a step in which its threads did not wait for CPUs; None without a roof."""
    if of["data_wait_fraction"] > 0.1:
        return "input"
    if of["device_busy_share"] is not None and of["device_busy_share"] < 0.5:
        return "overhead"
    if None in of["roofs"]:
        return None
    step_s = min(of["step_s"], of["mean_s"] * of["used"] / (of["used"] + of["waited"]))
    compute, memory = (of[work] / roof / step_s for work, (roof, _) in zip(("flop", "bytes"), of["roofs"], strict=True))
    is_busy = any(cpus < 0.9 * of["threads"] for cpus in (of["used"], *(cpus for _, cpus in of["roofs"])))
    if max(compute, memory) < (0.4 if is_busy else 0.5):
        return "neither"
    return "compute" if compute >= memory else "memory"


def table(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Rows with the verdict on each workload by load, and with the number of right ones for each load."""
    loads = sorted({line["load"] for line in lines})
    said = {(line["name"], line["load"]): line["bound"] for line in lines}
    yield " | ".join(["workload", "known", *(f"load {load}" for load in loads)])
    for name, (known, _) in WORKLOADS.items():
        yield " | ".join([name, known, *(str(said.get((name, load), "-")) for load in loads)])
    for load in loads:
        runs = [line for line in lines if line["load"] == load]
        right = sum(line["bound"] == WORKLOADS[line["name"]][0] for line in runs)
        same = sum(line["bound"] == said.get((line["name"], 0), "") for line in runs)
        wrong = [line for line in runs if line["bound"] not in (None, WORKLOADS[line["name"]][0])]
        sure = ", ".join(line["name"] for line in wrong if "probably" not in line["why"]) or "none"
        computed = sum(line["bound"] == line["expected"] for line in runs)
        counts = f"{right} of {len(runs)} as known, {same} as at load 0, {computed} as computed"
        yield f"load {load}: {counts}; wrong without 'probably': {sure}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "work", "table"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--loads", default="0,1,2,4")
    parser.add_argument("--lines", type=Path, default=Path("busy_verdicts.jsonl"))
    asked = parser.parse_args()
    if asked.command == "work":
        work(asked.names[0])
        return
    known = [json.loads(line) for line in asked.lines.read_text().splitlines()] if asked.lines.exists() else []
    for load in map(int, asked.loads.split(",") if asked.command == "run" else []):
        for name in asked.names or WORKLOADS:
            if not any((line["name"], line["load"]) == (name, load) for line in known):
                known.append(measure(name, load))
                with asked.lines.open("a") as file:
                    print(json.dumps(known[-1]), file=file)
                print(load, name, WORKLOADS[name][0], "->", known[-1]["bound"], known[-1]["why"], flush=True)
    print("\n".join(table(known)))


if __name__ == "__main__":
    main()
