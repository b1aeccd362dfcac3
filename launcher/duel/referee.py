"""Referee: whether two variants of a script do the same work, from the bundles of their runs.

A variant that is faster because it does less is refused, with the reason as a sentence. What is compared was observed
by hooks in PyTorch, never stated by the script: the samples of a step, its batches and FLOP, the precision of its
products, the losses of its first backward passes, and whether the script replaced a clock.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from launcher.duel.contest import Measured
from workload.contract import bundle
from workload.contract.changes import CLOSE_WITHIN, Apart, Effect, Likeness, LossComparison, changes_of, compare_losses
from workload.contract.errors import UsageError
from workload.contract.record import Record
from workload.contract.text import percent, plain, si
from workload.contract.verdict import shares_of_flop

# Steps with less work by this share are other steps: batches of padded texts differ by less, on average over a run.
LESS_WORK = 0.01
# From the highest precision to the lowest; other names are integers.
RANKS = ("fp64", "fp32", "tf32", "bf16", "amp", "fp16", "fp8")


class Losses(StrEnum):
    """Rule on losses.

    `SAME`: only changes whose losses are equal to the bit; `ROUNDING`: also those that only round differently; `ANY`:
    losses are not compared.
    """

    SAME = "same"
    ROUNDING = "rounding"
    ANY = "any"


def parse_losses(text: str) -> Losses:
    """Rule from the value of `--losses`. Raises `UsageError` for another word."""
    if text not in set(Losses):
        raise UsageError(f"--losses takes {', '.join(Losses)}; got '{text}'", hint="--losses rounding")
    return Losses(text)


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """Decision of the referee.

    `refusals`: reasons as sentences, none if the work is the same. `losses`: how the losses compare, in words.
    """

    refusals: tuple[str, ...]
    losses: str


def judge_work(
    a: Sequence[Record],
    b: Sequence[Record],
    *,
    effect: Effect,
    precisions: Collection[str] = (),
    rule: Losses = Losses.ROUNDING,
    seeds: Apart | None = None,
) -> Ruling:
    """Judge whether the runs of B do the same work as those of A; each side has at least one run.

    `effect`: what B declares that it does to the training; `precisions`: lower precisions that it declares.
    `seeds`: how far the losses of another seed are from A's, None if unknown.
    """
    if rule is Losses.ANY:
        effect = Effect.TRAINING
    losses_of_a = [losses_of(run) for run in a]
    losses = compare_losses(losses_of_a, [losses_of(run) for run in b], seeds)
    if effect is Effect.SAME and compare_losses(losses_of_a, losses_of_a).likeness is Likeness.CLOSE:
        # The original's own runs differ by rounding, so no variant can be equal to the bit.
        effect = Effect.ROUNDING
    refusals = (
        *_less_work(a, b, effect),
        *_lower_precision(a[0], b[0], precisions),
        *_replaced_clocks(b),
        *refused_losses(losses, effect, [loss for run in (*a, *b) for loss in losses_of(run)]),
    )
    return Ruling(refusals=refusals, losses="not compared" if effect is Effect.TRAINING else losses.text)


def ruling_of(segments: Sequence[Measured], rule: Losses) -> Ruling | None:
    """Ruling on a duel of two versions of a script or of options; None if a side has no run.

    What `--change` makes on B is declared; two versions that differ otherwise declare the rule's effect.
    """
    runs = {name: [bundle.read_record(each.folder) for each in segments if each.variant == name] for name in "AB"}
    if not (runs["A"] and runs["B"]):
        return None
    made = changes_of(runs["B"][0].spec.change)
    effect = Effect.SAME if rule is Losses.SAME else Effect.ROUNDING
    return judge_work(runs["A"], runs["B"], effect=effect, precisions=[each.row.precision for each in made], rule=rule)


def losses_of(run: Record) -> Sequence[str]:
    """Losses of a run as `float.hex`; empty if the run kept none."""
    return (run.spec.script and run.spec.script.losses) or ()


def _unit(run: Record) -> str:
    return (run.spec.script and run.spec.script.unit) or "images"


# --- amounts of work


def _less_work(a: Sequence[Record], b: Sequence[Record], effect: Effect) -> Iterator[str]:
    units = sorted({_unit(run) for run in (*a, *b)})
    if len(units) > 1:
        yield f"throughput counts {' in one variant and '.join(units)} in the other"
        return
    unit = units[0]
    if effect is not Effect.TRAINING:
        # More samples in a step are fewer steps of the optimizer for the same samples, or samples that count twice.
        for figure, text, what in (
            (_samples, f"{{:.4g}} {unit}", "a step is given"),
            (_sequences, "{:.4g} sequences", "a step is given"),
            (lambda run: run.spec.grad_accumulation, "{:g}", "the batches of an optimizer step are"),
        ):
            yield from _other(a, b, figure, text.format, what, is_equal=True)
        # Another training may also see a small data set more often, in larger batches.
        again = "samples are trained again: in a few steps, different ones are"
        yield from _other(a, b, _distinct_samples, percent, again)
    yield from _other(a, b, _samples_in_pass, lambda value: f"{plain(value, 6)} {unit}", "a pass over the data has")
    less = _other(a, b, _flop_per_sample, lambda value: si(value, "FLOP"), f"training on one of the {unit} takes")
    forward = _typical(a, _forward_flop), _typical(b, _forward_flop)
    is_forward_less = any(_other(a, b, _forward_flop, str, ""))
    why = "the model gets fewer, or is another one" if is_forward_less else "its backward pass is not whole"
    yield from (f"{text}: {why}" if None not in forward else text for text in less)


def _other(
    a: Sequence[Record],
    b: Sequence[Record],
    figure: Callable[[Record], float | None],
    text: Callable[[float], str],
    what: str,
    *,
    is_equal: bool = False,
) -> Iterator[str]:
    """Refusal if a figure of B is less than A's or, with `is_equal`, more; none if the figure of a side is unknown."""
    before, after = _typical(a, figure), _typical(b, figure)
    if before is None or after is None:
        return
    if after < before * (1 - LESS_WORK) or (is_equal and after * (1 - LESS_WORK) > before):
        yield f"{what} {text(after)}, and {text(before)} in the original"


