from itertools import product

import pytest

from launcher.protocol.records import Task, TaskRun
from launcher.sweep.places import Configuration, Place, PlacePlan, in_order, plan_place, run_key
from workload.contract.spec import Device, Precision, RunSpec


def run(key: str, batch_size: int | None, *, model: str = "resnet18", block: int = 1) -> TaskRun:
    return TaskRun(spec=RunSpec(model=model, batch_size=batch_size), block=block, run_key=key)


def plan(*tasks: tuple[TaskRun, ...], done: tuple[str, ...] = ()) -> PlacePlan:
    numbered = tuple(Task(job="night", number=number, runs=runs) for number, runs in enumerate(tasks, start=1))
    return PlacePlan(place=Place(name="here", backend="local"), tasks=numbered, done=frozenset(done))


def test_what_is_missing_keeps_the_order_and_the_number_of_its_task() -> None:
    place = plan((run("a", 8), run("b", 16)), (run("c", 8, block=2),), (run("d", 16, block=3),), done=("b", "c"))
    left = [(task.job, task.number, [one.run_key for one in task.runs]) for task in place.missing]
    assert left == [("night", 1, ["a"]), ("night", 3, ["d"])]
    assert [one.run_key for one in place.runs] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("out_of_memory", "expected"),
    [
        ((), {}),
        (("b32",), {"b64": 32, "b64 again": 32}),
        (("b64",), {}),
        (("b64", "b32"), {"b64 again": 32}),
        (("default",), {}),
    ],
    ids=["none did", "smaller", "the same batch may fit another time", "the smallest counts", "batch of the device"],
)
def test_larger_batches_than_one_that_ran_out_of_memory(out_of_memory: tuple[str, ...], expected: object) -> None:
    runs = (run("default", None), run("b32", 32), run("b64", 64), run("other", 64, model="vgg11"))
    place = plan(runs, (run("b64 again", 64, block=2),))
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
