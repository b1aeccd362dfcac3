"""Requests of `launch ssh` to another machine: sent over the connection, and run by the machine's python3.

Python 3.8 or newer, standard library only. Our folder on the machine (`~/.rooflaunch`) contains:

    code/<hash>/       our code, once for each version of it
    jobs/<name>/       one job: its request, its state, and its bundles until they are in the store
    launches/, runs/   the store: records and bundles
    busy-<host>        lock file, held by the job that runs on this host

A job counts as running while its keeper or its agent holds a lock. The system releases the lock when both have ended.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import platform
import runpy
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

assert sys.platform != "win32"
TOOL_LIMIT_S = 30
SOCKET = Path("/var/run/docker.sock")
# Try a lock repeatedly, because a process that tests the lock holds it for a moment.
LOCK_TRIES, LOCK_AGAIN_S = 20, 0.05
# A keeper records its job's start within this time.
STARTED_WITHIN_S = 20.0
# A process for the ranks of a further machine listens within this time.
LISTENS_WITHIN_S = 30.0
# Seconds to wait for a job's end: after the agent's grace period, for the keeper to kill the job's other processes; and
# after SIGKILL. The third number: seconds between two checks whether the job has ended.
CLEARED_WITHIN_S, KILLED_WITHIN_S, LOOK_EVERY_S = 12.0, 5.0, 0.2
MOST_OUTPUT_BYTES = 1 << 20
# Size of the file that is written to test whether the disk is full.
ROOM_BYTES = 1 << 16
# For an agent that only saves the bundles of a broken-off job: its time limit in seconds, the most seconds that a
# request waits for it, its most starts, and the fewest seconds between two starts.
SAVING_LIMIT_S, SAVED_WITHIN_S, MOST_TRIES, TRIED_AGAIN_S = 600, 25.0, 5, 30.0
JOB_SETTINGS = ("words", "environment", "container", "limit_s", "grace_s")
PROBE = """
import importlib.metadata, json, sys
facts = {"path": sys.executable, "version": list(sys.version_info[:3])}
for name in ("torch", "torchvision", "numpy", "psutil"):
    try:
        facts[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        facts[name] = ""
print(json.dumps(facts))
"""
# Environment variable that keeper.py sets for the processes of its job.
MARK = b"ROOFLAUNCH_JOB="
# Invalid process number, in place of an unknown one.
NOBODY = -1
GPU_FIELDS = "name,compute_cap,driver_version,memory.total"


def main(question: dict[str, Any], payload: BinaryIO) -> tuple[dict[str, Any], Iterable[bytes]]:
    """Answer one request (`question`). Every answer has the time by this machine's clock."""
    root = Path(question["root"]).expanduser()
    blocks: Iterable[bytes] = ()
    do = question["do"]
    if do == "facts":
        answer = facts(root, question)
    elif do == "code":
        answer = put_code(root, question, payload)
    elif do == "image":
        answer = {"id": image(question["image"])}
    elif do == "build":
        answer = build(root, question)
    elif do == "start":
        answer = start(root, question)
    elif do == "port":
        answer = {"port": port(root / "jobs" / question["name"])}
    elif do == "look":
        answer = {"jobs": look(root, question["names"])}
    elif do == "stop":
        answer = {"stopped": {name: stop(root / "jobs" / name, question["grace_s"]) for name in question["names"]}}
    else:
        answer, blocks = output(root, question)
    return {"now_s": time.time(), **answer}, blocks


# Facts of the machine.


def facts(root: Path, question: dict[str, Any]) -> dict[str, Any]:
    """Facts that decide whether and how this machine can run a job. First saves bundles of broken-off jobs."""
    jobs = root / "jobs"
    save(root, sorted(jobs.iterdir()) if jobs.is_dir() else [])
    existing = next(folder for folder in (root, *root.parents) if folder.is_dir())
    return {
        "root": str(root),
        "host": platform.node(),
        "cpus": os.cpu_count(),
        "user": f"{os.getuid()}:{os.getgid()}",
        "free_bytes": shutil.disk_usage(existing).free,
        "is_writable": os.access(existing, os.W_OK),
        "gpus": gpus(),
        "docker": docker(question["labels"]),
        "site": site(question["python"]),
        "has_code": (root / "code" / question["code"]).is_dir(),
        # Of the end of this connection: other machines of the same network reach this one there too.
        "address": (os.environ.get("SSH_CONNECTION", "") + " - - -").split()[2],
    }


def tool(*words: str) -> str:
    """Output of a program; empty if it is absent, fails or hangs."""
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=TOOL_LIMIT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""


def gpus() -> list[list[str]]:
    """Name, compute capability, driver and memory of each GPU that the driver shows."""
    lines = tool("nvidia-smi", "--query-gpu=" + GPU_FIELDS, "--format=csv,noheader").splitlines()
    return [[cell.strip() for cell in line.split(",")] for line in lines if line.count(",") == GPU_FIELDS.count(",")]


def docker(labels: list[list[str]]) -> dict[str, Any]:
    """The engine's version, and for each set of labels the newest image that has them; empty without an engine."""
    version = tool("docker", "version", "--format", "{{.Server.Version}}")
    if not version:
        return {"version": "", "is_installed": shutil.which("docker") is not None, "images": []}
    images = []
    for wanted in labels:
        filters = [word for label in wanted for word in ("--filter", "label=" + label)]
        images.append((tool("docker", "images", "--quiet", "--no-trunc", *filters).splitlines() or [""])[0])
    runtimes = tool("docker", "info", "--format", "{{json .Runtimes}}")
    group = SOCKET.stat().st_gid if SOCKET.exists() else 0
    has_gpus = "nvidia" in runtimes
    return {"version": version, "is_installed": True, "images": images, "has_gpus": has_gpus, "group": group}


def image(name: str) -> str:
    """Id of an image, pulled if the engine lacks it; empty if that fails."""
    inspect = ("docker", "image", "inspect", "--format", "{{.Id}}", name)
    known = tool(*inspect)
    if known:
        return known
    subprocess.run(
        ["docker", "pull", "--quiet", name], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False
    )
    return tool(*inspect)


def site(python: str) -> dict[str, Any]:
    """Versions of the trainer's packages in `python` (a name or a path); `error`: why this Python cannot be used."""
    path = shutil.which(os.path.expanduser(python))  # noqa: PTH111 - a name or a path
    if path is None:
        return {"error": "this program does not exist"}
    try:
        done = subprocess.run([path, "-c", PROBE], capture_output=True, timeout=TOOL_LIMIT_S, cwd="/", check=False)
        return dict(json.loads(done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return {"error": str(error)}


# Code and images.


def put_code(root: Path, question: dict[str, Any], payload: BinaryIO) -> dict[str, Any]:
    """Unpack our code, completely or not at all. Does nothing if the folder of this version exists."""
    folder = root / "code" / question["code"]
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.parent.mkdir(exist_ok=True)
    if folder.is_dir():
        return {}
    content = payload.read(question["size"])
    if len(content) != question["size"]:
        raise OSError("the connection broke while our code was sent")
    new = folder.with_name(f".{folder.name}-{os.getpid()}")
    shutil.rmtree(new, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for entry in archive:
            path = new / entry.name
            path.parent.mkdir(parents=True, exist_ok=True)
            source = archive.extractfile(entry)
            path.write_bytes(source.read() if source else b"")
    try:
        new.rename(folder)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        if not folder.is_dir():
            raise
    return {}


def build(root: Path, question: dict[str, Any]) -> dict[str, Any]:
    """Build an image from the code that was sent. Key `last` of the answer: last output lines of the build."""
    context = str(root / "code" / question["code"])
    with (root / "build.log").open("wb") as log:
        words = ["docker", "build", "--file", context + "/docker/Dockerfile", *question["words"], context]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False)
    lines = (root / "build.log").read_text(errors="replace").splitlines()
    return {"code": done.returncode, "last": lines[-15:], "log": str(root / "build.log")}


# Start and state of a job.


def try_lock(path: Path) -> IO[str] | None:
    """Open the file and lock it; None if another process holds the lock."""
    file = path.open("a+")
    for _ in range(LOCK_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        time.sleep(LOCK_AGAIN_S)
    file.close()
    return None


def is_locked(path: Path) -> bool:
    """Whether a process now holds the lock on the file `path`."""
    if not path.exists():
        return False
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def start(root: Path, question: dict[str, Any]) -> dict[str, Any]:
    """Start a job, unless it was started before; return its state, or `busy` with the name of a job that runs."""
    name = question["name"]
    home = root / "jobs" / name
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The request and the files of a script may contain secrets.
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = try_lock(home / "lock")
    if lock is None or (home / "kept.json").exists():
        if lock is not None:
            lock.close()
        return {"job": job_of(home)}
    busy_path = root / ("busy-" + platform.node())
    busy = try_lock(busy_path)
    if busy is None:
        return {"busy": busy_path.read_text()}
    busy.truncate(0)
    busy.write(name)
    busy.flush()
    (home / "request.json").write_text(question["request"])
    (home / "keeper.py").write_text(question["keeper"])
    for file, text in question.get("files", {}).items():
        (home / file).touch(mode=0o600)
        (home / file).write_text(text)
    start_keeper(root, home, {name: question[name] for name in JOB_SETTINGS}, lock, busy)
    until_s = time.monotonic() + STARTED_WITHIN_S
    while time.monotonic() < until_s and not (home / "kept.json").exists():
        time.sleep(LOCK_AGAIN_S)
    return {"job": job_of(home)}


def port(home: Path) -> int:
    """Port at which the job's process listens (launcher/agent/further.py); 0 if it does not listen in time."""
    until_s = time.monotonic() + LISTENS_WITHIN_S
    while time.monotonic() < until_s and not (home / "port").exists() and is_locked(home / "lock"):
        time.sleep(LOCK_AGAIN_S)
    return int((home / "port").read_text()) if (home / "port").exists() else 0


def start_keeper(root: Path, home: Path, job: dict[str, Any], lock: IO[str], busy: IO[str]) -> None:
    """Start a job's keeper, a process that takes over the locks on the files `lock` and `busy`."""
    locks = [lock.fileno(), busy.fileno()]
    new = home / "job.json.new"
    new.write_text(json.dumps({**job, "held": locks, "boot": boot_id()}))
    new.replace(home / "job.json")
    log = root / "launches" / home.name / "startup.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as printed:
        subprocess.Popen(
            [sys.executable, "-I", str(home / "keeper.py"), str(home)],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=locks,
            cwd=str(home),
        )
    lock.close()
    busy.close()


def boot_id() -> str:
    """Kernel's id of the current boot; empty if the kernel shows no such id."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def job_of(home: Path, living: frozenset[str] | None = None) -> dict[str, Any]:
    """State of the job in the folder `home`; empty if no job was started there.

    `living`: result of `homes_with_processes`, if known already.
    """
    try:
        state = json.loads((home / "kept.json").read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(state, dict):
        return {}
    is_running = is_locked(home / "lock") or str(home) in (homes_with_processes() if living is None else living)
    with suppress(OSError):
        is_running = is_running or bool(state.get("group") and (Path(state["group"]) / "cgroup.procs").read_text())
    return {**state, "name": home.name, "is_running": is_running, "why": "" if is_running else why_gone(home, state)}


def why_gone(home: Path, state: dict[str, Any]) -> str:
    """Why an ended job may have left no result; empty if unknown."""
    reasons = []
    try:
        with tempfile.TemporaryFile(dir=str(home)) as room:
            room.write(b"x" * ROOM_BYTES)
            room.flush()
            os.fsync(room.fileno())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reasons.append(
                f"{error.strerror} in {home}; when there is free space, launch status stores the results of the job"
            )
    with suppress(OSError, ValueError):
        reasons.append(str(json.loads((home / "ended.json").read_text()).get("error", "")))
    if state.get("boot", "") not in ("", boot_id()):
        reasons.append("the machine was restarted meanwhile")
    return "; ".join(filter(None, reasons))


def look(root: Path, names: list[str] | None) -> list[dict[str, Any]]:
    """State of these jobs; jobs that were never started are left out. First saves bundles of broken-off jobs.

    `names` None: every job that runs.
    """
    every = sorted((root / "jobs").iterdir()) if (root / "jobs").is_dir() else []
    save(root, every if names is None else [root / "jobs" / name for name in names])
    if names is None:
        living = homes_with_processes()
        return [job for job in (job_of(home, living) for home in every) if job and job["is_running"]]
    return [job for job in (job_of(root / "jobs" / name) for name in names) if job]


def homes_with_processes() -> frozenset[str]:
    """Folders of the jobs with a living process of this user: each process has its job's folder in its environment."""
    homes: set[str] = set()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # root can also read what other users have put there.
            is_own = path.stat().st_uid == os.getuid()
            variables = (path / "environ").read_bytes().split(b"\0") if is_own else []
            homes.update(os.fsdecode(text[len(MARK) :]) for text in variables if text.startswith(MARK))
    return frozenset(homes)


# Jobs that were broken off by a restart of the machine, a full disk or a signal.


def save(root: Path, homes: list[Path]) -> None:
    """Start the agents of broken-off jobs again, to store the remaining bundles and to record how the jobs ended.

    Waits at most `SAVED_WITHIN_S` seconds for all agents together. Ignores errors, such as a disk that is still full.
    """
    until_s = time.monotonic() + SAVED_WITHIN_S
    for home in homes:
        with suppress(OSError, ValueError):
            if time.monotonic() < until_s and has_unsaved(home) and resume(root, home):
                while time.monotonic() < until_s and is_locked(home / "lock"):
                    time.sleep(LOOK_EVERY_S)


def has_unsaved(home: Path) -> bool:
    """Whether the job ran on this machine, runs no more, and has a bundle that is not in the store."""
    stored = (home / "uploaded").read_text().split() if (home / "uploaded").exists() else []
    if all(path.parent.name in stored for path in home.glob("results/*/run.json")):
        return False
    return json.loads((home / "kept.json").read_text())["host"] == platform.node() and not is_locked(home / "lock")


def resume(root: Path, home: Path) -> bool:
    """Start the agent of a broken-off job, to save the job's bundles.

    Returns False if another job runs on this machine, or after too many or too recent attempts.
    """
    counter = home / "saving"
    starts = len(counter.read_text()) if counter.exists() else 0
    if starts >= MOST_TRIES or (starts and time.time() - counter.stat().st_mtime < TRIED_AGAIN_S):
        return False
    lock, busy = try_lock(home / "lock"), try_lock(root / ("busy-" + platform.node()))
    try:
        if lock is None or busy is None:
            return False
        counter.write_text("x" * (starts + 1))
        (home / "room").write_bytes(b"x" * ROOM_BYTES)
        (home / "room").unlink()
        job, state = (json.loads((home / name).read_text()) for name in ("job.json", "kept.json"))
        start_keeper(root, home, {**job, "limit_s": SAVING_LIMIT_S, "created_s": state["created_s"]}, lock, busy)
        return True
    finally:
        for file in (lock, busy):
            if file is not None:
                file.close()


def output(root: Path, question: dict[str, Any]) -> tuple[dict[str, Any], Iterable[bytes]]:
    """New log output of a running job from byte `start` on, in whole lines; empty once the job has ended.

    After the end, the store has the whole log.
    """
    content = b""
    if is_locked(root / "jobs" / question["name"] / "lock"):
        with (root / "launches" / question["name"] / "startup.log").open("rb") as log:
            log.seek(question["start"])
            content = log.read(MOST_OUTPUT_BYTES)
    if len(content) < MOST_OUTPUT_BYTES:
        content = content[: content.rfind(b"\n") + 1]
    return {"bytes": len(content)}, [content]


# End of a job.


def stop(home: Path, grace_s: float) -> str:
    """End a job: first SIGTERM, then SIGKILL. Returns why the job's end is not confirmed; empty if confirmed."""
    job = job_of(home)
    if not job or not job["is_running"]:
        return ""
    if job["host"] != platform.node():
        return f"the job runs on {job['host']}, and this machine is {platform.node()}"
    has_keeper = is_locked(home / "lock")
    for number, within_s in ((signal.SIGTERM, grace_s + CLEARED_WITHIN_S), (signal.SIGKILL, KILLED_WITHIN_S)):
        # If the keeper is alive, signal only the keeper: it ends the job's other processes.
        only_keeper = number == signal.SIGTERM and has_keeper and session_of(job["pid"]) == job["pid"]
        for pid in [job["pid"]] if only_keeper else processes_of(home, job, has_keeper=has_keeper):
            with suppress(OSError):  # the process has ended, or runs as another user
                os.kill(pid, number)
        if number == signal.SIGKILL:
            remove_containers(home, job["container"])
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            if not is_locked(home / "lock") and not processes_of(home, job, has_keeper=has_keeper):
                return ""
            time.sleep(LOOK_EVERY_S)
    name = definitions_of_keeper(home).get("named", str)
    return "it is still there: " + "; ".join(name(pid) for pid in processes_of(home, job, has_keeper=has_keeper))


def definitions_of_keeper(home: Path) -> dict[str, Any]:
    """Names defined in the job's own keeper.py, which knows how to find the processes of its job; {} if unreadable."""
    with suppress(OSError):
        return runpy.run_path(str(home / "keeper.py"))
    return {}


def processes_of(home: Path, job: dict[str, Any], *, has_keeper: bool) -> list[int]:
    """Living processes of a job. `has_keeper`: its keeper's process number still belongs to the keeper."""
    found = set(processes_in(job["pid"]) if has_keeper else [])
    members = definitions_of_keeper(home).get("members")
    if members and job.get("host") == platform.node():
        found.update(members(home, job["pid"] if has_keeper else NOBODY, job.get("group", "")))
    return sorted(found)


def remove_containers(home: Path, name: str) -> None:
    """Remove the containers of a job, the agent's and the trainer's; `name` is empty for a job without them."""
    if name:
        of_trainers = tool("docker", "ps", "-aq", "--filter", f"volume={home}/results").split()
        tool("docker", "rm", "-f", name, *of_trainers)


def processes_in(session: int) -> list[int]:
    """Process numbers of a session's living processes."""
    if Path("/proc/self/stat").exists():
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    else:
        pids = [int(line) for line in tool("ps", "-A", "-o", "pid=").split()]
    return [pid for pid in pids if session_of(pid) == session]


def session_of(pid: int) -> int:
    """Session number of a living process; 0 for a process that has ended."""
    try:
        if os.path.exists("/proc/self/stat"):  # noqa: PTH110 - asked for every process
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            state, _, _, session = text[text.rindex(")") + 2 :].split()[:4]
            return 0 if state in "ZX" else int(session)
        return os.getsid(pid)
    except (OSError, ValueError):
        return 0
