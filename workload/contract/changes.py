"""Changes that `--change` makes to a user's script from outside, and the comparison of losses with and without them.

The table is `changes.toml`; `workload.steps.changes` makes the changes in the script's process. Standard library only.
"""

import math
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from workload.contract.errors import UsageError
from workload.contract.text import LEAST_SHARE, counted, did_you_mean, percent

TABLE = Path(__file__).with_name("changes.toml")
# Between the changes of one run, as a value of an option and in run.json.
SEPARATOR = "; "
# Job of the single runs from which a tuning takes the order of its changes.
FIRST_RUNS = "tune-first-runs"
# Value of an axis of a sweep for the script as it is.
NONE = "none"
# Losses that differ by up to this share are called close: nine of ten where other seeds are known, else all. Other
# rounding grows from step to step: in the tests, 64 steps with another optimizer's kernel or thread count differ by
# less than 1e-4, in bf16 by less than 1 %.
CLOSE_WITHIN = 0.01
# Part of the median difference of another seed that nine of ten losses may reach by rounding. In five scripts, TF32 and
# bf16 reach 18 % of it at most, an absent dropout 23 % and more, a learning rate that is a tenth lower 30 % and more.
OF_SEEDS = 0.2
# First version of glibc with `glibc.malloc.hugetlb`: its release notes.
HUGE_PAGES_GLIBC = (2, 35)


class Via(StrEnum):
    """How a change is made."""

    CONSTRUCTOR = "constructor"
    METHOD = "method"
    MODULE = "module"
    SETTING = "setting"
    ENVIRONMENT = "environment"


class Effect(StrEnum):
    """Effect of a change on the training. `SAME`: losses are equal to the bit. `TRAINING`: it trains differently.

    `ROUNDING`: losses differ as between seeds of the script, by other rounding or other random numbers.
    """

    SAME = "same"
    ROUNDING = "rounding"
    TRAINING = "training"


