"""Events of timed steps are buffered with their time stamps and passed on later: a step only reads the clock."""

import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.workload.fake_cuda import FakeCuda, parameter
from workload.contract.errors import UsageError
from workload.contract.spec import Device
from workload.measure.clock import HostClock
from workload.measure.recorder import Aside, StepPart, StepPhase
from workload.measure.timing import Timeline
from workload.run.life import Region
from workload.steps import hooks
from workload.steps import step_log as module
from workload.steps.program import EndOfScript, Program
from workload.steps.session import Session, Stage
from workload.steps.step import Limits
from workload.steps.step_log import StepLog
from workload.steps.step_work import Site, Work, WorkCounter, chosen

PARTS = [Aside.OTHER, StepPart.DATA, StepPart.FORWARD, StepPart.BACKWARD, StepPart.OPTIMIZER]
MANY = 20
BATCH = (torch.zeros(8, 4), torch.zeros(8))


class Receiver:
    """Records its calls: (`begin`, mark), (part, mark), (`end`, images)."""

    def __init__(self) -> None:
        self.phase = StepPhase.WARMUP
        self.is_open = self.wants_more = False
        self.calls: list[tuple[Any, Any]] = []
        self.time = 0

    def instant(self) -> int:
        self.time += 1
        return self.time

    @property
    def recorder(self) -> "Receiver":
        return self

    def enter(self, phase: StepPhase) -> None:
        self.phase = phase

    def begin(self, mark: Any = None) -> None:
        self.is_open = True
        self.calls.append(("begin", mark))

    def mark(self, part: StepPart | Aside, mark: Any = None) -> int:
        self.calls.append((part, mark))
        return len(self.calls)

    def relabel(self, parts: int, aside: Aside, *, but: StepPart | None = None) -> None:
        self.calls.append((aside, (parts, but)))

    def end(self, images: int, *, is_step: bool) -> None:
        self.is_open = False
        self.calls.append(("end" if is_step else "gap", images))

    def leave(self) -> None:
        self.is_open = False

    def close(self) -> None:
        self.is_open = False

    @property
    def steps(self) -> int:
        return [what for what, _ in self.calls].count("end")


class Script:
    """A training loop and the step log that observes it; `finished`: how often its measurement was completed."""

    def __init__(
        self, folder: Path, *, iterations: int = 20, warmup: int = 0, goes_on: bool = False, counts: bool = False
    ) -> None:
        self.receiver, self.finished, self.opened_on = Receiver(), 0, -1
        program = Program(words=("t.py",), module=None, path=folder / "t.py", arguments=(), folder=folder)
        limits = Limits(warmup=warmup, iterations=iterations, samples_per_step=None, min_seconds=0.0)
        self.session = Session(limits, program, self._open, self._finish, goes_on=goes_on, counts=counts)
        self.step_log = StepLog(self.session)
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))])

    def _open(self, _: Any, __: Any, device: Device) -> Receiver:
        self.opened_on = torch.cuda.current_device() if device is Device.CUDA else -1
        return self.receiver

    def _finish(self) -> None:
        self.finished += 1

    def step_until(self, stage: Stage) -> None:
        while self.session.stage is not stage:
            self.step()

    def fetch(self, batch: Any = BATCH) -> None:
        self.step_log.fetch_began()
        self.step_log.fetched(self, batch)

    def step(self, optimizer: Any = None, batch: Any = BATCH) -> None:
        self.fetch(batch)
        self.step_log.backward_began()
        self.step_log.backward_ended()
        self.step_log.stepping(optimizer or self.optimizer)
        self.step_log.stepped(optimizer or self.optimizer)


def until_the_end(step: Callable[[], None]) -> int:
    """Number of steps until the script was ended; `MANY` if it was not."""
    for steps in range(MANY):
        try:
            step()
        except EndOfScript:
            return steps
    return MANY


def in_a_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.fixture(autouse=True)
def no_end_by_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workload.steps.session.end_by_force_after", lambda *_, **__: None)


@pytest.fixture
def timed(tmp_path: Path) -> Script:
    """A script whose step has just become known; earlier calls of the receiver are forgotten."""
    script = Script(tmp_path)
    script.step_until(Stage.MEASURED)
    script.receiver.calls.clear()
    return script


def test_steps_are_told_together_as_they_were(timed: Script) -> None:
    for _ in range(19):
        timed.step()
    assert timed.receiver.calls == []
    with pytest.raises(EndOfScript):
        timed.step()
    calls = [(what, mark) for what, mark in timed.receiver.calls if what != "begin"]
    one_by_one = [(part, 5 * step + place) for step in range(20) for place, part in enumerate(PARTS, 1)]
    assert [(what, mark) for what, mark in calls if what != "end"] == one_by_one
    assert [mark for what, mark in calls if what == "end"] == [8] * 20
    # Each begins where the one before ended.
    assert [mark for what, mark in timed.receiver.calls if what == "begin"] == [5 * step for step in range(1, 20)]
    assert timed.finished == 1


