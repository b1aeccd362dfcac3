"""Places of a sweep: their configurations, blocks of runs, tasks of machines, and the key of each run.

The functions are pure, except that a run's key contains a hash of our own code, whose files are read.

A repeat is a block. A block runs on one machine and has every configuration once, in a random order that is the same at
every place, so that places are compared at the same positions. Keys and orders are SHA-256 of text: they depend on no
version of Python, no machine and no other configuration.

`--until` decides from a place's bundles whether it has enough blocks. A sweep stops only at fixed numbers of blocks;
`workload.stats.intervals` explains the reason.
"""

import hashlib
import importlib.metadata
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf
from typing import Any

from launcher.images import contents
from launcher.protocol.records import Task, TaskRun
from launcher.values import Runtime, parse_share
from workload.contract.errors import UsageError
from workload.contract.spec import Origin, RunSpec, options
from workload.contract.text import counted, percent
from workload.stats.design import Contrast, Design, Run
from workload.stats.intervals import BlocksInterval, interval_at_look, looks

LOCAL = "local"
# Prefix of a script's argument as an axis of a matrix.
ARGUMENT = "args."
KEY_DIGITS = 16
# Options that do not enter a run's key: the key has the block instead of `repeats`, and the others change no result.
NOT_IN_KEY = frozenset({"repeats", "data_dir", "download", "samples"})
# Default values of the options that enter a run's key.
USUAL = {option.name: option.default for option in options() if option.name not in NOT_IN_KEY}
# Libraries whose versions enter the code's identity for processes on this machine; an image's recipe names its own.
LIBRARIES = ("torch", "torchvision")


def as_text(value: Any) -> str:
    """Value of a matrix, formatted for a command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, kw_only=True)
class Exclude:
    """Rule `[[exclude]]`: combinations of `values` that are left out, at the places `on` or everywhere."""

    values: Mapping[str, Any]
    on: tuple[str, ...]
    text: str

    def matches(self, combination: Mapping[str, Any], place: str) -> bool:
        """Whether this rule leaves out a combination at a place."""
        is_for_place = not self.on or place in self.on
        return is_for_place and all(combination[name] in values for name, values in self.values.items())


@dataclass(frozen=True, kw_only=True)
class Place:
    """Entry `[[on]]` of a matrix. `backend`: local, or one of `launcher.backends.BACKENDS`.

    `options` and `where` are the dataclasses of `launch <backend>`, as `Backend.settings` and `Backend.plan` take them;
    for this machine they are `launcher.script.options.LocalOptions` and None. `asked`: plain values of the entry
    that affect the measurement, by their names in the file; they are part of every run's key. `machines`: number of
    machines that share the blocks, 0 for one machine per block. `script`: None for our trainer; for a user's script the
    options of the place, replaced by a `launcher.sweep.sweep_plan.PlacedScript` once the script's folder was read.
    """

    name: str
    backend: str
    options: Any = None
    where: Any = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    machines: int = 1
    script: Any = None

    def machine_of(self, block: int) -> int:
        """Number of the machine, from 1, that runs a block; adding blocks changes nothing for earlier blocks."""
        return (block - 1) % self.machines + 1 if self.machines else block


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Configuration of a matrix. `values`: from the matrix, equal at every place; `spec`: run options at this place."""

    values: Mapping[str, Any]
    spec: RunSpec

    @property
    def text(self) -> str:
        """Text for messages: `resnet50, batch_size 64`; an argument of a script has its own name: `lr 0.1`."""
        words = (
            f"{value}" if name == "model" else f"{name.removeprefix(ARGUMENT)} {as_text(value)}"
            for name, value in self.values.items()
        )
        return ", ".join(words) or self.spec.model


