"""Summary of several ranks' steps: the rank that is named, and the files of ranks that were killed."""

import random
from pathlib import Path
from typing import Any

import pytest

from workload.contract import ranks
from workload.contract.ranks import KindRecord, LinkRate, Ranks, RankStep

STEPS_CSV = "step,phase,step_s,data_s,images\n"
COLLECTIVES_CSV = "step,kind,number,bytes,own_s,hidden_s,exposed_s\n"


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
    waits = "".join(
        f"{number},all_gather,2,8000,0.4,0.1,0.3\n{number},all_reduce,1,2000,0.2,0.0,0.2\n{number},all,3,10000,0.6,0.1,0.5\n"
        for number in range(7)
    )
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
    assert found.kinds == {
        "all_reduce": KindRecord(number=(1.0, 1.0), bytes=(2000.0,) * 2, own_s=(0.2, 0.2), exposed_s=(0.2, 0.2)),
        "all_gather": KindRecord(number=(2.0, 2.0), bytes=(8000.0,) * 2, own_s=(0.4, 0.4), exposed_s=(0.3, 0.3)),
    }


def test_a_rank_that_wrote_nothing(tmp_path: Path) -> None:
    bundle_of(tmp_path, last="")
    (tmp_path / "ranks/1/steps.csv").unlink()
    found = ranks.summary(tmp_path, device="cuda", measured_s=9.0)
    assert found is not None
    assert (found.backend, found.steps, found.images) == ("nccl", [6, 0], 0)


def test_one_device_has_no_summary(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text(STEPS_CSV)
    assert ranks.summary(tmp_path, device="cpu", measured_s=1.0) is None


def test_a_step_whose_collectives_were_cut_off_does_not_count(tmp_path: Path) -> None:
    bundle_of(tmp_path, last="7,measured,1.5,0.25,4\n")
    with (tmp_path / "ranks/1/collectives.csv").open("a") as file:
        file.write("7,all_reduce,1,2000,0.2,0.0,0.2\n")
    found = ranks.summary(tmp_path, device="cpu", measured_s=None)
    assert found is not None
    assert found.steps == [6, 6]


def test_waits_without_any_collective_are_unknown(tmp_path: Path) -> None:
    bundle_of(tmp_path, last="")
    none = COLLECTIVES_CSV + "".join(f"{number},all,0,0,0.0,0.0,0.0\n" for number in range(7))
    (tmp_path / "ranks/1/collectives.csv").write_text(none)
    found = ranks.summary(tmp_path, device="cpu", measured_s=10.5)
    assert found is not None
    assert (found.steps, found.images_per_s, found.data_s) == ([6, 6], pytest.approx(48 / 10.5), [0.25] * 2)
    assert (found.own_s, found.exposed_s, found.slowest, found.why) == (None, None, None, ranks.UNKNOWN)


def kind(number: float, moved: float, own_s: tuple[float, float], exposed_s: tuple[float, float]) -> KindRecord:
    return KindRecord(number=(number,) * 2, bytes=(moved,) * 2, own_s=own_s, exposed_s=exposed_s)


LINKS = [
    LinkRate(kind=name, bytes=size, bytes_per_s=rate)
    for name, size, rate in [
        ("all_reduce", 1e6, 1e9),
        ("all_reduce", 1e8, 2e9),
        ("point_to_point", 1e6, 5e8),
    ]
]


@pytest.mark.parametrize(
    ("kinds", "links", "text"),
    [
        ({}, LINKS, None),
        ({"all_reduce": kind(1, 1e6, (0.1, 0.2), (0.0, 0.1))}, LINKS, None),  # a rank that waits for none
        # 4 MB in messages of 2 MB take 8 ms in the rank that waits less: 0.5 GB/s of 1 GB/s.
        (
            {"all_reduce": kind(2, 4e6, (8e-3, 0.2), (8e-3, 0.2)), "broadcast": kind(1, 1e3, (1e-3, 0.3), (1e-3, 0.3))},
            LINKS,
            "all-reduces: 4 MB per step, at 50 % of the link's measured rate",
        ),
        # Of all-gathers, a rank sends half as many bytes as of all-reduces: 2 GB/s count as 1 GB/s of 2 GB/s.
        (
            {"all_gather": kind(1, 1e8, (0.05, 0.06), (0.02, 0.03))},
            LINKS,
            "all-gathers: 100 MB per step, at 50 % of the link's measured rate",
        ),
        (
            {"point_to_point": kind(4, 4e6, (0.01, 0.02), (0.01, 0.02))},
            LINKS,
            "sends and receives: 4 MB per step, at 80 % of the link's measured rate",
        ),
        ({"all_gather": kind(1, 1e8, (0.05, 0.06), (0.02, 0.03))}, [], "all-gathers: 100 MB per step"),
        ({"barrier": kind(1, 0, (0.05, 0.06), (0.02, 0.03))}, LINKS, "barriers"),
    ],
)
def test_the_kind_of_collective_that_ranks_wait_for_longest(
    kinds: dict[str, KindRecord], links: list[LinkRate], text: str | None
) -> None:
    found = ranks.communication(Ranks(kinds=kinds), links)
    assert (found and found.text) == text


GATHER = ranks.Communication(kind=ranks.Collective.ALL_GATHER, bytes=1e8, link_share=0.5)


NAMED = {"longest": GATHER, "slowest": "1", "host": "b", "is_alone": True}


@pytest.mark.parametrize(
    ("shares", "more", "limits", "reason"),
    [
        (
            (0.3, 0.1, 0.0),
            NAMED,
            "collectives limit",
            "for them, longest for all-gathers: 100 MB per step, at 50 % of the link's measured rate",
        ),
        ((0.3, 0.1, 0.0), {}, "collectives limit", "for them after its last gradient"),
        ((0.1, 0.3, 0.0), NAMED, "rank 1 on b alone limits", "for a slower one, on average"),
        ((0.1, 0.3, 0.0), {"is_alone": True}, "uneven devices limit", "for a slower one, on average"),
        ((0.1, 0.0, 0.3), {}, "the input limits", "for data"),
    ],
)
def test_what_limits_scaling(
    shares: tuple[float, float, float], more: dict[str, Any], limits: str, reason: str
) -> None:
    known = dict(zip((ranks.IN_COLLECTIVES, ranks.UNEVEN, ranks.INPUT), shares, strict=True))
    assert ranks.limit_sentence(known, **more) == f"{limits} scaling: a device waits 30 % of the step {reason}"


@pytest.mark.parametrize(
    ("own_s", "slowest", "is_alone"),
    [([1.0, 1.3], 1, True), ([1.0, 1.0], None, False), ([1.0, 1.3, 1.04], 1, True), ([1.0, 1.3, 1.06], 1, False)],
)
def test_a_rank_is_alone_slow_if_the_others_are_even(own_s: list[float], slowest: int | None, is_alone: bool) -> None:
    assert ranks.is_alone_slow(Ranks(own_s=own_s, slowest=slowest)) is is_alone
