"""Runs one job of rooflaunch on this machine and ends it at its time limit: `keeper.py JOB_FOLDER`.

remote.py copies this program into the job's folder and starts it in a session of its own. Python 3.8 or newer, standard
library only. The agent does the work. An agent that breaks off is started once more, to save the bundles.

When this process ends, it kills all remaining processes of the job, including those in sessions of their own. It finds
them by a control group, if this user may create one; as children, because orphans become children of this process (a
subreaper); and by the environment variable ROOFLAUNCH_JOB. If this process was killed, remote.py finds them by this
variable. Processes that could not be ended are named in the log.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

assert sys.platform != "win32"
# Wait for the job's processes to end, in seconds: once after SIGTERM, and once after SIGKILL.
KILLED_WITHIN_S = 5.0
# Most starts of an agent: after it breaks off, it is started once more, to save the bundles.
MOST_STARTS = 2
# Environment variable with the job's folder, inherited by every process of the job.
MARK = "ROOFLAUNCH_JOB"
PR_SET_CHILD_SUBREAPER = 36
SHOWN_COMMAND = 60


class Keeper:
    """Runner of one job; `job`: the settings that remote.py wrote."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.job: dict[str, Any] = json.loads((home / "job.json").read_text())
        self.end_s = time.monotonic() + self.job["limit_s"]
        self.must_end = False
        self.group = make_group(home.name)
        with suppress(OSError, AttributeError):  # not on Linux
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # Signals arrive as bytes in a pipe, so that waiting needs no polling while a run is measured.
        self.awake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.on_signal)

    def on_signal(self, number: int, _: object) -> None:
        """Handle a signal: SIGTERM and SIGINT request the job's end; SIGCHLD only wakes the main loop."""
        self.must_end = self.must_end or number != signal.SIGCHLD

    def run(self) -> None:
        """Run the job until each of its processes has ended."""
        now = datetime.now(timezone.utc)
        state: dict[str, Any] = {
            "pid": os.getpid(),
            "host": platform.node(),
            # The time of the job's first start, also if the job broke off and this start only saves its bundles.
            "created_s": self.job.get("created_s") or now.timestamp(),
            "container": self.job["container"],
            "boot": self.job.get("boot", ""),
            "group": self.group,
        }
        state["deadline_s"] = now.timestamp() + self.job["limit_s"] + self.job["grace_s"]
        new = self.home / "kept.json.new"
        new.write_text(json.dumps(state))
        new.replace(self.home / "kept.json")
        with (self.home / "phases").open("a") as phases:
            phases.write(f"booted {now.isoformat(timespec='milliseconds').replace('+00:00', 'Z')}\n")
        for _ in range(MOST_STARTS):
            code = self.run_agent()
            self.kill_rest()
            if code == 0 or time.monotonic() >= self.end_s:
                break
            say(f"the agent ended with exit code {code}")
        self.remove_uploaded_and_data()
        leave_group(self.group)

    def run_agent(self) -> int:
        """Run the agent until it ends, its time is up, or an end is requested. Returns the agent's exit code."""
        environment = {**os.environ, **self.job["environment"], MARK: str(self.home)}
        sources = (self.job["environment"], os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(
            variables["PYTHONPATH"] for variables in sources if variables.get("PYTHONPATH")
        )
        # The agent inherits the open lock files, so that a job whose keeper was killed still counts as running.
        lock_fds = self.job["held"]
        agent = subprocess.Popen(
            self.job["words"], stdin=subprocess.DEVNULL, env=environment, cwd=str(self.home), pass_fds=lock_fds
        )
        kill_s = self.end_s + self.job["grace_s"]
        is_terminated = False
        while agent.poll() is None and time.monotonic() < kill_s:
            if not is_terminated and (self.must_end or time.monotonic() >= self.end_s):
                is_terminated = True
                kill_s = min(kill_s, time.monotonic() + self.job["grace_s"])
                agent.terminate()
            self.wait((kill_s if is_terminated else self.end_s) - time.monotonic())
        if agent.poll() is None:
            say("the agent did not end and was killed")
            agent.kill()
        code = agent.wait()
        # After a requested end, an agent that exits is not started again; a killed agent is, so that it saves bundles.
        return 0 if self.must_end and code >= 0 else code

    def wait(self, most_s: float) -> None:
        """Wait for a signal, at most `most_s` seconds."""
        if select.select([self.awake], [], [], max(0.0, most_s))[0]:
            os.read(self.awake, 4096)

    def kill_rest(self) -> None:
        """Kill the remaining processes and containers of the job."""
        if self.job["container"]:
            listed = ["docker", "ps", "-aq", "--filter", f"volume={self.home}/results"]
            ids = subprocess.run(listed, stdout=subprocess.PIPE, check=False).stdout.decode().split()
            remove = ["docker", "rm", "-f", self.job["container"], *ids]
            subprocess.run(remove, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        until_s = time.monotonic() + KILLED_WITHIN_S
        number = signal.SIGTERM
        while processes := members(self.home, os.getpid(), self.group):
            if time.monotonic() >= until_s:
                if number == signal.SIGKILL:
                    say("could not be ended: " + "; ".join(map(named, processes)))
                    return
                number, until_s = signal.SIGKILL, time.monotonic() + KILLED_WITHIN_S
            for pid in processes:
                with suppress(OSError):  # the process has ended, or runs as another user
                    os.kill(pid, number)
            time.sleep(0.2)
            # Orphans have become our children, so we must wait for them.
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass

    def remove_uploaded_and_data(self) -> None:
        """Remove the job's bundles that are already in the store, and the data downloaded for this job."""
        with suppress(OSError):
            for run_id in (self.home / "uploaded").read_text().split():
                shutil.rmtree(self.home / "results" / Path(run_id).name, ignore_errors=True)
        shutil.rmtree(self.home / "data", ignore_errors=True)


def make_group(name: str) -> str:
    """Create a control group (version 2) below this process's own and enter it. Returns its path; empty if refused."""
    try:
        own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        group = Path(next(mount[1] for mount in mounts if mount[2] == "cgroup2") + own) / name
        group.mkdir(exist_ok=True)
        (group / "cgroup.procs").write_text("0")
    except (OSError, StopIteration):
        return ""
    return str(group)


def leave_group(group: str) -> None:
    """Move this process out of its control group, and remove the group if it is empty."""
    if group:
        with suppress(OSError):
            (Path(group).parent / "cgroup.procs").write_text("0")
            Path(group).rmdir()


# remote.py of any version calls `members` and `named` of the keeper.py that started a job: keep their names.
def members(home: Path, keeper: int, group: str) -> list[int]:
    """Living processes of a job, except its keeper, whatever their session; empty without /proc."""
    in_group = set()
    with suppress(OSError):
        in_group = set((Path(group) / "cgroup.procs").read_text().split()) if group else set()
    parents, found = {}, set()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            text = (path / "stat").read_text(errors="replace")
            state, parent, _, session = text[text.rindex(")") + 2 :].split()[:4]
            if state not in "ZX":
                parents[int(path.name)] = int(parent)
                if path.name in in_group or int(session) == keeper or mark_of(path) == str(home):
                    found.add(int(path.name))
    found.add(keeper)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted((found & set(parents)) - {keeper})


def mark_of(process: Path) -> str:
    """Job folder in a process's variable ROOFLAUNCH_JOB; empty without the variable, or for another user's process."""
    with suppress(OSError):
        is_own = process.stat().st_uid == os.getuid()  # root can also read what other users have put there
        for variable in (process / "environ").read_bytes().split(b"\0") if is_own else ():
            if variable.startswith(MARK.encode() + b"="):
                return os.fsdecode(variable.partition(b"=")[2])
    return ""


def named(pid: int) -> str:
    """Text by which a person can identify a process: its number and the start of its command."""
    words = b""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    return f"{pid} {words.decode(errors='replace')[:SHOWN_COMMAND]}".strip()


def say(text: str) -> None:
    """Print a line to the log; ignore errors, such as a full disk."""
    with suppress(OSError):
        os.write(sys.stdout.fileno(), (text + "\n").encode())


if __name__ == "__main__":
    Keeper(Path(sys.argv[1])).run()
