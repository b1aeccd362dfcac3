"""`launch ssh --host first --host second`: one run on two machines without a shared folder, and what is killed then.

Both machines are a real sshd here, each with a home of its own; in the last tests, in network namespaces of their own.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import sshd
from tests.launcher.backends.slurm.test_slurm_machines import line_of, parent_of, variables
from tests.waiting import until
from tests.workload.run.test_script_ranks import TRAIN
from workload.contract import bundle
from workload.contract.errors import ExitCode
from workload.contract.record import Record, Status

pytestmark = [pytest.mark.world, pytest.mark.server, pytest.mark.timeout(900)]
NIGHT = pytest.mark.night(part="places")
ROOT = Path(__file__).parents[4]
TINY = ("--model", "squeezenet1_1", "--batch-size", "2", "--image-size", "64")
LONG = "--iterations=100000"


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """Two machines, and the folder of the user who launches; `within`: words that start a program there."""

    first: sshd.Machine
    second: sshd.Machine
    folder: Path
    within: tuple[str, ...] = ()

    def started(self, *words: str) -> "subprocess.Popen[str]":
        """A command of ours, which knows the machines as `first` and `second`."""
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return subprocess.Popen(
            [*self.within, sys.executable, "-m", "launcher", *words],
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "PATH": path,
                "XDG_RUNTIME_DIR": str(self.first.folder / "run"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def launched(self, *words: str) -> "subprocess.Popen[str]":
        python = ("--python", sys.executable, "--cpu", "--warmup", "1", "--no-ceilings")
        return self.started("ssh", "--host", "first", "--host", "second", *python, *words)

    def ends(self, process: "subprocess.Popen[str]", code: int = ExitCode.DONE) -> list[Record]:
        """Wait for the command's end; return the records of its bundles. Nothing is left on the second machine."""
        out, _ = process.communicate(timeout=600)
        assert process.returncode == code, out
        self.nothing_is_left(out)
        return [bundle.read(path.parent).record for path in self.folder.glob(f"results/*/{bundle.MANIFEST}")]

    def nothing_is_left(self, text: str = "") -> None:
        for machine in (self.first, self.second):
            jobs = f"{machine.home}/.rooflaunch/jobs/"
            until(
                lambda jobs=jobs, machine=machine: not [words for _, words in machine.jobs() if jobs in words],
                lambda machine=machine: f"processes are left: {machine.jobs()}\n{text}",
                within_s=40,
            )
        assert not list(self.second.home.glob(".rooflaunch/jobs/*/results")), "files are left"

    def steps(self) -> int:
        """Steps of rank 1 that have reached the first machine."""
        return sum(
            path.read_bytes().count(b"\n")
            for path in self.first.home.glob(".rooflaunch/jobs/*/results/*/ranks/1/steps.csv")
        )

    def measuring(self, process: "subprocess.Popen[str]") -> None:
        def has_steps() -> bool:
            assert process.poll() is None, process.communicate()[0]
            return self.steps() > 20

        until(has_steps, "no steps arrive")