def test_what_is_worked_through_at_the_end_is_no_wall_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    came, late_s = Session.batch_arrived, [0.0]

    def slow(*given: Any) -> Any:
        late_s[0] += 1000.0
        return came(*given)

    monkeypatch.setattr(HostClock, "mark", staticmethod(lambda: perf_counter() + late_s[0]))
    monkeypatch.setattr("time.perf_counter", HostClock.mark)
    script = Script(tmp_path)
    region = Region(tmp_path, Device.CPU, Timeline())
    monkeypatch.setattr(script.session, "_open", lambda *_: region)
    script.step_until(Stage.MEASURED)
    monkeypatch.setattr(Session, "batch_arrived", slow)
    assert until_the_end(script.step) == 19
    assert region.wall_s is not None
    step_s = region.recorder.totals[StepPhase.MEASURED].step_s
    assert len(step_s) == 20
    assert sum(step_s) <= region.wall_s < 1000.0 < late_s[0]
    region.close()


def test_no_more_is_kept_than_a_number_of_steps(tmp_path: Path) -> None:
    script = Script(tmp_path, iterations=1000)
    script.step_until(Stage.MEASURED)
    script.receiver.calls.clear()
    for _ in range(module.MOST_STEPS - 1):
        script.step()
    assert script.receiver.calls == []
    script.step()
    assert script.receiver.steps == module.MOST_STEPS
    # The time that the telling took is nobody's.
    assert script.receiver.calls[-1] == (Aside.MEASURING, None)


