"""Requests of `launch slurm` to a login node: called on that machine, or sent over ssh and run by its python3.

Python 3.8 or newer, standard library only. Our folder, which the login node shares with the compute nodes, contains:

    arrays/<array>/    one job array: script.sh, `elements` (one launch per line; the first is element 1), `job`
                       (Slurm's job number), `check` (job number of the check that the array waits for), and
                       <element>.log, which is the launch's own log
    jobs/<name>/       one launch: `element` (name of the array, and the element's number), and the agent's files
    checks/            what a compute node saw of this folder
    launches/, runs/   the store: records and bundles

An array is named after its first launch, also in Slurm, so that an array submitted by a launcher that was killed can be
found again by name.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

assert sys.platform != "win32"
# Limit for one program: Slurm's controller answers late when it is busy.
TOOL_LIMIT_S = 50
# Exit code of `tool` for a program that was ended at the limit, as timeout(1) has it.
TOO_SLOW = 124
# Messages of sbatch after a lost answer: the controller may accept the job even later, within SEARCH_S.
LOST_ANSWER = re.compile("timed out|Zero Bytes|no answer within")
SEARCH_S = 15.0
# Most arrays in one call of `sacct`.
MOST_JOBS = 200
MOST_OUTPUT_BYTES = 1 << 20
LOOK_EVERY_S = 0.3
NAME = re.compile(r"rooflaunch-[a-z0-9-]{1,51}[a-z0-9]")
SQUEUE = "%j|%F|%K|%T|%P|%N|%V|%S|%e|%r"
SACCT = "JobName,JobID,State,Partition,NodeList,Submit,Start,End"
SINFO = "%P|%a|%l|%D|%G|%f|%m|%T"
NO_ACCOUNTING = "accounting storage is disabled"
# Fields of an element of an array, as `queue` and `ended` return them.
FIELDS = ("array", "array_job", "index", "state", "partition", "node", "submitted", "started", "ends", "reason")


def main(question: dict[str, Any], payload: BinaryIO) -> tuple[dict[str, Any], Iterable[bytes]]:
    """Answer one request (`question`). Every answer has the time by this machine's clock."""
    del payload
    root = Path(question["root"]).expanduser()
    blocks: Iterable[bytes] = ()
    do = question["do"]
    answers = {"put": put, "submit": submit, "check": check, "await": await_check}
    try:
        if do == "site":
            answer = site(root)
        elif do in answers:
            answer = answers[do](root, question)
        elif do == "drop":
            answer = cancel_checks([question["job"]])
        elif do == "checked":
            answer = {"is_known": is_fresh(root / "checks" / (question["subject"] + ".good"), question["for_s"])}
        elif do == "look":
            answer = {"jobs": look(root, question["names"])}
        elif do == "stop":
            answer = {"stopped": stop(root, question["names"], question["wait_s"])}
        else:
            answer, blocks = output(root, question)
    except SlurmSilent as silent:
        answer = {"silent": str(silent)}
    return {"now_s": time.time(), **answer}, blocks


class SlurmSilent(Exception):  # noqa: N818 - an answer, not an error of this program
    """Error: Slurm's controller does not answer. The error's text is Slurm's message."""


def tool(*words: str, stdin: str = "") -> tuple[int, str, str]:
    """Run a program in its own session, so that Ctrl-C does not end it. Returns exit code, stdout and stderr."""
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    try:
        done = subprocess.run(
            words,
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=TOOL_LIMIT_S,
            check=False,
            env=environment,
            start_new_session=True,
        )
    except FileNotFoundError:
        return 127, "", words[0] + " is not installed"
    except subprocess.TimeoutExpired:
        return TOO_SLOW, "", f"{words[0]} gave no answer within {TOOL_LIMIT_S} s"
    except (OSError, subprocess.SubprocessError) as error:
        return 1, "", str(error)
    return done.returncode, done.stdout, done.stderr.strip()


def output_or_empty(*words: str) -> str:
    """Output of a program; empty if it fails."""
    code, text, _ = tool(*words)
    return text if code == 0 else ""


def checked_output(*words: str) -> str:
    """Output of a Slurm program. Raises `SlurmSilent` if it fails."""
    code, text, complaints = tool(*words)
    if code != 0:
        raise SlurmSilent(complaints or words[0] + " failed")
    return text


# Facts of the cluster.


