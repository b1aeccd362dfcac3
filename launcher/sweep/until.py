"""`--until`: decide from a place's bundles whether it has enough blocks. Pure functions.

A sweep stops only at fixed numbers of blocks; `workload.stats.intervals` explains the reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import inf

from launcher.sizes import parse_share
from launcher.sweep.places import Configuration
from workload.contract.errors import UsageError
from workload.contract.text import counted, percent
from workload.stats.design import Contrast, Design, Run
from workload.stats.intervals import BlocksInterval, interval_at_look, looks


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
