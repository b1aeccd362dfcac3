"""`--until`: decide from a place's bundles whether it has enough blocks. Pure functions."""

import tomllib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.sweep.places import ARGUMENT, Configuration
from workload.contract import until
from workload.contract.design import Contrast, Design, Run
from workload.contract.errors import UsageError
from workload.contract.spec import options
from workload.contract.text import percent
from workload.contract.until import Decision


@dataclass(frozen=True, kw_only=True)
class Until:
    """Target half-width of every confidence interval, as a share of its figure.

    `baseline`: empty for the throughput of each configuration. Else option values such as `{"precision": "fp32"}`: each
    configuration is compared with the one that differs from it in these options alone. `most`: most blocks of a place.
    """

    share: float
    baseline: Mapping[str, Any] = field(default_factory=dict)
    most: int | None = None

    def __str__(self) -> str:
        """Text for a plan."""
        what = "every difference" if self.baseline else "every throughput"
        against = " against " + ", ".join(f"{name} {value}" for name, value in self.baseline.items())
        most = f", with {self.most} blocks at most" if self.most else ""
        return f"{what}{against if self.baseline else ''} is known within +-{percent(self.share)}{most}"


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

    Raises `UsageError` if it has another form.
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
    """Value of a script's argument as TOML would have it: number, boolean or text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def require_baseline(wanted: Until, configurations: tuple[Configuration, ...]) -> None:
    """Raise `UsageError` if no configuration has its baseline in the matrix."""
    if wanted.baseline and not any(_against(wanted, one, configurations) for one in configurations):
        named = ", ".join(f"{name} {value}" for name, value in wanted.baseline.items())
        raise UsageError(
            f"no two configurations of the matrix differ in the baseline's options alone; got {named}",
            hint="--baseline OPTION=VALUE, of an option with several values in [matrix]",
        )


def _against(
    wanted: Until, configuration: Configuration, configurations: tuple[Configuration, ...]
) -> Configuration | None:
    """Baseline of a configuration; None if the configuration is a baseline itself, or has none."""
    values = {**configuration.values, **wanted.baseline}
    return next((one for one in configurations if one.values == values and one is not configuration), None)


def decide(wanted: Until, configurations: tuple[Configuration, ...], runs: Sequence[Run]) -> Decision:
    """Decide whether a place has enough blocks.

    `runs`: those with a figure, block after block, with a `RunSpec` as their configuration. Configurations without a
    figure (out of memory, or failed) are left out.
    """
    design = Design(runs)
    contrasts: dict[str, Contrast] = {}
    for configuration in configurations:
        against = _against(wanted, configuration, configurations) if wanted.baseline else None
        if wanted.baseline and against is None:
            continue
        weights: dict[Hashable, float] = {configuration.spec: 1.0}
        if against is not None:
            weights[against.spec] = -1.0
        contrast = design.contrast(weights)
        if contrast.blocks:
            contrasts[configuration.text] = contrast
    return until.decide(contrasts, target=wanted.share, most=wanted.most)