@dataclass(frozen=True, kw_only=True)
class Row:
    """Row of the table; the head of `changes.toml` explains the columns. `values`: None for a whole number."""

    form: str
    via: Via
    effect: Effect
    code: str
    helps: tuple[str, ...]
    values: tuple[str, ...] | None = None
    least: int = 0
    most: int = 0
    example: str = ""
    unless: str = ""
    device: str = ""
    precision: str = ""

    @property
    def name(self) -> str:
        """The class, function or environment variable that the change sets: `DataLoader`, `torch.compile`."""
        return re.split(r"[(=]", self.form)[0]

    @property
    def argument(self) -> str:
        """Argument of a constructor or a method, such as `num_workers`; else empty."""
        found = re.search(r"\((\w+)=", self.form)
        return found[1] if found else ""

    @property
    def shown(self) -> str:
        """An example of the change as a user types it: `DataLoader(num_workers=2)`."""
        return self.form.format(self.example or (self.values or [""])[0])

    def parsed(self, value: str) -> "Change":
        """Change to this value. Raises `UsageError` if the value breaks the row's rule."""
        if self.values is None:
            is_right = re.fullmatch(r"-?[0-9]{1,19}", value) and self.least <= int(value) <= self.most
            rule = f"a whole number from {self.least} to {self.most}"
        else:
            value = value.capitalize() if "True" in self.values else value
            is_right, rule = value in (self.values or ("",)), " or ".join(self.values)
        if not is_right:
            raise UsageError(f"{self.form.format('…')} takes {rule}; got '{value}'", hint=f"--change '{self.shown}'")
        return Change(row=self, word=value if self.values is not None else str(int(value)))


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change to one value. `word`: the value as text, empty if the row has none."""

    row: Row
    word: str

    @property
    def text(self) -> str:
        """Canonical text, as typed: `DataLoader(num_workers=2)`."""
        return self.row.form.format(self.word)

    @property
    def value(self) -> Any:
        """Value that the change sets, as a number, True or False; another word stays a text."""
        words = {"True": True, "False": False}
        return int(self.word) if self.row.values is None else words.get(self.word, self.word)

    @property
    def code(self) -> str:
        """Line that a user writes for it."""
        return self.row.code.format(self.word)


@cache
def table() -> tuple[Row, ...]:
    """Every change, in the order in which they are made."""
    import tomllib  # noqa: PLC0415 - milliseconds that a help text has no use for

    kinds: dict[str, Any] = {"via": Via, "effect": Effect, "values": tuple, "helps": tuple}
    rows: list[dict[str, Any]] = tomllib.loads(TABLE.read_text(encoding="utf-8"))["change"]
    return tuple(Row(**{name: kinds.get(name, lambda one: one)(value) for name, value in row.items()}) for row in rows)


def parse(value: object) -> str | None:
    """Canonical text of one or several changes, from a text, or from a list of texts; None for `none`.

    Raises `UsageError` for a change that is not in the table, a value out of its range, or two values for one thing.
    """
    typed = [str(each) for each in value] if isinstance(value, list | tuple) else [str(value)]
    if value is None or typed == [NONE]:
        return None
    made = [change for text in typed for change in _changes(text)]
    rows = [change.row for change in made]
    for row in rows:
        if rows.count(row) > 1:
            texts = " and ".join(change.text for change in made if change.row is row)
            raise UsageError(f"--change sets one thing twice: {texts}", hint="leave one of them out")
    return SEPARATOR.join(change.text for change in sorted(made, key=lambda change: table().index(change.row)))


def changes_of(text: str | None) -> tuple[Change, ...]:
    """The changes in a result of `parse`."""
    return tuple(_changes(text)) if text else ()


def _changes(text: str) -> Iterator[Change]:
    for part in text.split(SEPARATOR.strip()):
        bare = re.sub(r"[\s'\"]", "", part)
        if several := re.fullmatch(r"(\w+)\((\w+=[^,()]+(?:,\w+=[^,()]+)+)\)", bare):
            yield from (_change(f"{several[1]}({argument})") for argument in several[2].split(","))
        else:
            yield _change(bare)


def _change(text: str) -> Change:
    for row in table():
        before, has_value, after = row.form.partition("{}")
        if has_value and text.startswith(before) and text.endswith(after):
            return row.parsed(text[len(before) : len(text) - len(after)])
        if not has_value and text in (row.form, f"{row.form}()"):
            return row.parsed("")
    head = re.split(r"=[^=]*$", text)[0]
    known = {row.form.partition("{}")[0].rstrip("=("): row for row in table()}
    by_argument = [row.shown for row in table() if row.argument and row.argument == head.rpartition("(")[2]]
    near = did_you_mean(head.rstrip("=("), known)
    shown = known[near.removeprefix("did you mean ").removesuffix("?")].shown if near else "".join(by_argument[:1])
    hint = f"did you mean {shown}?" if shown else "the changes: " + ", ".join(row.shown for row in table())
    raise UsageError(f"unknown change '{text}'", hint=hint)


def variables(text: str | None) -> dict[str, str]:
    """Environment variables that the changes in a result of `parse` set before Python starts."""
    return {each.row.name: each.word for each in changes_of(text) if each.row.via is Via.ENVIRONMENT}


def require_new_variables(text: str | None, environment: Mapping[str, str]) -> None:
    """Raise `UsageError` if the launcher's environment has a variable of the changes already."""
    for name, value in variables(text).items():
        if environment.get(name) == value:
            raise UsageError(f"--change {name}={value} has no effect: it is set here already", hint=f"unset {name}")


def require_variables(text: str | None, environment: Mapping[str, str]) -> None:
    """Raise `UsageError` if a variable of the changes is not set in this process, or has no effect in its C library."""
    library, version = platform.libc_ver()
    for name, value in variables(text).items():
        if library != "glibc":
            raise UsageError(f"--change {name}={value} needs Linux with glibc", hint="leave it out")
        if name == "GLIBC_TUNABLES" and tuple(map(int, version.split(".")[:2])) < HUGE_PAGES_GLIBC:
            raise UsageError(f"--change {name}={value} needs glibc 2.35; got {version}", hint="leave it out")
        if environment.get(name) != value:
            raise UsageError(
                f"--change {name}={value} must be set before Python starts",
                hint="launch local, which sets it, in place of python -m rooflaunch script",
            )


# --- losses


class Likeness(StrEnum):
    """Comparison of the losses of two variants of a script."""

    SAME = "same to the bit"
    CLOSE = "close"
    DIFFERENT = "different"
    UNKNOWN = "not comparable"


@dataclass(frozen=True, kw_only=True)
class Apart:
    """Median and largest relative difference of the losses of two runs."""

    median: float
    largest: float


