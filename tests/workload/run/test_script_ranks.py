"""A user's script in two ranks on a CPU: their one bundle, what is unknown, and how ranks end that do not fit."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import until
from tests.workload.run.test_ranks import assert_bundle_of_two_ranks, process_of, rows
from workload.contract import bundle
from workload.contract.errors import ExitCode
from workload.contract.ranks import UNKNOWN
from workload.contract.record import Status

pytestmark = [
    pytest.mark.world,
    pytest.mark.slow,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="each rank needs a CPU"),
]

# Sleeps stand for the work of a step, so that a busy machine changes the ranks' relation little.
TRAIN = """
import os, sys, time, torch
from torch import distributed as dist, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

steps, slow_s, last = int(sys.argv[1]), float(sys.argv[2]), [int(word) for word in sys.argv[3:]]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.randn(8 * steps, 3, 8, 8), torch.randint(5, (8 * steps,)))
model = DistributedDataParallel(
    nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))
)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for number, (x, y) in enumerate(DataLoader(data, 4, sampler=DistributedSampler(data)), 1):
    time.sleep(slow_s * (1 + rank / 2))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if [rank, number] == last:
        break
# In one piece: both ranks write to one pipe.
sys.stdout.write(f"weights={sum(p.double().sum().item() for p in model.parameters())}\\n")
dist.destroy_process_group()
"""
# Each rank averages the gradients by a collective of its own choice.
BY_HAND = """
import torch
from torch import distributed as dist
from torch.utils.data import DataLoader, TensorDataset
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for (x,) in DataLoader(TensorDataset(torch.ones(400, 4)), 4):
    optimizer.zero_grad()
    model(x).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
