"""What ranks agree on, and their errors, with a store in this process in place of torchrun's."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import HashStore

from tests.workload.fake_cuda import FakeCuda
from workload.contract.errors import LostRankError, RooflaunchError, RunFailedError, UsageError
from workload.contract.spec import Device
from workload.steps import agreement as module
from workload.steps.agreement import Agreement, RankSession, Word
from workload.steps.session import Stage

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
    # Ranks that end together are no error.
    ranks = agreements(3)
    with ThreadPoolExecutor(3) as threads:
        assert [future.exception() for future in [threads.submit(rank.end) for rank in ranks]] == [None] * 3
    assert ranks[0].too_early() is None


NO_GPU = "the script asks for NVIDIA GPUs, or for NCCL, which needs them, and none is visible here"


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("ProcessGroupNCCL is only supported with GPUs, no GPUs found!", UsageError, NO_GPU),
        ("Torch not compiled with CUDA enabled", UsageError, NO_GPU),
        ("Duplicate GPU detected : rank 0 and rank 1", UsageError, "rank 1 trains on the same GPU as another rank"),
        ("[pair.cc:534] Connection closed by peer [127.0.0.1]:1", LostRankError, "rank 1 lost another rank"),
        ("expected scalar type Float but found Half", None, ""),
    ],
)
def test_errors_of_torch_that_ranks_cause(text: str, kind: type[RooflaunchError] | None, message: str) -> None:
    found = agreements()[1].explain(RuntimeError(text))
    assert (None if found is None else type(found)) == kind
    assert str(found or "") == message


@pytest.mark.parametrize(("least_s", "more"), [(2.0, 0), (4.0, 5), (0.0, 0)])
def test_rank_waits_once_for_queued_steps(least_s: float, more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host queues 5 steps of 0.4 s in 0.03 s."""
    cuda, asked = FakeCuda(monkeypatch), list[int]()
    clock = SimpleNamespace(perf_counter=lambda: 2.0 if cuda.waits else 0.03)
    monkeypatch.setattr(module, "time", clock)
    session: Any = RankSession.__new__(RankSession)
    session._agreement = SimpleNamespace(event=5, until=5, more_steps=lambda wanted: asked.append(wanted) or wanted)
    session._limits = SimpleNamespace(filled=lambda _: (0, 5, least_s))
    session.stage, session.step, session._device = Stage.MEASURED, None, Device.CUDA
    session._on_gpu, session._taken, session._began_s = nullcontext(), 5, 0.0
    assert session._is_phase_over(None) is (more == 0)
    assert (asked, len(cuda.waits)) == ([more], int(least_s > 0))