def test_long_steps_are_told_each_second(timed: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    timed.step()
    assert timed.receiver.steps == 0
    monkeypatch.setattr(module, "perf_counter", lambda: perf_counter() + 1.5)
    timed.step()
    assert timed.receiver.steps == 2


def test_a_long_validation_is_told_before_its_end(timed: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_EVENTS", 10)
    for _ in range(6):
        timed.fetch()
    assert [what for what, _ in timed.receiver.calls] == [*[Aside.OTHER, StepPart.DATA] * 5, Aside.MEASURING]


def test_the_warmup_ends_in_time(tmp_path: Path) -> None:
    script = Script(tmp_path, iterations=4, warmup=3)
    script.step_until(Stage.WARMUP)
    for _ in range(3):
        assert script.receiver.phase is StepPhase.WARMUP
        script.step()
    assert script.receiver.phase is StepPhase.MEASURED
    # The first measured step begins now.
    assert script.receiver.calls[-2:] == [("begin", None), (Aside.MEASURING, None)]


def test_steps_of_a_script_that_is_over_are_kept_and_another_threads_batches_are_left_out(timed: Script) -> None:
    for _ in range(5):
        timed.step()
    in_a_thread(timed.fetch)
    timed.step_log.flush_events(is_over=True)
    assert (timed.receiver.steps, timed.session.measured_steps, timed.finished) == (5, 5, 0)
    assert [what for what, _ in timed.receiver.calls].count(StepPart.DATA) == 5


def test_step_of_another_optimizer_ends_the_measurement_and_one_of_its_kind_does_not(tmp_path: Path) -> None:
    for kind, stage, steps in ((torch.optim.Adam, Stage.SEARCHING, 1), (torch.optim.SGD, Stage.MEASURED, 3)):
        script = Script(tmp_path)
        script.step_until(Stage.MEASURED)
        script.receiver.calls.clear()
        script.step()
        other = kind([torch.nn.Parameter(torch.zeros(2))])
        script.step(other)
        script.step(script.optimizer if kind is torch.optim.Adam else other)
        script.step_log.flush_events(is_over=True)
        assert (script.session.stage, script.receiver.steps) == (stage, steps)
        assert (script.session.receiver is None) is (stage is Stage.SEARCHING)


def evaluate(timed: Script, site: Site) -> None:
    timed.step_log.gradients_off(site)
    timed.fetch()
    timed.step_log.gradients_on()


CODE = (lambda: None).__code__
HERE: Site = (CODE, 1, CODE, 1)


def test_an_evaluation_is_a_gap_with_all_that_it_fetches(timed: Script) -> None:
    timed.session.evaluations.sites[HERE] = True
    evaluate(timed, HERE)
    timed.step()
    timed.step_log.flush_events(is_over=True)
    parts = [Aside.OTHER, *[Aside.VALIDATION] * 3, *PARTS, "end", "begin", Aside.MEASURING]
    assert [what for what, _ in timed.receiver.calls] == parts


@pytest.mark.parametrize("is_known", [True, False])
def test_what_a_loss_uses_or_an_optimizer_does_is_told_to_nobody(timed: Script, *, is_known: bool) -> None:
    if is_known:
        timed.session.evaluations.sites[HERE] = False
    else:
        timed.step_log.stepping(timed.optimizer)
    timed.step_log.gradients_off(HERE)
    timed.step_log.gradients_on()
    timed.step_log.stepped(timed.optimizer)
    timed.step_log.flush_events(is_over=True)
    assert [what for what, _ in timed.receiver.calls if isinstance(what, Aside)] == [Aside.MEASURING]


def test_optimizers_within_the_backward_pass_are_told_at_once(tmp_path: Path) -> None:
    script = Script(tmp_path, iterations=2)

    def step() -> None:
        script.fetch()
        script.step_log.backward_began()
        script.step_log.stepped(script.optimizer)
        script.step_log.backward_ended()

    assert until_the_end(step) < MANY
    assert script.receiver.steps == 2


def test_a_copy_of_the_process_tells_nothing(timed: Script) -> None:
    timed.step()
    timed.step_log.silence()
    timed.step()
    timed.step_log.step_done()
    timed.step_log.flush_events(is_over=True)
    assert timed.receiver.calls == []
    assert not timed.session.active


def test_a_refused_script_is_not_heard_on(tmp_path: Path) -> None:
    script = Script(tmp_path, goes_on=True)
    script.step_until(Stage.MEASURED)
    in_a_thread(lambda: script.step_log.stepped(script.optimizer))
    script.receiver.calls.clear()
    for _ in range(2 * module.MOST_STEPS):
        script.step()
    assert str(script.session.refusal) == "the script calls optimizers in more than one thread"
    assert script.receiver.calls == []


def test_slow_steps_beyond_their_least_time_are_still_told_together(
    timed: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limits, "filled", lambda *_: (0, 20, 1e-9))
    timed.step_log.flush_events()
    timed.receiver.calls.clear()
    for _ in range(3):
        timed.step()
    assert timed.receiver.steps == 0


def test_steps_marked_in_the_script(tmp_path: Path) -> None:
    script = Script(tmp_path, iterations=3)

    def step() -> None:
        script.step_log.step_began()
        script.fetch()
        script.step_log.backward_began()
        script.step_log.backward_ended()
        script.step_log.step_done()

    assert until_the_end(step) < MANY
    assert script.receiver.steps == 3
    assert script.finished == 1


# --- GPUs


def gpu_script(folder: Path, device: str, **limits: Any) -> Script:
    script = Script(folder, counts=True, **limits)
    script.optimizer = torch.optim.SGD([parameter(device)])
    return script


def test_step_on_another_gpu_than_the_current_one_is_counted_and_timed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, script = FakeCuda(monkeypatch), gpu_script(tmp_path, "cuda:1")
    script.step_until(Stage.MEASURED)
    assert cuda.waits == [1, 1, 1, 1], "one for each counted step"
    assert (script.opened_on, cuda.current) == (1, 0)


def test_optimizers_on_two_gpus_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch)
    script = gpu_script(tmp_path, "cuda:0", goes_on=True)
    for optimizer in [script.optimizer, torch.optim.SGD([parameter("cuda:1")])] * 3:
        script.step(optimizer)
    error = script.session.refusal
    assert str(error) == "a step of the script works on 2 GPUs in one process: cuda:0, cuda:1"
    assert error is not None
    assert error.hint.startswith("one process for each GPU, with DistributedDataParallel: --devices 2; or ")


def test_operations_on_two_gpus_are_refused() -> None:
    def counted(*devices: str) -> Work:
        with FakeTensorMode():
            counter = WorkCounter(Device.CPU).start()
            for device in devices:
                torch.ones(2, 3, device=device)
            torch.ones((), device="cuda:0")
            return counter.stop()

    assert chosen([counted("cuda:1", "cpu")]).devices == {"cuda:1", "cpu"}
    with pytest.raises(UsageError, match="works on 2 GPUs in one process: cuda:0, cuda:1"):
        chosen([counted("cuda:0", "cuda:1")])


@pytest.mark.parametrize("stage", [Stage.SEARCHING, Stage.COUNTING, Stage.WARMUP, Stage.MEASURED])
@pytest.mark.parametrize("is_whole", [True, False])
def test_nothing_waits_while_a_graph_is_captured(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_whole: bool
) -> None:
    FakeCuda(monkeypatch)
    script = gpu_script(tmp_path, "cuda:0", warmup=2)
    hooks._observe_graphs(script.step_log, torch.cuda.CUDAGraph)
    script.step_until(stage)
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    if is_whole:
        script.step()
    torch.ones(2, 2) @ torch.ones(2, 2)
    graph.capture_end()
    assert script.session.bug is None
    if is_whole:
        assert (script.session.stage, script.receiver.is_open) == (Stage.SEARCHING, False)
    else:
        assert until_the_end(script.step) > 0
        assert script.session.stage in (Stage.MEASURED, Stage.OVER)