"""
# Script; exit code and error, as said once for both ranks.
BROKEN = {
    "ranks that are not joined": (
        BY_HAND.replace('dist.init_process_group("gloo")', "").replace("dist.all_reduce(parameter.grad)", "pass"),
        ExitCode.USAGE,
        "train.py runs in 2 ranks, but has joined 1 of them by init_process_group: each trains alone",
    ),
    "NCCL on a CPU": (
        TRAIN.replace('"gloo"', '"nccl"'),
        ExitCode.USAGE,
        "the script asks for NVIDIA GPUs, or for NCCL, which needs them, and none is visible here",
    ),
    "processes of its own": (
        "import torch.multiprocessing as mp\nif __name__ == '__main__':\n    mp.spawn(print, nprocs=2)\n",
        ExitCode.USAGE,
        "the script starts its own processes by torch.multiprocessing.spawn, but several ranks run it already",
    ),
    "a rank that fails before the first step": (
        TRAIN.replace("rank = dist.get_rank()", "rank = dist.get_rank(); assert rank == 0"),
        ExitCode.RUN_FAILED,
        "rank 1: train.py failed with AssertionError before its training step was known",
    ),
    "a rank that exits before torch": (
        "import os, sys\nif os.environ['RANK'] == '1': sys.exit(3)\n" + TRAIN,
        ExitCode.RUN_FAILED,
        "rank 1: train.py ended with exit code 3 before it imported torch",
    ),
}


def started(folder: Path, text: str, *words: str, options: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
    (folder / "train.py").write_text(text)
    ours = ["--devices", "2", "--no-ceilings", "--warmup", "1", *options, "-o", "out", "--", "train.py"]
    command = [sys.executable, "-P", "-m", "rooflaunch", "script", *ours, *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=folder)


def bundle_in(folder: Path) -> bundle.Bundle:
    (found,) = (path for path in (folder / "out").iterdir() if path.is_dir())
    return bundle.read(found)


def test_two_ranks_write_one_bundle_and_learn_the_same(tmp_path: Path) -> None:
    process = started(tmp_path, TRAIN, "24", "0", options=("--iterations", "6", "--then", "continue"))
    out, err = process.communicate()
    assert process.returncode == ExitCode.DONE, err
    record = assert_bundle_of_two_ranks(bundle_in(tmp_path), images=24)
    assert record.spec.script is not None
    assert record.spec.script.dataset_samples == 192, "all ranks together"
    assert not record.notes
    assert " on each of 2 devices, " in err
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    alone = subprocess.run([*torchrun, "train.py", "24", "0"], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert sorted(out.split()) == sorted(alone.stdout.split()) != []


def started_by_torchrun(folder: Path, number: int, *words: str) -> "subprocess.Popen[str]":
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number)]
    command = [*torchrun, "-m", "rooflaunch", "script", "--no-ceilings", "-o", "out", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=folder)


def test_torchrun_starts_the_ranks(tmp_path: Path) -> None:
    waits = "dist.all_reduce(loss.detach(), async_op=True).wait(); optimizer.step()"
    (tmp_path / "train.py").write_text(TRAIN.replace("optimizer.step()", waits))
    err = ended(started_by_torchrun(tmp_path, 2, "--iterations", "5", "--", "train.py", "40", "0"))
    record = bundle_in(tmp_path).record
    assert record.ranks is not None
    assert list(record.ranks.steps or ()) == [5, 5]
    assert err.count("a step = ") == 2, "rank 0 says it twice: once it is found, and with the results"
    assert record.ranks.kinds is not None
    assert record.ranks.kinds["all_reduce"].number == (2, 2), "the bucket of the gradients, and the loss"


@pytest.mark.parametrize("number", [2, 3])
def test_another_rank_seals_the_bundle_of_a_rank_0_that_is_killed(number: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    process = started_by_torchrun(tmp_path, number, "--iterations", "40000", "--", "train.py", "100000", "0.02")
    until(lambda: rows(tmp_path / "out") >= 8)
    written = rows(tmp_path / "out")
    os.kill(process_of(0, process.pid) or 0, signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode
    found = bundle_in(tmp_path)
    error = "rank 0 was killed; the bundle keeps the steps so far"
    assert (found.record.status, found.record.error) == (Status.FAILED, error)
    assert f"error: {error}: " in err
    assert len(found.steps()) >= written
    assert found.record.ranks is not None
    assert found.record.ranks.number == number


def ended(process: "subprocess.Popen[str]", code: int = ExitCode.DONE) -> str:
    """What the process wrote to stderr, once it has ended with `code`."""
    _, err = process.communicate()
    assert process.returncode == code, err
    return err


def test_the_slower_rank_is_named(tmp_path: Path) -> None:
    err = ended(started(tmp_path, TRAIN, "40", "0.6", options=("--iterations", "8")))
    ranks = bundle_in(tmp_path).record.ranks
    assert ranks is not None
    assert ranks.slowest == 1, ranks
    assert ", rank 1 is slower by " in err


@pytest.mark.parametrize(
    ("call", "why"),
    [("dist.all_reduce(parameter.grad)", None), ("dist.group.WORLD.allreduce([parameter.grad]).wait()", UNKNOWN)],
)
def test_waits_of_collectives_by_hand(call: str, why: str | None, tmp_path: Path) -> None:
    """Nothing is known of collectives that begin below the functions of torch.distributed."""
    text = BY_HAND.replace("dist.all_reduce(parameter.grad)", call)
    ended(started(tmp_path, text, options=("--iterations", "5")))
    record = bundle_in(tmp_path).record
    ranks = record.ranks
    assert ranks is not None
    assert (list(ranks.steps or ()), ranks.images, ranks.why) == ([5, 5], 40, why)
    assert ranks.images_per_s
    assert (ranks.exposed_s is None) == (ranks.kinds is None) == (why is not None)
    assert (UNKNOWN in (record.notes or ())) == (why is not None)


@pytest.mark.parametrize("case", BROKEN)
def test_ranks_that_cannot_train(case: str, tmp_path: Path) -> None:
    text, code, message = BROKEN[case]
    err = ended(started(tmp_path, text, "40", "0"), code)
    assert [line for line in err.splitlines() if line.startswith("error: ")] == [f"error: {message}"]
    assert err.splitlines()[-1].startswith("hint: ")
    assert not (tmp_path / "out").exists()


# With its group left, the other rank loses its connection; without, it waits in a collective for ever.
@pytest.mark.parametrize(("rank", "text"), [(0, TRAIN), (1, TRAIN.replace("dist.destroy_process_group()", ""))])
def test_a_rank_that_ends_early_ends_the_run(rank: int, text: str, tmp_path: Path) -> None:
    process = started(tmp_path, text, "400", "0", str(rank), "30", options=("--iterations", "100"))
    err = ended(process, ExitCode.RUN_FAILED)
    message = f"rank {rank} ended after 30 optimizer steps, and another rank takes more: it waits for rank {rank}"
    assert [line for line in err.splitlines() if line.startswith("error: ")] == [f"error: {message}"]
    record = bundle_in(tmp_path).record
    assert (record.status, record.error) == (Status.FAILED, message)
    assert record.ranks is not None
    assert record.ranks.images


def test_ranks_that_all_end_early_are_complete(tmp_path: Path) -> None:
    ended(started(tmp_path, BY_HAND, options=("--iterations", "500")))
    record = bundle_in(tmp_path).record
    ranks = record.ranks
    assert ranks is not None
    assert (record.status, ranks.slowest) == (Status.COMPLETED, None)
    (steps,) = set(ranks.steps or ())
    assert ranks.images == 2 * 4 * steps
    assert ranks.images_per_s


@pytest.mark.parametrize(("rank", "number"), [(0, signal.SIGKILL), (1, signal.SIGKILL), (None, signal.SIGINT)])
def test_a_signal_ends_the_run_and_loses_no_step(tmp_path: Path, rank: int | None, number: signal.Signals) -> None:
    """`rank` None: Ctrl-C, for the process that started the ranks."""
    process = started(tmp_path, TRAIN, "100000", "0.02", options=("--iterations", "40000"))
    until(lambda: rows(tmp_path / "out") >= 8)
    ranks = [process_of(each, process.pid) or 0 for each in (0, 1)]
    assert all(ranks)
    written = rows(tmp_path / "out")
    os.kill(process.pid if rank is None else ranks[rank], number)
    err = ended(process, ExitCode.INTERRUPTED if rank is None else ExitCode.RUN_FAILED)
    assert err.count("error: ") == 1, err
    assert rank is None or f"rank {rank} was killed by SIGKILL" in err
    assert not [each for each in ranks if Path(f"/proc/{each}").exists()]
    found = bundle_in(tmp_path)
    assert found.record.status is (Status.INTERRUPTED if rank is None else Status.FAILED)
    assert len(found.steps()) >= written
    assert found.record.ranks is not None
    assert found.record.ranks.images
