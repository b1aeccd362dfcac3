"""Jobs on a machine behind a real sshd: started once, looked at, stopped for sure, whatever is killed meanwhile."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.backends.ssh import backend as machines_module
from launcher.backends.ssh.backend import SshMachines, backend
from launcher.backends.ssh.keeper import members
from launcher.backends.ssh.options import Where
from launcher.backends.ssh.plan import SshPlan
from launcher.protocol.backend import Condition, Machine
from tests import sshd
from tests.launcher.backends.ssh.conftest import doing, end_session, keepers, plan_of, processes_in
from tests.waiting import until

pytestmark = pytest.mark.world

SLEEP = "import time; print('here', flush=True); time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('here', flush=True); time.sleep(600)"
# A child in a process group of its own, which ignores SIGTERM.
WITH_CHILD = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]); time.sleep(600)"


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines_module, "GRACE_S", 1.0)


def silent(_: str) -> None:
    pass


def submitted(machines: SshMachines, plan: SshPlan) -> Machine:
    [machine] = machines.submit(plan, silent).machines
    return machine


def condition(machines: SshMachines, name: str) -> Condition:
    [machine] = machines.look({name: ()})
    return machine.condition


def printed(machines: SshMachines, job: Machine) -> str:
    return machines.output(job, 0).text


def log_of(machine: sshd.Machine, job: Machine) -> str:
    return (machine.home / ".rooflaunch/launches" / job.name / "startup.log").read_text()


# Starting


def test_submitting_what_has_ended_starts_nothing(machine: sshd.Machine, machines: SshMachines, where: Where) -> None:
    plan = doing(plan_of(where), SLEEP)
    machines.stop([submitted(machines, plan)])
    assert submitted(machines, plan).condition is Condition.GONE
    assert keepers(machine) == []


# Where the connection breaks at the first try to start.
BREAKS = {
    "before the job runs": """
    if is_first:
        subprocess.Popen = lambda *words, **options: os._exit(255)
    return _main(question, payload)
""",
    "before the launcher hears of it": """
    answer = _main(question, payload)
    return os._exit(255) if is_first else answer
