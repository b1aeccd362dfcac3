"""Rules on time, each on both sides of its threshold."""

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import analysis
from analysis.audit import RULES, Finding, audit
from analysis.audit.claims import CLAIM_RULES
from analysis.audit.timing import skipped_by_amp
from tests.analysis.by_hand import noisy, results, run

SPREAD = "0.1 to 0.152 s"


def found(*runs: dict[str, Any], rule: str) -> list[Finding]:
    return [finding for finding in audit(results(*runs)) if finding.rule == rule]


def figures(*runs: dict[str, Any], rule: str) -> list[str]:
    return [finding.figure for finding in found(*runs, rule=rule)]


def repeats(**facts: Any) -> list[dict[str, Any]]:
    return [run(name, **facts) for name in "abc"]


def test_three_clean_runs_break_no_rule() -> None:
    assert audit(results(*repeats())) == []


def test_every_rule_says_threshold_reason_and_cure() -> None:
    names = [rule.name for rule in RULES]

    assert len(set(names)) == len(names)
    assert all(rule.threshold and rule.why and rule.cure for rule in RULES)


def test_every_threshold_says_what_is_expected() -> None:
    """`expected less than 75 %` would name what is broken."""
    broken = ("more than", "less than", "fewer", "below", "above", "not ", "in ")
    assert not [rule.name for rule in (*RULES, *CLAIM_RULES) if rule.threshold.startswith(broken)]


def test_shares_are_written_in_one_way() -> None:
    """`95 %`, by the contract's `text`, which has a word for nearly nothing too: no format ends in a per cent."""
    folder = Path(analysis.__file__).parent
    specs = [
        f"{path.relative_to(folder)}:{value.lineno}"
        for path in folder.rglob("*.py")
        for value in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(value, ast.FormattedValue) and re.search(r"%'$", ast.unparse(value.format_spec or value))
    ]
    assert not specs


# --- unsynchronised timing


def every(period: int, factor: float, *, n: int = 60) -> list[float]:
    steps = np.array(noisy(n=n))
    steps[::period] *= factor
    return list(steps)


def stamps_of(steps: Sequence[float]) -> list[float]:
    return list(5.0 + np.cumsum(steps))


@pytest.mark.parametrize(
    ("timer", "real", "expected"),
    [
        pytest.param(
            every(10, 0.4),
            noisy(),
            ["every 10th step from 1 on: the timer reads 40 % of the other steps, the time stamps 100 %"],
            id="period that the stamps deny",
        ),
        pytest.param(every(10, 0.4), every(10, 0.4), [], id="period that the stamps confirm"),
        pytest.param(
            [0.02, 0.03, 0.04, *noisy(n=40)],
            noisy(n=43),
            ["3 of 43 steps: the timer reads 30 % of the other steps, the time stamps 100 %"],
            id="3 impossible steps of 43",
        ),
        pytest.param([0.02, 0.03, *noisy(n=41)], noisy(n=43), [], id="2 are too few"),
        pytest.param(
            [0.02, 0.03, 0.04, *noisy(n=40)], [0.02, 0.03, 0.04, *noisy(n=40)], [], id="3 steps that were short"
        ),
        pytest.param(every(6, 0.4, n=18), noisy(n=18), [], id="fewer steps than can be judged"),
    ],
)
def test_unsynchronised_timing(timer: list[float], real: list[float], expected: list[str]) -> None:
    case = run(steps=timer, ended_at_s=stamps_of(real))

    assert figures(case, rule="unsynchronised timing") == expected


def test_a_timer_without_stamps_is_not_accused() -> None:
    case = run(steps=every(10, 0.4), ended_at_s=[np.nan] * 60)

    assert figures(case, rule="unsynchronised timing") == []


# --- rates and wall time


@pytest.mark.parametrize(
    ("claimed", "expected"),
    [
        pytest.param(None, [], id="ours claims nothing"),
        pytest.param(101.9, [], id="within 2 %"),
        pytest.param(103.0, ["103 images/s by the log's rates, 100 by images over wall time: 1.03 x"], id="above"),
        pytest.param(97.0, ["97 images/s by the log's rates, 100 by images over wall time: 0.97 x"], id="below"),
    ],
)
def test_mean_of_rates(claimed: float | None, expected: list[str]) -> None:
    assert figures(run(images_per_s=100.0, claimed_images_per_s=claimed), rule="mean of rates") == expected


@pytest.mark.parametrize(
    ("explained", "expected"),
    [
        pytest.param(0.981, [], id="within 2 %"),
        pytest.param(
            0.979,
            ["steps and waits add up to 97.9 % of the wall time: 2.1 % are outside of the timed parts"],
            id="less",
        ),
        pytest.param(1.021, ["steps and waits add up to 102.1 % of the wall time: 2.1 % too much"], id="more"),
        pytest.param(None, [], id="unknown"),
    ],
)
def test_wall_time_not_explained(explained: float | None, expected: list[str]) -> None:
    assert figures(run(explained_fraction=explained), rule="wall time not explained") == expected


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


