"""The simulations of blocks and duels in small, and that a broken-off one goes on where it was."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import blocks, duel
from benchmarks.resumable import Results
from workload.contract.duel import DuelVerdict


def test_noise_has_the_distribution_and_the_correlation_of_its_log() -> None:
    log = next(noise for noise in duel.noises() if noise.name == "h100_resnet50_amp_b1280")

    steps = log.steps_of(np.random.default_rng(0), series=200, steps=400)

    assert np.quantile(steps, duel.PROBABILITIES[2:-2]) == pytest.approx(log.quantiles[2:-2], abs=1e-4)
    lag1 = np.mean([np.corrcoef(one[1:], one[:-1])[0, 1] for one in steps])
    # 0.80 in the log.
    assert 0.7 < lag1 < 0.85


def test_a_program_against_itself_on_every_machine() -> None:
    rng = np.random.default_rng(1)
    said = [
        duel.verdicts(segments)
        for noise in duel.noises()
        for kind in duel.MACHINES
        for segments in duel.simulated(rng, noise, kind, effect=0.0, duels=4)
    ]

    wrong = {
        rule: sum(one[rule] in (DuelVerdict.SLOWER, DuelVerdict.FASTER) for one in said) / len(said)
        for rule in duel.RULES
    }
    assert wrong["duel"] <= 0.02
    assert min(wrong["threshold 10 %"], wrong["threshold 5 %"], wrong["peeking Welch"]) > 0.1


def test_three_percent_are_found_where_the_machine_allows_it() -> None:
    rng = np.random.default_rng(2)
    steady = next(noise for noise in duel.noises() if noise.name == "rtx4090_resnet50_fp32_b224")
    said = [
        duel.verdicts(segments)["duel"]
        for kind in duel.MACHINES
        for segments in duel.simulated(rng, steady, kind, effect=0.03, duels=10)
    ]

    assert said.count(DuelVerdict.SLOWER) >= 38
    assert set(said) <= {DuelVerdict.SLOWER, DuelVerdict.NOT_DECIDABLE}


def test_a_broken_off_simulation_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "parts" / "blocks.jsonl"
    whole = list(blocks.missing(Results(None), 0.01))
    list(blocks.missing(Results(path), 0.01))
    lines = path.read_text().splitlines()
    path.write_text(f"{lines[0]}\n{lines[1][:20]}")

    results = Results(path)

    assert list(blocks.missing(results, 0.01)) == whole
    assert path.read_text().splitlines() == lines


@pytest.mark.parametrize(
    "part", ["differences", "order", pytest.param("design", marks=pytest.mark.slow), "machines", "until", "power"]
)
def test_every_part_runs(part: str) -> None:
    lines = list(blocks.PARTS[part](Results(None), 0.0015))

    assert len(lines) > 5
