"""Tables that figures are drawn from."""

import math

import pytest

from tests.analysis.by_hand import at_rates
from tests.analysis.figures.material_by_hand import made, run


def test_one_line_per_poolable_group_with_its_interval() -> None:
    found = made(*at_rates("a", (100.0, 102.0, 98.0)), *at_rates("b", (50.0,), batch_size=64))
    (first, second) = found.measured.to_dict("records")
    assert (first["env"], first["task"], first["variant"], first["series"]) == (
        "local-cuda",
        "resnet18",
        "fp32",
        "resnet18 · fp32",
    )
    assert (first["runs"], first["images_per_s"]) == (3, pytest.approx(100.0))
    # Student's t on logarithms: sd of ln(98, 100, 102) is 0.0200, t(2) = 4.303, so +- 4.97 %.
    assert first["images_per_s_low"] == pytest.approx(95.15, abs=0.05)
    assert first["images_per_s_high"] == pytest.approx(105.08, abs=0.05)
    assert first["flop_per_s"] == pytest.approx(32 * 10.6484e9 / 0.32)
    assert second["runs"] == 1
    assert math.isnan(second["images_per_s_low"])
    assert second["interval"] == "one run: no interval"
    assert list(found.runs["line"]) == [0, 0, 0, 1]


def test_variants_name_only_what_differs() -> None:
    found = made(run("a", channels_last=True), run("b", channels_last=False), run("c", model="vgg11"))
    assert sorted(found.measured["variant"]) == ["fp32", "fp32, channels last no", "fp32, channels last yes"]
    # Counted apart in the tables that other modules make, which do not know the variant.
    points = made(
        *(
            run(name, channels_last=flag, bytes_lower_per_step=1e9, bytes_upper_per_step=4e9)
            for name, flag in (("a", True), ("b", False))
        )
    ).points
    assert sorted(points["variant"]) == ["fp32, channels last no", "fp32, channels last yes"]


def test_change_from_outside_is_named_beside_runs_without_one() -> None:
    found = made(run("a", change="channels_last"), run("b"))
    assert sorted(found.measured["variant"]) == ["fp32, change channels_last", "fp32, no change"]


def of_scripts(**batches: int) -> list[str]:
    """Variants of runs of `train.py` with these arguments and the batch sizes that they set."""
    runs = [
        run(
            f"r{size}{number}",
            model="train.py",
            script=f"train.py {text}".strip(),
            batch_size=size,
            workers=float(number),
        )
        for number, (text, size) in enumerate(batches.items())
    ]
    return list(made(*runs).every["variant"])


def test_a_script_is_named_by_its_arguments_without_the_batch_size() -> None:
    """A sweep over batch sizes and workers is a line per number of workers; DataLoader's own fact says no more."""
    sweep = {f"--batch-size {size} --workers {number}": size for size in (8, 32) for number in (0, 1)}
    lines = ["fp32, --workers 0", "fp32, --workers 1"]
    assert of_scripts(**sweep, **{"": 32}) == [*lines, *lines, "fp32, no other arguments"]


def test_scripts_that_would_have_one_name_keep_their_command() -> None:
    found = of_scripts(**{"--batch-size 32": 32, "": 32})
    assert found == ["fp32, script train.py --batch-size 32", "fp32, script train.py"]


def test_what_a_script_does_not_decide_is_named() -> None:
    facts = {"model": "train.py", "batch_size": 8}
    found = made(
        *(run(f"a{number}", script="train.py --lr 1", workers=number, **facts) for number in (0.0, 1.0)),
        run("b", script="train.py --lr 2", workers=0.0, **facts),
    )
    names = ["fp32, --lr 1, workers 0", "fp32, --lr 1, workers 1", "fp32, --lr 2, workers 0"]
    assert list(found.every["variant"]) == names


def test_what_broke_off_everywhere_is_failed_and_what_did_once_is_not() -> None:
    found = made(
        run("a"),
        run("b", status="out_of_memory", steps=[], images_per_s=None, step_median_s=None),
        run("c", batch_size=64, status="out_of_memory", steps=[]),
        run("d", batch_size=64, status="failed", steps=[]),
    )
    (row,) = found.failed.to_dict("records")
    assert (row["batch_size"], row["ending"]) == (64, "out of memory and failed")
