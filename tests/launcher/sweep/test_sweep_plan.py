"""The plan of a sweep, and the runs of a place: their keys, their order, and who of several machines does them."""

import tomllib
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from benchmarks.synthetic_bundles import make
from launcher.backends.gcp.backend import ComputeEngine
from launcher.backends.ssh.backend import backend as ssh
from launcher.images import contents
from launcher.protocol.records import Task, TaskRun
from launcher.sweep import matrix, places
from launcher.sweep.places import Configuration, Place, PlacePlan, Until, in_order, plan_place, run_key
from launcher.sweep.sweep_plan import SweepPlan, make_plan, require_affordable
from tests.launcher.told import Golden, told
from workload.contract.errors import UsageError
from workload.contract.spec import Device, Precision, RunSpec

NOW = datetime(2026, 11, 21, 14, 25, 30, tzinfo=UTC)
FILE = Path("night.toml")
TWO_PLACES = """
name = "night"
repeats = 2
[matrix]
model = ["resnet18"]
batch_size = [16, 32, 64]
[[on]]
backend = "local"
device = "cpu"
[[on]]
name = "t4"
backend = "gcp"
gpu = "t4"
zone = ["us-central1-a"]
fallback = false
project = "my-project"
"""


@pytest.fixture(autouse=True)
def same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "current_commit", lambda: "0" * 40)


def plan(text: str, results: Path, **more: Any) -> SweepPlan:
    table = tomllib.loads(text)
    content = matrix.read(table, file=FILE, environment={}, config_folder=None)
    backends = {"gcp": ComputeEngine(), "ssh": ssh}
    return make_plan(content, file=FILE, output=results, backend_of=backends.__getitem__, now=NOW, **more)


def seal(results: Path, whole: SweepPlan, number: int, place: int, run: int, **changes: Any) -> None:
    """A bundle of one of the plan's runs."""
    place_plan = whole.sweep.places[place]
    task_run = place_plan.runs[run]
    make(
        results,
        number,
        **{
            "run_key": task_run.run_key,
            "job": {"name": whole.sweep.name, "task": 1, "block": task_run.block, "position": task_run.position},
            "spec__batch_size": task_run.spec.batch_size,
            **changes,
        },
    )


def test_numbers_of_devices_share_a_machine_with_the_largest(tmp_path: Path) -> None:
    """Its 1.08 USD per hour and a disk for each of 2 machines, even if only runs of one device are left."""
    text = TWO_PLACES.replace("batch_size = [16, 32, 64]", "devices = [1, 2]").replace('device = "cpu"', "")
    whole = plan(text, tmp_path)
    note = "a block's runs of all numbers of devices share a machine, and each device gets 1/2 of the CPUs"
    assert [line for line in whole.text(10_000).splitlines() if note in line] == [
        f"note        {place.plan.place.name}: {note}" for place in whole.places
    ]
    large = [number for number, run in enumerate(whole.places[1].plan.runs) if run.spec.devices == 2]
    for number in large:
        seal(tmp_path, whole, number, 1, number, spec__devices=2)
    left = plan(text, tmp_path).places[1]
    assert (left.missing, left.machines) == (2, 2)
    assert (
        left.most_usd == whole.places[1].most_usd == pytest.approx(2 * (1.08 + 0.015 + 0.005) * 3900 / 3600, rel=0.01)
    )


OF_CPU = {"environment__backend": "local", "timing__phases": {"start": 0.0, "end": 100.0}}
OTHER_SIZES = TWO_PLACES.replace("[16, 32, 64]", "[32, 64, 128]")
LONG = TWO_PLACES.replace("repeats = 2", "repeats = 30") + 'machines = 1\nmax_run_time = "30m"\n'
BOX = TWO_PLACES + '[[on]]\nbackend = "ssh"\nhost = "box"\n'
# The file, and the bundles that are there: place, run, and what differs from a completed run.
PLANS: dict[str, tuple[str, list[tuple[int, int, dict[str, Any]]]]] = {
    "before anything ran": (TWO_PLACES, []),
    "with some runs": (
        TWO_PLACES,
        [(0, 0, {}), (0, 1, {"status": "failed"}), (0, 2, {"status": "preempted"}), (1, 5, {})],
    ),
    # Of the 6 runs one is there and two of batch 64 are too large; batch 32 of the other block may fit.
    "with a run that ran out of memory": (TWO_PLACES, [(1, 0, {"status": "out_of_memory"})]),
    # One block of the CPU is there: the other takes as long; the T4 has none, so its time is assumed.
    "with times of earlier runs": (TWO_PLACES, [(0, run, OF_CPU) for run in range(3)]),
    "with runs that are no longer in the matrix": (OTHER_SIZES, [(0, run, {}) for run in range(3)]),
    "with runs that may not fit into the limit": (LONG, []),
    "with a machine without a price": (BOX, []),
    "with a machine with a price": (BOX + "usd_per_h = 0.5\n", []),
}


