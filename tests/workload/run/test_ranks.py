"""Real runs of two ranks on a CPU: their one bundle, a rank that is slower, and ranks that are killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.waiting import until
from workload.contract import bundle
from workload.contract.errors import ExitCode
from workload.contract.record import Record, Status

pytestmark = [
    pytest.mark.world,
    pytest.mark.slow,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="each rank needs a CPU"),
]

TINY = [*("--cpu", "--devices", "2", "--image-size", "32", "--batch-size", "2", "--warmup", "1"), "--no-ceilings"]

# torchrun ends the other ranks by SIGTERM once a rank has failed; here while this rank writes its error down.
INTERRUPTED_NOTE = """
import os, pathlib, signal, sys
from workload.contract.process import stoppable
from workload.run import ranks

opened = pathlib.Path.open

def open_and_interrupt(path, *arguments, **options):
    file = opened(path, *arguments, **options)
    os.kill(os.getpid(), signal.SIGTERM)
    return file

pathlib.Path.open = open_and_interrupt
with stoppable(), ranks.noted(pathlib.Path(sys.argv[1])):
    raise ValueError("no more data")
"""


def started(folder: Path, *words: str, **variables: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-P", "-m", "workload", "train", *TINY, *words, "-o", str(folder)]
    environment = {**os.environ, **variables}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def process_of(rank: int, starter: int) -> int | None:
    """Process id of a rank that `starter` has started; None if it is not there."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            variables = stat.with_name("environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == starter and b"RANK=%d" % rank in variables:
            return int(stat.parent.name)
    return None


def rows(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") - 1 for path in folder.glob("*/steps.csv"))


# Writes a pickle over each value of the stores of torch at some ports. Whoever loads the pickle makes a folder.
ATTACK = """
import base64, os, pickle, sys, threading
from torch.distributed import TCPStore

class Malicious:
    def __reduce__(self):
        return os.mkdir, (sys.argv[1],)

def attack(port):
    store = TCPStore("127.0.0.1", port, is_master=False)
    for key in store.list_keys():
        store.set(key, base64.b64encode(pickle.dumps(Malicious())))
        print(key, flush=True)

threads = [threading.Thread(target=attack, args=[int(port)], daemon=True) for port in sys.argv[2:]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(5)  # other ports than a store's do not answer
os._exit(0)
"""


def assert_bundle_of_two_ranks(found: bundle.Bundle, *, images: int) -> Record:
    """Check the files and figures of a run of six steps; `images`: those of rank 0."""
    names = {file.name for file in found.files}
    assert {"steps.csv", "ranks/0/collectives.csv", "ranks/1/collectives.csv", "ranks/1/steps.csv"} <= names
    record, ranks = found.record, found.record.ranks
    assert (record.status, record.spec.devices, record.environment.device.threads) == (Status.COMPLETED, 2, 1)
    assert ranks is not None
    assert (ranks.number, ranks.backend, list(ranks.steps or ()), ranks.images) == (2, "gloo", [6, 6], 2 * images)
    assert record.timing.images == images, "rank 0's, as in steps.csv"
    assert ranks.images_per_s == pytest.approx(2 * (record.timing.images_per_s or 0))
    assert all(seconds > 0 for seconds in ranks.exposed_s or ())
    return record


def test_two_ranks_write_one_bundle(tmp_path: Path) -> None:
    process = started(tmp_path / "out", "--iterations", "6")
    out, err = process.communicate()
    assert process.returncode == ExitCode.DONE, err
    assert_bundle_of_two_ranks(bundle.read(Path(out.strip())), images=12)


def test_a_pickle_that_another_user_writes_into_a_store_of_the_ranks_is_not_loaded(tmp_path: Path) -> None:
    process = started(tmp_path / "out", "--iterations", "100000")
    until(lambda: rows(tmp_path / "out") >= 8)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    open_at = {
        each.laddr for member in family for each in member.net_connections() if each.status == psutil.CONN_LISTEN
    }
    words = [str(tmp_path / "trap"), *(str(address.port) for address in open_at)]
    attacker = subprocess.run([sys.executable, "-P", "-c", ATTACK, *words], capture_output=True, text=True, check=False)
    assert attacker.stdout, attacker.stderr
    written = rows(tmp_path / "out")
    until(lambda: process.poll() is not None or rows(tmp_path / "out") > written + 100)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert not (tmp_path / "trap").exists()
    assert {address.ip for address in open_at} == {"127.0.0.1"}
    assert process.returncode == ExitCode.INTERRUPTED, err


def test_a_signal_leaves_the_whole_error_of_a_rank(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", INTERRUPTED_NOTE, str(tmp_path)]
    subprocess.run(command, env={**os.environ, "RANK": "1"}, capture_output=True, check=False)
    (note,) = tmp_path.iterdir()
    assert json.loads(note.read_text())["message"] == "rank 1 ended with a traceback: no more data"


def test_a_rank_killed_before_the_first_step(tmp_path: Path) -> None:
    process = started(tmp_path / "out", "--iterations", "100000")
    until(lambda: process_of(1, process.pid) is not None)
    os.kill(process_of(1, process.pid) or 0, signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode == ExitCode.RUN_FAILED
    assert "error: rank 1 was killed by SIGKILL" in err
    assert bundle.read(Path(out.strip())).record.status is Status.FAILED


def test_more_ranks_than_cpus(tmp_path: Path) -> None:
    number = len(os.sched_getaffinity(0)) + 1
    process = started(tmp_path / "out", "--devices", str(number))
    _, err = process.communicate()
    assert process.returncode == ExitCode.USAGE
    assert err.startswith("error: --devices must be at most the number of usable CPUs, ")
    assert not (tmp_path / "out").exists()
