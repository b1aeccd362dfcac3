"""Seconds that `analysis.load` takes, the first time and again, in fresh processes: N bundles of 110 steps.

python benchmarks/load_bundles.py [1000 10000]          the bundles are made first, about 5 s per 1000
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from synthetic_bundles import make, make_many

LOAD = (
    "import resource, sys, analysis; results = analysis.load(sys.argv[1]);"
    "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
    "print(len(results.runs), len(results.steps), len(results.telemetry), len(results.problems), peak * 1024 // 10**6)"
)
IMPORT = "import pandas, pyarrow.parquet, pyarrow.csv"


def seconds(code: str, *arguments: str) -> tuple[float, str]:
    begin_s = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True)
    return time.perf_counter() - begin_s, done.stdout.strip()


def measure(count: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        output = Path(name) / "results"
        make_many(make, output, range(count))
        first_s, held = seconds(LOAD, str(output))
        again_s = [seconds(LOAD, str(output))[0] for _ in range(3)]
        make_many(make, output, range(count, count + 10))
        added_s, more = seconds(LOAD, str(output))
        size = (output / ".analysis" / "bundles.parquet").stat().st_size
    runs, steps, telemetry, problems, peak_mb = held.split()
    assert (int(runs), int(problems)) == (count, 0)
    assert int(more.split()[0]) == count + 10
    print(
        f"{runs} bundles, {steps} steps, {telemetry} telemetry rows: first load {first_s:.2f} s (peak {peak_mb} MB), "
        f"again {min(again_s):.2f} to {max(again_s):.2f} s, with 10 more {added_s:.2f} s; index {size / 1e6:.1f} MB",
        flush=True,
    )


def main() -> None:
    seconds(IMPORT)
    print(f"of each, importing pandas and pyarrow: {seconds(IMPORT)[0]:.2f} s", flush=True)
    for count in [int(word) for word in sys.argv[1:]] or [1000, 10000]:
        measure(count)


if __name__ == "__main__":
    main()