""",
}


@pytest.mark.parametrize("code", BREAKS.values(), ids=BREAKS)
def test_a_start_that_breaks(machine: sshd.Machine, machines: SshMachines, where: Where, code: str) -> None:
    machines.now_s()
    head = "\n_main = main\ndef main(question, payload):\n"
    machines._program += head + "    is_first = question['do'] == 'start' and not question['again']" + code
    assert submitted(machines, doing(plan_of(where), SLEEP)).condition is Condition.RUNNING
    assert len(keepers(machine)) == 1


def test_a_job_outlives_every_connection(machine: sshd.Machine, machines: SshMachines, where: Where) -> None:
    job = submitted(machines, doing(plan_of(where), SLEEP))
    machine.cut_off()
    assert condition(machines, job.name) is Condition.RUNNING
    assert condition(backend.machines(backend.settings(where)), job.name) is Condition.RUNNING


# Looking


def test_what_a_job_printed(machines: SshMachines, where: Where, tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    code = "import os, sys, time\nprint('ü 1')\nsys.stdout.write('half'); sys.stdout.flush()\n"
    code += f"while not os.path.exists({str(go_on)!r}): time.sleep(0.05)\nprint(' and half'); time.sleep(600)"
    job = submitted(machines, doing(plan_of(where), code))
    until(lambda: printed(machines, job), "it prints")
    first = machines.output(job, 0)
    assert first.text == "ü 1\n", "half a line waits for its end"
    go_on.touch()
    until(lambda: machines.output(job, first.next_start).text, "the rest comes")
    second = machines.output(job, first.next_start)
    assert second.text == "half and half\n"
    assert machines.output(job, second.next_start).text == ""
    assert machines.output(Machine(name="rooflaunch-none-1", zone="", condition=Condition.GONE), 0).text == ""


def test_damaged_records_are_no_jobs(machine: sshd.Machine, machines: SshMachines, where: Where) -> None:
    job = submitted(machines, doing(plan_of(where), SLEEP))
    jobs = machine.home / ".rooflaunch/jobs"
    for number, text in enumerate(["", "[]", "{}", '{"pid": "x", "created_s": []}', "null"]):
        folder = jobs / f"rooflaunch-bad-{number}"
        folder.mkdir()
        (folder / "kept.json").write_text(text)
        (folder / "lock").touch()
    (jobs / "rooflaunch-file-1").write_text("no folder")
    assert [seen.name for seen in machines.look()] == [job.name]
    [seen] = machines.look({"rooflaunch-bad-3": ()})
    assert seen.condition is Condition.GONE


# Ending


@pytest.mark.parametrize("victim", ["keeper", "agent", "both"])
def test_whatever_is_killed_the_truth_is_told(
    machine: sshd.Machine, machines: SshMachines, where: Where, victim: str
) -> None:
    """A job is gone when nothing of it runs; an agent that was killed is started once more, to save what there is."""
    job = submitted(machines, doing(plan_of(where), SLEEP))
    until(lambda: "here" in printed(machines, job), "it runs")
    [keeper] = keepers(machine)
    agents = [pid for pid in processes_in(keeper) if pid != keeper]
    for pid in {"keeper": [keeper], "agent": agents, "both": [keeper, *agents]}[victim]:
        os.kill(pid, signal.SIGKILL)
    if victim == "both":
        until(lambda: condition(machines, job.name) is Condition.GONE, "nothing runs any more")
        return
    if victim == "agent":
        until(lambda: printed(machines, job).count("here") == 2, "started once more")
        assert "the agent ended with exit code -9" in printed(machines, job)
    assert condition(machines, job.name) is Condition.RUNNING
    [removed] = machines.stop([job])
    assert removed.gone
    assert processes_in(keeper) == []


def test_an_agent_that_breaks_off_twice(machine: sshd.Machine, machines: SshMachines, where: Where) -> None:
    job = submitted(machines, doing(plan_of(where), "print('here'); raise SystemExit(4)"))
    until(lambda: condition(machines, job.name) is Condition.GONE, "it ends")
    ended = "here\nthe agent ended with exit code 4\n"
    assert log_of(machine, job) == 2 * ended


@pytest.mark.skipif(os.getuid() != 0, reason="only root reads the environment of other users' processes")
def test_a_process_of_another_user_that_names_an_ended_job_does_not_keep_the_job_running(
    machine: sshd.Machine, machines: SshMachines, where: Where
) -> None:
    job = submitted(machines, doing(plan_of(where), "print('here')"))
    home = machine.home / ".rooflaunch/jobs" / job.name
    marked = {"ROOFLAUNCH_JOB": str(home.resolve())}
    with subprocess.Popen(["sleep", "600"], user=65534, group=65534, extra_groups=[], env=marked) as stranger:
        try:
            until(lambda: condition(machines, job.name) is Condition.GONE, "it ends")
            assert members(home.resolve(), -1, "") == []
        finally:
            stranger.kill()


@pytest.mark.parametrize("code", [SLEEP, STUBBORN, WITH_CHILD])
def test_nothing_outlives_its_limit(machine: sshd.Machine, machines: SshMachines, where: Where, code: str) -> None:
    job = submitted(machines, doing(plan_of(where, limit_s=30), code.replace("time.sleep(600)", "time.sleep(601)")))
    assert job.deadline_s == pytest.approx((job.created_s or 0) + 31)
    machines.stop([job])
    short = plan_of(where, limit_s=30, token="cccccc")
    short = doing(short.renamed(replace(short.request, limit_s=1)), code)
    job = submitted(machines, short)
    until(lambda: condition(machines, job.name) is Condition.GONE, "the keeper ends it")
    assert [words for _, words in machine.jobs() if "time.sleep" in words] == []


def test_a_job_of_another_host_of_a_shared_folder(machine: sshd.Machine, machines: SshMachines, where: Where) -> None:
    """Home folders of a lab are often shared between its machines."""
    job = submitted(machines, doing(plan_of(where), SLEEP))
    kept = machine.home / ".rooflaunch/jobs" / job.name / "kept.json"
    text = kept.read_text()
    kept.write_text(text.replace('"host": "', '"host": "other-'))
    [removed] = machines.stop([job])
    assert not removed.gone
    assert removed.reason.startswith("the job runs on other-")
    kept.write_text(text)


# What a job left that was broken off

# The agent: at first it begins a bundle; started once more it stores that, unless it is to fail.
SAVES = """
import os, sys, time
if os.path.exists("saving"):
    print("saves", flush=True)
    if os.path.exists("fails"):
        sys.exit(4)
    open("uploaded", "w").write("run-1\\n")
