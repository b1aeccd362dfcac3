"""Summary of several ranks' steps: the rank that is named, and the files of ranks that were killed."""

import random
from pathlib import Path

import pytest

from workload.contract import ranks
from workload.contract.ranks import Ranks, RankStep

STEPS_CSV = "step,phase,step_s,data_s,images\n"
COLLECTIVES_CSV = "step,hidden_s,exposed_s\n"


def measured(own_s: list[float]) -> dict[int, RankStep]:
    return {
        number: RankStep(own_s=seconds, data_s=0.0, hidden_s=0.1, exposed_s=0.2, images=4)
        for number, seconds in enumerate(own_s, 3)
    }


def drawn(seed: int, *, slower: float, noise: float = 0.05, number: int = 20) -> Ranks:
    draw = random.Random(seed)
    times = [[(1 + share) * draw.gauss(1, noise) for _ in range(number)] for share in (0.0, slower)]
    return ranks.summarized([measured(each) for each in times], measured_s=40.0)


@pytest.mark.parametrize("noise", [0.001, 0.05, 0.3])
def test_no_rank_of_even_runs_is_named(noise: float) -> None:
    assert [drawn(seed, slower=0.0, noise=noise).slowest for seed in range(20)] == [None] * 20


def test_a_rank_slower_by_30_percent_is_named() -> None:
    found = [drawn(seed, slower=0.3) for seed in range(20)]
    assert [each.slowest for each in found] == [1] * 20
    assert all(each.slower_by == pytest.approx(0.3, abs=0.15) for each in found)


@pytest.mark.parametrize(
    ("first", "second", "slowest"),
    [
        ([1.0] * 6, [1.06] * 6, 1),
        ([1.0] * 6, [1.04] * 6, None),  # certain, but small
        ([1.0] * 6, [1.0, 1.0, 1.0, 1.6, 1.6, 1.6], None),  # slower by 30 %, spread 60 %
        ([1.5] * 6, [1.0] * 6, 0),
    ],
)
def test_both_sides_of_the_rule(first: list[float], second: list[float], slowest: int | None) -> None:
    assert ranks.summarized([measured(first), measured(second)]).slowest == slowest


def test_three_ranks_are_compared_with_the_median_of_the_others() -> None:
    found = ranks.summarized([measured([1.0] * 6), measured([2.0] * 6), measured([1.5] * 6)])
    assert (found.slowest, found.slower_by) == (1, pytest.approx(2.0 / 1.25 - 1))


def test_throughput_is_of_all_ranks() -> None:
    found = drawn(1, slower=0.0)
    assert (found.number, found.steps, found.images, found.images_per_s) == (2, [20, 20], 160, 4.0)


def test_too_few_common_steps_are_not_compared() -> None:
    found = ranks.summarized([measured([1.0] * 20), measured([1.0] * 4)], measured_s=20.0)
    assert (found.slowest, found.own_s, found.images) == (None, None, 32)
    assert found.images_per_s is None, "the wall time covers steps that rank 1 has not written"
    assert found.why == "fewer than 5 measured steps were completed by all ranks"


def bundle_of(folder: Path, *, last: str) -> None:
    steps = "".join(f"{number},{'measured' if number else 'warmup'},1.5,0.25,4\n" for number in range(7))
    waits = "".join(f"{number},0.1,0.5\n" for number in range(7))
    for rank in (0, 1):
        (folder / "ranks" / str(rank)).mkdir(parents=True)
        (folder / "ranks" / str(rank) / "collectives.csv").write_text(COLLECTIVES_CSV + waits)
    (folder / "steps.csv").write_text(STEPS_CSV + steps)
    (folder / "ranks/1/steps.csv").write_text(STEPS_CSV + steps + last)


def test_files_of_a_killed_rank(tmp_path: Path) -> None:
    bundle_of(tmp_path, last="7,measured,1.")
    found = ranks.summary(tmp_path, device="cpu", measured_s=None)
    assert found is not None
    assert (found.backend, found.steps, found.own_s) == ("gloo", [6, 6], [1.25, 1.25]), "a row cut off does not count"
    assert (found.data_s, found.hidden_s, found.exposed_s) == ([0.25] * 2, [0.1] * 2, [0.5] * 2)


def test_a_rank_that_wrote_nothing(tmp_path: Path) -> None:
    bundle_of(tmp_path, last="")
    (tmp_path / "ranks/1/steps.csv").unlink()
    found = ranks.summary(tmp_path, device="cuda", measured_s=9.0)
    assert found is not None
    assert (found.backend, found.steps, found.images) == ("nccl", [6, 0], 0)


def test_one_device_has_no_summary(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text(STEPS_CSV)
    assert ranks.summary(tmp_path, device="cpu", measured_s=1.0) is None


def test_waits_of_a_script_that_are_unknown(tmp_path: Path) -> None:
    bundle_of(tmp_path, last="")
    unknown = COLLECTIVES_CSV + "".join(f"{number},,\n" for number in range(7))
    (tmp_path / "ranks/1/collectives.csv").write_text(unknown)
    found = ranks.summary(tmp_path, device="cpu", measured_s=10.5)
    assert found is not None
    assert (found.steps, found.images_per_s, found.data_s) == ([6, 6], pytest.approx(48 / 10.5), [0.25] * 2)
    assert (found.own_s, found.exposed_s, found.slowest, found.why) == (None, None, None, ranks.UNKNOWN)
