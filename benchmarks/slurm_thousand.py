"""A sweep of 200 jobs with 5 runs each on a real Slurm, with a stand-in for the trainer: calls, and launcher's time.

    .ci/slurm plain && SLURM_CONF=/var/lib/rooflaunch-test-slurm/plain/slurm.conf python benchmarks/slurm_thousand.py

sbatch, squeue, the agent, its store and the launcher are real; the trainer seals a bundle of invented figures at once.
`--blocks 20` for a short one.
"""

import argparse
import json
import os
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import synthetic_bundles  # noqa: E402
from launcher.agent import __main__ as program  # noqa: E402
from launcher.machine import local  # noqa: E402
from launcher.machine.local import LocalOutcome, LocalPlan  # noqa: E402
from launcher.machine.watcher import Watcher  # noqa: E402
from workload.contract import bundle  # noqa: E402

CONFIGURATIONS = 5


def stand_in(plan: LocalPlan, *, watcher: Watcher | None = None) -> LocalOutcome:
    """Seal a bundle without running anything, in place of `local.run`."""
    context = plan.context
    run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{context.place}-stand_in-{secrets.token_hex(4)}"
    folder = synthetic_bundles.make(
        plan.output, run_id=run_id, spec=plan.spec.to_json(), run_key=context.run_key, job=dict(context.job or {})
    )
    if watcher:
        watcher.on_bundle(folder)
        watcher.on_ended()
    return LocalOutcome(exit_code=0, bundles=(bundle.read(folder),))


def agent(home: str) -> int:
    """Run the real agent with the stand-in for the trainer."""
    local.run = stand_in
    return program.main([home])


def sweep(folder: Path, blocks: int, at_a_time: int) -> None:
    """Run the sweep, and print its time and its calls of Slurm."""
    python = folder / "python"
    # The check of a node asks it for its packages; the job calls it as `python -u -m launcher.agent HOME`.
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} "$@"\n'
        f'PYTHONPATH={ROOT} exec {sys.executable} {Path(__file__).resolve()} --agent "$4"\n'
    )
    python.chmod(0o755)
    (folder / "thousand.toml").write_text(
        f'repeats = {blocks}\n[matrix]\nbatch_size = {list(range(1, CONFIGURATIONS + 1))}\n[[on]]\nbackend = "slurm"\n'
        f'device = "cpu"\npython = "{python}"\nsbatch = ["--mem=200"]\nat_a_time = {at_a_time}\n'
    )
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "launcher", "sweep", "thousand.toml", "--format", "json"],
        cwd=folder,
        env={**os.environ, "HOME": str(folder), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=False,
    )
    wall_s, used = time.monotonic() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    outcome = json.loads(done.stdout)
    runs = [bundle.read(path.parent).record for path in folder.glob(f"results/*/{bundle.MANIFEST}")]
    times = Counter(Counter(run.run_key for run in runs).values())
    calls = {place["name"]: place["calls"] for place in outcome["places"]}
    print(f"exit code {done.returncode}, {len(runs)} runs at home; how often a key was measured: {dict(times)}")
    print(
        f"wall {wall_s:.0f} s; launcher {used.ru_utime + used.ru_stime:.1f} s of CPU with its children; calls {calls}"
    )
    print(f"calls per task: {sum(sum(counts.values()) for counts in calls.values()) / blocks:.2f}")


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=200)
    parser.add_argument("--at-a-time", type=int, default=4)
    parser.add_argument("--agent")
    options = parser.parse_args()
    if options.agent:
        return agent(options.agent)
    with tempfile.TemporaryDirectory() as folder:
        sweep(Path(folder), options.blocks, options.at_a_time)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
