"""Unchanged scripts like public examples: their step is found, their FLOP are right, their results stay the same."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.workload.script_stage import SCRIPTS, measured, plain
from workload.contract import bundle

pytestmark = [
    pytest.mark.world,
    pytest.mark.skipif(sys.platform == "darwin", reason="copies a process that has loaded torch"),
]


def convolution(positions: int, inputs: int, outputs: int, kernel: int, *, groups: int = 1) -> int:
    return 2 * positions * inputs // groups * outputs * kernel * kernel


def product(rows: int, inputs: int, outputs: int) -> int:
    return 2 * rows * inputs * outputs


@dataclass(frozen=True, kw_only=True)
class Case:
    """`flop`: by hand, from the layers' sizes; `repeated`: those of checkpoints. `images`: amount in its unit.

    `sequences`: of its tokens. `gaps`: what is between the measured steps. `when`: markers.
    """

    step: str
    flop: int
    images: int
    sequences: int | None = None
    gaps: set[str] = field(default_factory=set)
    words: tuple[str, ...] = ()
    precision: str = "fp32"
    skipped: int = 0
    when: tuple[pytest.MarkDecorator, ...] = (pytest.mark.night(part="scripts"),)
    note: str = ""
    repeated: int | None = None


# The first layer needs no gradient of its inputs: it costs its forward pass twice, every other one three times.
DCGAN_D = (convolution(16 * 64, 3, 8, 4), convolution(16 * 16, 8, 16, 4), convolution(16, 16, 1, 4))
DCGAN_G = (convolution(16, 16, 16, 4), convolution(16 * 16, 16, 8, 4), convolution(16 * 64, 8, 3, 4))
# 19 times two LSTM cells of nine units for six sequences, and a linear layer: states are zero at first.
CLOSURE = 2 * 19 * product(6, 1, 36) + 2 * 56 * product(6, 9, 36) + 3 * 19 * (product(6, 9, 36) + product(6, 9, 1))
LBFGS_PRODUCTS = 184
CASES = {
    "mnist": Case(
        step="1 backward pass and 1 Adadelta step, 16 images from DataLoader at mnist.py:",
        flop=2 * convolution(16 * 26**2, 1, 8, 3)
        + 3 * (convolution(16 * 24**2, 8, 16, 3, groups=2) + product(16, 2304, 32) + product(16, 32, 10)),
        images=16,
        gaps={"validation", "checkpoint"},
        when=(),
    ),
    "dcgan": Case(
        step="3 backward passes, 1 Adam step of optimizer 1 and 1 Adam step of optimizer 2, 16 images from DataLoader"
        " at dcgan.py:",
        # The discriminator three times, the last with a gradient of its inputs; the generator from noise.
        flop=(2 + 2 + 3) * DCGAN_D[0] + 9 * sum(DCGAN_D[1:]) + 2 * DCGAN_G[0] + 3 * sum(DCGAN_G[1:]),
        images=16,
        gaps={"validation"},
        when=(),
    ),
    # In epochs of ten batches, every third step has the two batches that are left over.
    **{
        f"accumulation {batches}": Case(
            step="4 backward passes and 1 AdamW step, 32 images from DataLoader at accumulation.py:",
            flop=2 * product(32, 64, 32) + 3 * product(32, 32, 10),
            images=32,
            gaps={"irregular"},
            words=(batches,),
            when=(),
        )
        for batches in ("22", "10")
    },
    **{
        f"evaluation {how}": Case(
            step="1 backward pass and 1 SGD step, 8 images from DataLoader at evaluation.py:",
            flop=2 * product(8, 64, 32) + 3 * product(8, 32, 10) + kept * (product(64, 64, 32) + product(64, 32, 10)),
            images=8,
            gaps={"validation"},
            words=(how,),
            when=when,
        )
        # The operations of an evaluation with gradients count, because nothing tells them from those of the loss.
        for how, kept, when in (("block", 0, ()), ("gradients", 1, (pytest.mark.night(part="scripts"),)))
    },
    "scaler": Case(
        step="1 backward pass and 1 SGD step, 8 images from DataLoader at scaler.py:",
        flop=2 * product(8, 64, 32) + 3 * product(8, 32, 10),
        images=8,
        skipped=2,
    ),
    "gpt": Case(
        step="1 backward pass and 1 AdamW step, 6 sequences of 16 tokens from DataLoader at gpt.py:",
        # Per block: the products of 96 tokens, and causal attention of 6 x 3 heads of 8, each with 16 x 17 / 2 pairs.
        flop=3 * (2 * product(96, 24, 72 + 24 + 2 * 96) + product(96, 24, 40) + 2 * 2 * product(6 * 3, 8, 136)),
        images=96,
        sequences=6,
        when=(),
    ),
    "get_batch": Case(
        step="5 backward passes and 1 AdamW step, 30 sequences of 16 tokens, from get_batch at get_batch.py:17",
        flop=3 * product(30 * 16, 24, 40),
        images=480,
        sequences=30,
        # The step with the first evaluation of the timed ones.
        gaps={"irregular"},
        when=(),
    ),
    "two_loaders": Case(
        step="1 backward pass and 1 Adam step, 10 images from DataLoader at two_loaders.py:",
        # Checkpoints compute the forward pass once more, those that are not reentrant without their last product.
        flop=(2 + 3 + 4 + 3) * product(4, 36, 20) + (2 + 3 + 4 + 4) * product(6, 36, 20),
        repeated=product(4, 36, 20) + 2 * product(6, 36, 20),
        note="gradient checkpointing computes a part of the forward pass again: 13 % of the FLOP",
        images=10,
    ),
    "seq2seq": Case(
        step="1 backward pass, 1 Adam step of optimizer 1 and 1 Adam step of optimizer 2, 8 sequences of 5 tokens from"
        " DataLoader at seq2seq.py:",
        # The encoder's first state is zero and has no gradient.
        flop=3 * (product(40, 16, 48) + 2 * product(48, 16, 48) + product(48, 16, 30)) + 14 * product(8, 16, 48),
        images=40,
        sequences=8,
    ),
    "full_batch": Case(
        step="1 backward pass and 1 SGD step, 40 samples, into the model at full_batch.py:",
        # The model twice with its gradients, the teacher once; the evaluations are not in it.
        flop=2 * (2 * product(40, 16, 24) + 3 * product(40, 24, 3)) + product(40, 16, 24) + product(40, 24, 3),
        images=40,
        gaps={"validation"},
    ),
    "lbfgs": Case(
        step="4 backward passes and 1 LBFGS step, 6 samples, into the model at lbfgs.py:",
        # Four closures; LBFGS itself takes scalar products with its history, which grows.
        flop=4 * CLOSURE + LBFGS_PRODUCTS * 2 * 1162,
        images=6,
        precision="fp64",
        note="the FLOP of a step vary",
    ),
}

# Samples in one pass over the training data; with two DataLoaders, the samples of both.
DATA = {
    "mnist": 128,
    "dcgan": 160,
    "accumulation 22": 176,
    "accumulation 10": 80,
    "scaler": 320,
    "gpt": 240,
    "evaluation block": 120,
    "evaluation gradients": 120,
    "seq2seq": 200,
    "two_loaders": 100,
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=case.when) for name, case in CASES.items()])
def test_a_script_is_measured_and_unchanged(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    script = SCRIPTS / f"{name.split(maxsplit=1)[0]}.py"
    alone = plain(tmp_path / "alone", script, *case.words)
    assert alone.code == 0, alone.err
    options = ("--warmup", "1", "--iterations", "8", "--then", "continue")
    ran = measured(tmp_path / "measured", script, *case.words, options=options)
    assert ran.code == 0, ran.err
    assert ran.out == alone.out, "the script's results are those that it has alone, to the last bit"
    assert "digest" in ran.out
    assert ran.record is not None
    assert ran.folder is not None
    timing, work, spec = ran.record["timing"], ran.record["complexity"], ran.record["spec"]
    assert ran.record["status"] == "completed"
    assert spec["script"]["step"].startswith(f"a step = {case.step}")
    assert f"script     a step = {case.step}" in ran.err
    assert work["train_flop_per_step"] == pytest.approx(case.flop, rel=0.001)
    # A share of time: on a busy machine an operator without a formula may be the one that is interrupted.
    assert work["unattributed_share"] <= 0.9
    assert work["uncounted"] is None
    assert spec["script"].get("dataset_samples") == DATA.get(name)
    assert work["recomputed_flop_per_step"] == case.repeated
    assert spec["precision"] == case.precision
    assert spec["batch_size"] * spec["grad_accumulation"] == (case.sequences or case.images)
    assert (timing["step_s"]["n"], timing["images"]) == (8, 8 * case.images)
    assert timing["samples"] == (case.sequences and 8 * case.sequences)
    assert set(timing["gaps"] or {}) == case.gaps
    assert timing["skipped_steps"]["measured"] == case.skipped
    assert any(note.startswith(case.note) for note in (*ran.record["notes"], ""))
    rows = bundle.read(ran.folder).steps()
    assert [row["phase"] for row in rows] == ["warmup"] + ["measured"] * 8
    for row in rows:
        parts = sum(float(row[part]) for part in ("forward_s", "backward_s", "optimizer_s"))
        assert parts <= float(row["step_s"]) + 1e-6