def _typical(runs: Sequence[Record], figure: Callable[[Record], float | None]) -> float | None:
    known = [value for run in runs if (value := figure(run)) is not None]
    return median(known) if len(known) == len(runs) else None


def _samples(run: Record) -> float | None:
    steps, images = run.timing.step_s and run.timing.step_s.n, run.timing.images
    return images / steps if steps and images else None


def _sequences(run: Record) -> float | None:
    steps, samples = run.timing.step_s and run.timing.step_s.n, run.timing.samples
    return samples / steps if steps and samples else None


def _samples_in_pass(run: Record) -> float | None:
    return run.spec.script.dataset_samples if run.spec.script else None


def _distinct_samples(run: Record) -> float | None:
    return run.spec.script.distinct_samples if run.spec.script else None


def _forward_flop(run: Record) -> float | None:
    return run.complexity.forward_flop_per_image if run.complexity else None


def _flop_per_sample(run: Record) -> float | None:
    work, samples = run.complexity, _samples(run)
    if not work or not work.train_flop_per_step or not samples:
        return None
    # To repeat a forward pass saves memory and is no work of its own.
    return (work.train_flop_per_step - (work.recomputed_flop_per_step or 0.0)) / samples


# --- precision, clocks, losses


def _lower_precision(a: Record, b: Record, declared: Collection[str]) -> Iterator[str]:
    before, after = shares_of_flop(a), shares_of_flop(b)
    for number, name in reversed([*enumerate(RANKS)][1:]):
        # What has moved to this precision or to a lower one, without what is declared.
        below = [other for other in {*before, *after} if _rank(other) >= number and other not in declared]
        more = sum(after.get(other, 0.0) - before.get(other, 0.0) for other in below)
        if more > LESS_WORK:
            yield f"{percent(more)} more of the FLOP are computed in {name} or a lower precision, which is not declared"
            return


def _rank(precision: str) -> int:
    return RANKS.index(precision) if precision in RANKS else len(RANKS)


def _replaced_clocks(b: Sequence[Record]) -> Iterator[str]:
    names = dict.fromkeys(name for run in b for name in (run.spec.script and run.spec.script.replaced) or ())
    if names:
        yield f"the script replaced {', '.join(names)}"


def refused_losses(found: LossComparison, effect: Effect, losses: Sequence[str]) -> Iterator[str]:
    """Reason why losses do not show this effect. `losses`: those of all runs."""
    if effect is Effect.TRAINING:
        return
    if any(loss in ("nan", "inf", "-inf") for loss in losses):
        yield "losses are not finite, so they show nothing"
    elif found.likeness is Likeness.UNKNOWN:
        yield f"losses are {found.text}"
    elif found.likeness is Likeness.DIFFERENT or (effect is Effect.SAME and found.likeness is Likeness.CLOSE):
        is_same = effect is Effect.SAME
        rule = "" if is_same or found.seeds else f"; {percent(CLOSE_WITHIN)} is the limit where other seeds are unknown"
        yield f"losses are not {'the same' if is_same else 'close'}: {found.text}{rule}"
