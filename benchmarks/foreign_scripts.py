"""Training loops of many kinds, run unmodified under measurement: what is found, and that nothing is changed.

    pip install transformers accelerate timm lightning torch_geometric hydra-core keras fastai
    python benchmarks/foreign_scripts.py                 all of benchmarks/foreign; on a CPU some ten minutes
    python benchmarks/foreign_scripts.py kfold keras     these

Each is run three times: alone, under `python -m rooflaunch script --then continue`, and by torch's `FlopCounterMode`.
A line of the table holds the step that was found, FLOP against those of torch, and whether exit code, what was learned
and the files that the script wrote are those that it has alone. Loops that use torch alone stand in for packages of
their kind. Nothing is downloaded; a loop whose package is not there is left out, and named.
"""

import functools
import importlib.util
import itertools
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workload.steps import hooks

ROOT = Path(__file__).parents[1]
LOOPS_AT = Path(__file__).with_name("foreign")
# Of FLOP against those of torch's counter.
MOST_DIFFERENCE = 0.01
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A script in benchmarks/foreign. `step`: how the sentence on its step begins, after `a step = `.

    `package`: what it needs; None: torch alone, as a stand-in for `kind`. `why`: the reason for FLOP unlike torch's.
    """

    step: str
    package: str | None = None
    why: str = ""
    words: tuple[str, ...] = ()
    start: tuple[str, ...] = ()


ONE = "1 backward pass and 1"
LOOPS = {
    "kfold": Loop(step=f"{ONE} AdamW step, 16 samples from DataLoader"),
    "detection": Loop(
        step=f"{ONE} SGD step, 4 images from DataLoader",
        package="torchvision",
        why="the proposals differ from step to step",
    ),
    "gnn": Loop(
        step=f"{ONE} Adam step, 8 samples from DataLoader",
        package="torch_geometric",
        why="the graphs differ from step to step",
    ),
    "hydra_app": Loop(step=f"{ONE} SGD step, 16 samples from DataLoader", package="hydra", words=("batch=16",)),
    "keras_fit": Loop(step=f"{ONE} Adam step, 12 samples from DataLoader", package="keras"),
    "fastai_fit": Loop(
        step=f"{ONE} Optimizer step, 8 images from DataLoader",
        package="fastai",
        why="the steps of the head alone come first, and have all that are asked for",
    ),
    "one_process": Loop(step=f"{ONE} SGD step, 8 images from DataLoader", start=(*TORCHRUN, "1")),
    "two_processes": Loop(step=f"{ONE} SGD step, 8 images from DataLoader", start=(*TORCHRUN, "2")),
    "diffusion": Loop(step=f"{ONE} AdamW step, 8 images from DataLoader"),
    "contrastive": Loop(step=f"{ONE} SGD step, 8 images from DataLoader"),
    "maml": Loop(step="4 backward passes and 1 Adam step, 40 samples, from maml.py:15"),
    "recommender": Loop(step=f"{ONE} Adagrad step, 32 samples from DataLoader"),
    "speech": Loop(
        step="2 backward passes and 1 Adam step, 8 samples from DataLoader",
        why="lengths differ from step to step",
    ),
    "sam": Loop(step="2 backward passes and 1 SGD step, 8 images from DataLoader"),
    "ema": Loop(step=f"{ONE} RMSprop step, 16 samples from DataLoader"),
    "checkpointing": Loop(step=f"{ONE} AdamW step, 8 samples from DataLoader"),
    "transformers_loop": Loop(
        step="2 backward passes and 1 AdamW step, 8 sequences of 16 tokens from DataLoader", package="transformers"
    ),
    "accelerate_loop": Loop(
        step="4 backward passes and 1 AdamW step, 16 samples from DataLoader", package="accelerate"
    ),
    "timm_loop": Loop(step=f"{ONE} Lamb step, 4 images from DataLoader", package="timm"),
    "lightning_loop": Loop(step=f"{ONE} SGD step, 8 samples from DataLoader", package="lightning"),
}


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A run of a script: its exit code, what it printed and the files that it left, without their times."""

    code: int
    out: str
    err: str
    files: tuple[str, ...]

    @property
    def digests(self) -> list[str]:
        return [line for line in self.out.splitlines() if line.startswith("digest")]


