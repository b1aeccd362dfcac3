"""`[script]` of a matrix: its words, what is wrong with it, what identifies it, and its runs."""

import json
import os
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launcher.protocol.records import Request
from launcher.script.options import HereOptions, ThereOptions
from launcher.sweep import matrix
from launcher.sweep.matrix import Matrix
from launcher.sweep.sweep_plan import SweepPlan, make_plan
from tests.launcher.backends.gcp.canned_cloud import IMAGE, ZONE, Clouds
from tests.launcher.script import tiny
from tests.launcher.sweep import cloudy
from tests.launcher.told import Golden, told
from tests.workload.storage.gcs_server import BUCKET
from workload.contract import bundle
from workload.contract.spec import Device
from workload.storage.inventory import sealed_in

ROOT = Path(__file__).parents[3]
FILE = Path("own.toml")
SCRIPT = '[script]\ncommand = ["train.py", "--epochs", "1"]\n'
AXES = "[matrix]\nargs.lr = [0.1, 1e-05]\nargs.amp = [true, false]\n"
HERE = '[[on]]\nbackend = "local"\ndevice = "cpu"\n'


def read(text: str, environment: dict[str, str] | None = None) -> Matrix:
    return matrix.read(tomllib.loads(text), file=FILE, environment=environment or {}, config_folder=None)


def command(words: str, *, axes: str = AXES) -> str:
    return f"[script]\ncommand = {words}\n{axes}{HERE}"


EXCLUDE = "[[exclude]]\nargs.lr = 0.1\nargs.amp = [false]\n"
DOTTED = '[matrix]\nargs."optim.lr" = [0.1]\nargs.batch-size = [32]\n'
COMMANDS = {
    "appended, true as the option alone and false not at all": SCRIPT + AXES + HERE,
    "of hydra": command('["train.py", "lr={lr}", "use={amp}"]'),
    "twice": command('["-m", "{lr}.train", "{lr}"]'),
    "no axis": command('["train.py", "{data}/x"]'),
    "JSON": command("""["train.py", '{"a": 1}']"""),
    "with a dot or a dash in the name": command('["train.py", "{optim.lr}"]', axes=DOTTED),
    "with run options and excludes": f"{SCRIPT}[defaults]\niterations = 5\n{AXES}warmup = [1]\n{EXCLUDE}{HERE}",
}


def test_arguments_of_the_matrix_become_words_of_the_script(golden: Golden) -> None:
    texts = []
    for name, text in COMMANDS.items():
        [place] = read(text, {"ROOFLAUNCH_MODEL": "vgg11"}).places
        texts += [f"## {name}", *(f"{one.text}: {' '.join(one.spec.script)}" for one in place.configurations), ""]
    golden("commands.txt", "\n".join(texts))
    first = place.configurations[0].spec
    assert (first.iterations, first.warmup, first.device, first.model) == (5, 1, Device.CPU, "resnet18")
    origin = {name: str(where) for name, where in place.origin.items()}
    assert origin == {"device": "option", "iterations": "option", "warmup": "option"}


def test_what_a_script_is_given_stands_in_its_section_or_at_a_place() -> None:
    script = '[script]\ncommand = ["train.py"]\ndata = "/far"\nenv = ["HF_TOKEN"]\ninclude = ["*.py"]\n'
    there = '[[on]]\nbackend = "ssh"\nhost = "box"\n'
    local, ssh = read(script + AXES + HERE + 'data = "/near"\n' + there).places
    assert local.place.script == HereOptions(data="/near", env=("HF_TOKEN",))
    assert ssh.place.script == ThereOptions(data="/far", env=("HF_TOKEN",), include=("*.py",))
    # Where data lies changes nothing of what is measured.
    assert ssh.place.asked == {"name": "ssh-box", "backend": "ssh", "host": "box"}