def site(root: Path) -> dict[str, Any]:
    """Facts of the cluster that decide what a job can request."""
    if shutil.which("sbatch") is None:
        return {"version": "", "root": str(root)}
    version = checked_output("sbatch", "--version")
    user = output_or_empty("id", "-un").strip()
    config = {}
    for line in checked_output("scontrol", "show", "config").splitlines():
        key, equals, value = line.partition("=")
        if equals:
            config[key.strip()] = value.strip()
    wanted = ("ClusterName", "MaxArraySize", "PreemptMode", "AccountingStorageType", "JobRequeue", "MinJobAge")
    accounts = output_or_empty("sacctmgr", "-nP", "show", "assoc", "user=" + user, "format=account,partition,qos")
    return {
        "version": version.strip(),
        "root": str(root),
        "user": user,
        "config": {key: config.get(key, "") for key in wanted},
        "partitions": [line.split("|") for line in checked_output("sinfo", "-h", "-o", SINFO).splitlines()],
        "preempt": preemption(),
        "accounts": [line.split("|") for line in accounts.splitlines()],
        "pyxis": "--container-image" in output_or_empty("srun", "--help"),
        "apptainer": (output_or_empty("apptainer", "--version") or output_or_empty("singularity", "--version")).strip(),
        "apptainer_path": shutil.which("apptainer") or shutil.which("singularity") or "",
        "counters": counters(),
    }


def preemption() -> dict[str, str]:
    """Slurm's `PreemptMode` by partition: what happens to a preempted job."""
    modes = {}
    for line in output_or_empty("scontrol", "--oneliner", "show", "partition").splitlines():
        words = dict(word.partition("=")[::2] for word in line.split())
        modes[words.get("PartitionName", "")] = words.get("PreemptMode", "")
    return modes


def counters() -> str:
    """`1` if this machine's NVIDIA driver reserves GPU counters for administrators, else `0`; empty if unknown."""
    with suppress(OSError):
        text = Path("/proc/driver/nvidia/params").read_text()
        return "".join(re.findall(r"RmProfilingAdminOnly: (\d)", text))
    return ""


# Files and jobs.


def put(root: Path, question: dict[str, Any]) -> dict[str, Any]:
    """Write the request's `text` to the file `path` in our folder, atomically."""
    path = root / question["path"]
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}-{os.getpid()}")
    new.write_text(question["text"])
    new.replace(path)
    return {}


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock, so that no other process submits the same array; does nothing on file systems without locks."""
    with path.open("a+") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def submit(root: Path, question: dict[str, Any]) -> dict[str, Any]:
    """Submit an array to Slurm, unless Slurm has it already. Key `refused` of the answer: sbatch's refusal."""
    array, names = question["array"], question["names"]
    folder = root / "arrays" / array
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock"):
        # The script is written before it is submitted, so an array without a script was never submitted.
        known = number_of(folder) or ((folder / "script.sh").exists() and in_slurm(array))
        if known:
            (folder / "job").write_text(known)
            return {"job": known}
        for index, name in enumerate(names, 1):
            home, record = root / "jobs" / name, root / "launches" / name
            home.mkdir(parents=True, exist_ok=True)
            record.mkdir(parents=True, exist_ok=True)
            (home / "element").write_text(f"{array} {index}\n")
            # The job's output file is a link to the launch's log, so messages of Slurm's daemons are in that log too.
            log = folder / f"{index}.log"
            if not log.is_symlink():
                (record / "startup.log").touch()
                log.symlink_to(os.path.relpath(record / "startup.log", folder))
        (folder / "elements").write_text("".join(name + "\n" for name in names))
        (folder / "script.sh").write_text(question["script"])
        code, text, complaints = tool("sbatch", "--parsable", *question["words"], stdin=question["script"])
        number = text.strip().split(";")[0]
        if code != 0 or not number.isdigit():
            number = accepted(array, complaints)
        if not number:
            cancel_checks([question["check"]] if question["check"] else [])
            return {"refused": complaints or text.strip() or f"exit code {code}", "code": code}
        (folder / "job").write_text(number)
        if question["check"]:
            (folder / "check").write_text(question["check"])
    return {"job": number}


def number_of(folder: Path, file: str = "job") -> str:
    """Slurm's number of an array's job (`job`) or of its check (`check`), from that file; empty if not recorded."""
    try:
        return (folder / file).read_text().strip()
    except OSError:
        return ""


