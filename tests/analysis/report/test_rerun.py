"""`analyze rerun`: the matrix that it writes plans what the results contain, read by `launch sweep`'s own reader."""

import json
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.report import rerun
from launcher.sweep import matrix
from tests.analysis.conftest import Analyze
from workload.contract import record as contract
from workload.contract.errors import NothingToDoError
from workload.contract.record import Record
from workload.contract.spec import Device, RunSpec

LOCAL = {"backend": "local", "runtime": "process"}
T4 = {
    "backend": "gcp",
    "place": "gcp-t4-us-central1-a",
    "cloud": {"zone": "us-central1-a", "machine_type": "n1-standard-8", "spot": True},
}
SSH = {"backend": "ssh", "place": "ssh-10-0-0-7", "runtime": "process"}
SLURM = {"backend": "slurm", "slurm": {"partition": "gpu", "gpus_on_node": "1"}}
# What a run is, apart from where it ran.
IGNORED = ("device", "repeats")


def a_run(environment: dict[str, Any], spec: RunSpec, *chosen: str, **more: Any) -> Record:
    """A run of our trainer that was given `chosen`; the other options have the values that a run records."""
    origin = {name: "matrix" if name in chosen else "default" for name in spec.to_json()}
    document = {"run_id": "a", "status": "completed", "environment": environment, "spec": spec.to_json()}
    return contract.read(json.loads(json.dumps({**document, "spec_origin": origin, **more}))).record


def a_script(*argv: str) -> Record:
    spec = {"model": argv[0], "batch_size": 8, "warmup": 3, "optimizer": "SGD", "script": {"argv": list(argv)}}
    return contract.read({"run_id": "a", "status": "completed", "environment": LOCAL, "spec": spec}).record


def read(text: str) -> matrix.Matrix:
    return matrix.read(tomllib.loads(text), file=Path("again.toml"), environment={}, config_folder=None)


def planned(text: str) -> Counter[Any]:
    """Runs by backend, and by the options that the matrix gives them."""
    again = read(text)
    return Counter(
        {
            (each.place.backend, configuration.spec): again.repeats
            for each in again.places
            for configuration in each.configurations
        }
    )


def test_configurations_repeats_and_places_come_back() -> None:
    filled = RunSpec(model="resnet18", batch_size=8, image_size=224, workers=0)
    runs: list[tuple[dict[str, Any], RunSpec, tuple[str, ...]]] = []
    for model, batch_size in (("resnet18", 8), ("resnet18", 16), ("vgg11", 8)):
        for environment in (LOCAL, T4, SSH, SLURM):
            spec = replace(filled, model=model, batch_size=batch_size, optimizer="adam", channels_last=True)
            if environment is not SLURM or model == "vgg11":
                runs += [(environment, spec, ("model", "batch_size", "optimizer", "channels_last"))] * 2
    again = rerun.planned([a_run(where, spec, *chosen) for where, spec, chosen in runs], name="again")
    assert again.notes == ("fill in USER@HOST",)
    chosen_only = Counter(
        (where["backend"], RunSpec(**{name: getattr(spec, name) for name in chosen})) for where, spec, chosen in runs
    )
    assert planned(again.text) == chosen_only
    places = {place.place.backend: place.place for place in read(again.text).places}
    assert places["gcp"].asked == {
        "name": "gcp-t4",
        "backend": "gcp",
        "gpu": "t4",
        "zones": ["us-central1-a"],
        "machine_type": "n1-standard-8",
        "spot": True,
    }
    assert places["slurm"].asked["gres"] == "gpu:1"


def test_what_a_run_chose_for_itself_is_given_to_all_where_runs_differ() -> None:
    """Batch size 32 was left to the program in one run and given in the other: a matrix has to name both."""
    one, other = RunSpec(batch_size=32, seed=1), RunSpec(batch_size=64, seed=1)
    again = rerun.planned([a_run(LOCAL, one), a_run(LOCAL, other, "batch_size")], name="again")
    assert tomllib.loads(again.text)["matrix"] == {"batch_size": [32, 64]}


def test_few_rules_leave_out_what_was_not_run() -> None:
    runs = [
        a_run(LOCAL, RunSpec(model=model, batch_size=size, seed=seed), "model", "batch_size", "seed")
        for model in ("resnet18", "resnet34", "vgg11")
        for size in (1, 2, 4)
        for seed in (0, 1)
        if not (seed == 1 and size == 4)
    ]
    again = rerun.planned(runs, name="again")
    assert len(tomllib.loads(again.text)["exclude"]) == 1
    assert len(planned(again.text)) == 15