@dataclass(frozen=True, kw_only=True)
class LossComparison:
    """Comparison of the first `number` losses; `apart`: largest relative difference, `at`: its loss, from 1.

    `most`: largest difference of nine of ten losses. `seeds`: how far those of the nearest other seed are, None if
    unknown. `why`: why they are not comparable, else empty.
    """

    likeness: Likeness
    number: int = 0
    apart: float = 0.0
    at: int = 0
    most: float = 0.0
    seeds: Apart | None = None
    why: str = ""

    @property
    def text(self) -> str:
        """Words for a result: `same to the bit (64 losses)`."""
        if self.likeness is Likeness.UNKNOWN:
            return f"{self.likeness}: {self.why}"
        of = f"the first {self.number} losses" if self.number > 1 else "the first loss"
        if self.likeness is Likeness.SAME:
            return f"{self.likeness} ({of})"
        seeds = f"90 % within {_share(self.most)}, seeds differ by {percent(self.seeds.median)}" if self.seeds else ""
        if self.likeness is Likeness.CLOSE:
            return f"{seeds or f'equal within {_share(self.apart)}'} ({of})"
        at = f"{self.likeness}, by {_share(self.apart)} in loss {self.at} of {counted(self.number, 'loss')}"
        return f"{at}; {seeds}" if seeds else at


def _share(apart: float) -> str:
    if not math.isfinite(apart):
        return "a loss that is not finite"
    return f"{apart:.1g}" if 0 < apart < LEAST_SHARE else percent(apart)


def compare_losses(
    a: Sequence[Sequence[str]], b: Sequence[Sequence[str]], seeds: Apart | None = None
) -> LossComparison:
    """Compare the losses of runs of A and of B, each a list of `float.hex`, by the length that all runs have.

    Runs of one side must agree too: else the script has no seed, and equality cannot be judged. `seeds`: how far the
    losses of another seed are; without them, close is within `CLOSE_WITHIN`.
    """
    number = min(map(len, (*a, *b))) if a and b else 0
    if not number:
        missing = "a run has no loss of one value in its backward passes" if a and b else "one side has no run"
        return LossComparison(likeness=Likeness.UNKNOWN, why=missing)
    within = max((_differences(runs[0], other, number) for runs in (a, b) for other in runs), key=max)
    across = _differences(a[0], b[0], number)
    if max(within) > CLOSE_WITHIN:
        why = f"two runs of the same side differ by {_share(max(within))}: the script seeds nothing"
        return LossComparison(likeness=Likeness.UNKNOWN, number=number, why=why)
    is_close = max(across) <= (seeds.largest if seeds else CLOSE_WITHIN)
    if seeds:
        is_close = is_close and _most(across) <= min(CLOSE_WITHIN, OF_SEEDS * seeds.median)
    likeness = Likeness.CLOSE if is_close else Likeness.DIFFERENT
    apart = max(within, across, key=max)
    return LossComparison(
        likeness=likeness if max(apart) else Likeness.SAME,
        number=number,
        apart=max(apart),
        at=across.index(max(across)) + 1,
        most=_most(apart),
        seeds=seeds,
    )


def distance_of_seeds(original: Sequence[str], others: Sequence[Sequence[str]]) -> Apart | None:
    """Differences between the losses of the original and those of runs with other seeds.

    `median`: over all runs and losses; `largest`: of the run whose largest difference is smallest.

    None without such a run, if their losses are not finite, or if another seed leaves the losses nearly as they are.
    """
    number = min(map(len, (original, *others)))
    found = [_differences(original, other, number) for other in others] if number else []
    # One of two seeds can be near by chance; the median is that of both.
    seeds = Apart(median=median(each for one in found for each in one), largest=min(map(max, found))) if found else None
    return seeds if seeds and seeds.median >= LEAST_SHARE and math.isfinite(seeds.largest) else None


def _differences(a: Sequence[str], b: Sequence[str], number: int) -> list[float]:
    """Relative differences of the first `number` losses, infinite beside a NaN."""
    found = []
    for one, other in zip(a[:number], b[:number], strict=True):
        x, y = float.fromhex(one), float.fromhex(other)
        apart = 0.0 if one == other or x == y else abs(x - y) / max(abs(x), abs(y))
        found.append(apart if math.isfinite(apart) else math.inf)
    return found


def _most(differences: Sequence[float]) -> float:
    """Bound that nine of ten differences do not exceed; of fewer than ten, all."""
    return sorted(differences)[math.ceil(0.9 * len(differences)) - 1]
