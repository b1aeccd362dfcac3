"""`launch ssh` as its user has it: the real command, sshd, agent and trainer; and what is killed meanwhile."""

import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests import sshd
from tests.launcher.script import tiny
from workload.contract import bundle
from workload.contract.errors import ExitCode
from workload.contract.spent import Spent

pytestmark = pytest.mark.world

ROOT = Path(__file__).parents[4]
TINY = ("--cpu", "--model=squeezenet1_1", "--batch-size=1", "--warmup=1", "--image-size=64", "--no-ceilings")


def started(machine: sshd.Machine, folder: Path, *words: str, place: bool = True) -> subprocess.Popen[str]:
    """One of our commands, in a folder of its own, in the middle of its work; `place`: with the machine's address."""
    module = {"launch": "launcher", "analyze": "analysis"}[words[0]]
    host = ["--host", machine.host, "--port", str(machine.port)] if words[0] == "launch" and place else []
    return subprocess.Popen(
        [sys.executable, "-m", module, words[1], *host, *words[2:]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ran(
    machine: sshd.Machine, folder: Path, *words: str, code: int = ExitCode.DONE, place: bool = True
) -> tuple[str, str]:
    """What a command printed to stdout and stderr."""
    process = started(machine, folder, *words, place=place)
    out, err = process.communicate()
    assert process.returncode == code, out + err
    return out, err


def records(machine: sshd.Machine) -> list[Path]:
    return sorted((machine.home / ".rooflaunch/launches").glob("*/"))


def test_from_the_command_to_the_bundle(machine: sshd.Machine, tmp_path: Path) -> None:
    python = ("--python", sys.executable)
    out, err = ran(machine, tmp_path, "launch", "ssh", *TINY, "--iterations", "2", *python, "--usd-per-h", "3600")
    [folder] = (tmp_path / "results").iterdir()
    run = bundle.read(folder)
    assert run.record.status == "completed"
    assert "-ssh-127-0-0-1-squeezenet1_1-" in folder.name, "its place"
    assert f"runtime    process: asked for; {sys.executable} 3." in err
    # On a busy machine lines about the steps and about waiting may stand between the phases.
    shown = re.findall(r"^ *\+\d+ \w+  (?!measured|.*; waiting for the next phase$)(.*)$", err, re.MULTILINE)
    phases = ["booted", "run started", "run ended", "uploaded", "finished"]
    assert shown == ["requested", f"starting the job on {machine.host}", *phases]
    assert re.search(r"^  job +127\.0\.0\.1$", out, re.MULTILINE)
    assert re.search(r"^  cost +\d+\.\d{3} USD from ", out, re.MULTILINE)
    # At 1 USD/s each part costs as many USD as it takes seconds.
    time_row = re.search(r"^  time +steps \S+ % of (\S+) s and (\S+) USD \(1 run\); (.*)$", out, re.MULTILINE)
    assert time_row, out
    parts = re.findall(r"([a-z][a-z -]+) (\S+) (m?s) \((\S+) USD\)", time_row[3])
    assert {"imports", "launcher and exit"} <= {name for name, *_ in parts}
    for value, unit, usd in ((time_row[1], "s", time_row[2]), *(part[1:] for part in parts)):
        assert float(usd) == pytest.approx(float(value) / {"s": 1, "ms": 1000}[unit], rel=0.06), "two digits"
    spent = Spent.of(run.record)
    assert spent.usd == pytest.approx(spent.wall_s, abs=0.01)
    assert 0 < (run.record.timing.interpreter_s or 0) < spent.seconds["imports"]
    [launched] = records(machine)
    assert json.loads((launched / "result.json").read_text())["exit_code"] == 0
    assert not list((machine.home / ".rooflaunch/jobs").glob("*/results/[!.]*")), "the store has it: once is enough"

    out, _ = ran(machine, tmp_path, "launch", "status")
    assert re.search(rf"^{launched.name} +- +\S+ +done .* 1$", out, re.MULTILINE)
    out, _ = ran(machine, tmp_path, "launch", "status", launched.name[-6:])
    address = f"ssh://{machine.host}:{machine.port}/~/.rooflaunch"
    assert f" fetch {address}/runs/{folder.name} -o results" in out
    assert re.search(
        rf"launch(er)? logs {launched.name} --host {machine.host} --port {machine.port}$", out, re.MULTILINE
    )
    out, _ = ran(machine, tmp_path, "launch", "logs", launched.name)
    assert "rooflaunch: phase finished" in out
    _, err = ran(machine, tmp_path, "launch", "down", launched.name)
    assert f"'{launched.name}' has no job: it is gone already" in err
    ran(machine, tmp_path, "analyze", "fetch", address, "-o", "again")
    assert bundle.read(tmp_path / "again" / folder.name).record == run.record
    out, _ = ran(machine, tmp_path, "analyze", "fetch", address, "-o", "again")
    assert out.startswith("fetched 0 (0 B), skipped 1,")


def test_ctrl_c_leaves_it_running_and_down_ends_it(machine: sshd.Machine, tmp_path: Path) -> None:
    process = started(machine, tmp_path, "launch", "ssh", *TINY, "--iterations", "100000", "--python", sys.executable)
    assert process.stderr is not None
    assert any("run started" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait() == ExitCode.INTERRUPTED
    name = records(machine)[0].name
    place = f"--host {machine.host} --port {machine.port}"
    assert re.search(rf"logs {name} -f to follow it, .* down {name} to end it \(add {place}\)$", rest, re.MULTILINE)
    _, err = ran(machine, tmp_path, "launch", "ssh", *TINY, "--python", sys.executable, code=ExitCode.NO_CAPACITY)
    assert f"error: {machine.host} is busy with {name}: two runs at the same time would disturb each other" in err
    out, _ = ran(machine, tmp_path, "launch", "down", name)
    assert out == f"job {name} in 127.0.0.1 is gone\n"
    assert [words for _, words in machine.jobs() if "launcher.agent" in words or "-m workload" in words] == []
    out, _ = ran(machine, tmp_path, "launch", "status", name)
    assert "state      failed: the machine was asked to stop" in out


REFUSED = {
    "no torch": (
        ["--runtime", "process", "--python", "/usr/bin/env"],
        ExitCode.TOOL,
        "the machine's Python cannot be used",
    ),
    "no such python": (["--python", "/nowhere/python"], ExitCode.TOOL, "this program does not exist"),
    "no gpu": (["--cuda", "--python", sys.executable], ExitCode.TOOL, "nvidia-smi shows no GPU on "),
    "a short limit": (["--max-run-time", "1s"], ExitCode.USAGE, "--max-run-time must be a duration"),
    "a negative price": (["--usd-per-h", "-1"], ExitCode.USAGE, "--usd-per-h must be a price"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_anything_starts(machine: sshd.Machine, tmp_path: Path, case: str) -> None:
    words, code, message = REFUSED[case]
    _, err = ran(machine, tmp_path, "launch", "ssh", *words, code=code)
    assert re.search(rf"^error: .*{re.escape(message)}", err, re.MULTILINE), err
    assert re.search(r"^hint: .+", err, re.MULTILINE)
    assert not (machine.home / ".rooflaunch").exists(), "nothing was sent"


@pytest.mark.parametrize("verb", ["status", "down", "logs"])
def test_commands_for_launches_take_one_host(machine: sshd.Machine, tmp_path: Path, verb: str) -> None:
    _, err = ran(machine, tmp_path, "launch", verb, "--host", "other", "3fa9c1", code=ExitCode.USAGE)
    what = "only a run has several machines, and is found at its first one"
    assert f"error: {what}; got --host {machine.host} --host other\nhint: --host {machine.host}\n" in err


def test_a_dry_run_asks_nobody(machine: sshd.Machine, tmp_path: Path) -> None:
    machine.cut_off()
    out, _ = ran(machine, tmp_path, "launch", "ssh", *TINY, "--dry-run")
    assert f"machine    {machine.host}, which was not contacted yet" in out
    assert machine.connections() == []


def test_doctor(machine: sshd.Machine, tmp_path: Path) -> None:
    machine.program("nvidia-smi", "#!/bin/sh\necho 'NVIDIA L4, 8.9, 580.82.07, 23034 MiB'\n")
    machine.program("docker", "#!/bin/sh\nexit 1\n")
    machine.program("python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    out, _ = ran(machine, tmp_path, "launch", "doctor", "ssh")
    assert f"connection  {machine.host} answers: " in out
    assert "NVIDIA L4, compute capability 8.9, driver 580.82.07, 23034 MiB" in out
    assert re.search(rf"^ok +process +{re.escape(sys.executable)}", out, re.MULTILINE) or "with torch" in out
    assert re.search(
        r"^note +container +the machine's Docker engine refuses our user, or does not answer$", out, re.MULTILINE
    )
    assert re.search(r"^ok +jobs +none runs$", out, re.MULTILINE)


def test_doctor_of_a_machine_that_has_nothing(machine: sshd.Machine, tmp_path: Path) -> None:
    machine.program("docker", "#!/bin/sh\nexit 1\n")
    machine.program("python3", '#!/bin/sh\nexec /usr/bin/python3 -I "$@"\n')
    out, _ = ran(machine, tmp_path, "launch", "doctor", "ssh", code=ExitCode.TOOL)
    assert re.search(r"^problem +process +.*lacks torch", out, re.MULTILINE)
    assert "-> --python with the path of a Python that has these packages, or install them: pip install torch" in out


@pytest.mark.night(part="places")
def test_a_script_of_ones_own_with_the_files_that_git_tracks(machine: sshd.Machine, tmp_path: Path) -> None:
    folder = tiny.project(tmp_path)
    (folder / "package/model.py").write_text(tiny.FILES["package/model.py"] + "\n# changed\n")
    words = ("ssh", *tiny.FEW, "--python", sys.executable, "--", "train.py", "--lr", "0.1")
    _, err = ran(machine, folder, "launch", *words)
    head = tiny.git(folder, "rev-parse", "HEAD")
    assert re.search(rf"^sends      5 files, \d+ B, of commit {head[:7]} with changes$", err, re.MULTILINE)
    [bundled] = (folder / "results").iterdir()
    run = bundle.read(bundled).record
    assert (run.status, run.spec.model, run.environment.backend) == ("completed", "train.py", "ssh")
    assert run.spec.script is not None
    assert run.spec.script.command == "train.py --lr 0.1"
    assert (run.spec.script.commit, run.spec.script.dirty) == (head, True)
    assert sorted(run.spec.script.files or ()) == ["package/__init__.py", "package/model.py", "train.py"]
    out, _ = ran(machine, folder, "launch", "logs", records(machine)[0].name)
    assert "here: .gitignore package train.py argv: --lr 0.1 gpus: \n" in out
    assert not (folder / "written.txt").exists()

    sent = list((machine.home / ".rooflaunch/scripts").iterdir())
    ran(machine, folder, "launch", *words[:-2], "--lr", "0.2")
    assert list((machine.home / ".rooflaunch/scripts").iterdir()) == sent, "the same files are sent once"
    assert len(list((folder / "results").iterdir())) == 2


@pytest.mark.night(part="places")
@pytest.mark.timeout(900)
def test_a_tuning_there_gives_the_same_files_as_one_here(machine: sshd.Machine, tmp_path: Path) -> None:
    folder = tiny.project(tmp_path)
    (folder / "train.py").write_text((ROOT / "benchmarks/tuned/slow_decoding.py").read_text())
    there = f"ssh --host {machine.host} --port {machine.port} --max-run-time 15m --python {sys.executable}"
    short = ("--cpu", "--max-time", "4m", "--min-seconds", "0.3", "--margin", "50%", "--format", "json")
    command = started(machine, folder, "launch", "tune", "--on", there, *short, "--", "train.py", place=False)
    out, err = command.communicate()

    *rows, end = [json.loads(line) for line in out.splitlines()]
    assert end["exit_code"] == command.returncode, err
    assert (rows[0]["change"], end["evidence"]) == ("DataLoader(num_workers=2)", "tune/evidence.json")
    # On a busy machine there is no time for a duel.
    if command.returncode == ExitCode.FASTER:
        assert rows[0]["decision"] == "accepted"
        tiny.git(folder, "apply", end["patch"])
        assert "num_workers=2" in (folder / "train.py").read_text()
    evidence = json.loads((folder / "tune/evidence.json").read_text())
    named = [*evidence["originals"], *(name for trial in evidence["trials"] for name in trial["bundles"])]
    assert {path.parent.name for path in folder.glob("tune/*/run.json")} >= {*named}
    out, _ = ran(machine, folder, "launch", "tune", "--check", "tune/evidence.json", place=False)
    assert re.fullmatch(r"\d+ decisions? recomputed from the \d+ runs that tune/evidence.json names\n", out)


def test_variables_of_launches_that_never_came_are_erased(machine: sshd.Machine, tmp_path: Path) -> None:
    """`down` erases those of a launch that is named, `reap` those of every launch that cannot live any more."""
    store = machine.home / ".rooflaunch/launches"
    names = ("rooflaunch-box-20261121-142530-aaaaaa", "rooflaunch-box-20261121-142530-bbbbbb")
    now = datetime.now(UTC)
    for name, age in zip(names, (timedelta(0), timedelta(minutes=21)), strict=True):
        asked = {
            "name": name,
            "backend": "ssh",
            "launched_at": (now - age).isoformat(),
            "store": "/x",
            "place": "ssh-x",
        }
        more = {"schema_version": 1, "runtime": "process", "limit_s": 60, "spec": {}}
        (store / name).mkdir(parents=True)
        (store / name / "request.json").write_text(json.dumps({**asked, **more}))
        (store / "variables").mkdir(exist_ok=True)
        (store / f"variables/{name}.json").write_text('{"values": {"TOKEN": "secret"}}')
    young, old = (store / f"variables/{name}.json" for name in names)
    _, err = ran(machine, tmp_path, "launch", "reap")
    assert err == f"erased the variables (--env) of '{names[1]}', which has no job\n"
    assert (old.read_text(), "secret" in young.read_text()) == ("{}", True)
    _, err = ran(machine, tmp_path, "launch", "down", names[0])
    assert f"erased the variables (--env) of '{names[0]}', which has no job\n" in err
    assert young.read_text() == "{}"
