"""Ranks decide together how many more steps they take."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tests.workload.fake_cuda import FakeCuda
from workload.contract.spec import Device
from workload.steps import rank_session
from workload.steps.session import Stage


@pytest.mark.parametrize(("least_s", "more"), [(2.0, 0), (4.0, 5), (0.0, 0)])
def test_rank_waits_once_for_queued_steps(least_s: float, more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host queues 5 steps of 0.4 s in 0.03 s."""
    cuda, asked = FakeCuda(monkeypatch), list[int]()
    clock = SimpleNamespace(perf_counter=lambda: 2.0 if cuda.waits else 0.03)
    monkeypatch.setattr(rank_session, "time", clock)
    session: Any = rank_session.RankSession.__new__(rank_session.RankSession)
    session._agreement = SimpleNamespace(event=5, until=5, more_steps=lambda wanted: asked.append(wanted) or wanted)
    session._limits = SimpleNamespace(filled=lambda _: (0, 5, least_s))
    session.stage, session.step, session._device = Stage.MEASURED, None, Device.CUDA
    session._on_gpu, session._taken, session._began_s = nullcontext(), 5, 0.0
    assert session._is_phase_over(None) is (more == 0)
    assert (asked, len(cuda.waits)) == ([more], int(least_s > 0))