# --- repeats


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, ["one run: no interval"]), (2, ["2 runs"]), (3, [])],
)
def test_too_few_runs(count: int, expected: list[str]) -> None:
    assert figures(*repeats()[:count], rule="too few runs") == expected


def test_runs_of_other_configurations_are_no_repeats() -> None:
    assert len(found(*repeats(), run("d", batch_size=64), rule="too few runs")) == 1


def test_runs_that_broke_off_are_no_repeats() -> None:
    assert figures(*repeats()[:2], run("c", status="interrupted"), rule="too few runs") == ["2 runs"]


@pytest.mark.parametrize(
    ("fastest", "expected"),
    [(104.9, []), (105.1, ["3 runs from 100 to 105.1 images/s: 5.1 % apart"])],
)
def test_runs_disagree(fastest: float, expected: list[str]) -> None:
    runs = [run(name, images_per_s=rate) for name, rate in zip("abc", (100.0, 101.0, fastest), strict=True)]

    assert figures(*runs, rule="runs disagree") == expected


def test_runs_whose_steps_explain_how_far_they_lie_apart() -> None:
    """20 steps that vary by 20 % put two runs 6 % apart by chance; steps that vary by 1 % do not."""
    wild, quiet = (
        [
            run(name, steps=noisy(seed=seed, n=20, step_s=step_s, share=share))
            for seed, name, step_s in ((1, "a", 0.1), (2, "b", 0.107))
        ]
        for share in (0.2, 0.01)
    )

    assert figures(*wild, rule="runs disagree") == []
    assert len(figures(*quiet, rule="runs disagree")) == 1


# --- steadiness


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param(noisy(), [], id="steady"),
        pytest.param(
            [0.5] * 4 + noisy(n=56),
            ["the first 4 of 60 steps take 5.00 x the rest; they move the mean by +27 %"],
            id="4 slow ones",
        ),
        pytest.param([0.104, *noisy(n=59)], [], id="one that does not move the mean by 1 %"),
        pytest.param([0.5] * 35 + noisy(n=25), [], id="more than half of the run is no warm-up"),
        pytest.param(noisy(n=24) + [0.105] * 36, [], id="a slower second part is no warm-up"),
        pytest.param([0.1] * 10, [], id="too few to say"),
    ],
)
def test_warmup_too_short(steps: list[float], expected: list[str]) -> None:
    assert figures(run(steps=steps), rule="warm-up too short") == expected


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param(noisy(), [], id="steady"),
        pytest.param(
            noisy(n=80) + noisy(n=20, step_s=0.105, seed=1),
            ["from step 81 of 100 on, steps take 1.05 x those before"],
            id="the last fifth is slower",
        ),
        pytest.param(
            noisy(n=40) + noisy(n=60, step_s=0.105, seed=1),
            ["from step 41 of 100 on, steps take 1.05 x those before"],
            id="slower from the second half on",
        ),
        pytest.param(
            noisy(n=40) + noisy(n=20, step_s=0.09, seed=1) + noisy(n=40, seed=2),
            ["steps 41 to 60 of 100 take 0.9 x the others"],
            id="faster for a while",
        ),
        pytest.param(noisy(n=80) + noisy(n=20, step_s=0.1009, seed=1), [], id="less than 1 %"),
        pytest.param([0.1] * 16 + [0.2] * 3, [], id="too few to say"),
    ],
)
def test_change_within_the_run(steps: list[float], expected: list[str]) -> None:
    assert figures(run(steps=steps), rule="change within the run") == expected
    # One change is one finding.
    assert figures(run(steps=steps), rule="drift") == figures(run(steps=steps), rule="warm-up too short") == []


def with_stalls(*where: int, times: float) -> list[float]:
    steps = np.array(noisy(n=100))
    steps[list(where)] *= times
    return list(steps)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param(
            with_stalls(20, 50, 80, times=5),
            ["3 of 100 steps take 5.0 x the others: 10.7 % of the throughput"],
            id="3 of 100 at 5 x",
        ),
        pytest.param(with_stalls(50, times=1.9), [], id="less than 1 % of the throughput"),
        pytest.param(
            with_stalls(50, 60, 70, 80, times=1.4),
            ["4 of 100 steps take 1.4 x the others: 1.6 % of the throughput"],
            id="several, less than half as long again",
        ),
        pytest.param(with_stalls(50, 60, times=1.4), [], id="two that take less than 1 % of the throughput"),
        pytest.param(with_stalls(50, times=1.4), [], id="a single one of less than half as long again"),
        pytest.param(with_stalls(*range(3, 100, 10), times=1.15), [], id="every tenth, less than 1.2 x"),
        pytest.param(
            with_stalls(*range(3, 100, 10), times=1.3),
            ["10 of 100 steps take 1.3 x the others: 2.9 % of the throughput"],
            id="every tenth",
        ),
        pytest.param(with_stalls(*range(0, 100, 9), times=5), [], id="more than 1 of 10 is how the run goes"),
    ],
)
def test_stalls(steps: list[float], expected: list[str]) -> None:
    assert figures(run(steps=steps), rule="stalls") == expected


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.002, []),
        (0.03, ["a change of less than 19 % over a fifth of the run cannot be seen in 20 steps"]),
    ],
)
def test_steadiness_not_certain(share: float, expected: list[str]) -> None:
    assert figures(run(steps=noisy(n=20, share=share)), rule="steadiness not certain") == expected


