"""Blocks made of configurations, tasks of machines made of blocks, and the key of each run. Pure functions.

Keys and orders are SHA-256 of text. Both depend on no version of Python, no machine and no other configuration. A block
has the same order at every place, so that places are compared at the same positions.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from launcher.protocol.task import Task, TaskRun
from launcher.sweep.places import Configuration, Place, PlacePlan
from workload.contract.spec import RunSpec, options

KEY_DIGITS = 16
# The block has its own field in the key. The data's folder, and whether data is downloaded first, change no result.
NOT_IN_KEY = frozenset({"repeats", "data_dir", "download"})
# Default values of all other options.
USUAL = {option.name: option.default for option in options() if option.name not in NOT_IN_KEY}


def run_key(spec: RunSpec, block: int, *, code: str, asked: Mapping[str, Any]) -> str:
    """Return 16 hex digits that identify a run by its options, block, code or image, and place.

    Only options that differ from their default enter the key, so that a new option changes no key of older runs.
    """
    changed = {name: value for name, usual in USUAL.items() if (value := getattr(spec, name)) != usual}
    changed |= {"script": list(spec.script)} if spec.script else {}
    return _digest({"options": changed, "block": block, "code": code, "place": asked})[:KEY_DIGITS]


def in_order(configurations: Iterable[Configuration], *, seed: int, block: int) -> list[Configuration]:
    """Order a block by the SHA-256 of seed, block and values; every second block reverses the block before it.

    Two consecutive blocks put each configuration equally early and late, so that a device that warms up favours none.
    With an odd number of configurations, one stays in the middle: a different one for each pair of blocks. A
    configuration added to the matrix leaves the order of the others, except for the one in the middle.
    """
    pair, is_second = divmod(block - 1, 2)
    ordered = _drawn(configurations, {"seed": seed, "block": block - is_second})
    if len(ordered) % 2:
        turns = _drawn(ordered, {"seed": seed})
        middle = turns[pair % len(turns)]
        ordered = [one for one in ordered if one is not middle]
        ordered.insert(len(ordered) // 2, middle)
    return ordered[::-1] if is_second else ordered


def _drawn(configurations: Iterable[Configuration], lot: Mapping[str, Any]) -> list[Configuration]:
    return sorted(configurations, key=lambda configuration: _digest({**lot, "values": configuration.values}))


def plan_place(
    place: Place,
    configurations: Sequence[Configuration],
    *,
    name: str,
    repeats: int,
    seed: int,
    code: str,
    origin: Mapping[str, Any] | None = None,
    done: Iterable[str] = (),
) -> PlacePlan:
    """Make the blocks of a place and share them out among its machines in turn: block 1 to the first, and so on."""
    runs_by_machine: dict[int, list[TaskRun]] = {}
    for block in range(1, repeats + 1):
        ordered = in_order(configurations, seed=seed, block=block)
        runs_by_machine.setdefault(place.machine_of(block), []).extend(
            TaskRun(
                spec=configuration.spec,
                block=block,
                position=position,
                run_key=run_key(configuration.spec, block, code=code, asked=place.asked),
            )
            for position, configuration in enumerate(ordered, start=1)
        )
    return PlacePlan(
        place=place,
        tasks=tuple(Task(job=name, number=number, runs=tuple(runs)) for number, runs in runs_by_machine.items()),
        done=frozenset(done),
        configurations=tuple(configurations),
        origin=origin or {},
        code=code,
    )


def with_blocks(plan: PlacePlan, blocks: int, *, seed: int) -> PlacePlan:
    """Plan of a place with `blocks` blocks; blocks up to the smaller number keep their runs and machines."""
    return plan_place(
        plan.place,
        plan.configurations,
        name=plan.tasks[0].job,
        repeats=blocks,
        seed=seed,
        code=plan.code,
        origin=plan.origin,
        done=plan.done,
    )


def _digest(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
