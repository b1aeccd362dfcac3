import pytest

from launcher.protocol.task import Task, TaskRun
from launcher.sweep.places import Configuration, Place, PlacePlan
from workload.contract.spec import RunSpec


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
    ("machines", "expected"),
    [(1, [1, 1, 1, 1]), (2, [1, 2, 1, 2]), (0, [1, 2, 3, 4])],
    ids=["one machine", "two share the blocks", "a machine for every block"],
)
def test_which_machine_has_a_block(machines: int, expected: list[int]) -> None:
    place = Place(name="t4", backend="gcp", machines=machines)
    assert [place.machine_of(block) for block in (1, 2, 3, 4)] == expected


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
    larger = place.too_large(out_of_memory)
    assert {key: smaller.batch_size for key, smaller in larger.items()} == expected


def test_a_configuration_is_named_by_what_the_matrix_says_of_it() -> None:
    spec = RunSpec(model="resnet50", batch_size=64, warmup=2)
    assert Configuration(values={"model": "resnet50", "batch_size": 64}, spec=spec).text == "resnet50, batch_size 64"
    assert Configuration(values={}, spec=spec).text == "resnet50"
