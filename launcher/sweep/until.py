"""`--until`: decide from a place's bundles whether it has enough blocks. Pure functions.

A sweep stops only at fixed numbers of blocks; `workload.stats.blocks_interval` explains the reason.
"""

import tomllib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf
from typing import Any

from launcher.sweep.places import ARGUMENT, Configuration
from workload.contract.errors import UsageError
from workload.contract.spec import options
from workload.contract.text import counted, percent
from workload.stats.blocks_interval import BlocksInterval, interval_at_look, looks
from workload.stats.design import Contrast, Design, Run


@dataclass(frozen=True, kw_only=True)
class Until:
    """Target of `--until`. `share`: half-width of every confidence interval, as a share of the interval's figure.

    `baseline`: empty if the figures are throughputs. Else option values such as `{"precision": "fp32"}`: each
    configuration is compared with the configuration that differs from it in these options alone. `most`: largest number
    of blocks of a place.
    """

    share: float
    baseline: Mapping[str, Any] = field(default_factory=dict)
    most: int | None = None

    def __str__(self) -> str:
        """Target in words, for the text of a plan."""
        baseline = ", ".join(f"{name} {value}" for name, value in self.baseline.items())
        figures = f"every difference against {baseline}" if baseline else "every throughput"
        most = f", with {self.most} blocks at most" if self.most else ""
        return f"{figures} is known within +-{percent(self.share)}{most}"


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


def until_of(until: str | None, until_ratio: str | None, baseline: str | None, most: int | None) -> Until | None:
    """Parse `--until`, or `--until-ratio` with `--baseline`. Raises `UsageError` for conflicting options."""
    if until and until_ratio:
        raise UsageError("--until and --until-ratio cannot be combined", hint="one of the two")
    if bool(until_ratio) != bool(baseline):
        raise UsageError(
            "--until-ratio and --baseline need each other", hint="--until-ratio 2% --baseline precision=fp32"
        )
    if until:
        return Until(share=parse_share(until, "--until"), most=most)
    if until_ratio and baseline:
        return Until(share=parse_share(until_ratio, "--until-ratio"), baseline=parse_baseline(baseline), most=most)
    if most is not None:
        raise UsageError(
            f"--max-repeats limits the blocks that --until adds; got {most} without it",
            hint=f"repeats = {most} in the matrix, or --until 1%",
        )
    return None


def parse_share(text: str, flag: str) -> float:
    """Parse `1%` or `0.01`. Raises `UsageError` unless the share is between 0 and 1."""
    try:
        share = float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise UsageError(f"{flag} must be a share such as 1%; got '{text}'", hint=f"{flag} 1%")
    return share


def parse_baseline(text: str) -> dict[str, Any]:
    """Parse `--baseline precision=fp32,args.lr=0.1` into values of a matrix.

    Raises `UsageError` if the text has another form.
    """
    known = {option.name: option for option in options()}
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if equals and name.startswith(ARGUMENT):
            values[name] = _argument(value)
            continue
        option = known.get(name.replace("-", "_"))
        if not equals or option is None:
            raise UsageError(
                f"a baseline is written OPTION=VALUE,...; got '{part.strip()}'", hint="--baseline precision=fp32"
            )
        values[option.name] = option.parse(value)
    return values


def _argument(text: str) -> Any:
    """Value of a script's argument: a number, a boolean or another TOML value; `text` itself if it is no TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def require_baseline(until: Until, configurations: tuple[Configuration, ...]) -> None:
    """Raise `UsageError` if no configuration has its baseline in the matrix."""
    if until.baseline and not any(_baseline_of(each, until, configurations) for each in configurations):
        named = ", ".join(f"{name} {value}" for name, value in until.baseline.items())
        raise UsageError(
            f"no two configurations of the matrix differ in the baseline's options alone; got {named}",
            hint="--baseline OPTION=VALUE, of an option with several values in [matrix]",
        )


def _baseline_of(
    configuration: Configuration, until: Until, configurations: tuple[Configuration, ...]
) -> Configuration | None:
    """Baseline of a configuration; None if the configuration is a baseline itself, or has none."""
    values = {**configuration.values, **until.baseline}
    return next((each for each in configurations if each.values == values and each is not configuration), None)


def decide(until: Until, configurations: tuple[Configuration, ...], runs: Sequence[Run]) -> Decision:
    """Decide whether a place has enough blocks.

    `runs`: the runs with a figure, block after block, with a `RunSpec` as their configuration. Configurations without a
    figure (out of memory, or failed) are left out.
    """
    design = Design(runs)
    contrasts: dict[str, Contrast] = {}
    for configuration in configurations:
        baseline = _baseline_of(configuration, until, configurations) if until.baseline else None
        if until.baseline and baseline is None:
            continue
        weights: dict[Hashable, float] = {configuration.spec: 1.0}
        if baseline is not None:
            weights[baseline.spec] = -1.0
        contrast = design.contrast(weights)
        if contrast.blocks:
            contrasts[configuration.text] = contrast
    return decision_of(contrasts, target=until.share, most=until.most)


def decision_of(contrasts: Mapping[str, Contrast], *, target: float, most: int | None = None) -> Decision:
    """Decide whether to stop after these blocks. `contrasts`: each requested throughput or difference, by name.

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