WRONG = {
    "no command": "[script]\n" + AXES + HERE,
    "command is no list": '[script]\ncommand = "train.py"\n' + AXES + HERE,
    "unknown key": SCRIPT + 'comand = ["x"]\n' + AXES + HERE,
    "argument without values": SCRIPT + "[matrix]\nargs.lr = []\n" + HERE,
    "nothing varies": SCRIPT + HERE,
    "argument with a dot": SCRIPT + "[matrix.args.lr]\nmin = 0.1\n" + HERE,
    "arguments are no table": SCRIPT + "[matrix]\nargs = [1]\n" + HERE,
    "a list as value": SCRIPT + "[matrix]\nargs.lr = [[0.1]]\n" + HERE,
    "place of another argument": '[script]\ncommand = ["train.py", "lr={lr}"]\n[matrix]\nargs.l = [1]\n' + HERE,
    "model": SCRIPT + "[matrix]\nmodel = ['resnet50']\n" + HERE,
    "data set": SCRIPT + "[defaults]\ndataset = 'cifar10'\n" + AXES + HERE,
    "precision at a place": SCRIPT + AXES + HERE + "precision = 'bf16'\n",
    "excluded argument that does not vary": SCRIPT + AXES + "[[exclude]]\nargs.rl = 1\n" + HERE,
    "arguments without a script": AXES + HERE,
    "data without a script": "[matrix]\nmodel = ['resnet18']\n" + HERE + "data = '/x'\n",
}


def test_what_is_wrong_with_a_file(golden: Golden) -> None:
    golden("wrong_scripts.txt", told({name: partial(read, text) for name, text in WRONG.items()}))


# --- its folder

THERE = f"""
[[on]]
name = "t4"
backend = "gcp"
gpu = "t4"
zone = ["{ZONE}"]
fallback = false
image = "{IMAGE}"
project = "my-project"
bucket = "{BUCKET}"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder in a repository, with a matrix that git tracks."""
    made = tiny.project(tmp_path / "project")
    (made / FILE).write_text("")
    (made / "README.md").write_text("mine")
    tiny.git(made, "add", "-A")
    monkeypatch.chdir(made)
    return made


def planned(text: str, *, output: Path = Path("results"), **more: Any) -> SweepPlan:
    FILE.write_text(text)
    return make_plan(read(text), file=FILE, output=output, **more)


def keys(plan: SweepPlan) -> list[str]:
    return [run.run_key for place in plan.sweep.places for run in place.runs]


TWO = SCRIPT + "[matrix]\nargs.lr = [0.1, 0.2]\n"


@pytest.mark.world
@pytest.mark.parametrize(
    ("change", "is_another"),
    [
        pytest.param(lambda here: (here / "README.md").write_text("yours"), False, id="notes"),
        pytest.param(lambda here: (here / "weights.pt").write_text("new"), False, id="what git ignores"),
        pytest.param(lambda here: (here / "notes.txt").write_text("new"), False, id="what the script may have written"),
        pytest.param(lambda here: (here / "package/model.py").write_text("new"), True, id="a module"),
        pytest.param(lambda here: (here / "new.py").write_text("new"), True, id="a new module"),
    ],
)
def test_a_run_is_done_as_long_as_the_script_is_the_same(change: Any, is_another: bool, folder: Path) -> None:
    before = keys(planned(TWO + HERE))
    assert len(set(before)) == len(before) == 6
    change(folder)
    # The matrix may have grown meanwhile.
    after = keys(planned(TWO.replace("0.2]", "0.2, 0.3]") + HERE))
    assert (set(before) <= set(after)) is not is_another


@pytest.mark.world
def test_without_git_the_python_files_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("one")
    monkeypatch.chdir(tmp_path)
    before = keys(planned(TWO + HERE))
    (tmp_path / "other.csv").write_text("1")
    assert keys(planned(TWO + HERE)) == before
    (tmp_path / "train.py").write_text("two")
    assert not set(keys(planned(TWO + HERE))) & set(before)


@pytest.mark.world
@pytest.mark.usefixtures("folder")
def test_the_plan_says_what_travels_and_shows_no_secret() -> None:
    text = '[script]\ncommand = ["./train.py", "--token", "hunter2"]\n[matrix]\nargs.lr = [0.1]\n' + HERE + THERE
    plan = planned(text)
    assert "command     ./train.py --token '[redacted]' --lr 0.1\n" in plan.text()
    assert "            the script runs in this folder\n" in plan.text()
    assert "            the script sends 8 files, " in plan.text()
    assert "hunter2" not in json.dumps(plan.to_json())
    assert plan.sweep.places[1].runs[0].spec.script == ("train.py", "--token", "hunter2", "--lr", "0.1")


