"""Comparisons: ratios, intervals, corrected p-values and what would have been seen, by hand or by scipy."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import gmean

from analysis.compare import compare
from analysis.loading.cases import after_program
from analysis.loading.configurations import NotPoolableError
from analysis.pairing import pair_up
from analysis.statistics.comparison import compare as compare_runs
from analysis.statistics.comparison import holm
from tests.analysis.by_hand import noisy, results, run
from workload.contract.errors import ExitCode, NothingToDoError, RooflaunchError, UsageError


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
    (row,) = rows(*side("l", LEFT, place="here"), *side("r", RIGHT, place="there", **A100))

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


def test_the_slower_side_may_be_on_the_right() -> None:
    (row,) = rows(*side("l", RIGHT, place="here"), *side("r", LEFT, place="there"))

    assert row["ratio"] == pytest.approx(gmean(LEFT) / gmean(RIGHT))
    assert row["effect"] < -10
    assert row["verdict"] == "here (NVIDIA L4) is 1.5 x as fast as there (NVIDIA L4) (95 %: 1.46 to 1.53)"


def test_no_difference_says_what_would_have_been_seen() -> None:
    (row,) = rows(*side("l", LEFT, place="here"), *side("r", (100.5, 101.0, 101.8), place="there"))

    assert row["p_holm"] > 0.5
    percent = 100 * (row["smallest_detectable_ratio"] - 1)
    assert 2 < percent < 4
    assert row["verdict"] == f"no difference found: {percent:.2g} % or more would have been detected"


NEAR = (99.99, 100.0, 100.01)
COPIES = "the runs of one side have exactly the same figure: no interval (perhaps they are copies of one run)"


@pytest.mark.parametrize(
    ("left", "right", "verdict"),
    [
        (LEFT[:1], RIGHT[:1], "no winner: one run: too few"),
        (LEFT[:1], RIGHT, "no winner: one run on a side: too few"),
        (LEFT, RIGHT[:1], "no winner: one run on a side: too few"),
        (LEFT[:2], RIGHT[:2], "no winner: two runs: too few"),
        (LEFT, RIGHT[:2], "no winner: two runs on a side: too few"),
        ((100.0,) * 3, (150.0,) * 3, f"no winner: {COPIES}"),
        # A small difference has the digits that show it.
        (
            NEAR,
            tuple(1.004 * rate for rate in NEAR),
            "there (NVIDIA L4) is 1.004 x as fast as here (NVIDIA L4) (95 %: 1.004 to 1.004)",
        ),
        (
            NEAR,
            tuple(1.0004 * rate for rate in NEAR),
            "here (NVIDIA L4) and there (NVIDIA L4) are the same within 0.1 % (95 %)",
        ),
    ],
)
def test_verdict(left: tuple[float, ...], right: tuple[float, ...], verdict: str) -> None:
    (row,) = rows(*side("l", left, place="here"), *side("r", right, place="there"))

    assert row["verdict"] == verdict
    assert pd.isna(row["ratio_low"]) == pd.isna(row["p_holm"]) == verdict.startswith("no winner")
    assert pd.isna(row["p_holm"]) or row["p_holm"] < 0.05


CERTAIN = "there (NVIDIA L4) is 1.49 x as fast as here (NVIDIA L4) (95 %: 1.46 to 1.52)"
BUSY = "other processes used the CPU: this run got 4 % of one"


@pytest.mark.parametrize(
    ("left", "right", "verdict"),
    [
        # Runs on a busy machine do not count for a winner, but for the figures.
        ((None,) * 4, (None,) * 4, CERTAIN),
        (
            (None, BUSY, None, None),
            (None,) * 4,
            f"{CERTAIN}; 1 of 8 runs on a busy machine",
        ),
        (
            (None, BUSY, BUSY, None),
            (None,) * 4,
            "no winner: 2 of 8 runs on a busy machine; without them there is no difference",
        ),
        (
            (BUSY,) * 4,
            (BUSY,) * 4,
            "no winner: 8 of 8 runs on a busy machine; without them there is no difference",
        ),
    ],
)
def test_no_winner_where_busy_runs_could_have_made_the_difference(
    left: tuple[str | None, ...], right: tuple[str | None, ...], verdict: str
) -> None:
    sides = [
        one | {"busy": why}
        for name, speed, said in (("l", 100.0, left), ("r", 150.0, right))
        for one, why in zip(
            side(name, tuple(speed + number for number in range(4)), place="here" if name == "l" else "there"),
            said,
            strict=True,
        )
    ]

    (row,) = rows(*sides)

    assert row["verdict"] == verdict
    assert bool(row["busy"]) is any((*left, *right))
    assert pd.isna(row["p"]) is verdict.startswith("no winner")
    assert row["ratio"] == pytest.approx(1.5, abs=0.01)


def test_no_difference_on_a_busy_machine_says_so() -> None:
    alike = side("l", LEFT, place="here"), side("r", (100.5, 101.0, 101.8), place="there")
    (row,) = rows(*(one | {"busy": BUSY} for one in alike[0]), *alike[1])

    assert row["verdict"].startswith("no difference found: ")
    assert row["verdict"].endswith("; 3 of 6 runs on a busy machine")


def test_holm_over_all_pairs() -> None:
    places = {"a": (100.0, 101.0, 102.0), "b": (103.0, 104.0, 105.0), "c": (103.5, 104.5, 106.0)}
    found = rows(*(each for name, rates in places.items() for each in side(name, rates, place=name)))

    assert [(row["left"][0], row["right"][0]) for row in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [row["p_holm"] for row in found] == pytest.approx(list(holm([row["p"] for row in found])))
    assert found[0]["p"] < 0.05
    assert found[2]["p_holm"] > 0.05


def test_alone_it_would_be_a_difference() -> None:
    close = (103.2, 104.2, 105.2)
    alone = rows(*side("a", LEFT, place="a"), *side("b", close, place="b"))
    many = rows(
        *side("a", LEFT, place="a"),
        *side("b", close, place="b"),
        *(each for name in "cdef" for each in side(name, (100.2, 101.1, 101.9), place=name)),
    )

    assert alone[0]["p_holm"] == alone[0]["p"] < 0.05
    assert many[0]["p"] == alone[0]["p"]
    # The 15 pairs of 6 places; that of the greatest difference is multiplied by 15.
    assert many[0]["p_holm"] > 0.05
    assert many[0]["smallest_detectable_ratio"] > alone[0]["smallest_detectable_ratio"]
    assert alone[0]["verdict"] == "b (NVIDIA L4) is 1.03 x as fast as a (NVIDIA L4) (95 %: 1.01 to 1.05)"
    assert many[0]["verdict"] == (
        "not certain in 15 comparisons: b (NVIDIA L4) is 1.03 x as fast as a (NVIDIA L4) (99.67 %: 0.982 to "
        "1.08; 6.4 % or more would have been detected); if it were the only comparison, it would be certain "
        "(95 %: 1.01 to 1.05)"
    )


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


def test_the_figure_of_a_run_is_images_over_wall_time() -> None:
    """A timer that reads half of the time does not make a run faster."""
    honest = [run(f"h{number}", place="here", steps=noisy(seed=number)) for number in range(2)]
    wrong = [
        run(f"w{number}", place="there", steps=noisy(seed=number, step_s=0.05), images_per_s=320.0)
        for number in range(2)
    ]

    (row,) = rows(*honest, *wrong)

    assert row["ratio"] == pytest.approx(1.0, abs=0.001)


# --- what is compared with what


def test_batch_sizes_are_in_order_and_named() -> None:
    runs = [each for size in (128, 32, 64) for each in side(f"b{size}", LEFT, batch_size=size)]

    found = rows(*runs, by="batch_size")

    assert [(row["left"], row["right"]) for row in found] == [
        ("batch size 32", "batch size 64"),
        ("batch size 32", "batch size 128"),
        ("batch size 64", "batch size 128"),
    ]


def test_other_configurations_are_pairs_of_their_own() -> None:
    runs = [
        each
        for model in ("resnet18", "vgg16")
        for place, rates in (("here", LEFT), ("there", RIGHT))
        for each in side(f"{model}{place}", rates, place=place, model=model)
    ]

    assert [row["model"] for row in rows(*runs)] == ["resnet18", "vgg16"]


def test_what_differs_besides_is_told() -> None:
    runs = [*side("l", LEFT, place="here"), *side("r", RIGHT, place="there", torch="2.14.0", driver_version=None)]

    (row,) = rows(*runs)

    assert row["note"] == "driver differs too: 580.95.05 against unknown; torch differs too: 2.15.0 against 2.14.0"


# --- what is compared with all others


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


# --- runs that are kept apart


def mixed(**facts: Any) -> list[dict[str, Any]]:
    odd = [run("odd", place="here", steps=noisy(step_s=0.2), **facts)]
    return [*side("l", LEFT, place="here"), *odd, *side("r", RIGHT, place="there")]


@pytest.mark.parametrize(
    ("facts", "fact"),
    [
        ({"driver_version": "570.1"}, "driver_version"),
        ({"device_name": "Tesla T4"}, "device_name"),
        ({"commit": "f" * 16}, "commit"),
        ({"runtime": "docker"}, "runtime"),
    ],
)
def test_a_run_that_is_unlike_the_others_is_kept_apart(facts: dict[str, Any], fact: str) -> None:
    found = pair_up(results(*mixed(**facts)), "place")

    (pair,) = found.pairs
    assert [case.run_id for case in pair.left.runs] == ["l0", "l1", "l2"]
    assert (found.mixed, found.without_matching_pool) == ((fact,), ("odd",))


CONTAINER = {"runtime": "docker", "image_digest": "sha256:" + "1" * 64}


def test_the_command_that_is_printed_pools_them() -> None:
    runs = [*side("a", LEFT), *side("b", LEFT, **CONTAINER), *side("c", RIGHT, precision="bf16")]
    apart = pair_up(results(*runs), "precision")

    (row,) = rows(*runs, by="precision", allow_mixed=apart.mixed)

    assert apart.without_matching_pool == ("b0", "b1", "b2")
    assert (row["runs_left"], row["runs_right"]) == (3, 6)
    assert row["note"] == "on local-cuda; runtime differs too: process against docker and process"


def test_a_process_against_a_container() -> None:
    (row,) = rows(*side("a", LEFT), *side("b", RIGHT, **CONTAINER), by=None)

    assert (row["by"], row["left"], row["right"], row["note"]) == ("runtime", "docker", "process", None)


def test_pools_without_a_like_one_on_the_other_side_are_refused_by_name() -> None:
    old, new = {"driver_version": "570.1"}, {"torch": "2.16.0"}
    runs = [
        *(run(f"a{number}", place="here", **facts) for number, facts in enumerate([{}, {**old, **new}])),
        *(run(f"b{number}", place="there", **facts) for number, facts in enumerate([old, new])),
    ]

    with pytest.raises(NotPoolableError) as refused:
        rows(*runs, by="place", allow_mixed=["commit"])

    assert refused.value.report() == (
        "error: cannot pool: driver is '580.95.05' in run a0, '570.1' in run a1\n"
        "hint: --by place --allow-mixed commit --allow-mixed driver_version --allow-mixed torch"
    )
    assert refused.value.exit_code == ExitCode.NOT_POOLABLE == 9
    (row,) = rows(*runs, by="place", allow_mixed=["commit", "driver_version", "torch"])
    assert (row["runs_left"], row["runs_right"]) == (2, 2)


# --- what is compared where nobody says


@pytest.mark.parametrize(
    ("facts", "by", "also"),
    [
        pytest.param({"place": "there", **A100}, "place", ("device_name",), id="a place before its device"),
        pytest.param({"precision": "bf16"}, "precision", (), id="precision"),
        pytest.param({"batch_size": 64}, "batch_size", (), id="batch size"),
        pytest.param({"channels_last": True}, "channels_last", (), id="an option of the run"),
        pytest.param({"torch": "2.16.0"}, "torch", (), id="a version"),
        pytest.param({"model": "vgg16"}, "model", (), id="the model, last"),
    ],
)
def test_what_differs_is_compared(facts: dict[str, Any], by: str, also: tuple[str, ...]) -> None:
    found = pair_up(results(*side("a", LEFT), *side("b", RIGHT, **facts)))

    assert (found.by, found.also, len(found.pairs)) == (by, also, 1)


def test_runs_that_nothing_differs_from_are_named() -> None:
    runs = [*side("a", LEFT), *side("b", RIGHT, precision="bf16"), run("c", model="vgg16")]

    assert pair_up(results(*runs), "precision").without_other_value == ("c",)


def test_batch_sizes_of_a_script_are_compared_by_its_arguments() -> None:
    small = side("a", LEFT, script="t.py --batch_size 8", batch_size=8)
    large = side("b", RIGHT, script="t.py --batch_size 16", batch_size=16)
    (row,) = rows(*small, *large, by=None)
    assert (row["by"], row["model"], row["left"], row["right"]) == ("args.batch_size", "t.py", "8", "16")
    assert row["verdict"].startswith("args.batch_size 16 is 1.5 x as fast as args.batch_size 8 (95 %: ")
    assert row["note"] == "on local-cuda"

    (row,) = rows(*small, *large, by="script")
    assert (row["left"], row["right"]) == ("t.py --batch_size 16", "t.py --batch_size 8")
    assert row["note"] == "on local-cuda; batch size differs too: 16 against 8"


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


def test_two_versions_of_a_script_are_named_by_their_commits() -> None:
    versions = [("a" * 64, "1" * 40), ("b" * 64, "2" * 40)]
    runs = [
        one
        for (sha256, commit), rates in zip(versions, (LEFT, RIGHT), strict=True)
        for one in side(commit[0], rates, script="t.py", script_sha256=sha256, script_commit=commit)
    ]
    (row,) = rows(*runs, by="script_sha256")
    assert (row["left"], row["right"]) == (f"{'a' * 64} (commit {'1' * 10})", f"{'b' * 64} (commit {'2' * 10})")


def test_an_argument_is_compared_at_equal_others() -> None:
    """Two arguments vary, one of which also changes a fact; the run of another script has no partner."""
    commands = {
        (workers, is_amp): f"t.py --workers {workers}{' --amp' if is_amp else ''} -lr=0.1 photos"
        for workers in (0, 2)
        for is_amp in (False, True)
    }
    runs = [
        one
        for (workers, is_amp), command in commands.items()
        for one in side(command, RIGHT if is_amp else LEFT, script=command, precision="amp" if is_amp else "fp32")
    ]
    found = rows(*runs, *side("other", LEFT, script="t.py photos"), by="args.amp")
    assert [(row["model"], row["left"], row["right"]) for row in found] == [
        (f"t.py --workers {workers} -lr=0.1 photos", "given", "not given") for workers in (0, 2)
    ]
    assert found[0]["verdict"].startswith("args.amp given is 1.5 x as fast as args.amp not given (97.5 %: ")
    assert found[0]["note"] == "on local-cuda; precision differs too: amp against fp32"
    assert pair_up(results(*runs)).also == ("args.amp", "script")


def test_machines_are_compared_by_a_script_whose_fp32_one_of_them_computes_in_tf32() -> None:
    t4 = side("t4", LEFT, script="t.py", device_name="Tesla T4", place="t4")
    l4 = side("l4", RIGHT, script="t.py", device_name="NVIDIA L4", place="l4", precision="tf32")
    (row,) = rows(*t4, *l4, by="device_name")
    assert (row["left"], row["right"], row["precision"]) == ("NVIDIA L4", "Tesla T4", None)
    assert "precision differs too: tf32 against fp32" in row["note"]
    with pytest.raises(RooflaunchError, match="no two of 6 measured runs differ in device alone"):
        rows(*([{**one, "script": None} for one in (*t4, *l4)]), by="device_name")


# --- refusals


HERE, THERE = side("l", LEFT, place="here"), side("r", LEFT, place="there")
FACTS = "place | device_name | precision | batch_size | zone | torch"
NO_PAIR = f"nothing to compare: place is here in all of {len(HERE)} measured runs"
OTHER_FOLDERS = "add folders with other runs: analyze compare RESULTS MORE_RESULTS"


@pytest.mark.parametrize(
    ("runs", "options", "message", "hint"),
    [
        (HERE, {"by": "place"}, NO_PAIR, f"add folders with other runs, or compare --by {FACTS}"),
        # Runs that broke off are not compared.
        (
            [*HERE, *side("r", RIGHT, place="there", status="failed")],
            {"by": "place"},
            NO_PAIR,
            f"add folders with other runs, or compare --by {FACTS}",
        ),
        ([run("a")], {}, "nothing to compare: no setting differs in 1 measured run", OTHER_FOLDERS),
        (
            [run("a"), run("b", precision="amp", batch_size=64)],
            {},
            (
                "nothing to compare: no two of 2 measured runs differ in one setting alone; the nearest two differ in "
                "precision, batch size"
            ),
            "--by precision --allow-mixed batch_size compares them",
        ),
        (
            [run("a"), run("b", precision="amp", batch_size=64), run("c", precision="bf16", compile=True, devices=2.0)],
            {"by": "precision", "baseline": "bf16", "allow_mixed": ["batch_size"]},
            (
                "nothing to compare: no two of 3 measured runs differ in precision alone; the nearest two differ in "
                "precision, compile, devices"
            ),
            "--by devices --allow-mixed batch_size --allow-mixed precision --allow-mixed compile compares them",
        ),
        (
            [run("a", script="t.py -b 8"), run("b", script="t.py -b 9", batch_size=9)],
            {"by": "batch_size"},
            (
                "nothing to compare: no two of 2 measured runs differ in batch size alone; the nearest two differ in "
                "batch size, script"
            ),
            "--by script compares them",
        ),
        (HERE, {"by": "batchsize"}, "runs cannot be compared by 'batchsize'", "--by batch_size"),
        (HERE, {"by": "qqq"}, "runs cannot be compared by 'qqq'", f"--by {FACTS}"),
        (
            [*HERE, *THERE],
            {"by": "place", "baseline": "ther"},
            "no run has place 'ther'; there is here, there",
            "--by place --baseline there",
        ),
    ],
)
def test_refusals(runs: list[dict[str, Any]], options: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(RooflaunchError) as refused:
        pair_up(results(*runs), **options)

    assert type(refused.value) is (NothingToDoError if message.startswith("nothing") else UsageError)
    assert refused.value.report() == f"error: {message}\nhint: {hint}"