def test_a_single_configuration_is_a_matrix_too() -> None:
    again = rerun.planned([a_run(LOCAL, RunSpec(batch_size=4))] * 3, name="again")
    assert planned(again.text) == {("local", RunSpec()): 3}


def test_words_of_a_script_that_differ_are_an_axis() -> None:
    scripts = [a_script("train.py", "--lr", rate, "--data", "{data}", kind) for rate in ("0.1", "1") for kind in "ab"]
    again = rerun.planned([*scripts, a_script("train.py"), a_run(LOCAL, RunSpec(batch_size=4))], name="again")
    assert "left out: its command has another number of words" in again.notes[1]
    assert "left out: a matrix is for scripts or for our trainer" in again.notes[0]
    table = tomllib.loads(again.text)
    table["script"]["data"] = "photos"
    commands = {
        configuration.spec.script
        for place in read(again.text.replace("[script]\n", '[script]\ndata = "photos"\n')).places
        for configuration in place.configurations
    }
    assert commands == {record.spec.script.argv for record in scripts if record.spec.script}


def test_braces_of_a_script_s_own_words_stay() -> None:
    records = [a_script("train.py", "--format", "{epoch}-{loss}", "--lr", rate) for rate in ("1", "2")]
    again = rerun.planned(records, name="again")
    found = {each.spec.script for place in read(again.text).places for each in place.configurations}
    assert found == {("train.py", "--format", "{epoch}-{loss}", "--lr", rate) for rate in ("1", "2")}


def test_more_repeats_than_some_had_are_said() -> None:
    runs = [a_run(LOCAL, RunSpec(batch_size=size), "batch_size") for size in (1, 1, 1, 2)]
    again = rerun.planned(runs, name="again")
    assert again.notes == ("2 runs more than before: every configuration has 3 repeats",)


def test_a_run_of_a_sweep_that_failed_and_ran_again_is_one_repeat() -> None:
    job = {"name": "night", "task": 1, "position": 1}
    runs = [a_run(LOCAL, RunSpec(batch_size=4), "batch_size", job={**job, "block": block}) for block in (1, 1, 2)]
    again = rerun.planned(runs, name="night")
    assert read(again.text).repeats == 2
    assert again.notes == ()


def test_steps_that_a_script_was_not_given_are_not_given_again() -> None:
    """A record of a script has the steps that were used, and in `spec_origin` only those that were given."""
    runs = [a_script("train.py", "--lr", rate) for rate in ("0.1", "1")]
    job = contract.JobPlace(name="night", block=1)
    launched = [replace(record, job=job, spec_origin={"iterations": "option"}) for record in runs]
    assert "warmup" not in rerun.planned(launched, name="night").text
    assert "warmup = 3" in rerun.planned(runs, name="night").text


def test_a_device_that_was_not_chosen_is_not_chosen_again() -> None:
    used = RunSpec(device=Device.CPU, batch_size=4)
    assert "device" not in rerun.planned([a_run(LOCAL, used)], name="again").text
    assert 'device = "cpu"' in rerun.planned([a_run(LOCAL, used, "device")], name="again").text


def test_a_secret_is_to_be_filled_in() -> None:
    again = rerun.planned([a_script("train.py", "--token", "[redacted]")], name="again")
    assert again.notes == ("fill in [redacted]",)


@pytest.mark.parametrize(
    "record",
    [
        a_run({}, RunSpec(batch_size=4), imported={"file": "a.csv"}),
        a_run(LOCAL, RunSpec(batch_size=4), job={"name": "duel-1", "variant": "A"}),
        a_run({"backend": "moon"}, RunSpec(batch_size=4)),
        replace(a_run(LOCAL, RunSpec(batch_size=4)), spec=contract.Spec(model="vgg11", batch_size=4, precision="fp7")),
    ],
)
def test_nothing_to_plan_again(record: Record) -> None:
    with pytest.raises(NothingToDoError, match="no run can be planned again"):
        rerun.planned([record], name="again")


def test_the_command(tmp_path: Path, analyze: Analyze) -> None:
    bundles = Path(__file__).parents[2] / "bundles"
    source = next(bundles.glob("*/*-local-cpu-shufflenet*-a452d2"))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / source.name).symlink_to(source)
    target = tmp_path / "again.toml"
    code, out, _ = analyze("rerun", tmp_path / "results", "-o", target)
    assert (code, out.strip()) == (0, str(target))
    assert read(target.read_text()).runs == 1
    code, out, _ = analyze("rerun", tmp_path / "results", "--name", "night")
    assert out == target.read_text().replace('name = "again"', 'name = "night"', 1)
    code, _, err = analyze("rerun", tmp_path / "results", "-o", tmp_path / "no" / "again.toml")
    assert code == 2
    assert "cannot be written" in err
