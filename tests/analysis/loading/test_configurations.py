from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.importing import UserFacts, import_file
from analysis.loading.configurations import NotPoolableError, completed, group, measured, require_poolable
from benchmarks.synthetic_bundles import make
from tests.analysis.readers.traces.kineto_traces import V100, document, product_step
from tests.analysis.sentence_runs import Golden
from workload.contract.errors import ExitCode

# A field of run.json, and another value for it.
UNLIKE = {
    "environment__device__name": "NVIDIA L4",
    "environment__device__driver_version": "535.1",
    "environment__software__torch": "2.14.0",
    "environment__container__image_digest": None,
    "environment__software__commit": "f" * 40,
    "environment__software__commit_dirty": True,
    "spec__precision": "amp",
    "spec__model": "vgg16",
    "spec__batch_size": 64,
    "spec__image_size": 32,
    "spec__warmup": 50,
    "spec__compile": True,
    "spec__optimizer": "adam",
    "spec__workers": 4,
    "spec__dataset": "cifar10",
    "environment__start": "forked",
    "environment__place": "gcp-t4-b",
    "environment__cloud__machine_type": "n1-standard-8",
}


def test_unlike_runs_are_not_pooled(tmp_path: Path, golden: Golden) -> None:
    said = []
    for field, value in UNLIKE.items():
        one, other = make(tmp_path / field, 1), make(tmp_path / field, 2, **{field: value})
        runs = analysis.load(tmp_path / field).runs
        assert [len(each.runs) for each in group(completed(runs))] == [1, 1]
        with pytest.raises(NotPoolableError) as caught:
            require_poolable(runs)
        said.append(str(caught.value).replace(one.name, "one").replace(other.name, "other"))
    assert caught.value.hint == "name folders that contain one configuration each"
    assert caught.value.exit_code == ExitCode.NOT_POOLABLE == 9
    golden("unlike.txt", "\n".join([*said, ""]))


# A field of run.json of one of three runs of a script, another value, and how many configurations they are.
OF_A_SCRIPT = [
    ("spec__batch_size", 77, 1),
    ("spec__grad_accumulation", 3, 1),
    ("spec__script__command", "train.py --lr 0.5", 2),
    ("spec__script__sha256", "b" * 16, 2),
    ("spec__script__unit", "tokens", 2),
]


@pytest.mark.parametrize(("field", "value", "configurations"), OF_A_SCRIPT)
def test_a_configuration_of_a_script_is_no_count(tmp_path: Path, field: str, value: Any, configurations: int) -> None:
    script = {"spec__script": {"command": "train.py --lr 0.1", "sha256": "a" * 16, "unit": "samples"}}
    first, name = field.rpartition("__")[::2]
    changed = {first: script[first] | {name: value}} if first in script else {field: value}
    for seed, more in enumerate(({}, {}, changed), 1):
        make(tmp_path, seed, **{**script, **more})
    runs = analysis.load(tmp_path).runs
    assert len(group(runs)) == configurations


@pytest.mark.parametrize(
    "field",
    ["spec__seed", "spec__iterations", "environment__host__hostname", "environment__cloud__spot"],
)
def test_repeats_are_pooled(tmp_path: Path, field: str) -> None:
    make(tmp_path, 1)
    make(tmp_path, 2, **{field: {"spec__seed": 1, "spec__iterations": 50}.get(field)})
    runs = analysis.load(tmp_path).runs
    require_poolable(runs)
    (found,) = group(runs)
    assert len(found.runs) == 2
    assert found.apart == ()


def test_runs_of_versions_without_forks_are_pooled_with_fresh_ones(tmp_path: Path) -> None:
    for number, start in enumerate((None, "fresh", "forked")):
        make(tmp_path, number, environment__start=start)
    runs = analysis.load(tmp_path).runs
    assert sorted((each["start"], len(each.runs)) for each in group(completed(runs))) == [("forked", 1), ("fresh", 2)]


def test_runs_that_broke_off_do_not_count(tmp_path: Path) -> None:
    make(tmp_path, 1)
    make(tmp_path, 2, status="failed", spec__model="vgg16")
    make(tmp_path, 3, timing__step_s=None, environment__software__torch="2.14.0")
    runs = analysis.load(tmp_path).runs
    require_poolable(runs)
    assert len(completed(runs)) == 2
    assert len(measured(runs)) == 1
    # A profile without times is a group of its own, not lost.
    assert [len(each.runs) for each in group(completed(runs))] == [1, 1]


def test_groups_of_one_name_say_how_they_differ(tmp_path: Path) -> None:
    make(tmp_path, 1)
    make(tmp_path, 2, environment__device__driver_version=None, environment__software__commit="f" * 40)
    make(tmp_path, 3, spec__model="vgg16", environment__device__driver_version="535.1")
    apart = {(each["model"], each["driver_version"]): each.apart for each in group(analysis.load(tmp_path).runs)}
    assert apart == {
        ("resnet18", "580.95.05"): ("driver 580.95.05", "commit b9eda8a56f3b"),
        ("resnet18", None): ("driver unknown", "commit ffffffffffff"),
        ("vgg16", "535.1"): (),
    }


def test_a_process_has_no_image_whose_digest_could_be_unknown(tmp_path: Path) -> None:
    make(tmp_path, 1)
    make(tmp_path, 2, environment__runtime="process", environment__container=None)
    make(tmp_path, 3, environment__container={"image_digest": None})
    assert sorted(each.apart for each in group(analysis.load(tmp_path).runs)) == [
        ("runtime docker", "image digest sha256:000000000000"),
        ("runtime docker", "image digest unknown"),
        ("runtime process",),
    ]


# --- one name for different work


def traced(folder: Path, times: int, name: str) -> None:
    events = product_step(gpu_us=100 * times)
    events[1]["args"]["Input Dims"] = [[800 * times, 800], [800, 700]]
    (folder / name).write_text(document(events, deviceProperties=[V100], traceName=name))
    import_file(folder / name, UserFacts(model="other", batch_size=8), output=folder / "results")


def test_different_work_of_one_name_is_not_one_configuration(tmp_path: Path) -> None:
    for number, times in enumerate((1, 1, 2, 30)):
        traced(tmp_path, times, f"{number}.json")
    runs = analysis.load(tmp_path / "results").runs
    groups = group(completed(runs))
    assert sorted((len(one.runs), one.apart) for one in groups) == [
        (1, ("work 1.8 GFLOP a step",)),
        (1, ("work 27 GFLOP a step",)),
        (2, ("work 900 MFLOP a step",)),
    ]


def test_runs_of_different_work_cannot_be_pooled(tmp_path: Path) -> None:
    for number, flop in enumerate((1e9, 5e9)):
        make(tmp_path, number, imported={"file": f"{number}.json"}, complexity__train_flop_per_step=flop)
    runs = analysis.load(tmp_path).runs
    with pytest.raises(NotPoolableError, match="cannot pool: work is '1 GFLOP a step' in one run"):
        require_poolable(runs)
