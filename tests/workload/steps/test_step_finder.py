"""The step finder finds the training step from the order of optimizer steps."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from workload.steps.step_finder import LONGEST, MOST_SEGMENTS, OptimizerStep, Pattern, Seen, StepFinder, find

ONE = OptimizerStep(optimizer=0)
# A GAN: the discriminator's step on a batch, the generator's on what it has made.
D, G = OptimizerStep(optimizer=0, backward=2), OptimizerStep(optimizer=1, batches=0)
FOUR, TWO = OptimizerStep(optimizer=0, backward=4, batches=4), OptimizerStep(optimizer=0, backward=2, batches=2)
FIVE = [ONE] * 5 + [OptimizerStep(optimizer=1, batches=0)]
ENCODER, DECODER = ONE, OptimizerStep(optimizer=1, backward=0, batches=0)


def fold(number: int, *, kind: int = 0, backward: int = 1) -> OptimizerStep:
    """A step of the optimizer that K-fold makes for a fold."""
    return OptimizerStep(optimizer=number, backward=backward, kind=kind)


FOLDS = [fold(number) for number in range(4)]
# An optimizer of another kind, that of the head alone.
HEAD = fold(9, kind=1)
# A critic and a maker whose parameters have the same shapes.
CRITIC, MAKER = fold(0), fold(1)
LONG = [ONE] * (LONGEST + 3)


def follow(segments: Sequence[OptimizerStep]) -> tuple[str, Pattern | None]:
    """One letter for each segment: . unknown, F found, i inside, S step, ~ irregular, L lost, ! unclear."""
    letters = {
        Seen.UNKNOWN: ".",
        Seen.FOUND: "F",
        Seen.INSIDE: "i",
        Seen.STEP: "S",
        Seen.IRREGULAR: "~",
        Seen.LOST: "L",
        Seen.UNCLEAR: "!",
    }
    finder = StepFinder()
    return "".join(letters[finder.add(segment)] for segment in segments), finder.pattern


# script: (its segments, what each of them is, the segments of a step)
SCRIPTS = {
    "one optimizer": ([ONE] * 5, "..FSS", [ONE]),
    "accumulation with a rest at the end of an epoch": ([FOUR] * 5 + [TWO] + [FOUR] * 2, "..FSS~SS", [FOUR]),
    "accumulation with a rest in each short epoch": ([FOUR, FOUR, TWO] * 4, "........FSS~", [FOUR]),
    "accumulation that begins with a rest": ([TWO, FOUR, FOUR] * 8, "........F" + "~SS" * 5, [FOUR]),
    "accumulation with one whole step in an epoch": ([FOUR, TWO] * 4, ".....FS~", [FOUR]),
    "fewer passes on as many batches": (
        [TWO, TWO, replace(ONE, batches=2)] * 4,
        "........FiiS",
        [TWO, TWO, replace(ONE, batches=2)],
    ),
    "a GAN": ([D, G] * 4, ".....FiS", [D, G]),
    "a GAN whose first step is one of the generator": ([G, *[D, G] * 4], "......FiS", [D, G]),
    "five critic steps": (FIVE * 5, "..FSSL" + "." * 11 + "F" + "iiiiiS" * 2, FIVE),
    "two optimizers after one backward pass": ([ENCODER, DECODER] * 4, ".....FiS", [ENCODER, DECODER]),
    "a GAN's rest": ([D, G] * 3 + [D, D, G, D, G], ".....Fii~iS", [D, G]),
    "folds": ([part for part in FOLDS for _ in range(4)], "..FS" + "SSSS" * 3, [FOLDS[0]]),
    "folds of another kind": ([FOLDS[0]] * 4 + [HEAD] * 4, "..FSL.FS", [HEAD]),
    "folds of a GAN": ([fold(0), fold(1, kind=1)] * 4 + [fold(2), fold(3, kind=1)] * 2, ".....F" + "iS" * 3, None),
    "two alike in turn": ([CRITIC, MAKER] * 4, ".....FiS", [CRITIC, MAKER]),
    "five steps of one of two that are alike": (
        [*[CRITIC] * 5, MAKER] * 5,
        "..FSSSL" + "." * 10 + "F" + "iiiiiS" * 2,
        [*[CRITIC] * 5, MAKER],
    ),
    "layers of one shape": (
        [fold(0), *[fold(number, backward=0) for number in (1, 2)]] * 4,
        "........FiiS",
        [fold(0), fold(1, backward=0), fold(2, backward=0)],
    ),
    "head, then all": ([HEAD] * 5 + [ONE] * 5, "..FSSL.FSS", [ONE]),
    "an exception late": ([*LONG, G, ONE, ONE], "..F" + "S" * LONGEST + "~SS", [ONE]),
    "another optimizer late": ([*LONG, *[G] * 6], "..F" + "S" * LONGEST + "~~~~LF", [G]),
    "other passes from a moment on": ([ONE] * 20 + [TWO] * 6, "..F" + "S" * 17 + "~~~~LF", [TWO]),
    "a GAN, then its maker alone": ([D, G] * 4 + [G] * 14, ".....FiS" + "i" * 10 + "LFSS", [G]),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_shortest_repetition_is_a_step(name: str) -> None:
    segments, letters, step = SCRIPTS[name]
    seen, pattern = follow(segments)
    assert seen == letters
    assert pattern is not None
    assert step is None or list(pattern.segments) == step


def test_what_repeats_in_no_order_is_refused() -> None:
    seen, pattern = follow([OptimizerStep(optimizer=0, backward=number) for number in range(MOST_SEGMENTS)])
    assert seen == "." * (MOST_SEGMENTS - 1) + "!"
    assert pattern is None


def test_steps_that_mostly_break_the_rule_are_none() -> None:
    seen, _ = follow([ONE] * 3 + [TWO, FOUR] * 3)
    assert seen == "..F~~~~LF"


def test_an_optimizer_in_use_is_never_left_out() -> None:
    assert find([ONE, G, ONE, ONE, ONE]) is None


# pattern, names of its optimizers, sentence
WORDS = {
    "one": ([ONE], ["SGD"], "1 backward pass and 1 SGD step"),
    "accumulation": ([FOUR], ["AdamW"], "4 backward passes and 1 AdamW step"),
    "two of a kind": (
        [D, G],
        ["Adam", "Adam"],
        "3 backward passes, 1 Adam step of optimizer 1 and 1 Adam step of optimizer 2",
    ),
    "two kinds": ([D, G], ["Adam", "SGD"], "3 backward passes, 1 Adam step and 1 SGD step"),
    "five": (FIVE, ["RMSprop", "SGD"], "6 backward passes, 5 RMSprop steps and 1 SGD step"),
}


@pytest.mark.parametrize("name", WORDS)
def test_a_step_is_said(name: str) -> None:
    segments, optimizers, text = WORDS[name]
    assert Pattern(segments=tuple(segments)).words(optimizers) == text
