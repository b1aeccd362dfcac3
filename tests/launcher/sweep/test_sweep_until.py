"""`--until` as options, and which figures it is about."""

import pytest

from launcher.sweep.places import Until, decide, until_of
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


def test_when_to_stop() -> None:
    assert until_of(None, None) is None
    assert until_of("1%", None) == Until(share=0.01)
    assert until_of("0.05", 8) == Until(share=0.05, most=8)
    with pytest.raises(UsageError) as refused:
        until_of(None, 5)
    assert str(refused.value) == "--max-repeats limits the blocks that --until adds; got 5 without it"
    assert refused.value.hint == "repeats = 5 in the matrix, or --until 1%"


def test_every_throughput_has_to_be_narrow() -> None:
    throughput = decide(Until(share=0.02), CONFIGURATIONS, figures_of(resnet18=100.0, resnet50=30.0))
    assert not throughput.is_narrow
    assert len(throughput.precisions) == 4


def test_what_was_never_measured_is_left_out() -> None:
    assert set(decide(Until(share=0.5), CONFIGURATIONS, figures_of(resnet18=100.0)).precisions) == {
        "resnet18, precision fp32",
        "resnet18, precision bf16",
    }
    nothing = decide(Until(share=0.5), CONFIGURATIONS, [])
    assert nothing.is_done
    assert not nothing.is_narrow


def test_one_block_is_no_basis() -> None:
    figures = [Run(figure=100.0, configuration=one.spec, block=1) for one in CONFIGURATIONS]
    decision = decide(Until(share=0.5), CONFIGURATIONS, figures)
    assert (decision.is_done, decision.add) == (False, 7)
