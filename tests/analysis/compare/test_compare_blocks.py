"""Comparisons of runs in blocks: pairs, the scatter of whole designs, positions, and options over all combinations."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import gmean, ttest_rel
from test_compare import LEFT, RIGHT, rows, said, side

from tests.analysis.by_hand import noisy, run
from tests.analysis.sentence_runs import Golden


def in_blocks(
    name: str, rates: tuple[float, ...], hosts: tuple[float, ...] = (1.0, 1.2, 0.9), **facts: Any
) -> list[dict[str, Any]]:
    """A run per block, on a host of its own that is faster or slower as a whole."""
    return [
        run(
            f"{name}{number}",
            steps=noisy(seed=number, step_s=32 / (rate * host)),
            images_per_s=rate * host,
            job_name="sweep",
            block=float(number),
            position=0.0,
            hostname=f"vm-{number}",
            **facts,
        )
        for number, (rate, host) in enumerate(zip(rates, hosts, strict=False))
    ]


def test_runs_of_one_block_are_compared_with_each_other() -> None:
    """Hosts differ by 30 %, configurations by 3 %: unpaired, nothing is certain."""
    fp32, amp = (100.0, 100.2, 99.9), (103.0, 103.0, 103.1)
    (row,) = rows(*in_blocks("l", fp32), *in_blocks("r", amp, precision="amp"), by="precision")
    expected = ttest_rel(np.log(amp), np.log(fp32))
    assert row["ratio"] == pytest.approx(gmean(fp32) / gmean(amp))
    assert row["p"] == pytest.approx(expected.pvalue)
    ends = expected.confidence_interval(0.95)
    assert (row["ratio_low"], row["ratio_high"]) == pytest.approx((np.exp(-ends.high), np.exp(-ends.low)))
    assert (row["blocks"], row["test"]) == (3, "Student t over blocks, runs paired within them")
    assert row["note"] == "on local-cuda; paired within 3 blocks"
    assert row["verdict"] == "amp is 1.03 x as fast as fp32 (95 %: 1.02 to 1.04)"


SEED = 4
MODELS = {"resnet18": 100.0, "resnet50": 40.0, "vgg11": 30.0}


def sweep(*, faster: tuple[float, ...] = (1.03, 1.03, 1.03), noisy_run: int | None = None) -> list[dict[str, Any]]:
    """Three models with two precisions each; every second block has the order of the one before it in reverse."""
    runs = []
    # With this seed none of the six scatters more than the others.
    for number, wobble in enumerate(np.random.default_rng(SEED).normal(size=(6, 3))):
        model, (base, times) = list(MODELS)[number // 2], list(zip(MODELS.values(), faster, strict=True))[number // 2]
        scale = 0.02 if number == noisy_run else 0.001
        rates = [base * (times if number % 2 else 1.0) * np.exp(scale * one) for one in wobble]
        runs += [
            one | {"position": float(position)}
            for one, position in zip(
                in_blocks(f"{model}{number}-", tuple(rates), model=model, precision="amp" if number % 2 else "fp32"),
                (number, 5 - number, (number + 2) % 6),
                strict=True,
            )
        ]
    return runs


def test_the_scatter_is_that_of_all_configurations_of_the_blocks() -> None:
    pair = rows(*sweep()[:6], by="precision")[0]
    first = next(row for row in rows(*sweep(), by="precision") if row["model"] == "resnet18")
    assert pair["test"] == "Student t over blocks, runs paired within them"
    assert first["test"] == "Student t over blocks, scatter of all their configurations"
    assert first["note"].endswith("; scatter estimated from 6 configurations")
    assert first["ratio"] == pytest.approx(pair["ratio"], rel=0.002)
    widths = [np.log(row["ratio_high"] / row["ratio_low"]) for row in (first, pair)]
    assert widths[0] < 0.75 * widths[1]


def test_a_configuration_that_scatters_more_than_the_others_does_not_hide() -> None:
    found = [row for row in rows(*sweep(noisy_run=3), by="precision") if pd.notna(row["model"])]
    notes = {row["model"]: row["note"].rpartition("; ")[2] for row in found}
    assert notes == {
        "resnet18": "scatter estimated from 5 configurations",
        "resnet50": "one side may scatter more than the others (F test): only the blocks of this pair are used",
        "vgg11": "scatter estimated from 5 configurations",
    }


def test_an_option_comes_first_with_its_effect_over_all_combinations() -> None:
    faster = (1.03, 1.03, 1.21)
    effect, *pairs = rows(*sweep(faster=faster), by="precision")
    assert [pd.isna(row["combinations"]) for row in pairs] == [True, True, True]
    assert (effect["combinations"], effect["left"], effect["right"]) == (3, "amp", "fp32")
    assert pd.isna(effect["model"])
    assert (effect["runs_left"], effect["runs_right"], effect["blocks"]) == (9, 9, 3)
    assert 1 / effect["ratio"] == pytest.approx(gmean(faster), rel=0.002)
    assert effect["ratio"] == pytest.approx(gmean([row["ratio"] for row in pairs]))
    assert effect["p"] == effect["p_holm"] < 0.001
    assert re.fullmatch(
        r"amp is 1\.\d+ x as fast as fp32 \(95 %: 1\.\d+ to 1\.\d+\); averaged over 3 combinations",
        effect["verdict"],
    )
    assert effect["note"] == "on local-cuda; paired within 3 blocks; scatter estimated from 6 configurations"


def without(*left_out: tuple[str, str, float]) -> list[dict[str, Any]]:
    return [one for one in sweep() if (one["model"], one["precision"], one["block"]) not in left_out]


OTHER_HOSTS = [one | {"hostname": f"other-{one['hostname']}"} for one in in_blocks("r", RIGHT, precision="amp")]
CASES = {
    "two blocks": [one for one in sweep() if one["block"] < 2],
    "a block is missing": [one for one in sweep() if one["block"] != 1.0],
    "a block without one configuration": without(("resnet18", "amp", 1.0)),
    "a block without another configuration": without(("vgg11", "amp", 1.0)),
    "a combination that lacks a value": [
        one for one in sweep() if (one["model"], one["precision"]) != ("vgg11", "amp")
    ],
    "all positions but one are missing": [
        one | {"position": None} if number else one for number, one in enumerate(sweep())
    ],
    "all values equal": [one | {"images_per_s": 100.0} for one in sweep()],
    "zeros": [one | {"images_per_s": 0.0} if one["block"] == 1.0 else one for one in sweep()],
    "one block": [one for one in sweep() if one["block"] == 1.0],
    "runs without a partner": [
        *in_blocks("l", (100.0, 100.2, 99.9)),
        *in_blocks("r", (103.0, 103.1), precision="amp"),
        run("x"),
    ],
    "blocks of one side alone": [*in_blocks("l", LEFT), *side("r", RIGHT, precision="amp")],
    "a block that a second machine finished is two": [*in_blocks("l", LEFT), *OTHER_HOSTS],
}


def test_blocks_with_something_missing_have_an_answer(golden: Golden) -> None:
    lines = [line for name, runs in CASES.items() for line in (f"## {name}", *said(runs, by="precision"))]
    golden("blocks.txt", "\n".join([*lines, ""]))