def in_slurm(array: str) -> str:
    """Slurm's number of the job named `array`, from the queue or the accounting; empty if Slurm knows no such job."""
    rows = queue(array) or ended([array], by_name=True)
    return rows[0]["array_job"] if rows else ""


def accepted(array: str, complaints: str) -> str:
    """Slurm's number of an array although sbatch failed with `complaints`; empty if Slurm does not have the array."""
    until_s = time.monotonic() + (SEARCH_S if LOST_ANSWER.search(complaints) else 0)
    while not (number := in_slurm(array)) and time.monotonic() < until_s:
        time.sleep(LOOK_EVERY_S)
    return number


def check(root: Path, question: dict[str, Any]) -> dict[str, Any]:
    """Submit a check: a short job that records what a compute node sees of our folder."""
    folder = root / "checks"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / (question["name"] + ".token")).write_text(question["name"])
    code, text, complaints = tool("sbatch", "--parsable", stdin=question["script"])
    job = text.strip().split(";")[0]
    if code != 0 or not job.isdigit():
        return {"refused": complaints or text.strip(), "code": code}
    return {"job": job}


def await_check(root: Path, question: dict[str, Any]) -> dict[str, Any]:
    """Wait at most `wait_s` seconds for a check's output. Key `waits` of the answer: the check is queued or runs."""
    job, answer = question["job"], root / "checks" / (question["name"] + ".answer")
    until_s = time.monotonic() + question["wait_s"]
    while True:
        state = output_or_empty("squeue", "-h", "-j", job, "-t", "all", "-o", "%T %r").strip()
        is_over = not state or state.split()[0] not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
        # A network file system shows a new file some seconds late.
        if answer.exists() or (is_over and arrives(answer)):
            return {"answer": answer.read_text(), "state": state, "waits": False}
        if is_over or time.monotonic() > until_s:
            return {"answer": "", "state": state, "waits": not is_over}
        time.sleep(LOOK_EVERY_S)


def cancel_checks(checks: Iterable[str]) -> dict[str, Any]:
    """Cancel checks, given by their job numbers."""
    for job in checks:
        tool("scancel", job)
    return {}


def is_fresh(path: Path, for_s: float) -> bool:
    """Whether a file exists and is at most `for_s` seconds old."""
    with suppress(OSError):
        return time.time() - path.stat().st_mtime < for_s
    return False


def arrives(path: Path) -> bool:
    """Wait up to 5 s until a file that another machine wrote is visible on this machine; False if it is not."""
    until_s = time.monotonic() + 5
    while time.monotonic() < until_s:
        with suppress(OSError):
            os.listdir(path.parent)  # noqa: PTH208 - asks the server again
        if path.exists():
            return True
        time.sleep(LOOK_EVERY_S)
    return False


# State of launches.


def queue(array: str = "") -> list[dict[str, str]]:
    """Elements of our arrays that Slurm's controller knows, including those that ended in the last minutes."""
    which = ["--name=" + array] if array else []
    text = checked_output("squeue", "-h", "-r", "--me", "-t", "all", "-o", SQUEUE, *which)
    rows = [dict(zip(FIELDS, line.split("|"))) for line in text.splitlines() if line.count("|") == len(FIELDS) - 1]
    return [row for row in rows if NAME.fullmatch(row["array"])]


def ended(arrays: list[str], *, by_name: bool = False) -> list[dict[str, str]]:
    """Elements of arrays according to Slurm's accounting; empty without accounting.

    `arrays`: their job numbers, or with `by_name` their names.
    """
    rows = []
    for start in range(0, len(arrays), MOST_JOBS):
        some = ",".join(arrays[start : start + MOST_JOBS])
        # When searching by name, sacct reports only jobs of today unless -S gives an earlier start.
        which = ["--name=" + some, "-S", "now-30days"] if by_name else ["-j", some]
        code, text, complaints = tool("sacct", "-n", "-X", "-P", "-o", SACCT, *which)
        if code != 0:
            if NO_ACCOUNTING in complaints or code == 127:  # noqa: PLR2004 - sacct is not installed
                return []
            raise SlurmSilent(complaints)
        for line in text.splitlines():
            array, job, *others = line.split("|")
            number, _, index = job.partition("_")
            rows.append(dict(zip(FIELDS, (array, number, index, *others, ""))))
    return rows


