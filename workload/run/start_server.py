"""Start server: imports what our trainer needs, then forks each run that its client asks for.

It computes nothing, starts no thread of its own and never asks for CUDA: forks could use neither PyTorch's threads nor
a device that was opened before the fork. The client is `workload/contract/trainer.py`.
"""

import ctypes
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from workload.contract import process
from workload.contract.operating_system import SIGNALS
from workload.contract.process import LIFELINE
from workload.contract.trainer import Start, set_this_start

assert sys.platform == "linux"
# Modules that import all that a run of our trainer needs, and one that it uses if it is installed.
PRELOADED = ("workload.cli", "workload.run.train")
OPTIONAL = "fvcore.nn"
REQUEST_BYTES = 1 << 20
STREAMS = 3
# Option of prctl(2): the kernel sends this signal to a process whose parent ends.
PR_SET_PDEATHSIG = 1
# A fork that has not begun after this time hangs, for example in a lock that another thread of the server held.
BEGIN_LIMIT_MS = 5000


def serve(run: Callable[[], int]) -> NoReturn:
    """Fork runs until the client closes its socket, which is stdin. Each fork calls `run` and ends with its code."""
    # Signals from a terminal or to the process group are for the runs. A fork inherits the mask, as from `run_child`.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    client = socket.socket(fileno=os.dup(0))
    _connect(0, os.open(os.devnull, os.O_RDWR))
    # Collections take a quarter of the time to import; a run does without them too.
    gc.disable()
    for module in PRELOADED:
        importlib.import_module(module)
    with suppress(ImportError):
        importlib.import_module(OPTIONAL)
    gc.enable()
    with suppress(ConnectionError):
        while (received := socket.recv_fds(client, REQUEST_BYTES, STREAMS))[0]:
            _fork(client, json.loads(received[0]), received[1], run)
    # At its own end, Python would free all modules one by one, which takes seconds on a busy machine.
    os._exit(0)


def _fork(client: socket.socket, request: dict[str, Any], descriptors: Sequence[int], run: Callable[[], int]) -> None:
    """Fork a run, tell the client that it has begun, wait for its end, and tell the client its exit code."""
    server, (is_begun, begin) = os.getpid(), os.pipe()
    try:
        with warnings.catch_warnings():
            # Python warns of the threads of numpy's OpenBLAS, which ends them before a fork and starts them when used.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
    except OSError as error:
        client.send(json.dumps({"error": str(error)}).encode())
        return
    if child == 0:
        try:
            os.close(is_begun)
            client.close()
            _become_run(request, descriptors, server)
            os.write(begin, b"1")
            os.close(begin)
            process.end_quickly(run())
        except BaseException:  # noqa: BLE001 - no exception may return to the server's code
            sys.excepthook(*sys.exc_info())
            process.end_quickly(1)
        finally:
            os._exit(1)
    for descriptor in (*descriptors, begin):
        os.close(descriptor)
    poll = select.poll()
    poll.register(is_begun, select.POLLIN)
    has_begun = bool(poll.poll(BEGIN_LIMIT_MS)) and os.read(is_begun, 1) == b"1"
    os.close(is_begun)
    if not has_begun:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        client.send(json.dumps({"error": "a fork did not begin"}).encode())
        return
    pidfd = os.pidfd_open(child)
    socket.send_fds(client, [json.dumps({"pid": child}).encode()], [pidfd])
    os.close(pidfd)
    _, status = os.waitpid(child, 0)
    client.send(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode())


def _become_run(request: dict[str, Any], descriptors: Sequence[int], server: int) -> None:
    """Make this fork equal to a fresh child that `run_child` has started, as far as a run can tell."""
    import numpy as np  # noqa: PLC0415 - imported with torch, after the signals are blocked
    import torch  # noqa: PLC0415

    # A server that is killed leaves no run behind.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server:
        os._exit(1)
    for number, descriptor in enumerate(descriptors):
        _connect(number, descriptor)
    if request["apart"]:
        os.setpgid(0, 0)
    os.chdir(request["folder"])
    # The client compares all other variables with those of the server's start.
    os.environ[LIFELINE] = "stdin"
    sys.argv[1:] = request["words"]
    # A fresh child has random seeds, also PyTorch's on a CPU.
    random.seed()
    np.random.seed()  # noqa: NPY002 - the generator that libraries use
    torch.default_generator.seed()
    set_this_start(Start.FORKED)


def _connect(number: int, descriptor: int) -> None:
    os.dup2(descriptor, number)
    os.close(descriptor)
