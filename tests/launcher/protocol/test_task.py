from dataclasses import replace
from typing import Any

import pytest

from launcher.protocol.records import Task, TaskRun
from workload.contract.errors import UsageError
from workload.contract.spec import Precision, RunSpec

BASE = RunSpec(model="resnet50", batch_size=32)


def test_repeats_are_blocks_of_one_run() -> None:
    task = Task.of_repeats(RunSpec(model="resnet50", repeats=3))
    assert [(run.block, run.position, run.spec.repeats, run.run_key) for run in task.runs] == [
        (1, 1, 1, ""),
        (2, 1, 1, ""),
        (3, 1, 1, ""),
    ]
    assert (task.blocks, task.job, task.devices) == (3, "", 1)
    assert Task.of_repeats(RunSpec(devices=2)).devices == 2


def test_a_run_is_written_as_its_difference_from_the_base() -> None:
    runs = (
        TaskRun(spec=BASE, block=2, position=1, run_key="00ff"),
        TaskRun(spec=RunSpec(model="resnet50", precision=Precision.BF16), block=2, position=2, run_key="11ee"),
    )
    task = Task(job="night", number=4, runs=runs)
    values = task.to_json(BASE)
    assert [run["spec"] for run in values["runs"]] == [{}, {"batch_size": None, "precision": "bf16"}]
    assert Task.from_json(values, BASE) == task
    assert "devices" not in values
    several = replace(task, devices=2)
    assert Task.from_json(several.to_json(BASE), BASE) == several


def test_a_task_says_what_it_is() -> None:
    runs = tuple(TaskRun(spec=BASE, block=block) for block in (1, 1, 2))
    assert str(Task(job="night", number=4, runs=runs)) == "3 runs in 2 blocks, task 4 of 'night'"
    assert str(Task.of_repeats(BASE)) == "1 run in 1 block, task 1"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "the request has no readable task: KeyError('runs')"),
        ({"runs": 3}, "the request has no readable task: TypeError(\"'int' object is not iterable\")"),
        ({"job": "a", "number": 1, "runs": [{"spec": {}}]}, "the request has no readable task: KeyError('block')"),
        (
            {"job": "a", "number": 1, "runs": [{"block": 1, "position": 1, "key": "", "spec": {"batch_size": 0}}]},
            "batch size must be a positive integer; got '0'",
        ),
    ],
    ids=["empty", "no list", "no block", "a spec that breaks a rule"],
)
def test_what_is_no_task(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        Task.from_json(values, BASE)
    assert str(refused.value) == message