@dataclass(frozen=True, kw_only=True)
class PlacePlan:
    """Place with all its runs, one task per machine; `done`: keys of runs that need not run again.

    `origin`: source of each option's value. The tasks were made of `configurations`, `seed` (of the random order) and
    `code` (identity of the code or image).
    """

    place: Place
    tasks: tuple[Task, ...]
    done: frozenset[str] = frozenset()
    configurations: tuple[Configuration, ...] = ()
    origin: Mapping[str, Origin] = field(default_factory=dict)
    seed: int = 0
    code: str = ""

    @property
    def devices(self) -> int:
        """Number of devices that every machine of this place has for its runs."""
        return _most_devices(self.configurations)

    @property
    def runs(self) -> tuple[TaskRun, ...]:
        """Runs of all tasks, done or not."""
        return tuple(run for task in self.tasks for run in task.runs)

    @property
    def missing(self) -> tuple[Task, ...]:
        """Tasks with only the runs that are not done; tasks without such runs are left out."""
        return self.without(self.done)

    def without(self, keys: Collection[str]) -> tuple[Task, ...]:
        """Tasks without the runs of these keys; empty tasks are left out."""
        tasks = (replace(task, runs=tuple(run for run in task.runs if run.run_key not in keys)) for task in self.tasks)
        return tuple(task for task in tasks if task.runs)

    def with_blocks(self, blocks: int) -> "PlacePlan":
        """Plan with `blocks` blocks; a block that this plan has too keeps its runs and its machine."""
        return plan_place(
            self.place,
            self.configurations,
            name=self.tasks[0].job,
            repeats=blocks,
            seed=self.seed,
            code=self.code,
            origin=self.origin,
            done=self.done,
        )

    def too_large(self, out_of_memory: Collection[str]) -> dict[str, int]:
        """Runs whose configuration ran out of memory at a smaller batch: by key, the size of that batch.

        `out_of_memory`: keys of runs that ran out of memory. These runs themselves are not in the result.
        """
        smallest: dict[RunSpec, int] = {}
        for run in self.runs:
            if run.run_key in out_of_memory and (size := run.spec.batch_size) is not None:
                configuration = replace(run.spec, batch_size=None)
                smallest[configuration] = min(size, smallest.get(configuration, size))
        larger: dict[str, int] = {}
        for run in self.runs if smallest else ():
            size, failed_size = run.spec.batch_size, smallest.get(replace(run.spec, batch_size=None))
            if size is None or failed_size is None or run.run_key in out_of_memory:
                continue
            if size > failed_size:
                larger[run.run_key] = failed_size
        return larger


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Matrix at its places. `seed`: determines the order of runs in each block."""

    name: str
    repeats: int
    seed: int
    places: tuple[PlacePlan, ...]


def run_key(spec: RunSpec, block: int, *, code: str, asked: Mapping[str, Any], devices: int = 1) -> str:
    """16 hex digits that identify a run by its options, block, code or image, and place.

    `devices`: the largest number of devices at this place, on which a run's share of the CPUs depends. Only options
    that differ from their default enter the key, so that a new option changes no key of older runs.
    """
    changed = {name: value for name, usual in USUAL.items() if (value := getattr(spec, name)) != usual}
    changed |= {"script": list(spec.script)} if spec.script else {}
    changed |= {"cpu_shares": devices} if devices > spec.devices else {}
    return _digest_of_json({"options": changed, "block": block, "code": code, "place": asked})[:KEY_DIGITS]


def in_order(configurations: Iterable[Configuration], *, seed: int, block: int) -> list[Configuration]:
    """Order a block by the SHA-256 of seed, block and values; every second block reverses the block before it.

    Two consecutive blocks put each configuration equally early and late, so that a device that warms up favours none.
    With an odd number of configurations, one configuration stays in the middle, a different one for each pair of
    blocks. Adding a configuration to the matrix keeps the order of the others, except for the one in the middle.
    """
    pair, is_second = divmod(block - 1, 2)
    ordered = _drawn(configurations, {"seed": seed, "block": block - is_second})
    if len(ordered) % 2:
        turns = _drawn(ordered, {"seed": seed})
        middle = turns[pair % len(turns)]
        ordered = [configuration for configuration in ordered if configuration is not middle]
        ordered.insert(len(ordered) // 2, middle)
    return ordered[::-1] if is_second else ordered


def _drawn(configurations: Iterable[Configuration], seed: Mapping[str, Any]) -> list[Configuration]:
    return sorted(configurations, key=lambda configuration: _digest_of_json({**seed, "values": configuration.values}))


def plan_place(
    place: Place,
    configurations: Sequence[Configuration],
    *,
    name: str,
    repeats: int,
    seed: int,
    code: str,
    origin: Mapping[str, Origin] | None = None,
    done: Iterable[str] = (),
) -> PlacePlan:
    """Make the blocks of a place and share them out among its machines in turn: block 1 to the first, and so on."""
    runs_by_machine: dict[int, list[TaskRun]] = {}
    devices = _most_devices(configurations)
    for block in range(1, repeats + 1):
        ordered = in_order(configurations, seed=seed, block=block)
        runs_by_machine.setdefault(place.machine_of(block), []).extend(
            TaskRun(
                spec=configuration.spec,
                block=block,
                position=position,
                run_key=run_key(configuration.spec, block, code=code, asked=place.asked, devices=devices),
            )
            for position, configuration in enumerate(ordered, start=1)
        )
    return PlacePlan(
        place=place,
        tasks=tuple(
            Task(job=name, number=number, devices=devices, runs=tuple(runs)) for number, runs in runs_by_machine.items()
        ),
        done=frozenset(done),
        configurations=tuple(configurations),
        origin=origin or {},
        seed=seed,
        code=code,
    )


def _most_devices(configurations: Iterable[Configuration]) -> int:
    return max((configuration.spec.devices for configuration in configurations), default=1)


def _digest_of_json(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def code_of(place: Place) -> str:
    """Identify the code that runs at a place, independently of folder and commit; runs of other code have other keys.

    An image that is named by a tag is identified by the tag, although the image behind a tag may change unnoticed. For
    a script, the identity has two parts: one for our code, one for the script's code.
    """
    return f"{_ours(place)} script {place.script.code}" if place.script else _ours(place)


def _ours(place: Place) -> str:
    """Identity of our own code: the image that the place names, else the recipes of our images, else our files."""
    if image := _image(place):
        return f"image {image.partition('@')[2] or image}"
    if getattr(place.options, "runtime", None) is not Runtime.PROCESS:
        inputs = {name: contents.make_recipe(flavour).inputs_hash for name, flavour in contents.load_flavours().items()}
        return f"images {_digest(inputs)}"
    packages = tuple(f"{name}/" for name in contents.TRAINER_PACKAGES)
    files = {
        name: hashlib.sha256(text).hexdigest()
        for name, text in contents.agent_code().items()
        if name.startswith(packages) and name not in contents.DATA_ROWS
    }
    libraries = {name: _version(name) for name in LIBRARIES} if place.backend == LOCAL else {}
    return f"code {_digest({**files, **libraries})}"


def is_by_tag(place: Place) -> bool:
    """Whether the place names an image without its digest, so that the image may change."""
    image = _image(place)
    return image is not None and "@sha256:" not in image


def _image(place: Place) -> str | None:
    return getattr(place.options, "image", None)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _digest(parts: Mapping[str, str]) -> str:
    text = "\n".join(f"{name}={value}" for name, value in sorted(parts.items()))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Until:
    """Target of `--until`. `share`: half-width of every throughput's confidence interval, as a share of the throughput.

    `most`: largest number of blocks of a place.
    """

    share: float
    most: int | None = None

    def __str__(self) -> str:
        """Target in words, for the text of a plan."""
        most = f", with {self.most} blocks at most" if self.most else ""
        return f"every throughput is known within +-{percent(self.share)}{most}"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Decision after a block. `is_done`: stop now; `add`: number of blocks until the next decision, 0 if done.

    `expected`: approximate number of further blocks until all intervals are narrow. `widest`: name of the widest
    interval. `precisions`: the intervals by name.
    """

    is_done: bool
    is_narrow: bool
    blocks: int
    add: int
    expected: int | None
    widest: str | None
    target: float
    precisions: Mapping[str, BlocksInterval]

    @property
    def reason(self) -> str:
        """Sentence on the decision, for the progress line of the sweep."""
        after = f"after {counted(self.blocks, 'block')}"
        if self.widest is None:
            return "no interval to check"
        widest = self.precisions[self.widest]
        width = widest.width
        if self.is_narrow:
            return f"every interval is within +-{percent(self.target)} {after} (the widest: {self.widest}, {width})"
        if self.is_done:
            return f"not within +-{percent(self.target)} {after}, the limit: {self.widest}, {width}"
        about = f", about {self.expected} in all until every interval is narrow enough" if self.expected else ""
        return f"{self.widest} is the widest {after}: {width}; next check after {self.add} more{about}"