def test_plans(golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first as a terminal shows it; of others the lines that differ."""
    monkeypatch.setattr("platform.node", lambda: "other")
    texts: list[str] = []
    for number, (name, (text, bundles)) in enumerate(PLANS.items()):
        results = tmp_path / str(number)
        results.mkdir()
        before = plan(TWO_PLACES, results)
        for index, (place, run, changes) in enumerate(bundles):
            seal(results, before, index, place, run, **changes)
        if bundles:
            make(results, 99, job={"name": "other", "task": 1, "block": 1, "position": 1}, run_key="00ff")
        lines = plan(text, results).text(10_000 if number else 100).splitlines()
        usual = before.text(10_000).splitlines() if number else ()
        texts += [f"## {name}", *(line.replace(str(results), "RESULTS") for line in lines if line not in usual), ""]
    golden("plans.txt", "\n".join(texts))


def test_a_damaged_bundle_is_run_again(tmp_path: Path) -> None:
    first = plan(TWO_PLACES, tmp_path)
    for number in range(3):
        seal(tmp_path, first, number, 0, number)
    folder = min(tmp_path.iterdir())
    whole = (folder / "log.txt").read_bytes()
    (folder / "log.txt").write_bytes(whole.replace(b"m", b"M", 1))
    second = plan(TWO_PLACES, tmp_path)
    here = second.places[0]
    assert (len(here.plan.done), here.missing) == (2, 4)
    why = "log.txt was changed after the run: its sha256 differs"
    assert second.damaged == second.to_json()["damaged"] == {folder.name: why}
    told = f"1 bundle to be repeated; a start moves the damaged files to {tmp_path}/.damaged/: {folder.name} ({why})"
    assert f"damaged     {told}" in second.text(10_000).splitlines()
    (folder / "log.txt").write_bytes(whole)
    assert plan(TWO_PLACES, tmp_path).damaged == {}


def test_blocks_that_until_has_added_stay_and_count(tmp_path: Path) -> None:
    first = plan(TWO_PLACES, tmp_path)
    further = first.sweep.places[0].with_blocks(4)
    for number, run in enumerate(further.runs[6:]):
        seal(tmp_path, first, number, 0, 0, run_key=run.run_key)
    until = plan(TWO_PLACES, tmp_path, until=Until(share=0.01))
    assert ([len(place.plan.runs) for place in until.places], len(until.places[0].plan.done)) == ([12, 6], 6)


def test_fresh_is_a_sweep_of_another_name_with_nothing_done(tmp_path: Path) -> None:
    first = plan(TWO_PLACES, tmp_path)
    seal(tmp_path, first, 1, 0, 0)
    fresh = plan(TWO_PLACES, tmp_path, is_fresh=True)
    assert (fresh.sweep.name, fresh.missing) == ("night-20261121-142530", 12)
    keys = [{run.run_key for place in whole.sweep.places for run in place.runs} for whole in (first, fresh)]
    assert not keys[0] & keys[1]


def test_more_than_it_may_cost_is_refused(tmp_path: Path) -> None:
    whole = plan(TWO_PLACES, tmp_path)
    require_affordable(whole, None)
    require_affordable(whole, 100.0)
    with pytest.raises(UsageError) as refused:
        require_affordable(whole, 0.1)
    assert str(refused.value) == f"the sweep is expected to cost {whole.usd:.2f} USD, more than --max-cost 0.1"
    assert refused.value.hint.startswith("--max-cost 0.")
    with pytest.raises(UsageError, match="more than --max-cost"):
        plan(TWO_PLACES, tmp_path, max_cost_usd=0.1)


IMPOSSIBLE = {
    "a combination": TWO_PLACES.replace("batch_size = [16, 32, 64]", 'precision = ["fp32", "tf32"]').replace(
        'device = "cpu"', ""
    ),
    "no such GPU": TWO_PLACES.replace('gpu = "t4"', 'gpu = "t5"'),
    "options that contradict": TWO_PLACES + "rerun_preempted = 2",
    "of another backend": TWO_PLACES + '[[on]]\nbackend = "ssh"\nhost = "box"\npython = "/p"\nimage = "x"\n',
}


def test_what_a_place_cannot_do(golden: Golden, tmp_path: Path) -> None:
    cases = {name: partial(plan, text, tmp_path) for name, text in IMPOSSIBLE.items()}
    golden("impossible_places.txt", told(cases))


def test_the_image_or_the_code_is_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def key(more: str) -> str:
        return plan(TWO_PLACES + more, tmp_path).sweep.places[1].runs[0].run_key

    digest = f'image = "host/a@sha256:{"0" * 64}"\n'
    moved = digest.replace("host/a", "host/b")
    assert len({key(""), key(digest), key('image = "host/a:1"\n')}) == 3
    assert key(digest) == key(moved)
    assert key('max_run_time = "5h"\nbucket = "other"\nusd_per_h = 3.0\nmachines = 1\n') == key("")
    assert key("spot = true\n") != key("")
    assert "by its tag" in plan(TWO_PLACES + 'image = "host/a:1"\n', tmp_path).notes[-1]
    before = key("")
    monkeypatch.setattr(contents, "agent_code", lambda: {"workload/x.py": b"other"})
    assert key("") != before


def test_a_process_here_is_its_code_and_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[matrix]\nmodel = ["resnet18"]\n[[on]]\nbackend = "local"\nruntime = "process"\n'
    [local] = matrix.read(tomllib.loads(text), file=FILE, environment={}, config_folder=None).places
    place = local.place
    before = places.code_of(place)
    assert before.startswith("code ")
    monkeypatch.setattr(places.importlib.metadata, "version", lambda _: "9.9")
    after = places.code_of(place)
    assert after != before
    # Another file of the launcher or another GPU in the table of peaks makes no other run; code of the trainer does.
    files = contents.agent_code()
    for name in ("launcher/agent/agent.py", "workload/contract/peaks.toml", "workload/contract/prices.toml"):
        assert name in files
        monkeypatch.setattr(contents, "agent_code", lambda name=name: {**files, name: b""})
        assert places.code_of(place) == after
    monkeypatch.setattr(contents, "agent_code", lambda: {**files, "workload/run/train.py": b""})
    assert places.code_of(place) != after


def run(key: str, batch_size: int | None, *, model: str = "resnet18", block: int = 1) -> TaskRun:
    return TaskRun(spec=RunSpec(model=model, batch_size=batch_size), block=block, run_key=key)


def with_tasks(*tasks: tuple[TaskRun, ...], done: tuple[str, ...] = ()) -> PlacePlan:
    numbered = tuple(Task(job="night", number=number, runs=runs) for number, runs in enumerate(tasks, start=1))
    return PlacePlan(place=Place(name="here", backend="local"), tasks=numbered, done=frozenset(done))


def test_what_is_missing_keeps_the_order_and_the_number_of_its_task() -> None:
    place = with_tasks((run("a", 8), run("b", 16)), (run("c", 8, block=2),), (run("d", 16, block=3),), done=("b", "c"))
    left = [(task.job, task.number, [one.run_key for one in task.runs]) for task in place.missing]
    assert left == [("night", 1, ["a"]), ("night", 3, ["d"])]
    assert [one.run_key for one in place.runs] == ["a", "b", "c", "d"]


def test_larger_batches_than_one_that_ran_out_of_memory() -> None:
    runs = (run("default", None), run("b32", 32), run("b64", 64), run("other", 64, model="vgg11"))
    place = with_tasks(runs, (run("b64 again", 64, block=2),))
    for out_of_memory, expected in (
        ((), {}),
        (("b32",), {"b64": 32, "b64 again": 32}),
        # The same batch may fit another time.
        (("b64",), {}),
        (("b64", "b32"), {"b64 again": 32}),
        (("default",), {}),
    ):
        assert place.too_large(out_of_memory) == expected


def test_devices_of_a_place_are_those_of_its_largest_configuration_even_if_that_is_done() -> None:
    """The share of the CPUs of one device depends on it, and so does the key."""
    one, two = (Configuration(values={"devices": count}, spec=RunSpec(devices=count)) for count in (1, 2))
    place = Place(name="t4", backend="gcp", asked=T4, machines=0)
    both, alone = (
        plan_place(place, chosen, name="night", repeats=2, seed=0, code=CODE) for chosen in ([one, two], [one])
    )
    large = [run.run_key for run in both.runs if run.spec.devices == 2]
    assert [task.devices for task in both.without(large)] == [2, 2]
    assert [task.devices for task in both.with_blocks(3).tasks] == [2, 2, 2]
    assert [task.devices for task in alone.tasks] == [1, 1]
    assert not {run.run_key for run in both.runs} & {run.run_key for run in alone.runs}
    assert large[0] == run_key(two.spec, 1, code=CODE, asked=T4)


T4 = {"name": "t4", "backend": "gcp", "gpu": "t4", "zones": ["us-central1-a"]}
HERE = {"name": "local", "backend": "local"}
CODE = "sha256:" + 64 * "0"


def configurations(*models: str) -> tuple[Configuration, ...]:
    return tuple(
        Configuration(values={"model": model, "batch_size": size}, spec=RunSpec(model=model, batch_size=size))
        for model, size in product(models, (32, 64))
    )


def planned(*models: str, repeats: int = 3, machines: int = 1, seed: int = 0) -> PlacePlan:
    place = Place(name="t4", backend="gcp", asked=T4, machines=machines)
    return plan_place(place, configurations(*models), name="night", repeats=repeats, seed=seed, code=CODE)


def test_keys_are_the_same_for_ever() -> None:
    """Another key means that everybody's runs are measured again: change these for a reason only."""
    plain = RunSpec()
    full = RunSpec(
        model="vit_b_16", device=Device.CUDA, batch_size=64, precision=Precision.AMP, min_seconds=0.5, compile=True
    )
    assert {
        "plain": run_key(plain, 1, code=CODE, asked=HERE),
        "block 2": run_key(plain, 2, code=CODE, asked=HERE),
        "full": run_key(full, 1, code=CODE, asked=HERE),
        "t4": run_key(full, 1, code=CODE, asked=T4),
        "code": run_key(full, 1, code="commit", asked=T4),
        "text": run_key(RunSpec(dataset="/data/Größe"), 1, code=CODE, asked=HERE),
    } == {
        "plain": "9e6e893c80e8c39a",
        "block 2": "cfdd3902fec4346c",
        "full": "b630f29ee5737fec",
        "t4": "567a704cc393995d",
        "code": "62099903326ad517",
        "text": "cbb712b31d89ed9f",
    }


def test_what_says_nothing_of_the_measurement_is_in_no_key() -> None:
    key = run_key(RunSpec(dataset="cifar10"), 1, code=CODE, asked=HERE)
    same = RunSpec(dataset="cifar10", data_dir="/mnt", download=True, repeats=3, model="resnet18")
    assert run_key(same, 1, code=CODE, asked=HERE) == key
    assert run_key(same, 1, code=CODE, asked=dict(reversed(HERE.items()))) == key


def test_every_second_block_is_the_one_before_it_in_reverse() -> None:
    blocks = [[one.text for one in in_order(configurations("a", "b", "c"), seed=0, block=n)] for n in range(1, 6)]
    assert [len(set(block)) for block in blocks] == [6, 6, 6, 6, 6]
    assert (blocks[1], blocks[3]) == (blocks[0][::-1], blocks[2][::-1])
    assert blocks[0] != blocks[2] != blocks[4] != blocks[0]
    assert blocks[0] == [
        "b, batch_size 32",
        "a, batch_size 32",
        "c, batch_size 32",
        "c, batch_size 64",
        "b, batch_size 64",
        "a, batch_size 64",
    ]


@pytest.mark.parametrize("block", [1, 2])
def test_an_order_does_not_depend_on_the_other_configurations(block: int) -> None:
    fewer, more = configurations("a", "b"), configurations("a", "x", "b")
    kept = [one for one in in_order(more, seed=3, block=block) if one in fewer]
    assert kept == in_order(fewer, seed=3, block=block)


def test_of_an_odd_number_each_is_in_the_middle_in_turn() -> None:
    three = configurations("a", "b", "c")[:3]
    for seed in range(20):
        blocks = [in_order(three, seed=seed, block=n) for n in range(1, 13)]
        middles = [block[1].text for block in blocks]
        assert middles[::2] == middles[1::2] == middles[:6:2] * 2
        assert len(set(middles)) == 3
    five = configurations("a", "b", "c")[:5]
    assert len({in_order(five, seed=0, block=n)[2].text for n in range(1, 11)}) == 5
    assert in_order(five[:1], seed=0, block=2) == list(five[:1])


def test_blocks_are_shared_out_among_machines() -> None:
    plan = planned("a", "b", repeats=5, machines=2)
    assert [(task.job, task.number, [run.block for run in task.runs]) for task in plan.tasks] == [
        ("night", 1, [1, 1, 1, 1, 3, 3, 3, 3, 5, 5, 5, 5]),
        ("night", 2, [2, 2, 2, 2, 4, 4, 4, 4]),
    ]
    assert [run.position for run in plan.tasks[1].runs] == [1, 2, 3, 4, 1, 2, 3, 4]
    assert [len(task.runs) for task in planned("a", machines=0).tasks] == [2, 2, 2]
    assert len(planned("a", repeats=2, machines=9).tasks) == 2
    assert len({run.run_key for run in plan.runs}) == 20


def test_more_blocks_leave_the_earlier_ones_as_they_are() -> None:
    few, many = planned("a", "b", repeats=2, machines=2), planned("a", "b", repeats=4, machines=2)
    assert few.with_blocks(4) == many
    assert many.with_blocks(2) == few
    assert all(later.runs[:4] == early.runs for early, later in zip(few.tasks, many.tasks, strict=True))
