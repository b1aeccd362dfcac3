"""Two ranks with gloo that train under torch.profiler, while our own hooks measure their collectives.

`python -m tests.analysis.readers.traces.gloo_ranks FOLDER` writes the trace of each rank and what the hooks measured.
"""

import csv
import gzip
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[4]
# Rank 1 sleeps so long in each step, and rank 0 waits for it.
SLEEP_S = 0.05
WARMUP, STEPS = 3, 6
# The profile's schedule warms up for one step more.
FIRST = WARMUP + 1


def record(folder: Path) -> None:
    """Run both ranks. Raises `CalledProcessError` if one fails."""
    words = [sys.executable, "-m", __spec__.name, str(folder)]
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    # Both ranks use a file instead of a port, which another process might have.
    ranks = [
        subprocess.Popen(words, cwd=ROOT, env=os.environ | variables | {"RANK": str(rank)}, stderr=subprocess.DEVNULL)
        for rank in range(2)
    ]
    for rank in ranks:
        if code := rank.wait(timeout=120):
            raise subprocess.CalledProcessError(code, words)


def train(folder: Path, rank: int) -> None:
    """Life of a rank."""
    import torch
    from torch import distributed, nn
    from torch.profiler import ProfilerActivity, profile, schedule

    from workload.measure.clock import Collectives, HostClock

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    clock, place = HostClock(), folder / str(rank)
    place.mkdir()
    collectives = Collectives(place, clock)
    model = collectives.parallel(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)))
    optimizer, images = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(8, 256)
    profiler = profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=0, warmup=1, active=STEPS, repeat=1),
    )
    for number in range(FIRST + STEPS):
        if number == WARMUP:
            profiler.start()
        began = clock.mark()
        if rank == 1:
            time.sleep(SLEEP_S)
        loss = model(images).square().mean()
        backward = clock.mark()
        loss.backward()
        computed = clock.mark()
        optimizer.step()
        optimizer.zero_grad()
        whole = [(began, clock.mark())]
        collectives.write(number, collectives.of_step(), began=began, passes=[(backward, computed)], counted=whole)
        if number >= WARMUP:
            profiler.step()
    profiler.stop()
    collectives.flush()
    profiler.export_chrome_trace(str(folder / f"rank{rank}.json.gz"))
    distributed.destroy_process_group()


def measured_s(folder: Path, rank: int, name: str = "exposed_s") -> dict[int, float]:
    """What the hooks measured in the steps that the profiler marked, by the profiler's numbers."""
    rows = csv.DictReader((folder / str(rank) / "collectives.csv").read_text().splitlines())
    numbered = {int(row["step"]) - WARMUP: float(row[name]) for row in rows if row["kind"] == "all"}
    return {number: value for number, value in numbered.items() if number > 0}


def trace(folder: Path, rank: int) -> str:
    """The text of the trace of a rank."""
    return gzip.decompress((folder / f"rank{rank}.json.gz").read_bytes()).decode()


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(Path(sys.argv[1]).absolute(), int(os.environ["RANK"]))
    else:
        record(Path(sys.argv[1]).absolute())
