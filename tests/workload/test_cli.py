"""The trainer's own command line: its options, the import of torch, its end."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from workload import cli
from workload.contract.errors import UsageError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "device"),
    [(["--cpu"], "cpu"), (["--cuda"], "cuda"), (["--mps"], "mps"), (["--device", "cpu"], "cpu"), ([], None)],
)
def test_device_switches_as_of_launch_local(words: list[str], device: str | None) -> None:
    given = cli._typed_options(cli._parser().parse_args(["train", *words]))
    assert given.get("device") == device


def test_two_devices() -> None:
    with pytest.raises(UsageError) as caught:
        cli._parser().parse_args(["train", "--cpu", "--cuda"])
    assert str(caught.value) == "argument --cuda: not allowed with argument --cpu"
    assert caught.value.hint == "python -m workload train --help"


def test_modules_are_imported_without_collections_and_left_out_of_later_ones() -> None:
    try:
        with cli._without_collections():
            assert not gc.isenabled()
            kept = [[]]  # type: ignore[var-annotated] # two objects that collections look at
        assert gc.isenabled()
        assert gc.get_freeze_count() > len(kept)
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("error", [ImportError, KeyboardInterrupt])
def test_collections_go_on_after_a_failed_import(error: type[BaseException]) -> None:
    with pytest.raises(error), cli._without_collections():
        raise error
    assert gc.isenabled()
    gc.unfreeze()


@pytest.mark.world
def test_a_tool_that_runs_the_trainer_goes_on_after_it() -> None:
    command = [sys.executable, "-m", "cProfile", "-m", "workload", "train", "--nonsense"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "unrecognized arguments: --nonsense" in done.stderr
    assert "function calls" in done.stdout