else:
    os.makedirs("results/run-1")
    open("results/run-1/run.json", "w").close()
    print("here", flush=True)
    time.sleep(600)
"""


def broken_off(machine: sshd.Machine, machines: SshMachines, plan: SshPlan) -> Machine:
    """A job of which keeper and agent were killed, as by a restart of the machine."""
    job = submitted(machines, doing(plan, SAVES))
    until(lambda: "here" in printed(machines, job), "it runs")
    [keeper] = keepers(machine)
    end_session(keeper)
    return job


@pytest.mark.parametrize("asks", ["look", "status of one", "the next launch"])
def test_what_a_killed_job_left_is_saved(machine: sshd.Machine, machines: SshMachines, where: Where, asks: str) -> None:
    job = broken_off(machine, machines, plan_of(where))
    home = machine.home / ".rooflaunch/jobs" / job.name
    other = backend.machines(backend.settings(where))
    if asks == "look":
        assert other.look().there == (), "saved, and gone"
    elif asks == "status of one":
        [seen] = other.look({job.name: ()})
        assert (seen.condition, seen.created_s) == (Condition.GONE, job.created_s)
    else:
        other.ask("facts", python="python3", code="none", labels=[])
    assert log_of(machine, job).count("saves\n") == 1
    assert list((home / "results").iterdir()) == []
    machines.look()
    assert log_of(machine, job).count("saves\n") == 1, "once is enough"


def test_saving_waits_for_a_job_that_runs(machine: sshd.Machine, machines: SshMachines, where: Where) -> None:
    job = broken_off(machine, machines, plan_of(where))
    (machine.home / ".rooflaunch/jobs" / job.name / "results").rename(machine.home / "results")
    other = submitted(machines, doing(plan_of(where, token="bbbbbb"), SLEEP))
    (machine.home / "results").rename(machine.home / ".rooflaunch/jobs" / job.name / "results")
    assert [seen.name for seen in machines.look()] == [other.name]
    assert "saves" not in log_of(machine, job)
    machines.stop([other])
    machines.look()
    assert "saves\n" in log_of(machine, job)


def test_saving_in_vain_is_not_tried_again_at_once(machine: sshd.Machine, machines: SshMachines, where: Where) -> None:
    job = broken_off(machine, machines, plan_of(where))
    home = machine.home / ".rooflaunch/jobs" / job.name
    (home / "fails").touch()
    for _ in range(2):
        machines.look()
    assert log_of(machine, job).count("saves\n") == 2, "twice by one keeper"
    (home / "fails").unlink()
    for tries, is_saved in ((5, False), (4, True)):
        (home / "saving").write_text("x" * tries)
        os.utime(home / "saving", (1e9, 1e9))
        machines.look()
        assert (home / "uploaded").exists() is is_saved


ENDS = {
    "nothing known": ("", ""),
    "a restart": ("boot_id = lambda: 'another'", "the machine was restarted meanwhile"),
    "a full disk": (
        "def full(**_): raise OSError(errno.ENOSPC, 'No space left on device')\ntempfile.TemporaryFile = full",
        ("No space left on device in {home}; when there is free space, launch status stores the results of the job"),
    ),
    "a quota": (
        "def full(**_): raise OSError(errno.EDQUOT, 'Disk quota exceeded')\ntempfile.TemporaryFile = full",
        "Disk quota exceeded in {home}; when there is free space, launch status stores the results of the job",
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_why_a_job_is_gone(machine: sshd.Machine, machines: SshMachines, where: Where, case: str) -> None:
    code, why = ENDS[case]
    job = submitted(machines, doing(plan_of(where), "pass"))
    until(lambda: condition(machines, job.name) is Condition.GONE, "it ends")
    machines._program += f"\n{code}\n"
    [seen] = machines.look({job.name: ()})
    assert seen.why == why.format(home=machine.home / ".rooflaunch/jobs" / job.name)
    (machine.home / ".rooflaunch/jobs" / job.name / "ended.json").write_text('{"error": "No GPU"}')
    [seen] = machines.look({job.name: ()})
    assert "No GPU" in seen.why


# Processes with a session of their own

# A child of the agent with a session of its own, as a daemon has; `{env}` is its environment.
AWAY = """
import os, subprocess, sys, time
code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('away', flush=True); time.sleep(603)"
child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, env={env})
open("away", "w").write(str(child.pid))
print("here", flush=True)
{then}
"""


def away(machine: sshd.Machine, job: Machine) -> Path:
    """The folder in /proc of that child."""
    path = machine.home / ".rooflaunch/jobs" / job.name / "away"
    until(path.exists, "the child is started")
    until(path.read_text, "and named")
    return Path("/proc") / path.read_text()


def lives(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("env", ["None", "{}"], ids=["marked", "without environment"])
@pytest.mark.parametrize("group", [True, False], ids=["control group", "subreaper"])
def test_a_child_with_a_session_of_its_own_ends_with_its_job(
    machine: sshd.Machine, machines: SshMachines, where: Where, env: str, group: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not group:
        without_group(monkeypatch)
    code = AWAY.format(env=env, then="")
    job = submitted(machines, doing(plan_of(where), code))
    child = away(machine, job)
    until(lambda: condition(machines, job.name) is Condition.GONE, "the job ends")
    assert not lives(child)
    assert "could not be ended" not in log_of(machine, job)
    # os.walk bears that groups of other tests vanish meanwhile.
    assert job.name not in [Path(path).name for path, *_ in os.walk("/sys/fs/cgroup")], "nor is its group left"


def without_group(patch: pytest.MonkeyPatch) -> None:
    """As for a user who may make no control group."""
    source = machines_module.source_of(machines_module.KEEPER)
    patch.setattr(machines_module, "source_of", lambda _: source.replace("group.mkdir(exist_ok=True)", "raise OSError"))


@pytest.mark.parametrize("group", [True, False], ids=["control group", "mark"])
def test_a_child_that_outlives_keeper_and_agent_is_found(
    machine: sshd.Machine, machines: SshMachines, where: Where, group: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not group:
        without_group(monkeypatch)
    job = submitted(machines, doing(plan_of(where), AWAY.format(env="None", then="time.sleep(600)")))
    child = away(machine, job)
    [keeper] = keepers(machine)
    end_session(keeper)
    assert [seen.name for seen in machines.look()] == [job.name], "it runs as long as anything of it does"
    [removed] = machines.stop([job])
    assert (removed.gone, removed.reason) == (True, "")
    assert not lives(child)
    assert machines.look().there == ()


def test_what_cannot_be_ended_is_named(machine: sshd.Machine, machines: SshMachines, where: Where) -> None:
    job = submitted(machines, doing(plan_of(where), AWAY.format(env="None", then="time.sleep(600)")))
    child = away(machine, job)
    until(lambda: b"603" in (child / "cmdline").read_bytes(), "it is what it is")
    machines._program += "\nCLEARED_WITHIN_S = KILLED_WITHIN_S = 0\nreal = os.kill\nos.kill = lambda *_: None\n"
    [removed] = machines.stop([job])
    assert not removed.gone
    assert removed.reason.startswith("it is still there: ")
    assert f"{child.name} {sys.executable} -c" in removed.reason
    assert backend.machines(backend.settings(where)).stop([job])[0].gone
