"""What ranks agree on, and their errors, with a store in this process in place of torchrun's."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from workload.contract.errors import LostRankError, RooflaunchError, RunFailedError, UsageError
from workload.steps.agreement import Agreement, Word

pytestmark = pytest.mark.world  # waits for other threads


def agreements(number: int = 2) -> list[Agreement]:
    store, made = HashStore(), [Agreement(rank, number) for rank in range(number)]
    for each in made:
        each._store = store
    return made


def test_the_other_ranks_do_what_rank_0_decides() -> None:
    first, second = agreements()
    first.tell(Word.WAIT)
    assert not second.is_begun()
    first.event = second.event = 1
    first.tell(Word.BEGIN, "results/a run")
    first.tell(Word.WAIT)  # a decision stays
    assert second.is_begun()
    assert second.folder == "results/a run"
    first.event = second.event = 2
    assert [first.more_steps(5), second.more_steps(7)] == [5, 5]


def test_a_rank_that_takes_other_steps_is_told() -> None:
    first, second = agreements()
    first.event = second.event = 9
    first.tell(Word.WAIT)
    with pytest.raises(RunFailedError, match="rank 1 takes other steps than rank 0, at optimizer step 9"):
        second.more_steps(1)


@pytest.mark.parametrize(
    ("gpus", "error"),
    [
        ([["a"], ["b"]], None),
        ([[], []], None),
        ([["a"], ["a"]], "ranks 0 and 1 train on the same GPU"),
        ([["a", "b"], ["c"], ["d", "b"]], "ranks 0 and 2 train on the same GPU"),
    ],
)
def test_each_rank_has_a_gpu_of_its_own(gpus: list[list[str]], error: str | None) -> None:
    ranks = agreements(len(gpus))
    with ThreadPoolExecutor(len(gpus)) as threads:
        started = [threads.submit(rank.meet_at_start, own) for rank, own in zip(ranks, gpus, strict=True)]
        found = [future.exception() for future in started]
    assert [None if each is None else str(each) for each in found] == [error] * len(gpus)


def test_a_rank_that_has_ended_is_named() -> None:
    first, second = agreements()
    first.hooks.begun, second.hooks.begun, second.event = 8, 7, 12
    assert first.too_early() is None
    second._store.set("stuck 0 1", "")
    with pytest.raises(RunFailedError) as caught:
        second.end()
    message = "rank 1 ended after 12 optimizer steps, and another rank takes more: it waits for rank 1"
    assert str(caught.value) == str(first.too_early()) == message
    with pytest.raises(RunFailedError, match=message):
        first.meet()


def test_ranks_that_end_together_are_no_error() -> None:
    ranks = agreements(3)
    with ThreadPoolExecutor(3) as threads:
        assert [future.exception() for future in [threads.submit(rank.end) for rank in ranks]] == [None] * 3
    assert ranks[0].too_early() is None


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (
            "ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            UsageError,
            "the script asks for NVIDIA GPUs, or for NCCL, which needs them, and none is visible here",
        ),
        (
            "Torch not compiled with CUDA enabled",
            UsageError,
            "the script asks for NVIDIA GPUs, or for NCCL, which needs them, and none is visible here",
        ),
        ("CUDA error: invalid device ordinal", UsageError, "rank 1 of 2 asks for a GPU that is not there"),
        (
            "NCCL error: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000",
            UsageError,
            "rank 1 trains on the same GPU as another rank",
        ),
        ("[pair.cc:534] Connection closed by peer [127.0.0.1]:1", LostRankError, "rank 1 lost another rank"),
        ("expected scalar type Float but found Half", None, ""),
    ],
)
def test_errors_of_torch_that_ranks_cause(text: str, kind: type[RooflaunchError] | None, message: str) -> None:
    found = agreements()[1].explain(RuntimeError(text))
    assert (None if found is None else type(found)) == kind
    assert str(found or "") == message
