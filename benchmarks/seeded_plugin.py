"""Part of seeded_faults.py that every Python process of a checkout with seeded faults loads when it starts.

A faulty place of the code asks `seeded_fault(NUMBER)` whether its fault is switched on. As a plugin of pytest, this
module notes which tests ask, or waits for jobs and runs each in a forked process, after all tests were collected.
"""

import builtins
import contextlib
import json
import os
import time
from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would slow each process down
# Tests replace functions of `os` and `time`.
write, seconds, environment = os.write, time.monotonic, os.environ


class State:
    """`on` is the number of the fault that is switched on, `test` the test that runs, `failed` has files of tests."""

    on = 0
    test = environment.get("SEEDED_TEST", "")
    asked: set[int] = set()  # noqa: RUF012 - one state for each process
    failed: set[str] = set()  # noqa: RUF012 - the same
    jobs, output = map(int, environment.pop("SEEDED_PIPES", "-1,-1").split(","))


def say(**message: Any) -> None:
    write(State.output, (json.dumps(message) + "\n").encode())


def is_on(number: int) -> bool:
    return number == State.on


def noted(number: int) -> bool:
    """Note once for each test that it asks; a child process belongs to the test that started it."""
    if number not in State.asked:
        State.asked.add(number)
        say(fault=number, test=State.test)
    return False


builtins.seeded_fault = is_on  # type: ignore[attr-defined]
with contextlib.suppress(FileNotFoundError), open(f"{FOLDER}/seeded_on") as _file:  # noqa: PTH123 - as above
    State.on = int(_file.read())
if os.path.exists(f"{FOLDER}/seeded_notes"):  # noqa: PTH110 - as above
    State.output = os.open(f"{FOLDER}/seeded_notes", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    builtins.seeded_fault = noted  # type: ignore[attr-defined]


def pytest_runtest_logstart(nodeid: str) -> None:
    State.test = environment["SEEDED_TEST"] = nodeid
    State.asked = set()
    if State.output >= 0:
        say(begun=nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    State.test = environment["SEEDED_TEST"] = ""
    if State.output >= 0:
        say(ended=nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    if report.failed:
        State.failed.add(report.nodeid.partition("::")[0])
    if State.output >= 0:
        say(part=report.nodeid, failed=report.failed, seconds=report.duration)


def pytest_collectreport(report: Any) -> None:
    if State.output >= 0 and report.failed:
        say(broken=report.nodeid)


def pytest_runtestloop(session: Any) -> bool | None:
    """Run the tests of each job in a child process, each file until one fails; only if we are given two pipes."""
    if State.jobs < 0:
        return None
    say(collected=[item.nodeid for item in session.items])
    with os.fdopen(State.jobs) as lines:
        for line in lines:
            job = json.loads(line)
            tests = set(job["tests"])
            chosen = [item for item in session.items if item.nodeid in tests]
            if not (child := os.fork()):
                try:
                    os.setsid()
                    State.on = job["fault"]
                    for item, following in zip(chosen, [*chosen[1:], None], strict=True):
                        if item.nodeid.partition("::")[0] not in State.failed:
                            session._setupstate.teardown_exact(item)  # noqa: SLF001 - fixtures of a file that failed
                            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
                finally:
                    os._exit(0)
            say(child=child)
            os.waitpid(child, 0)
            say(done=child)
    return True