@pytest.mark.parametrize(
    ("slope", "expected"),
    [
        (0.00001, []),
        (0.00003, ["steps get 1.8 % slower over 60 steps"]),
        (-0.00003, ["steps get 1.7 % faster over 60 steps"]),
    ],
)
def test_drift(slope: float, expected: list[str]) -> None:
    steps = np.array(noisy(share=0.001)) + slope * np.arange(60)

    assert figures(run(steps=list(steps)), rule="drift") == expected


@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        pytest.param(0.148, [], id="1.48 x"),
        pytest.param(
            0.152,
            [f"5 % to 95 % of the steps take {SPREAD}: 1.5 x ({SPREAD} in all; the timer says {SPREAD})"],
            id="1.52 x",
        ),
    ],
)
def test_scattered_steps(slow: float, expected: list[str]) -> None:
    assert figures(run(steps=[0.1, 0.1, slow] * 20), rule="scattered steps") == expected


HERE_AND_THERE = (0, 3, 4, 9, 11, 17, 20, 21, 29, 33, 34, 40, 47, 51, 52, 58, 63, 70, 77, 81, 82, 90, 91, 97)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param(
            with_stalls(*HERE_AND_THERE, times=1.1),
            ["24 of 100 steps, spread over the run, take 1.10 x the others: two speeds"],
            id="a quarter at 1.1 x",
        ),
        pytest.param(with_stalls(*HERE_AND_THERE, times=1.008), [], id="two groups that no gap parts"),
        pytest.param(with_stalls(*HERE_AND_THERE[::4], times=1.1), [], id="fewer than a tenth"),
        pytest.param(noisy(n=80) + [0.11] * 20, [], id="a change is told as one"),
        pytest.param([0.13] * 4 + noisy(n=20), [], id="so is a warm-up"),
        pytest.param(with_stalls(*range(3, 100, 10), times=1.3), [], id="and so are stalls"),
        pytest.param([0.1, 0.1, 0.11] * 20, [], id="a clock with a grain of 10 ms"),
        pytest.param([0.1] * 60, [], id="all equal"),
        pytest.param([0.0] * 30 + [0.1] * 30, [], id="zeros"),
    ],
)
def test_two_speeds(steps: list[float], expected: list[str]) -> None:
    assert figures(run(steps=steps), rule="scattered steps") == expected


def test_steps_are_not_scattered_where_only_the_timer_is() -> None:
    case = run(steps=every(10, 0.4), ended_at_s=stamps_of(noisy()))

    assert figures(case, rule="scattered steps") == []


# --- series


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param({}, [], id="all of them"),
        pytest.param({"iterations": 100.0}, ["60 of 100 steps, and yet completed"], id="completed too early"),
        pytest.param(
            {"iterations": 100.0, "status": "out_of_memory"}, ["out of memory after 60 of 100 steps"], id="broken off"
        ),
        pytest.param(
            {"iterations": None, "status": "preempted"}, ["preempted after 60 steps"], id="nobody knows how many"
        ),
    ],
)
def test_incomplete_series(facts: dict[str, Any], expected: list[str]) -> None:
    assert figures(run(**facts), rule="incomplete series") == expected


def test_steps_that_were_added_are_no_part_of_the_plan() -> None:
    """150 steps, of which 50 were added for --min-seconds: a run is broken off after 150, not after `150 of 100`."""
    broken = run(steps=noisy(n=150), iterations=100.0, status="interrupted")
    assert figures(broken, rule="incomplete series") == ["interrupted after 150 steps"]
    assert figures(run(steps=noisy(n=150), iterations=100.0), rule="incomplete series") == []


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


def test_an_imported_log_is_measured_by_its_siblings() -> None:
    logs = [
        run("short", imported=True, steps=noisy(n=38), iterations=38.0),
        run("whole", imported=True, steps=noisy(n=99), iterations=99.0),
        run("larger batch", imported=True, steps=noisy(n=49), iterations=49.0, batch_size=64),
        run("other", imported=True, steps=noisy(n=199), iterations=199.0, model="vgg16"),
    ]

    (finding,) = found(*logs, rule="incomplete series")

    assert finding.subject == ("short",)
    assert finding.figure == "stops after 39 rows; another log of resnet18 at batch size 32 in 'local-cuda' has 100"