@contextmanager
def hosts_in(folder: Path, addresses: tuple[str, str], spaces: tuple[tuple[str, ...], ...]) -> Iterator[Hosts]:
    with ExitStack() as stack:
        machines = [
            stack.enter_context(sshd.running(address, within))
            for address, within in zip(addresses, spaces, strict=False)
        ]
        text = ""
        for name, machine, address in zip(("first", "second"), machines, addresses, strict=True):
            text += f"Host {name}\n HostName {address}\n Port {machine.port}\n IdentityFile {machine.folder}/user\n"
            text += f" UserKnownHostsFile {machine.folder}/known_hosts\n"
        (folder / "ssh_config").write_text(f"{text}Host *\n IdentitiesOnly yes\n GlobalKnownHostsFile /dev/null\n")
        (folder / "bin").mkdir()
        (folder / "bin/ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
        (folder / "bin/ssh").chmod(0o755)
        hosts = Hosts(first=machines[0], second=machines[1], folder=folder, within=spaces[-1])
        try:
            yield hosts
        finally:
            for machine in machines:
                machine.clean()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with hosts_in(tmp_path, ("127.0.0.1", "127.0.0.1"), ((), (), ())) as hosts:
        yield hosts


def of_rank(number: int) -> int:
    """Process of a rank, not what it has started."""
    found = [
        int(path.name)
        for path in Path("/proc").glob("[0-9]*")
        if variables(path.name).get("RANK") == str(number) and "--rank-notes" in line_of(path)
    ]
    [process] = [each for each in found if parent_of(each) not in found]
    return process


def assert_two_hosts(record: Record, iterations: int) -> None:
    found, spec = record.ranks, record.spec
    assert found is not None
    assert (record.status, spec.machines, spec.devices, spec.ranks) == (Status.COMPLETED, 2, 1, 2)
    assert (found.number, list(found.steps or ()), list(found.hosts or ())) == (
        2,
        [iterations] * 2,
        ["first", "second"],
    )
    assert all(seconds > 0 for seconds in found.exposed_s or ())
    assert all(error_s < 0.01 for error_s in found.clock_error_s or ())


@pytest.mark.slow
def test_unchanged_script_on_two_machines_writes_one_bundle(hosts: Hosts) -> None:
    (hosts.folder / "train.py").write_text(
        TRAIN.replace("import os,", "import os\nprint('note', os.environ['NOTE'])\nimport os,")
    )
    os.environ["NOTE"] = "of-mine-12345"
    words = (
        "--iterations",
        "6",
        "--include",
        "*.py",
        "--env",
        "NOTE",
        "--usd-per-h",
        "0.5",
        "--",
        "train.py",
        "40",
        "0.01",
    )
    [record] = hosts.ends(hosts.launched(*words))
    assert_two_hosts(record, 6)
    [folder] = (path.parent for path in hosts.folder.glob(f"results/*/{bundle.MANIFEST}"))
    names = {file.name for file in bundle.read(folder).files}
    assert {"steps.csv", "ranks/1/steps.csv", "ranks/1/collectives.csv", "ranks/1/log.txt", "ranks/hosts.csv"} <= names
    assert not [name for name in names if "longest" in name or name.endswith(".tmp")]
    assert record.cost is not None
    assert record.cost.usd_per_h == 1, "of both machines"
    [log] = hosts.first.home.glob(".rooflaunch/launches/*/startup.log")
    assert log.read_text().count("note ") == 2, "both ranks have the variable, and print"
    left = [path for path in hosts.second.home.rglob("*") if path.is_file() and b"of-mine-12345" in path.read_bytes()]
    assert left == []


@NIGHT
def test_repeats_of_the_trainer_use_the_same_process_there(hosts: Hosts) -> None:
    records = hosts.ends(hosts.launched(*TINY, "--iterations", "5", "--repeats", "2"))
    assert len(records) == 2
    for record in records:
        assert_two_hosts(record, 5)


def helper(_: Hosts) -> int:
    """The process of the second machine that starts its ranks."""
    return parent_of(of_rank(1))


def agent(_: Hosts) -> int:
    return parent_of(parent_of(of_rank(0)))


KILLS: dict[str, tuple[Callable[[Hosts], int], str]] = {
    "rank 0": (lambda _: of_rank(0), "rank 0 on first was killed, or its machine or the network was lost"),
    "rank 1": (lambda _: of_rank(1), "rank 1 on second was killed, or its machine or the network was lost"),
    "process there": (helper, "rank 1 on second"),
    "keeper and all there": (lambda hosts: parent_of(helper(hosts)), ""),
    "starting process": (lambda _: parent_of(of_rank(0)), "the trainer was killed by SIGKILL"),
    "agent": (agent, "the process that started this run has ended"),
}


@NIGHT
@pytest.mark.parametrize("what", KILLS)
def test_killed_process_ends_the_run_and_its_steps_are_kept(what: str, hosts: Hosts) -> None:
    find, message = KILLS[what]
    process = hosts.launched(*TINY, LONG)
    hosts.measuring(process)
    pid = find(hosts)
    if what.startswith("keeper"):
        process.kill()
        process.communicate()
        os.kill(pid, signal.SIGKILL)
        stopped = hosts.started("down", "--host", "first", "--all", "--yes")
        assert stopped.wait(200) == 0
        hosts.nothing_is_left()
        return
    os.kill(pid, signal.SIGKILL)
    [record] = hosts.ends(process, ExitCode.RUN_FAILED)
    assert record.status in (Status.FAILED, Status.INTERRUPTED)
    assert message in str(record.error)
    assert record.ranks is not None
    assert min(record.ranks.steps or ()) >= 15
    assert list(record.ranks.hosts or ()) == ["first", "second"]


@NIGHT
def test_killed_launcher_leaves_a_run_that_completes(hosts: Hosts) -> None:
    process = hosts.launched(*TINY, "--iterations", "60")
    hosts.measuring(process)
    process.kill()
    hosts.second.cut_off()
    until(lambda: list(hosts.first.home.glob(f".rooflaunch/runs/*/{bundle.MANIFEST}")), "it does not end")
    [path] = hosts.first.home.glob(f".rooflaunch/runs/*/{bundle.MANIFEST}")
    assert_two_hosts(bundle.read(path.parent).record, 60)
    hosts.nothing_is_left()


@pytest.mark.slow
def test_machine_that_is_busy_or_fails_is_named_and_the_other_is_free_again(hosts: Hosts) -> None:
    long = hosts.started(
        "ssh", "--host", "second", "--python", sys.executable, "--cpu", *TINY, LONG, "--detach", "--no-ceilings"
    )
    assert long.wait(200) == 0
    process = hosts.launched(*TINY)
    out, _ = process.communicate()
    assert process.returncode == ExitCode.NO_CAPACITY
    assert "error: second is busy with rooflaunch-second-" in out
    assert hosts.started("down", "--host", "second", "--all", "--yes").wait(200) == 0
    hosts.nothing_is_left()
    process = hosts.launched("--iterations", "2", *TINY, "--dataset", "/nowhere/of/all")
    out, _ = process.communicate()
    assert process.returncode == ExitCode.USAGE, out
    assert re.search(r"^error: .*/nowhere/of/all.* \(rank \d on (first|second)\)$", out, re.MULTILINE), out
    hosts.nothing_is_left(out)


class Network:
    """Namespaces of the two machines and of the user, joined by a bridge in the last."""

    def __init__(self) -> None:
        self.name = f"rl{os.getpid()}"

    def ip(self, words: str, at: str = "") -> None:
        where = ["-n", self.name + at] if at else []
        subprocess.run(["ip", *where, *words.split()], check=True, capture_output=True)

    def within(self, at: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name + at)

    def make(self) -> None:
        for at in "abu":
            self.ip(f"netns add {self.name}{at}")
            self.ip("link set lo up", at)
        self.ip("link add bridge type bridge", "u")
        self.ip("addr add 10.77.1.9/24 dev bridge", "u")
        self.ip("link set bridge up", "u")
        for number, at in enumerate("ab", 1):
            self.ip(f"link add link{at} netns {self.name}u type veth peer name eth netns {self.name}{at}")
            self.ip(f"link set link{at} master bridge up", "u")
            self.ip(f"addr add 10.77.1.{number}/24 dev eth", at)
            self.ip("link set eth up", at)


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    try:
        try:
            network.make()
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespace can be made: {error}")
        yield network
    finally:
        for at in "abu":
            with suppress(OSError):
                subprocess.run(["ip", "netns", "del", network.name + at], check=False, capture_output=True)


@pytest.fixture
def apart(network: Network, tmp_path: Path) -> Iterator[Hosts]:
    spaces = network.within("a"), network.within("b"), network.within("u")
    with hosts_in(tmp_path, ("10.77.1.1", "10.77.1.2"), spaces) as hosts:
        yield hosts


@NIGHT
def test_link_that_is_cut_ends_the_run_on_both_machines(network: Network, apart: Hosts) -> None:
    process = apart.launched(*TINY, LONG)
    apart.measuring(process)
    network.ip("link set linkb down", "u")
    [record] = apart.ends(process, ExitCode.RUN_FAILED)
    assert "rank 1 on second was killed, or its machine or the network was lost" in str(record.error)
    assert record.ranks is not None
    assert min(record.ranks.steps or ()) >= 15


@NIGHT
def test_closed_ports_of_the_first_machine_are_named(network: Network, apart: Hosts) -> None:
    closed = ["iptables", "-A", "INPUT", "-p", "tcp", "--syn", "-s", "10.77.1.2", "-j", "DROP"]
    if subprocess.run([*network.within("a"), *closed], check=False, capture_output=True).returncode:
        pytest.skip("no iptables here")
    process = apart.launched(*TINY, "--iterations", "3")
    out, _ = process.communicate(timeout=300)
    assert process.returncode == ExitCode.RUN_FAILED, out
    assert "rank 1 on second cannot reach the first machine at 10.77.1.1:" in out
    assert "a firewall may close the ports between the machines" in out
    apart.nothing_is_left(out)
