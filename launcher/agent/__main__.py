"""Agent on a rented machine: `python -m launcher.agent HOME [ROOT]` does the launch whose folder is HOME.

In a container, HOME is mounted at its own path, and the machine's root at ROOT. The exit code is 0 once the launch's
result is in its store, even if the run failed. A second start saves what is left, or has nothing to do. While another
agent works on the launch, this one waits.
"""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TextIO, cast

from launcher.agent import agent
from launcher.agent.agent import Agent
from launcher.agent.home import Home, host_facts_of
from launcher.agent.lease import Stop, Why, take
from launcher.protocol import records
from launcher.protocol.records import Request
from workload.contract import further
from workload.contract.errors import ExitCode, RooflaunchError
from workload.contract.process import TolerantStream, handled_by
from workload.storage.address import open_store
from workload.storage.inventory import PATIENCE


def main(words: Sequence[str]) -> int:
    """Do the launch, and return the exit code."""
    home, root = Path(words[0]), Path(words[1]) if len(words) > 1 else agent.ROOT
    try:
        host = host_facts_of(home)
        request = Request.from_bytes(host.request())
        own = records.request_object(request.name).rpartition("/")[0]
        store = open_store(request.store, probe=f"{own}/", jobs=3, patience=PATIENCE)
        stop = Stop()
        with handled_by(lambda *_: stop.ask(Why.ASKED)):
            lease = take(store, request.name, now=time.time, wait=stop.is_asked, after_end=Home(path=home).only_saves())
            if lease is None:
                return ExitCode.DONE
            try:
                with further.kept():
                    Agent(request, host, store, home, root=root, stop=stop, is_lost=lease.is_lost).work()
            finally:
                lease.release()
    except RooflaunchError as error:
        print(error.report(), file=sys.stderr, flush=True)
        return error.exit_code
    return ExitCode.DONE


if __name__ == "__main__":
    # A full disk under the log must not end a run.
    with (
        redirect_stdout(cast("TextIO", TolerantStream(sys.stdout))),
        redirect_stderr(cast("TextIO", TolerantStream(sys.stderr))),
    ):
        code = main(sys.argv[1:])
        sys.stdout.flush()
    # Exit without joining the threads, which may wait for an answer that never comes.
    os._exit(code)
