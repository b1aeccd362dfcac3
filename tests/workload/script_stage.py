"""Runs scripts as a user does, each in a copy of a process that has loaded torch and done nothing else."""

import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from workload import cli
from workload.steps import program

SCRIPTS = Path(__file__).with_name("scripts")
LIMIT_S = 500
# Short for scripts that never end, and enough for one that ends on a busy machine.
ENDING_S = 10.0
# Not a copy of the test's own process: torch's threads are not copied, and what earlier tests did there is.
COPIES = multiprocessing.get_context("forkserver")
COPIES.set_forkserver_preload(["torch", "torchvision"])


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A process that has ended, and the run.json that it left, if any."""

    code: int | None
    out: str
    err: str
    record: Mapping[str, Any] | None = None
    folder: Path | None = None


def _child(work: Callable[[], int | None], folder: Path, out: Path, err: Path) -> None:
    for path, number in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    # As in a user's process: a data worker that the server of copies starts outlives the script, and keeps the server.
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    os.chdir(folder)
    code: int | None = 1
    try:
        code = work()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:  # noqa: BLE001  a script may raise anything
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)


def run(work: Callable[[], int | None], folder: Path) -> Ran:
    """Run `work` in a new process with the working folder `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    out, err = folder / "out.txt", folder / "err.txt"
    process = COPIES.Process(target=_child, args=(work, folder, out, err))
    process.start()
    process.join(LIMIT_S)
    if process.is_alive():
        process.kill()
        process.join()
    return Ran(code=process.exitcode, out=out.read_text(), err=err.read_text())


def plain(folder: Path, script: Path, *words: str) -> Ran:
    """Run the script as Python does, without rooflaunch."""
    return run(partial(_as_python_does, script, words), folder)


def _as_python_does(script: Path, words: tuple[str, ...]) -> None:
    sys.argv = [str(script), *words]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


def trainer(folder: Path, *words: str) -> "subprocess.Popen[str]":
    """A running `python -m workload` in `folder`; its output and errors are pipes."""
    # One thread: two processes whose threads spin for the same cores slow each other down tenfold.
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    command, pipe = [sys.executable, "-m", "workload", *words], subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=folder)


def measured(folder: Path, script: Path, *words: str, options: tuple[str, ...] = ()) -> Ran:
    """Measure the script, without ceilings; `options`: of `python -m rooflaunch script`."""
    results = folder / "results"
    given = ["--no-ceilings", "-o", str(results), *options]
    ran = run(partial(as_a_user_does, ["script", *given, "--", str(script), *words]), folder)
    folders = sorted(results.iterdir()) if results.is_dir() else []
    record = json.loads((folders[0] / "run.json").read_text()) if folders else None
    return Ran(code=ran.code, out=ran.out, err=ran.err, record=record, folder=folders[0] if folders else None)


def as_a_user_does(words: list[str]) -> int:
    program.ENDING_S = ENDING_S
    return cli.main(words)
