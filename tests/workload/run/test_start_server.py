"""The real start server and runs that it forks; what is true of any fork: tests/workload/contract/test_forks.py."""

import csv
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import until
from workload.contract import bundle
from workload.contract.bundle import Bundle
from workload.contract.process import ChildEnd, Follower, run_child
from workload.contract.trainer import TRAINER, Forks

pytestmark = [
    pytest.mark.world,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux"),
]
SMALL = ("--cpu", "--model", "squeezenet1_1", "--batch-size", "2", "--image-size", "32", "--warmup", "1")
SHORT = (*SMALL, "--iterations", "3", "--no-ceilings")
# Notes the processes in which PyTorch is asked for CUDA.
SITE = """
import importlib.abc, importlib.util, os, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torch.cuda":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def loaded(module):
            load(module)
            for function in ("is_available", "device_count", "_lazy_init", "current_device", "get_device_capability"):
                setattr(module, function, noted(getattr(module, function)))

        spec.loader.exec_module = loaded
        return spec

def noted(function):
    def ask(*given, **named):
        with open(os.environ["ASKED"], "a") as asked:
            print(os.getpid(), function.__name__, file=asked)
        return function(*given, **named)
    return ask

sys.meta_path.insert(0, Finder())
"""


class Starts:
    """Runs the trainer, forked or fresh."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.messages = list[str]()
        self.forks = Forks(pytest.fail)

    def run(self, *words: str, forked: bool = True) -> tuple[ChildEnd, list[Bundle]]:
        """End of a run, and its bundles."""
        self.messages.clear()
        folders: list[Path] = []
        ended = run_child(
            [*TRAINER, "train", *words, "-o", str(self.folder), "--context", "{}"],
            on_line=lambda line: folders.append(Path(line)),
            follower=Follower(on_message=self.messages.append, on_started=lambda _: None),
            forking=self.forks.child if forked else None,
        )
        return ended, [bundle.read(folder) for folder in folders]

    def made(self, *words: str, forked: bool = True) -> Bundle:
        """Bundle of a complete run."""
        ended, [made] = self.run(*words, forked=forked)
        assert ended.code == 0, self.messages
        assert made.record.environment.start == ("forked" if forked else "fresh")
        return made

    @property
    def server(self) -> Path:
        assert self.forks._server
        return Path(f"/proc/{self.forks._server._process.pid}")


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starts]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    starts = Starts(tmp_path / "results")
    with starts.forks:
        yield starts


def losses(made: Bundle) -> list[str]:
    with (made.path / "steps.csv").open() as file:
        return [row["loss"] for row in csv.DictReader(file)]


def test_forks_compute_what_fresh_processes_compute(starts: Starts) -> None:
    fresh = starts.made(*SHORT, forked=False)
    forked = [starts.made(*SHORT) for _ in range(2)]
    assert len(losses(fresh)) == 4
    assert [losses(made) for made in forked] == [losses(fresh)] * 2
    for made in forked:
        was, record = fresh.record, made.record
        assert record.complexity == was.complexity
        assert record.environment.software == was.environment.software
        assert record.environment.device == was.environment.device
        assert record.spec == was.spec
        assert {*record.timing.phases} == {*was.timing.phases}
        assert record.usage.user_s < was.usage.user_s, "it imports nothing"
        assert {path.name for path in made.path.iterdir()} == {path.name for path in fresh.path.iterdir()}
        lines = [path.read_text().splitlines() for path in (made.path / "log.txt", fresh.path / "log.txt")]
        assert len(lines[0]) == len(lines[1])


def test_a_server_has_no_thread_of_its_own_and_never_asks_for_cuda(
    starts: Starts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[3]}")
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    made = starts.made(*SHORT, "--device", "auto")
    assert [*(starts.server / "task").iterdir()] == [starts.server / "task" / starts.server.name]
    asked = [line.split()[0] for line in (tmp_path / "asked").read_text().splitlines()]
    assert asked
    assert starts.server.name not in asked
    assert not [line for line in (starts.server / "maps").read_text().splitlines() if "/dev/nvidia" in line]
    assert made.record.status == "completed"
    # With more threads allowed, numpy's OpenBLAS has a pool; it ends it before a fork.
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert losses(starts.made(*SHORT)) == losses(made)
    assert len([*(starts.server / "task").iterdir()]) <= (os.cpu_count() or 1)


def test_a_fork_has_the_random_numbers_of_a_fresh_process(starts: Starts, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "def show():\n"
        "    import numpy, random, torch\n"
        "    print(torch.initial_seed(), torch.rand(1).item(), random.random(), numpy.random.rand(), file=sys.stderr)\n"
        "import workload.contract.process as entry\n"
        "enter = entry.enter\n"
        "entry.enter = lambda run: show() or enter(run)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[3]}")
        drawn = []
        for forked in (False, True, True):
            starts.run("--model", "none", forked=forked)
            drawn.append(starts.messages[0].split())
    # All differ, as between fresh processes: PyTorch's seed, and numbers of PyTorch, Python and numpy.
    assert [len(set(numbers)) for numbers in zip(*drawn, strict=True)] == [3] * 4


@pytest.mark.parametrize(
    "words",
    [
        ("--batch-size", "0"),
        (*SMALL, "--iterations", "3", "--batch-size", "100000000", "--image-size", "2000", "--no-ceilings"),
    ],
)
def test_failures_are_those_of_a_fresh_process(starts: Starts, words: tuple[str, ...]) -> None:
    seen = []
    for forked in (False, True):
        ended, made = starts.run(*words, forked=forked)
        records = [(one.record.status, one.record.error) for one in made]
        seen.append((ended.code, records, [line for line in starts.messages if line.startswith(("error", "hint"))]))
    assert seen[0] == seen[1]
    assert seen[0][0] not in (0, 1)


def test_data_workers_threads_and_bf16_work_in_a_fork(
    starts: Starts, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    made = starts.made(*SHORT, "--dataset", str(images), "--workers", "2", "--precision", "bf16")
    assert made.record.timing.step_s
    assert made.record.usage
    assert (made.path / "telemetry.csv").stat().st_size > 0
    # Only the server is left of all processes.
    until(lambda: (starts.server / "task" / starts.server.name / "children").read_text().split() == [])