def run(folder: Path, words: Sequence[str], script: Path, loop: Loop) -> Ran:
    """Run the script in a new folder; `words`: arguments before it on the command line."""
    folder.mkdir()
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": python_path, "HF_HUB_OFFLINE": "1", "HYDRA_FULL_ERROR": "1"}
    # A second of the clock stands in the name of hydra's folder.
    command = [sys.executable, *loop.start, *words, str(script), *loop.words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    files = sorted(
        "/".join("*" if part[:1].isdigit() else part for part in path.relative_to(folder).parts)
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    )
    return Ran(code=done.returncode, out=done.stdout, err=done.stderr, files=tuple(files))


def reference(path: Path, script: str) -> None:
    """Run the script under torch's own counter; write the FLOP between two optimizer steps to `path`, as JSON."""
    from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415 - the parent needs no torch
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415

    totals = [0]
    with FlopCounterMode(display=False) as counter:
        sys.path.insert(0, str(Path(script).parent))

        def after(*_: Any) -> None:
            totals.append(counter.get_total_flops())

        def tell(module: str, kind: str, method: str) -> None:
            owner = getattr(sys.modules[module], kind)
            step = getattr(owner, method)
            setattr(owner, method, lambda *given, **named: (step(*given, **named), after())[0])

        register_optimizer_step_post_hook(after)
        for module, kind, method in hooks.OTHER_OPTIMIZERS:
            hooks.when_imported(module, functools.partial(tell, module, kind, method))
        runpy.run_path(script, run_name="__main__")
    path.write_text(json.dumps([later - before for before, later in itertools.pairwise(totals)]))


def verdict(loop: Loop, flop: float, counts: Sequence[int]) -> tuple[str, bool]:
    """Text on our FLOP of a step against torch's, and whether they agree or the difference has a reason."""
    if not counts:
        return "no count by torch", False
    usual, _ = Counter(counts).most_common(1)[0]
    low, high = min(counts), max(counts)
    error = flop / usual - 1 if usual else float("inf")
    if abs(error) <= MOST_DIFFERENCE:
        return f"{flop:,.0f} ({error:+.2%})", True
    is_explained = bool(loop.why) and low <= flop <= high
    return f"{flop:,.0f} (torch: {low:,} to {high:,}{f'; {loop.why}' if loop.why else ''})", is_explained


def check(name: str, loop: Loop, folder: Path) -> bool:
    """Run a loop three times and print its line of the table; return whether everything is as it should be."""
    script, results = LOOPS_AT / f"{name}.py", folder / f"{name} results"
    ours = ["-m", "rooflaunch", "script", "--no-ceilings", "--warmup", "1", "--iterations", "6", "--then", "continue"]
    alone = run(folder / f"{name} alone", [], script, loop)
    measured = run(folder / f"{name} measured", [*ours, "-o", str(results), "--"], script, loop)
    counts_at = folder / f"{name}.json"
    counted = run(folder / f"{name} counted", [str(Path(__file__)), "--reference", str(counts_at)], script, loop)
    counts = json.loads(counts_at.read_text(encoding="utf-8")) if counts_at.is_file() else []
    records = [json.loads(path.read_text(encoding="utf-8")) for path in results.glob("*/run.json")]
    if not records:
        print(f"| {name} | no bundle: {measured.err.strip()[-600:]}\n{alone.err[-800:]}", flush=True)
        return False
    timing, work = records[0]["timing"], records[0]["complexity"]
    step = records[0]["spec"]["script"]["step"].removeprefix("a step = ")
    flop, is_flop_right = verdict(loop, work["train_flop_per_step"], counts)
    is_equal = alone.digests == measured.digests != []
    are_files_equal, is_code_equal = alone.files == measured.files, alone.code == measured.code == 0
    gaps = ", ".join(timing["gaps"] or {}) or "none"
    cells = [name, step, flop, "equal" if is_equal else "NOT EQUAL", str(measured.code)]
    cells += ["the same" if are_files_equal else f"NOT THE SAME: {alone.files} {measured.files}", gaps]
    print(f"| {' | '.join(cells)} |", flush=True)
    if counted.code:
        print(f"  torch's counter: {counted.err.strip()[-300:]}", flush=True)
    is_right = step.startswith(loop.step) and is_flop_right and is_equal and are_files_equal and is_code_equal
    if not is_right:
        print(f"  WRONG {loop.step}\n{measured.err[-1500:]}", flush=True)
    return is_right


def main() -> int:
    """Exit code: 0 if every loop is measured correctly."""
    if sys.argv[1:2] == ["--reference"]:
        counts_at, sys.argv = Path(sys.argv[2]), sys.argv[3:]
        reference(counts_at, sys.argv[0])
        return 0
    wanted = sys.argv[1:] or list(LOOPS)
    if unknown := [name for name in wanted if name not in LOOPS]:
        sys.exit(f"error: no loop {', '.join(unknown)}; there are {', '.join(LOOPS)}")
    there = [name for name in wanted if LOOPS[name].package is None or importlib.util.find_spec(LOOPS[name].package)]
    print("| loop | a step | FLOP a step | learned | exit code | files | gaps |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        wrong = [loop for loop in there if not check(loop, LOOPS[loop], Path(name))]
    missing = [name for name in wanted if name not in there]
    print(f"left out, for want of a package: {', '.join(missing)}" if missing else "none left out")
    print(f"wrong: {', '.join(wrong)}" if wrong else "all as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
