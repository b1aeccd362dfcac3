"""Do runs that a start server forks measure the same as fresh processes, and do they scatter as much?

    python benchmarks/forked_runs.py --blocks 15 --lines forked.jsonl

Each block has two fresh and two forked runs of each model, in random order; the forks of a block have one server, as in
a block of a sweep. The ratios are forked over fresh: of step times (geometric mean), of the variance of their
logarithms over all runs, and of the variance within blocks, in which forks share a server and its memory layout. The
intervals hold 95 %, by the jackknife over blocks with Student's t (Miller, Biometrika 61, 1974). On a machine with
other work, the CPU time of a step tells more than the median step of a run.
`--lines FILE` keeps each run; the same command goes on after those.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from workload.contract import bundle
from workload.contract.process import Follower, run_child
from workload.contract.trainer import TRAINER, Forks, Start

MODELS = {"squeezenet1_1": (4, 64, 40), "mobilenet_v2": (2, 64, 30), "resnet18": (1, 64, 30)}
KINDS = (Start.FRESH, Start.FORKED)
RUNS_OF_A_KIND = 2
LEVEL = 0.95
Logs = np.ndarray[Any, np.dtype[np.float64]]


def measure(model: str, kind: Start, block: int, forks: Forks, folder: Path) -> dict[str, Any]:
    """One run: its step times, and what its process took."""
    batch, size, steps = MODELS[model]
    options = {"model": model, "batch-size": batch, "image-size": size, "warmup": 5, "iterations": steps}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    lines: list[str] = []
    quiet = Follower(on_message=lambda _: None, on_started=lambda _: None)
    began_s = time.monotonic()
    ended = run_child(
        [*TRAINER, "train", "--cpu", "--no-ceilings", *words, "-o", str(folder), "--context", "{}"],
        on_line=lines.append,
        follower=quiet,
        forking=forks.child if kind is Start.FORKED else None,
    )
    wall_s = time.monotonic() - began_s
    assert ended.code == 0, ended
    record = bundle.read(Path(lines[0])).record
    assert record.environment.start == kind, record.environment.start
    timing, usage = record.timing, record.usage
    assert timing.step_s
    assert usage
    return {
        "block": block,
        "model": model,
        "start": kind.value,
        "wall step": timing.step_s.median,
        "CPU step": (timing.cpus_used or 0) * (timing.measured_s or 0) / steps,
        "process_s": wall_s,
        "process_cpu_s": (usage.user_s or 0) + (usage.system_s or 0),
    }


def jackknife(blocks: Sequence[int], figure: Callable[[list[int]], float]) -> tuple[float, float, float]:
    """`figure` of all blocks, and its interval from the figures without one block each."""
    whole, count = figure(list(blocks)), len(blocks)
    without = np.array([figure([other for other in blocks if other != block]) for block in blocks])
    pseudo = count * whole - (count - 1) * without
    half = student.ppf((1 + LEVEL) / 2, count - 1) * pseudo.std(ddof=1) / np.sqrt(count)
    return whole, pseudo.mean() - half, pseudo.mean() + half


def ratios(rows: Sequence[dict[str, Any]], name: str) -> dict[str, tuple[float, float, float]]:
    """Forked over fresh for one model: geometric means, variances, and variances within blocks."""
    logs = {
        (kind, block): np.log([row[name] for row in rows if (row["start"], row["block"]) == (kind, block)])
        for kind in KINDS
        for block in {row["block"] for row in rows}
    }
    whole = [
        block
        for block in sorted({row["block"] for row in rows})
        if all(len(logs[kind, block]) == RUNS_OF_A_KIND for kind in KINDS)
    ]

    def difference(of: Callable[[list[Logs]], float]) -> Callable[[list[int]], float]:
        return lambda blocks: (
            of([logs[Start.FORKED, block] for block in blocks]) - of([logs[Start.FRESH, block] for block in blocks])
        )

    figures: dict[str, Callable[[list[Logs]], float]] = {
        "times": lambda cells: float(np.concatenate(cells).mean()),
        "variances": lambda cells: float(np.log(np.concatenate(cells).var(ddof=1))),
        "within a block": lambda cells: float(np.log(np.mean([cell.var(ddof=1) for cell in cells]))),
    }
    return {what: tuple(np.exp(jackknife(whole, difference(of))).tolist()) for what, of in figures.items()} | {
        "blocks": (float(len(whole)),) * 3
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Ratios of every model, and what a process takes."""
    lines = []
    for model in MODELS:
        of_model = [row for row in rows if row["model"] == model]
        for name in ("CPU step", "wall step"):
            found = ratios(of_model, name)
            texts = [f"{what} {value:.3f} ({low:.3f} to {high:.3f})" for what, (value, low, high) in found.items()]
            lines.append(f"{model:<14} {name:<9} " + "; ".join(texts[:-1]) + f"; {found['blocks'][0]:.0f} blocks")
        for kind in KINDS:
            same = [row for row in of_model if row["start"] == kind]
            medians = [np.median([row[name] for row in same]) for name in ("CPU step", "process_s", "process_cpu_s")]
            lines.append(
                f"{model:<14} {kind:<9} {len(same)} runs: step {medians[0] * 1e3:.2f} ms of CPU; "
                f"process {medians[1]:.2f} s, {medians[2]:.2f} s of CPU"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--lines", type=Path, required=True)
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = [json.loads(line) for line in asked.lines.read_text().splitlines()] if asked.lines.exists() else []
    began = max((row["block"] for row in rows), default=0)
    for block in range(began + 1, asked.blocks + 1):
        runs = [(model, kind) for model in MODELS for kind in KINDS for _ in range(RUNS_OF_A_KIND)]
        random.shuffle(runs)
        folder = Path(tempfile.mkdtemp(prefix="forked-runs-"))
        with Forks(sys.exit) as forks, asked.lines.open("a") as lines:
            for model, kind in runs:
                rows.append(measure(model, kind, block, forks, folder))
                lines.write(json.dumps(rows[-1]) + "\n")
                lines.flush()
        shutil.rmtree(folder)
        print(f"block {block} of {asked.blocks}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
