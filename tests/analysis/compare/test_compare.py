"""Comparisons: ratios, intervals, corrected p-values and what would have been seen, by hand or by scipy."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import gmean

from analysis.compare import compare, table
from analysis.loading.cases import after_program
from analysis.pairing import pair_up
from analysis.statistics.comparison import compare as compare_runs
from analysis.statistics.comparison import holm
from tests.analysis.by_hand import noisy, results, run
from tests.analysis.sentence_runs import Golden
from workload.contract.errors import RooflaunchError


def side(name: str, rates: tuple[float, ...], **facts: Any) -> list[dict[str, Any]]:
    """Runs of 32 images a step at these rates."""
    return [
        run(f"{name}{number}", steps=noisy(seed=number, step_s=32 / rate), images_per_s=rate, **facts)
        for number, rate in enumerate(rates)
    ]


LEFT = (100.0, 101.0, 102.0)
RIGHT = (150.0, 151.0, 153.0)
A100 = {"device_name": "NVIDIA A100-SXM4-80GB", "compute_capability": "8.0"}


def rows(*runs: dict[str, Any], by: str | None = "place", **options: Any) -> list[dict[str, Any]]:
    return [
        {str(name): value for name, value in row.items()}
        for row in compare(results(*runs), by, **options).to_dict("records")
    ]


def test_two_places() -> None:
    used = ({"joules_per_image": 0.4}, {"joules_per_image": 0.3})
    (row,) = rows(*side("l", LEFT, place="here", **used[0]), *side("r", RIGHT, place="there", **A100, **used[1]))
    assert row["joules_ratio"] == pytest.approx(0.75)
    assert (row["left"], row["right"]) == ("here (NVIDIA L4)", "there (NVIDIA A100-SXM4-80GB)")
    assert (row["runs_left"], row["runs_right"]) == (3, 3)
    assert row["ratio"] == pytest.approx(gmean(RIGHT) / gmean(LEFT))
    expected = compare_runs(1 / np.array(RIGHT), 1 / np.array(LEFT))
    assert expected.interval is not None
    assert (row["ratio_low"], row["ratio_high"]) == pytest.approx((expected.interval.low, expected.interval.high))
    assert row["p"] == row["p_holm"] == pytest.approx(expected.p_value)
    assert row["level"] == 0.95
    assert row["test"] == (
        "Welch t over runs, variances partly shared "
        "(88 % in place of 95 % if 3 runs of one side scatter 4 times as much as 10 of the other)"
    )
    assert row["effect"] > 10
    assert row["smallest_detectable_ratio"] == pytest.approx(1.03, abs=0.01)
    assert row["verdict"] == ("there (NVIDIA A100-SXM4-80GB) is 1.5 x as fast as here (NVIDIA L4) (95 %: 1.46 to 1.53)")
    assert row["note"] is None


def test_holm_over_all_pairs() -> None:
    places = {"a": (100.0, 101.0, 102.0), "b": (103.0, 104.0, 105.0), "c": (103.5, 104.5, 106.0)}
    found = rows(*(each for name, rates in places.items() for each in side(name, rates, place=name)))
    assert [(row["left"][0], row["right"][0]) for row in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [row["p_holm"] for row in found] == pytest.approx(list(holm([row["p"] for row in found])))
    assert found[0]["p"] < 0.05
    assert found[2]["p_holm"] > 0.05


def test_the_interval_leaves_out_1_if_and_only_if_a_difference_is_claimed() -> None:
    """11 pairs, among them some that would be certain alone, and large differences between few runs."""
    rng = np.random.default_rng(3)
    speeds = [100.0, 101.0, 102.0, 103.0, 105.0, 110.0, 120.0, 150.0, 300.0, 310.0, 700.0, 720.0]
    runs = [
        one_run
        for number, speed in enumerate(speeds)
        for one_run in side(
            f"p{number}-", tuple(speed * np.exp(0.01 * rng.normal(size=3 + number % 3))), place=f"p{number:02}"
        )
    ]
    for row in rows(*runs, baseline="p03"):
        excluded = not row["ratio_low"] <= 1 <= row["ratio_high"]
        assert excluded == (row["p_holm"] < 0.05) == (not row["verdict"].startswith(("no", "not"))), row
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        if not excluded:
            assert max(row["ratio"], 1 / row["ratio"]) < row["smallest_detectable_ratio"], row


def test_others_are_compared_with_the_baseline_alone() -> None:
    runs = [each for place in "abc" for each in side(place, LEFT, place=place)]
    found = pair_up(results(*runs), "place", baseline="b")
    assert [(pair.left.value, pair.right.value) for pair in found.pairs] == [("b", "a"), ("b", "c")]
    assert found.baselines == ("b",)
    # Without --by, the fact is the one that has such a value; batch sizes are named as they are shown.
    sizes = [each for size in (16, 32, 64) for each in side(f"s{size}-", LEFT, batch_size=size)]
    found = pair_up(results(*sizes), baseline="32")
    assert (found.by, [pair.right.value for pair in found.pairs]) == ("batch_size", [16, 64])


def test_of_many_values_that_of_the_most_runs_is_the_baseline() -> None:
    names = "abcdefg"
    runs = [each for place in names for each in side(place, (*LEFT, 99.0) if place == "d" else LEFT, place=place)]
    found = pair_up(results(*runs), "place")
    assert found.baselines == ("d",)
    assert {pair.left.value for pair in found.pairs} == {"d"}
    assert len(found.pairs) == len(names) - 1
    assert len(pair_up(results(*runs[:-3]), "place").pairs) == 15


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (None, None),
        ("train.py", None),
        ("-m package.train", None),
        ("train.py --lr 0.1 'my photos'", "--lr 0.1 'my photos'"),
        ("-m package.train --lr -1", "--lr -1"),
    ],
)
def test_the_arguments_of_a_command(command: str | None, arguments: str | None) -> None:
    assert after_program(command) == arguments


# --- what is said


NEAR = (99.99, 100.0, 100.01)
SAME = (100.5, 101.0, 101.8)
BUSY = {"busy": "other processes used the CPU: this run got 4 % of one"}
CONTAINER = {"runtime": "docker", "image_digest": "sha256:" + "1" * 64}
OLD, NEW = {"driver_version": "570.1"}, {"torch": "2.16.0"}
HERE, THERE = side("l", LEFT, place="here"), side("r", LEFT, place="there")


def here_and_there(left: tuple[float, ...], right: tuple[float, ...], **facts: Any) -> list[dict[str, Any]]:
    return [*side("l", left, place="here", **facts), *side("r", right, place="there")]


def with_busy(busy_left: int, busy_right: int = 0) -> list[dict[str, Any]]:
    """Four runs on each side, of which so many ran on a busy machine."""
    left, right = (
        side(name, tuple(speed + rate for rate in range(4)), place=place)
        for name, speed, place in (("l", 100.0, "here"), ("r", 150.0, "there"))
    )
    count = {"l": busy_left, "r": busy_right}
    return [one | (BUSY if int(one["run_id"][1]) < count[one["run_id"][0]] else {}) for one in (*left, *right)]


def unlike(**facts: Any) -> list[dict[str, Any]]:
    """A run on the left side differs from the others, and is twice as slow."""
    return [*HERE, run("odd", place="here", steps=noisy(step_s=0.2), **facts), *side("r", RIGHT, place="there")]


def of_script(left: str, right: str, *more: dict[str, Any]) -> list[dict[str, Any]]:
    first, second = more or ({}, {})
    return [*side("a", LEFT, script=left, **first), *side("b", RIGHT, script=right, **second)]


def with_arguments() -> list[dict[str, Any]]:
    """Two arguments vary, one of which also changes a fact."""
    commands = {
        (workers, is_amp): f"t.py --workers {workers}{' --amp' if is_amp else ''} -lr=0.1 photos"
        for workers in (0, 2)
        for is_amp in (False, True)
    }
    return [
        one
        for (_, is_amp), command in commands.items()
        for one in side(command, RIGHT if is_amp else LEFT, script=command, precision="amp" if is_amp else "fp32")
    ]


OF_TWO_GPUS = [
    *side("t4", LEFT, script="t.py", device_name="Tesla T4", place="t4"),
    *side("l4", RIGHT, script="t.py", device_name="NVIDIA L4", place="l4", precision="tf32"),
]
NO_POOL = [
    *(run(f"a{number}", place="here", **facts) for number, facts in enumerate([{}, {**OLD, **NEW}])),
    *(run(f"b{number}", place="there", **facts) for number, facts in enumerate([OLD, NEW])),
]
# Runs, and options of `pair_up`.
CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "slower on the right": (here_and_there(RIGHT, LEFT), {"by": "place"}),
    "no difference": (here_and_there(LEFT, SAME), {"by": "place"}),
    "one run each": (here_and_there(LEFT[:1], RIGHT[:1]), {"by": "place"}),
    "one run on the left": (here_and_there(LEFT[:1], RIGHT), {"by": "place"}),
    "one run on the right": (here_and_there(LEFT, RIGHT[:1]), {"by": "place"}),
    "two runs each": (here_and_there(LEFT[:2], RIGHT[:2]), {"by": "place"}),
    "two runs on the right": (here_and_there(LEFT, RIGHT[:2]), {"by": "place"}),
    "copies": (here_and_there((100.0,) * 3, (150.0,) * 3), {"by": "place"}),
    "a small difference has the digits that show it": (
        here_and_there(NEAR, tuple(1.004 * rate for rate in NEAR)),
        {"by": "place"},
    ),
    "the same": (here_and_there(NEAR, tuple(1.0004 * rate for rate in NEAR)), {"by": "place"}),
    # A busy machine is slower: such runs count for figures, and for no winner.
    "nobody is busy": (with_busy(0), {"by": "place"}),
    "one of eight is busy": (with_busy(1), {"by": "place"}),
    "two of eight are busy": (with_busy(2), {"by": "place"}),
    "all are busy": (with_busy(4, 4), {"by": "place"}),
    "no difference, on a busy machine": (here_and_there(LEFT, SAME, **BUSY), {"by": "place"}),
    "certain alone": ([*side("a", LEFT, place="a"), *side("b", (103.2, 104.2, 105.2), place="b")], {"by": "place"}),
    "not certain among 15 pairs": (
        [
            *side("a", LEFT, place="a"),
            *side("b", (103.2, 104.2, 105.2), place="b"),
            *(each for name in "cdef" for each in side(name, (100.2, 101.1, 101.9), place=name)),
        ],
        {"by": "place"},
    ),
    "batch sizes in their order": (
        [each for size in (128, 32, 64) for each in side(f"b{size}", LEFT, batch_size=size)],
        {"by": "batch_size"},
    ),
    "two models": (
        [
            one
            for model in ("resnet18", "vgg16")
            for place, rates in (("here", LEFT), ("there", RIGHT))
            for one in side(f"{model}{place}", rates, place=place, model=model)
        ],
        {"by": "place"},
    ),
    "what differs besides": (
        [*HERE, *side("r", RIGHT, place="there", torch="2.14.0", driver_version=None)],
        {"by": "place"},
    ),
    "a run with another driver": (unlike(driver_version="570.1"), {"by": "place"}),
    "a run on another device": (unlike(device_name="Tesla T4"), {"by": "place"}),
    "a run of another commit": (unlike(commit="f" * 16), {"by": "place"}),
    "a run in a container": (unlike(runtime="docker"), {"by": "place"}),
    "three runs in a container": (
        [*side("a", LEFT), *side("b", LEFT, **CONTAINER), *side("c", RIGHT, precision="bf16")],
        {"by": "precision"},
    ),
    "three runs in a container, pooled": (
        [*side("a", LEFT), *side("b", LEFT, **CONTAINER), *side("c", RIGHT, precision="bf16")],
        {"by": "precision", "allow_mixed": ["runtime", "image_digest"]},
    ),
    "no pool is like one on the other side": (NO_POOL, {"by": "place", "allow_mixed": ["commit"]}),
    "the same, pooled": (NO_POOL, {"by": "place", "allow_mixed": ["commit", "driver_version", "torch"]}),
    "a process against a container": ([*side("a", LEFT), *side("b", RIGHT, **CONTAINER)], {}),
    "a place before its device": ([*side("a", LEFT), *side("b", RIGHT, place="there", **A100)], {}),
    "precision": ([*side("a", LEFT), *side("b", RIGHT, precision="bf16")], {}),
    "batch size": ([*side("a", LEFT), *side("b", RIGHT, batch_size=64)], {}),
    "an option of the run": ([*side("a", LEFT), *side("b", RIGHT, channels_last=True)], {}),
    "a version": ([*side("a", LEFT), *side("b", RIGHT, torch="2.16.0")], {}),
    "the model, last": ([*side("a", LEFT), *side("b", RIGHT, model="vgg16")], {}),
    "a run that no other differs from": (
        [*side("a", LEFT), *side("b", RIGHT, precision="bf16"), run("c", model="vgg16")],
        {"by": "precision"},
    ),
    "batch sizes of a script": (
        of_script("t.py --batch_size 8", "t.py --batch_size 16", {"batch_size": 8}, {"batch_size": 16}),
        {},
    ),
    "batch sizes of a script, by its command": (
        of_script("t.py --batch_size 8", "t.py --batch_size 16", {"batch_size": 8}, {"batch_size": 16}),
        {"by": "script"},
    ),
    "two versions of a script": (
        of_script(
            "t.py",
            "t.py",
            {"script_sha256": "a" * 64, "script_commit": "1" * 40},
            {"script_sha256": "b" * 64, "script_commit": "2" * 40},
        ),
        {"by": "script_sha256"},
    ),
    "an argument at equal others": (
        [*with_arguments(), *side("other", LEFT, script="t.py photos")],
        {"by": "args.amp"},
    ),
    "arguments": (with_arguments(), {}),
    "fp32 that one machine computes in tf32": (OF_TWO_GPUS, {"by": "device_name"}),
    "the same without a script": ([{**one, "script": None} for one in OF_TWO_GPUS], {"by": "device_name"}),
    # Refusals.
    "one place": (HERE, {"by": "place"}),
    "runs that broke off": ([*HERE, *side("r", RIGHT, place="there", status="failed")], {"by": "place"}),
    "one run": ([run("a")], {}),
    "two settings at once": ([run("a"), run("b", precision="amp", batch_size=64)], {}),
    "three settings at once": (
        [run("a"), run("b", precision="amp", batch_size=64), run("c", precision="bf16", compile=True, devices=2.0)],
        {"by": "precision", "baseline": "bf16", "allow_mixed": ["batch_size"]},
    ),
    "the batch size that an argument sets": (
        [run("a", script="t.py -b 8"), run("b", script="t.py -b 9", batch_size=9)],
        {"by": "batch_size"},
    ),
    "a misspelt column": (HERE, {"by": "batchsize"}),
    "no column": (HERE, {"by": "qqq"}),
    "a misspelt baseline": ([*HERE, *THERE], {"by": "place", "baseline": "ther"}),
}


def said(runs: list[dict[str, Any]], by: str | None = None, **options: Any) -> list[str]:
    """What `analyze compare` says of the runs: pairs, what is kept apart, or the refusal."""
    try:
        found = pair_up(results(*runs), by, **options)
        compared = table(found).to_dict("records")
    except RooflaunchError as error:
        return [*error.report().splitlines(), f"code {error.exit_code}"]
    lines = [f"by {found.by}" + (f", also {', '.join(found.also)}" if found.also else "")]
    for row in compared:
        of = f"{row['model']}: " if pd.notna(row["model"]) else ""
        lines.append(f"{of}{row['left']} | {row['right']}, {row['runs_left']} against {row['runs_right']} runs")
        lines.append(f"    {row['verdict']}" + (f" [{row['note']}]" if row["note"] else ""))
    if found.mixed:
        lines.append(f"kept apart by {', '.join(found.mixed)}: {', '.join(found.without_matching_pool)}")
    if found.without_other_value:
        lines.append(f"no other differs from {', '.join(found.without_other_value)}")
    return lines


def test_verdicts_and_refusals(golden: Golden) -> None:
    lines = [line for name, (runs, options) in CASES.items() for line in (f"## {name}", *said(runs, **options))]
    golden("compare.txt", "\n".join([*lines, ""]))
