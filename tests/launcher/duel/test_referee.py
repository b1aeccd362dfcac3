"""The referee: each way to do less work is refused by name, and the same work is not."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from launcher.duel.referee import Losses, judge_work, parse_losses
from tests.launcher.tune.script_runs import a_run, changed, texts
from workload.contract.changes import Effect
from workload.contract.errors import UsageError
from workload.contract.record import ComplexityRecord, Record

A = a_run(script={"dataset_samples": 1000, "distinct_samples": 1.0})


def with_flop(**flop: float) -> Callable[[Record], Record]:
    def alter(run: Record) -> Record:
        work = ComplexityRecord(train_flop_per_step=sum(flop.values()), flop_by_precision=flop)
        return replace(run, complexity=work)

    return alter


def of_samples(samples: float) -> Callable[[Record], Record]:
    return lambda run: replace(run, timing=replace(run.timing, images=20 * samples))


def refusals(
    alter: Callable[[Record], Record],
    effect: Effect = Effect.SAME,
    precision: str = "fp32",
    rule: Losses = Losses.ROUNDING,
) -> tuple[str, ...]:
    return judge_work([A, A], [alter(A), alter(A)], effect=effect, precisions={precision}, rule=rule).refusals


CHEATS: dict[str, tuple[Callable[[Record], Record], str]] = {
    "half the batch": (
        lambda run: of_samples(16)(with_flop(fp32=1e9)(run)),
        "a step is given 16 samples, and 32 samples in the original",
    ),
    "steps of two batches": (
        lambda run: replace(run, spec=replace(run.spec, grad_accumulation=2)),
        "the batches of an optimizer step are 2, and 1 in the original",
    ),
    "less data": (
        changed(dataset_samples=900),
        "a pass over the data has 900 samples, and 1000 samples in the original",
    ),
    "no backward pass": (
        with_flop(fp32=0.7e9),
        "training on one of the samples takes 21.9 MFLOP, and 62.5 MFLOP in the original",
    ),
    "samples counted twice": (
        lambda run: of_samples(64)(with_flop(fp32=4e9)(run)),
        "a step is given 64 samples, and 32 samples in the original",
    ),
    "a batch that is trained twice": (
        changed(distinct_samples=0.75),
        "samples are trained again: in a few steps, different ones are 75 %, and 100 % in the original",
    ),
    "another unit": (changed(unit="tokens"), "throughput counts samples in one variant and tokens in the other"),
    "bf16 in disguise": (
        with_flop(fp32=1e9, bf16=1e9),
        "50 % more of the FLOP are computed in bf16 or a lower precision, which is not declared",
    ),
    "TF32 in disguise": (
        with_flop(tf32=2e9),
        "100 % more of the FLOP are computed in tf32 or a lower precision, which is not declared",
    ),
    "a clock of its own": (changed(replaced=("time.perf_counter",)), "the script replaced time.perf_counter"),
    "a batch that is kept": (
        changed(losses=texts((2.5, 2.0, 1.5))),
        "losses are not the same: different, by 25 % in loss 3 of 3 losses",
    ),
    "other rounding": (
        changed(losses=texts((2.5, 2.25, 2.0001))),
        "losses are not the same: equal within 5e-05 (the first 3 losses)",
    ),
    "no losses": (
        changed(losses=None),
        "losses are not comparable: a run has no loss of one value in its backward passes",
    ),
    "NaN": (changed(losses=("nan", "nan", "nan")), "losses are not finite, so they show nothing"),
}


@pytest.mark.parametrize(("alter", "reason"), CHEATS.values(), ids=CHEATS)
def test_less_work_is_refused_by_name(alter: Callable[[Record], Record], reason: str) -> None:
    assert refusals(alter) == (reason,)


@pytest.mark.parametrize(
    ("forward_flop", "cause"),
    [(2e7, "its backward pass is not whole"), (1e7, "the model gets fewer, or is another one")],
)
def test_forward_pass_tells_why_samples_take_less_flop(forward_flop: float, cause: str) -> None:
    def with_forward(flop: float, forward: float) -> Record:
        return replace(A, complexity=ComplexityRecord(train_flop_per_step=flop, forward_flop_per_image=forward))

    ruling = judge_work([with_forward(2e9, 2e7)], [with_forward(1e9, forward_flop)], effect=Effect.SAME)

    said = "training on one of the samples takes 31.2 MFLOP, and 62.5 MFLOP in the original"
    assert ruling.refusals == (f"{said}: {cause}",)


def test_same_work_is_not_refused() -> None:
    ruling = judge_work([A, A], [A], effect=Effect.SAME)

    assert ruling.refusals == ()
    assert ruling.losses == "same to the bit (the first 3 losses)"


ROUNDED = changed(losses=texts((2.5, 2.25, 2.01)))


@pytest.mark.parametrize(
    ("alter", "effect", "precision", "rule", "is_refused"),
    [
        (ROUNDED, Effect.ROUNDING, "fp32", Losses.ROUNDING, False),
        (ROUNDED, Effect.SAME, "fp32", Losses.ROUNDING, True),
        (ROUNDED, Effect.SAME, "fp32", Losses.ANY, False),
        (with_flop(bf16=2e9), Effect.ROUNDING, "bf16", Losses.ROUNDING, False),
        (with_flop(amp=2e9), Effect.ROUNDING, "bf16", Losses.ROUNDING, True),
        # A higher precision, a larger batch, and one percent less work.
        (with_flop(fp64=2e9), Effect.SAME, "fp32", Losses.ROUNDING, False),
        (CHEATS["samples counted twice"][0], Effect.TRAINING, "fp32", Losses.ROUNDING, False),
        (with_flop(fp32=1.99e9), Effect.SAME, "fp32", Losses.ROUNDING, False),
    ],
)
def test_what_is_declared_is_not_refused(
    alter: Callable[[Record], Record], effect: Effect, precision: str, rule: Losses, is_refused: bool
) -> None:
    assert bool(refusals(alter, effect, precision, rule)) is is_refused


def test_original_that_is_not_the_same_to_the_bit_asks_no_variant_to_be() -> None:
    other = ROUNDED(A)

    assert judge_work([A, other], [A, other], effect=Effect.SAME).refusals == ()


def test_checkpointed_forward_pass_is_no_work_of_its_own() -> None:
    work = ComplexityRecord(train_flop_per_step=3e9, recomputed_flop_per_step=1e9, flop_by_precision={"fp32": 3e9})
    original = replace(A, complexity=work)

    assert judge_work([original], [A], effect=Effect.SAME).refusals == ()


def test_unknown_rule_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="--losses takes same, rounding, any; got 'all'"):
        parse_losses("all")
