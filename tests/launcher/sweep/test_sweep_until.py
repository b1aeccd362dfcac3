"""`--until` as options, and which figures it is about."""

import pytest

from launcher.sweep.places import Configuration
from launcher.sweep.until import Until, decide, parse_baseline, parse_share, require_baseline, until_of
from tests.launcher.sweep.sweeps import configurations_of
from workload.contract.errors import UsageError
from workload.contract.spec import Precision, RunSpec
from workload.stats.design import Run

CONFIGURATIONS = configurations_of(
    RunSpec(), model=["resnet18", "resnet50"], precision=[Precision.FP32, Precision.BF16]
)


def figures_of(**by_model: float) -> list[Run]:
    """Each precision varies with the host of its block; bf16 is always twice as fast."""
    hosts = (1.0, 1.1, 0.9, 1.05, 0.95, 1.1, 0.9, 1.0)
    wobble = (1.0, 1.001, 0.999, 1.0005, 1.0, 1.001, 0.9995, 1.0)
    factor = {Precision.FP32: 1.0, Precision.BF16: 2.0}
    return [
        Run(
            figure=by_model[one.spec.model]
            * factor[one.spec.precision]
            * host
            * wobble[block] ** factor[one.spec.precision],
            configuration=one.spec,
            block=block,
        )
        for block, host in enumerate(hosts)
        for one in CONFIGURATIONS
        if one.spec.model in by_model
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((None, None, None, None), None),
        (("1%", None, None, None), Until(share=0.01)),
        (("0.05", None, None, 8), Until(share=0.05, most=8)),
        (
            (None, "2%", "precision=fp32", None),
            Until(share=0.02, baseline={"precision": Precision.FP32}),
        ),
    ],
    ids=["none", "throughput", "at most", "ratio"],
)
def test_when_to_stop(words: tuple[str | None, str | None, str | None, int | None], expected: Until | None) -> None:
    assert until_of(*words) == expected


BOTH = "--until-ratio and --baseline need each other"
BOTH_HINT = "--until-ratio 2% --baseline precision=fp32"


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("1%", "2%", "a=b", None), "--until and --until-ratio cannot be combined", "one of the two"),
        ((None, "2%", None, None), BOTH, BOTH_HINT),
        (("1%", None, "precision=fp32", None), BOTH, BOTH_HINT),
        (
            (None, None, None, 5),
            "--max-repeats limits the blocks that --until adds; got 5 without it",
            "repeats = 5 in the matrix, or --until 1%",
        ),
        (("2", None, None, None), "--until must be a share such as 1%; got '2'", "--until 1%"),
    ],
    ids=["both rules", "no baseline", "no ratio", "nothing to bound", "no share"],
)
def test_rules_that_contradict(
    words: tuple[str | None, str | None, str | None, int | None], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as refused:
        until_of(*words)
    assert (str(refused.value), refused.value.hint) == (message, hint)


@pytest.mark.parametrize(
    ("text", "share"), [("1%", 0.01), ("0.02", 0.02), ("2.5%", 0.025)], ids=["percent", "share", "half"]
)
def test_a_share(text: str, share: float) -> None:
    assert parse_share(text, "--until") == pytest.approx(share)


@pytest.mark.parametrize(
    "text", ["0%", "100%", "x", "-1%", "2", "nan"], ids=["none", "all", "word", "less", "two", "nan"]
)
def test_no_share(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_share(text, "--until")
    assert raised.value.report() == f"error: --until must be a share such as 1%; got '{text}'\nhint: --until 1%"


def test_a_baseline_is_option_values() -> None:
    assert parse_baseline("precision=fp32, batch-size=32") == {"precision": Precision.FP32, "batch_size": 32}


def test_a_baseline_may_name_arguments_of_a_script() -> None:
    typed = parse_baseline("args.lr=0.1,args.amp=true, args.optimizer=sgd,args.n=2")
    assert typed == {"args.lr": 0.1, "args.amp": True, "args.optimizer": "sgd", "args.n": 2}
    values = [{"args.lr": lr, "args.amp": amp} for lr in (0.1, 0.2) for amp in (True, False)]
    made = tuple(Configuration(values=one, spec=RunSpec(script=("train.py", str(one)))) for one in values)
    wanted = Until(share=0.02, baseline={"args.amp": True})
    require_baseline(wanted, made)
    figures = [Run(figure=100.0 + block, configuration=one.spec, block=block) for block in range(6) for one in made]
    assert set(decide(wanted, made, figures).precisions) == {"lr 0.1, amp false", "lr 0.2, amp false"}
    with pytest.raises(UsageError) as raised:
        require_baseline(Until(share=0.02, baseline={"args.lr": 0.3}), made)
    assert str(raised.value) == (
        "no two configurations of the matrix differ in the baseline's options alone; got args.lr 0.3"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fp32", "a baseline is written OPTION=VALUE,...; got 'fp32'"),
        ("speed=9", "a baseline is written OPTION=VALUE,...; got 'speed=9'"),
        ("precision=fp8", "precision must be one of fp32, tf32, amp, bf16; got 'fp8'"),
    ],
    ids=["no value", "no option", "no value of it"],
)
def test_no_baseline(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_baseline(text)
    assert str(raised.value) == message


def test_a_baseline_must_be_in_the_matrix() -> None:
    require_baseline(Until(share=0.01, baseline={"precision": Precision.FP32}), CONFIGURATIONS)
    with pytest.raises(UsageError) as raised:
        require_baseline(Until(share=0.01, baseline={"batch_size": 32}), CONFIGURATIONS)
    assert str(raised.value) == (
        "no two configurations of the matrix differ in the baseline's options alone; got batch_size 32"
    )


def test_differences_are_narrow_where_throughputs_are_not() -> None:
    figures = figures_of(resnet18=100.0, resnet50=30.0)
    throughput = decide(Until(share=0.02), CONFIGURATIONS, figures)
    assert not throughput.is_narrow
    assert len(throughput.precisions) == 4
    ratios = decide(Until(share=0.02, baseline={"precision": Precision.FP32}), CONFIGURATIONS, figures)
    assert ratios.is_narrow
    assert {name: round(one.value or 0, 2) for name, one in ratios.precisions.items()} == {
        "resnet18, precision bf16": 2.0,
        "resnet50, precision bf16": 2.0,
    }


def test_what_was_never_measured_is_left_out() -> None:
    assert set(decide(Until(share=0.5), CONFIGURATIONS, figures_of(resnet18=100.0)).precisions) == {
        "resnet18, precision fp32",
        "resnet18, precision bf16",
    }
    nothing = decide(Until(share=0.5), CONFIGURATIONS, [])
    assert nothing.is_done
    assert not nothing.is_narrow


def test_what_is_wanted_is_said() -> None:
    assert str(Until(share=0.01)) == "every throughput is known within +-1 %"
    assert str(Until(share=0.02, baseline={"precision": Precision.FP32}, most=9)) == (
        "every difference against precision fp32 is known within +-2 %, with 9 blocks at most"
    )


def test_one_block_is_no_basis() -> None:
    figures = [Run(figure=100.0, configuration=one.spec, block=1) for one in CONFIGURATIONS]
    decision = decide(Until(share=0.5), CONFIGURATIONS, figures)
    assert (decision.is_done, decision.add) == (False, 7)
