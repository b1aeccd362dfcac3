"""Rules on time, each on both sides of its threshold."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.audit import RULES, Finding, audit
from analysis.audit.timing import skipped_by_amp
from tests.analysis.audit.rules import Cases, printed
from tests.analysis.by_hand import noisy, results, run
from tests.analysis.sentence_runs import Golden


def found(*runs: dict[str, Any], rule: str) -> list[Finding]:
    return [finding for finding in audit(results(*runs)) if finding.rule == rule]


def repeats(**facts: Any) -> list[dict[str, Any]]:
    return [run(name, **facts) for name in "abc"]


def test_three_clean_runs_break_no_rule() -> None:
    assert audit(results(*repeats())) == []


def test_every_rule_says_threshold_reason_and_cure() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert all(rule.threshold and rule.why and rule.cure for rule in RULES)


def every(period: int, factor: float, *, n: int = 60) -> list[float]:
    steps = np.array(noisy(n=n))
    steps[::period] *= factor
    return list(steps)


def stamps_of(steps: Sequence[float]) -> list[float]:
    return list(5.0 + np.cumsum(steps))


@pytest.mark.parametrize(
    ("script", "explained", "figure", "cure"),
    [
        pytest.param("train.py", 0.97, ", 150 µs a step", "use larger batches: our hooks take", id="of hooks"),
        pytest.param("train.py", 0.9, "timed parts", "find what runs between", id="of the script's"),
        pytest.param(None, 0.97, "timed parts", "find what runs between", id="of our trainer"),
    ],
)
def test_between_a_scripts_steps_are_our_hooks(script: str | None, explained: float, figure: str, cure: str) -> None:
    steps = [0.005] * 40
    case = run(steps=steps, explained_fraction=explained, script=script, measured_s=0.2)
    [finding] = found(case, rule="wall time not explained")
    assert finding.figure.endswith(figure)
    assert finding.cure.startswith(cure)


def with_stalls(*where: int, times: float) -> list[float]:
    steps = np.array(noisy(n=100))
    steps[list(where)] *= times
    return list(steps)


HERE_AND_THERE = (0, 3, 4, 9, 11, 17, 20, 21, 29, 33, 34, 40, 47, 51, 52, 58, 63, 70, 77, 81, 82, 90, 91, 97)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"skipped_steps": 3.0, "steps_n": 60.0}, ["3 of 60 measured steps (5 %)"]),
        ({"skipped_steps": 1.0, "steps_n": 1000.0}, ["1 of 1000 measured steps (0.1 %)"]),
        ({"skipped_steps": 0.0, "steps_n": 60.0}, []),
        ({}, []),
    ],
)
def test_steps_skipped_by_amp(facts: dict[str, float], expected: list[str]) -> None:
    case = {"skipped_steps": facts.get("skipped_steps"), "steps": facts.get("steps_n")}
    assert [figure for figure in [skipped_by_amp(case)] if figure] == expected  # type: ignore[arg-type]


def apart(*, share: float) -> list[dict[str, Any]]:
    """Two runs of 20 steps, whose speeds are 6 % apart."""
    return [
        run(name, steps=noisy(seed=seed, n=20, step_s=step_s, share=share))
        for seed, name, step_s in ((1, "a", 0.1), (2, "b", 0.107))
    ]


CASES: Cases = {
    "clock set back": {
        "not": run(imported=True),
        "once": run(steps=[0.1] * 5, imported=True, ended_at_s=[5.1, 5.05, 5.3, 5.4, 5.5]),
    },
    "unsynchronised timing": {
        "period that the stamps deny": run(steps=every(10, 0.4), ended_at_s=stamps_of(noisy())),
        "period that the stamps confirm": run(steps=every(10, 0.4), ended_at_s=stamps_of(every(10, 0.4))),
        "3 impossible steps of 43": run(steps=[0.02, 0.03, 0.04, *noisy(n=40)], ended_at_s=stamps_of(noisy(n=43))),
        "2 are too few": run(steps=[0.02, 0.03, *noisy(n=41)], ended_at_s=stamps_of(noisy(n=43))),
        "3 steps that were short": run(
            steps=[0.02, 0.03, 0.04, *noisy(n=40)], ended_at_s=stamps_of([0.02, 0.03, 0.04, *noisy(n=40)])
        ),
        "fewer steps than can be judged": run(steps=every(6, 0.4, n=18), ended_at_s=stamps_of(noisy(n=18))),
        "a timer without stamps is not accused": run(steps=every(10, 0.4), ended_at_s=[np.nan] * 60),
    },
    "mean of rates": {
        "ours claims nothing": run(images_per_s=100.0, claimed_images_per_s=None),
        "within 2 %": run(images_per_s=100.0, claimed_images_per_s=101.9),
        "above": run(images_per_s=100.0, claimed_images_per_s=103.0),
        "below": run(images_per_s=100.0, claimed_images_per_s=97.0),
    },
    "wall time not explained": {
        "within 2 %": run(explained_fraction=0.981),
        "less": run(explained_fraction=0.979),
        "more": run(explained_fraction=1.021),
        "unknown": run(explained_fraction=None),
    },
    "too few runs": {
        "one": repeats()[:1],
        "two": repeats()[:2],
        "three": repeats()[:3],
        "runs that broke off are no repeats": [*repeats()[:2], run("c", status="interrupted")],
        "runs of other configurations are no repeats": [*repeats(), run("d", batch_size=64)],
    },
    "runs disagree": {
        "4.9 % apart": [run(name, images_per_s=rate) for name, rate in zip("abc", (100.0, 101.0, 104.9), strict=True)],
        "5.1 % apart": [run(name, images_per_s=rate) for name, rate in zip("abc", (100.0, 101.0, 105.1), strict=True)],
        "by chance, as their steps vary by 20 %": apart(share=0.2),
        "though their steps vary by 1 %": apart(share=0.01),
    },
    "warm-up too short": {
        "steady": run(steps=noisy()),
        "4 slow ones": run(steps=[0.5] * 4 + noisy(n=56)),
        "one that does not move the mean by 1 %": run(steps=[0.104, *noisy(n=59)]),
        "more than half of the run is no warm-up": run(steps=[0.5] * 35 + noisy(n=25)),
        "a slower second part is no warm-up": run(steps=noisy(n=24) + [0.105] * 36),
        "too few to say": run(steps=[0.1] * 10),
    },
    "unsteady steps": {
        "a drift of less than 1 %": run(steps=list(np.array(noisy(share=0.001)) + 1e-05 * np.arange(60))),
        "a drift to slower steps": run(steps=list(np.array(noisy(share=0.001)) + 3e-05 * np.arange(60))),
        "a drift to faster steps": run(steps=list(np.array(noisy(share=0.001)) - 3e-05 * np.arange(60))),
        "3 of 100 at 5 x": run(steps=with_stalls(20, 50, 80, times=5)),
        "less than 1 % of the throughput": run(steps=with_stalls(50, times=1.9)),
        "several, less than half as long again": run(steps=with_stalls(50, 60, 70, 80, times=1.4)),
        "two that take less than 1 % of the throughput": run(steps=with_stalls(50, 60, times=1.4)),
        "a single one of less than half as long again": run(steps=with_stalls(50, times=1.4)),
        "every tenth, less than 1.2 x": run(steps=with_stalls(*range(3, 100, 10), times=1.15)),
        "every tenth": run(steps=with_stalls(*range(3, 100, 10), times=1.3)),
        "more than 1 of 10 is how the run goes": run(steps=with_stalls(*range(0, 100, 9), times=5)),
        "the last fifth is slower": run(steps=noisy(n=80) + noisy(n=20, step_s=0.105, seed=1)),
        "faster for a while": run(steps=noisy(n=40) + noisy(n=20, step_s=0.09, seed=1) + noisy(n=40, seed=2)),
    },
    "steadiness not certain": {
        "quiet steps": run(steps=noisy(n=20, share=0.002)),
        "noisy steps": run(steps=noisy(n=20, share=0.03)),
    },
    "scattered steps": {
        "1.48 x": run(steps=[0.1, 0.1, 0.148] * 20),
        "1.52 x": run(steps=[0.1, 0.1, 0.152] * 20),
        "1.52 x by another program's timer": run(steps=[0.1, 0.1, 0.152] * 20, imported=True),
        "a quarter at 1.1 x": run(steps=with_stalls(*HERE_AND_THERE, times=1.1)),
        "two groups that no gap parts": run(steps=with_stalls(*HERE_AND_THERE, times=1.008)),
        "fewer than a tenth": run(steps=with_stalls(*HERE_AND_THERE[::4], times=1.1)),
        "a change is told as one": run(steps=noisy(n=80) + [0.11] * 20),
        "so is a warm-up": run(steps=[0.13] * 4 + noisy(n=20)),
        "and so are stalls": run(steps=with_stalls(*range(3, 100, 10), times=1.3)),
        "a clock with a grain of 10 ms": run(steps=[0.1, 0.1, 0.11] * 20),
        "all equal": run(steps=[0.1] * 60),
        "zeros": run(steps=[0.0] * 30 + [0.1] * 30),
        "steps are not scattered where only the timer is": run(steps=every(10, 0.4), ended_at_s=stamps_of(noisy())),
    },
    "incomplete series": {
        "all of them": run(),
        "completed too early": run(iterations=100.0),
        "broken off": run(iterations=100.0, status="out_of_memory"),
        "nobody knows how many": run(iterations=None, status="preempted"),
        "50 steps added for --min-seconds, broken off": run(steps=noisy(n=150), iterations=100.0, status="interrupted"),
        "50 steps added for --min-seconds": run(steps=noisy(n=150), iterations=100.0),
        "a log shorter than its sibling": [
            run("short", imported=True, steps=noisy(n=38), iterations=38.0),
            run("whole", imported=True, steps=noisy(n=99), iterations=99.0),
            run("larger batch", imported=True, steps=noisy(n=49), iterations=49.0, batch_size=64),
            run("other", imported=True, steps=noisy(n=199), iterations=199.0, model="vgg16"),
        ],
    },
}


def test_findings_on_both_sides_of_each_threshold(tmp_path: Path, golden: Golden) -> None:
    golden("timing.txt", printed(CASES, tmp_path))
