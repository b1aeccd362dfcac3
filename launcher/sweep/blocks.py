"""From configurations to blocks to the tasks of machines, and the key of each run. Pure; the same for ever.

Keys and orders are SHA-256 of text: they depend on no version of Python, no machine and no other configuration. A block
has the same order at every place, so that places are compared at the same positions.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from launcher.sweep.places import Configuration, Place, PlacePlan
from workload.contract.spec import RunSpec, options
from workload.contract.task import Task, TaskRun

KEY_DIGITS = 16
# Blocks are counted apart; where data lies, and whether it has to be downloaded first, changes nothing of a run.
NOT_IN_KEY = frozenset({"repeats", "data_dir", "download"})
# Of the others, what they are unless something is asked for.
USUAL = {option.name: option.default for option in options() if option.name not in NOT_IN_KEY}


def run_key(spec: RunSpec, block: int, *, code: str, asked: Mapping[str, Any]) -> str:
    """16 hex digits for a run as it was asked for: options, block, code or image, and place.

    Of the options those that differ from their default, so that a new one changes no key of older runs.
    """
    changed = {name: value for name, usual in USUAL.items() if (value := getattr(spec, name)) != usual}
    changed |= {"script": list(spec.script)} if spec.script else {}
    return _digest({"options": changed, "block": block, "code": code, "place": asked})[:KEY_DIGITS]


def in_order(configurations: Iterable[Configuration], *, seed: int, block: int) -> list[Configuration]:
    """A block's order: by the SHA-256 of seed, block and values; every second block is the one before it in reverse.

    Two blocks in turn put each configuration as often early as late, so that a device that warms up favours none. Of an
    odd number one stays in the middle: another one for each two blocks. Another configuration in the matrix leaves the
    others in their order, but for the one in the middle.
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
    """The blocks of a place, shared out among its machines: block 1 to the first, block 2 to the second, and so on."""
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
    """The same place with more blocks, or fewer: those that both have are the same runs, on the same machines."""
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