def until_of(until: str | None, most: int | None) -> Until | None:
    """Parse `--until` and `--max-repeats`. Raises `UsageError` for the latter alone, or if `until` is no share."""
    if until:
        return Until(share=parse_share(until, "--until", example="1%"), most=most)
    if most is not None:
        raise UsageError(
            f"--max-repeats limits the blocks that --until adds; got {most} without it",
            hint=f"repeats = {most} in the matrix, or --until 1%",
        )
    return None


def decide(until: Until, configurations: tuple[Configuration, ...], runs: Sequence[Run]) -> Decision:
    """Decide whether a place has enough blocks.

    `runs`: the runs with a figure, block after block, with a `RunSpec` as their configuration. Configurations without a
    figure (out of memory, or failed) are left out.
    """
    design = Design(runs)
    contrasts = {each.text: design.contrast({each.spec: 1.0}) for each in configurations}
    contrasts = {name: contrast for name, contrast in contrasts.items() if contrast.blocks}
    return decision_of(contrasts, target=until.share, most=until.most)


def decision_of(contrasts: Mapping[str, Contrast], *, target: float, most: int | None = None) -> Decision:
    """Decide whether to stop after these blocks. `contrasts`: each throughput, by name.

    Stopping is possible only at a number of blocks that `looks` yields, at `most`, or without any contrast. Contrasts
    may have different blocks. Leave out a contrast that can get no blocks, for example because its configuration runs
    out of memory. `target`: half-width, as a fraction; `most`: largest number of blocks.
    """
    precisions = {name: interval_at_look(contrast, target=target) for name, contrast in contrasts.items()}
    blocks = max((contrast.blocks for contrast in contrasts.values()), default=0)
    at_most = most is not None and blocks >= most
    past = list(takewhile(lambda look: look <= blocks, looks()))
    is_look = at_most or blocks in past
    is_narrow = is_look and bool(precisions) and all(interval.is_narrow for interval in precisions.values())
    is_done = is_narrow or at_most or not precisions
    next_look = next(look for look in looks() if look > blocks)
    add = 0 if is_done else min(next_look, most or next_look) - blocks
    totals = [interval.expected for interval in precisions.values()]
    known = [total for total in totals if total is not None]
    return Decision(
        is_done=is_done,
        is_narrow=is_narrow,
        blocks=blocks,
        add=add,
        expected=max(max(known) - blocks, add) if not is_done and len(known) == len(totals) else None,
        widest=max(precisions, key=lambda name: _width(precisions[name]), default=None),
        target=target,
        precisions=precisions,
    )


def _width(interval: BlocksInterval) -> tuple[bool, float]:
    """Sort key: narrow intervals first, then the other intervals by their width, last the intervals without a width."""
    return not interval.is_narrow, inf if interval.half_width is None else interval.half_width