class Arrays:
    """Map between launches and array elements, from the files in our folder; each file is read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names: dict[str, list[str]] = {}

    def elements(self, array: str) -> list[str]:
        """Names of an array's launches, in the order of elements; empty if our folder has no record of the array."""
        if array not in self.names:
            self.names[array] = []
            with suppress(OSError):
                self.names[array] = (self.root / "arrays" / array / "elements").read_text().splitlines()
        return self.names[array]

    def name_of(self, row: dict[str, str]) -> str:
        """Name of the launch in a row of Slurm's output; empty if the launch is not ours."""
        names = self.elements(row["array"])
        index = int(row["index"]) if row["index"].isdigit() else 0
        return names[index - 1] if 0 < index <= len(names) else ""

    def array_of(self, name: str) -> str:
        """Name of the job array that contains a launch; empty if the launch was never submitted."""
        try:
            return (self.root / "jobs" / name / "element").read_text().split()[0]
        except (OSError, IndexError):
            return ""


# Slurm's states of a job that waits or runs.
LIVING = frozenset(
    [
        *("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"),
        *("RESIZING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"),
    ]
)


def is_living(row: dict[str, str]) -> bool:
    """Whether an element waits or runs. A requeued element waits."""
    return row["state"] in LIVING


def look(root: Path, names: list[str] | None) -> list[dict[str, str]]:
    """State of these launches: from one `squeue`, else from accounting (one `sacct` per 200 arrays).

    `names` None: every launch that waits or runs.
    """
    arrays = Arrays(root)
    rows = {arrays.name_of(row): row for row in queue()}
    if names is None:
        return [{**row, "name": name} for name, row in rows.items() if name and is_living(row)]
    forgotten = sorted({arrays.array_of(name) for name in names if name not in rows} - {""})
    numbers = [number for number in (number_of(root / "arrays" / array) for array in forgotten) if number]
    old = {arrays.name_of(row): row for row in ended(numbers)} if numbers else {}
    every = {**old, **rows}
    return [{**every[name], "name": name} for name in names if name in every]


def stop(root: Path, names: list[str], wait_s: float) -> dict[str, str]:
    """Cancel launches and wait for their end. Returns, by name, why the end is not confirmed; empty if confirmed."""
    arrays = Arrays(root)
    wanted = set(names)
    complaints = ""
    until_s = time.monotonic() + wait_s
    is_cancelled = False
    while True:
        alive = {name: row for row in queue() for name in [arrays.name_of(row)] if name in wanted and is_living(row)}
        if not alive:
            cancel_checks(unneeded_checks(arrays, names))
            return dict.fromkeys(names, "")
        if not is_cancelled:
            ids = [f"{row['array_job']}_{row['index']}" for row in alive.values()]
            _, _, complaints = tool("scancel", *ids)
            is_cancelled = True
        if time.monotonic() > until_s:
            states = {name: f"it is still {row['state'].lower()}" for name, row in alive.items()}
            return {name: states.get(name, "") and (complaints or states[name]) for name in names}
        time.sleep(LOOK_EVERY_S)


def unneeded_checks(arrays: Arrays, names: list[str]) -> set[str]:
    """Job numbers of checks that these launches waited for, and that no other waiting launch needs."""
    folder = arrays.root / "arrays"
    waited = {number_of(folder / array, "check") for array in {arrays.array_of(name) for name in names} - {""}} - {""}
    if not waited:
        return waited
    return waited - {number_of(folder / row["array"], "check") for row in queue() if is_living(row)}


def output(root: Path, question: dict[str, Any]) -> tuple[dict[str, Any], Iterable[bytes]]:
    """New log output of a launch from byte `start` on, in whole lines; empty once the launch has ended.

    After the end, the store has the whole log.
    """
    content, name, arrays = b"", question["name"], Arrays(root)
    array = arrays.array_of(name)
    if array and any(arrays.name_of(row) == name and is_living(row) for row in queue(array)):
        with suppress(OSError), (root / "launches" / name / "startup.log").open("rb") as log:
            log.seek(question["start"])
            content = log.read(MOST_OUTPUT_BYTES)
    if len(content) < MOST_OUTPUT_BYTES:
        content = content[: content.rfind(b"\n") + 1]
    return {"bytes": len(content)}, [content]
