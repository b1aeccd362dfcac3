"""Cost of a start: `launch --help` against importing typer, and a run's time outside its own work.

python benchmarks/fixed_costs.py          about 2 minutes
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import paired

LAUNCH = [sys.executable, "-m", "launcher", "--help"]
TYPER = [sys.executable, "-c", "import typer"]
TORCH = [sys.executable, "-c", "import torch, torchvision"]
RUNS = 7
# What a help text may cost, as a multiple of importing typer: more than that loads something that it does not need.
MOST_HELP = 2.0


def seconds(command: list[str]) -> float:
    begin_s = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin_s


def fixed_cost_s() -> tuple[float, float]:
    """Seconds of a small run outside set-up, ceilings, warm-up and steps; and of its set-up, from run.json."""
    with tempfile.TemporaryDirectory() as output:
        wall_s = seconds(
            [sys.executable, "-m", "workload", "train", "--device", "cpu", "--iterations", "2", "-o", output]
        )
        (record,) = (json.loads(path.read_text()) for path in Path(output).glob("*/run.json"))
    phases = record["timing"]["phases"]
    setup_s = phases["environment"] - phases["prepare"] + phases["warmup"] - phases["setup"]
    own_work_s = setup_s + phases["setup"] - phases["ceilings"] + phases["finish"] - phases["warmup"]
    return wall_s - own_work_s, setup_s


def main() -> None:
    seconds(LAUNCH), seconds(TYPER), seconds(TORCH)
    ratios = paired.measure(lambda: seconds(LAUNCH), lambda: seconds(TYPER), pairs=15)
    print(paired.report("launch --help / import typer", ratios))
    if median(ratios) > MOST_HELP:
        sys.exit(f"launch --help takes {median(ratios):.1f} times what importing typer does; {MOST_HELP:g} at most")
    torch_s = [seconds(TORCH) for _ in range(RUNS)]
    outside_s, setup_s = zip(*(fixed_cost_s() for _ in range(RUNS)), strict=True)
    print(f"import torch and torchvision: median {median(torch_s):.2f} s")
    print(
        f"a run outside set-up, ceilings, warm-up and steps: median {median(outside_s):.2f} s, "
        f"{median(outside_s) - median(torch_s):.2f} s beyond importing torch"
    )
    print(f"set-up (data, model, FLOP count, optimizer): median {median(setup_s):.2f} s")


if __name__ == "__main__":
    main()
