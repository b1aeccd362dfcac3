"""Growth of the trainer's memory over 10,000 steps of a tiny model, from its own telemetry.

python benchmarks/memory_growth.py        about 4 minutes
"""

import argparse
import csv
import subprocess
import sys
import tempfile
from pathlib import Path

TINY = ["--model", "shufflenet_v2_x0_5", "--image-size", "32", "--batch-size", "2", "--device", "cpu", "--no-ceilings"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as output:
        command = [sys.executable, "-m", "workload", "train", *TINY, "--iterations", str(steps), "-o", output]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (path,) = Path(output).glob("*/telemetry.csv")
        with path.open(newline="") as lines:
            rss = [int(row["rss_bytes"]) for row in csv.DictReader(lines)]
    # The first tenth holds the warm-up, in which the allocators fill their pools.
    settled = rss[len(rss) // 10 :]
    half = len(settled) // 2
    first, second = (sum(part) / len(part) for part in (settled[:half], settled[half:]))
    growth = (second - first) / (steps * 0.45)
    swing = (max(settled) - min(settled)) / 1e6
    print(
        f"{steps} steps, {len(rss)} samples, mean resident memory by half: {first / 1e6:.1f} and {second / 1e6:.1f} MB"
    )
    print(f"growth: {growth:.1f} bytes per step; largest minus smallest settled sample: {swing:.1f} MB")


if __name__ == "__main__":
    main()
