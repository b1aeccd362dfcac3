"""Scripts with their own threads, processes and signals end with a clear message and a complete bundle."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.workload.script_stage import measured
from workload.contract import bundle

LOOP = """
import multiprocessing, os, signal, sys, threading, time, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = TensorDataset(torch.ones(160, 4))
def train(loader=None):
    for number, (x,) in enumerate(loader or DataLoader(data, 4)):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield number
"""
DONE = "  next          "


@dataclass(frozen=True, kw_only=True)
class Case:
    """`text`: code after `LOOP`; `message`, `note`: beginnings of one of our messages and of a note in the bundle."""

    text: str
    code: int = 0
    out: str = ""
    status: str | None = "completed"
    message: str = DONE
    note: str = ""
    daily: bool = False
    deterministic: bool = False


CASES = {
    "gradients that are too small": Case(
        text="""
for (x,) in DataLoader(data, 4):
    optimizer.zero_grad()
    (model(x).sum() * 1e-40).backward()
    optimizer.step()
""",
        note="100 % of the gradients are subnormal numbers, below 1.2e-38, with which a CPU computes several times",
    ),
    "trains in a thread, with another one beside it": Case(
        text="""
stop = threading.Event()
def watch():
    while not stop.wait(0.01): torch.ones(8, 8) @ torch.ones(8, 8)
watching = threading.Thread(target=watch); watching.start()
thread = threading.Thread(target=lambda: list(train())); thread.start(); thread.join()
stop.set(); watching.join(); print('well')
""",
        out="well\n",
        daily=True,
    ),
    "trains in two threads": Case(
        text="""
lock = threading.Lock()
def steps():
    for (x,) in DataLoader(data, 4):
        with lock:
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        time.sleep(0.01)
threads = [threading.Thread(target=steps) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
        code=2,
        status=None,
        message="hint: train in one thread",
    ),
    "deterministic algorithms": Case(
        text="torch.use_deterministic_algorithms(True)\nlist(train())", deterministic=True
    ),
    "its own SIGTERM": Case(
        text="""
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
for number in train():
    if number == 12: os.kill(os.getpid(), signal.SIGTERM)
    if stopped: print('saved', flush=True); break
""",
        out="saved\n",
        note="the script ended after 4 of 5 measured steps",
        daily=True,
    ),
    "its own SIGTERM that exits": Case(
        text="""
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
for number in train():
    if number == 12: os.kill(os.getpid(), signal.SIGTERM)
""",
        code=7,
        status="failed",
        message="error: script.py ended with exit code 7 after ",
    ),
    "catches Ctrl-C": Case(
        text="""
try:
    for number in train():
        if number == 12: os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt: print('saved', flush=True)
""",
        out="saved\n",
        note="the script ended after 4 of 5 measured steps",
    ),
    **{
        f"does not catch {name}": Case(
            text=f"""
for number in train():
    if number == 12: os.kill(os.getpid(), signal.{signal})
""",
            code=130,
            status="interrupted",
            message=f"error: interrupted by {name}",
        )
        for signal, name in (("SIGINT", "Ctrl-C"), ("SIGTERM", "SIGTERM"))
    },
    "a signal while its traceback is written": Case(
        text="""
class Broken:
    def write(self, text): os.kill(os.getpid(), signal.SIGTERM)
    def flush(self): pass
# Its hook fails, so that Python's own traceback follows.
sys.excepthook = lambda *_: 1 / 0
for number in train():
    if number == 12: sys.stderr = Broken(); raise ValueError("broken")
""",
        code=130,
        status="interrupted",
        message="error: interrupted by SIGTERM",
        daily=True,
    ),
    "persistent workers that are spawned": Case(
        text="""
if __name__ == '__main__':
    loader = DataLoader(data, 4, num_workers=1, persistent_workers=True, multiprocessing_context='spawn')
    for _ in range(3): list(train(loader))
"""
    ),
    "a fork that ends as Python does": Case(
        text="""
for number in train():
    if number == 10 and os.fork() == 0: sys.exit(3)
    if number == 10: print(os.WEXITSTATUS(os.wait()[1]), flush=True)
""",
        out="3\n",
        daily=True,
    ),
    "trains in a process of its own": Case(
        text="""
child = multiprocessing.get_context('fork').Process(target=lambda: list(train())); child.start(); child.join()
""",
        code=6,
        status=None,
        message="hint: name the script that trains. One that starts its own training processes",
    ),
    # No two steps do the same work: counting gives up after some.
    "batches that all differ": Case(
        text="list(train(DataLoader(data, batch_sampler=[range(4 + number) for number in range(60)])))", daily=True
    ),
}


@pytest.mark.world
@pytest.mark.skipif(sys.platform == "darwin", reason="copies a process that has loaded torch")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if case.daily else pytest.mark.night(part="scripts")) for name, case in CASES.items()],
)
def test_a_script_with_ways_of_its_own(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    script = tmp_path / "script.py"
    script.write_text(LOOP + case.text)
    ran = measured(tmp_path / "run", script, options=("--warmup", "2", "--iterations", "5"))
    assert (ran.code, ran.out) == (case.code, case.out), ran.err
    lines = ran.err.splitlines()
    assert any(line.startswith(case.message) for line in lines), ran.err
    assert "bug in rooflaunch" not in ran.err
    if case.status is None:
        assert ran.record is None
        return
    assert ran.folder is not None
    record = bundle.read(ran.folder).record
    assert record.status == case.status
    assert any(note.startswith(case.note) for note in (*(record.notes or ()), ""))
    assert record.spec.deterministic is case.deterministic
    steps = [row["phase"] for row in bundle.read(ran.folder).steps()]
    assert steps.count("warmup") == 2
    assert (
        steps.count("measured") == 5 if case.status == "completed" and not case.note else steps.count("measured") >= 3
    )
