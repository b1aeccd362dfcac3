"""The simulations of blocks and duels in small, and that a broken-off one goes on where it was."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import blocks, duel
from benchmarks.resumable import Results


def said(effect: str, *, duels: int, seed: int) -> list[dict[str, str]]:
    """Words by rule of a few duels for each noise and machine."""
    rng = np.random.default_rng(seed)
    made = (
        duel.simulated(rng, name, kind, effect=duel.EFFECTS[effect], duels=duels) for name, kind in duel.conditions()
    )
    return [duel.verdicts(segments) for group in made for segments in group]


@pytest.mark.parametrize(
    ("effect", "duels"),
    [
        ("A/A", 1),
        ("just below +2 %", 1),
        ("+2 %", 1),
        *(pytest.param(effect, 5, marks=pytest.mark.night(part="duels")) for effect in duel.EFFECTS),
    ],
)
def test_verdicts_are_false_as_seldom_as_promised(effect: str, duels: int) -> None:
    """In small: the campaign has 400 duels for each noise and machine."""
    false = [duel.is_false(one["duel"], duel.EFFECTS[effect]) for one in said(effect, duels=duels, seed=1)]
    assert len(false) == 29 * duels
    assert sum(false) <= 0.05 * len(false)


@pytest.mark.parametrize(
    ("words", "effect", "expected"),
    [
        ("slower", "+2 %", False),
        ("slower", "just below +2 %", True),
        ("same, slower", "just below +2 %", False),
        ("same", "+2 %", True),
        ("same, slower", "A/A", True),
        ("not decidable, slower", "A/A", True),
        ("faster", "-2 %", False),
    ],
)
def test_what_is_false(words: str, effect: str, expected: bool) -> None:
    assert duel.is_false(words, duel.EFFECTS[effect]) is expected


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