@pytest.mark.world
def test_what_a_place_cannot_run(golden: Golden, folder: Path) -> None:
    asks_for_data = TWO.replace('"1"', '"{data}"')
    cases = {
        "no script": TWO.replace("train.py", "trian.py") + HERE,
        "no module": TWO.replace('"train.py"', '"-m", "nope"') + HERE + 'runtime = "process"\n',
        "data that nobody named": asks_for_data + HERE,
        "a folder of a machine that is not there yet": asks_for_data + THERE + 'data = "/far"\n',
    }
    text = told({name: partial(planned, text) for name, text in cases.items()})
    golden("impossible_scripts.txt", text.replace(str(folder), "FOLDER").replace(sys.executable, "PYTHON"))


# --- its runs

FEW = "[defaults]\nwarmup = 1\niterations = 3\nceilings = false\n"
RUNS = f"""
repeats = 2
[script]
command = ["train.py", "--lr={{lr}}"]
{FEW}
[matrix]
args.lr = [0.1, 0.2]
"""


def swept(folder: Path, text: str, *words: str, environ: dict[str, str] | None = None) -> tuple[int, str, str]:
    (folder / FILE).write_text(text)
    command = [sys.executable, "-m", "launcher", "sweep", str(FILE), *words]
    environment = {**(environ or os.environ), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def lines_of(folder: Path) -> list[str]:
    """The command of each sealed run."""
    records = [bundle.read(folder / "results" / one.run_id).record for one in sealed_in(folder / "results")]
    assert {record.status for record in records} == {"completed"}
    return sorted(str(record.spec.script and record.spec.script.command) for record in records)


TWICE = ["train.py --lr=0.1"] * 2 + ["train.py --lr=0.2"] * 2


@pytest.mark.world
@pytest.mark.slow
def test_here_with_a_profile_and_started_again(folder: Path) -> None:
    profiled = RUNS.replace("repeats = 2", "repeats = 1").replace(FEW, FEW + 'profile = "torch"\n') + HERE
    code, out, err = swept(folder, profiled)
    assert code == 0, err
    assert "1/2  block 1, lr 0." in err
    assert " samples/s\n" in err
    assert lines_of(folder) == TWICE[1:3]
    for one in sealed_in(folder / "results"):
        record = bundle.read(folder / "results" / one.run_id).record
        assert record.profile is not None
        assert record.profile.status == "completed"
        assert record.job is not None
        assert (record.job.name, record.run_key) == ("own", one.run_key)
    code, out, _ = swept(folder, profiled)
    assert (code, out.splitlines()[0]) == (0, "  local-cpu     2 of 2 runs have a result, 0 of them now")


@pytest.mark.world
@pytest.mark.slow
def test_a_script_that_fails_is_a_failed_run_with_its_words(folder: Path) -> None:
    (folder / "train.py").write_text(
        "import sys, torch\nif '--lr=0.2' in sys.argv: raise ValueError('no')\n" + tiny.SCRIPT
    )
    code, out, _ = swept(folder, RUNS.replace("repeats = 2", "repeats = 1") + HERE)
    assert code == 6
    assert "  local-cpu     1 of 2 runs have a result" in out
    why = "train.py failed with ValueError before its training step was known; its last line: ValueError: no"
    assert f"  failed        lr 0.2 (block 1): {why}" in out
    assert lines_of(folder) == TWICE[:1]


@pytest.mark.world
@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_in_a_fake_cloud_the_files_travel_once(clouds: Clouds) -> None:
    with clouds() as cloud:
        plan = planned(RUNS + THERE, output=cloud.output, backend_of={"gcp": cloudy.gcp_of(cloud)}.__getitem__)
        outcome = cloudy.swept(cloud, plan.sweep)
        assert (outcome.exit_code, outcome.places[0].done) == (0, 4)
        requests = [Request.from_bytes(vm.metadata["rooflaunch-request"].encode()) for vm in cloud.fake.all_vms]
        assert len(requests) == 2
        sent = plan.sweep.places[0].place.script.script_files
        assert [dict(request.script) for request in requests] == [sent.facts()] * 2
        for request in requests:
            assert sorted(run.spec.script for run in request.work.runs) == [
                ("train.py", "--lr=0.1"),
                ("train.py", "--lr=0.2"),
            ]
        assert [one.name for one in cloud.bucket.objects("scripts/")] == [f"scripts/{sent.sha256}.tar.gz"]
