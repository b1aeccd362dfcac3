"""Ranks of a script agree when timed steps begin and end, and what to say if a rank ends too early.

All ranks run the same script, so that the events of their optimizers have the same numbers. Rank 0 decides at which
event timed steps begin and end, and the other ranks ask it. They talk through the key-value store of the script's own
process group. Between the first and the last timed step nothing is sent.
"""

import functools
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from workload.contract.errors import LostRankError, RooflaunchError, RunFailedError, UsageError
from workload.contract.ranks import Collective
from workload.contract.spec import Device
from workload.measure.clock import Begun, Collectives, clock_for
from workload.steps.program import STEP_HINT, Program
from workload.steps.session import Session, Stage
from workload.steps.step import Limits, Step, StepReceiver
from workload.steps.step_finder import Seen
from workload.steps.step_work import Work, chosen

# Longest wait for another rank: rank 0 may collect facts of the machine, or evaluate the model, while the others wait.
LIMIT_S = 600.0
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.05
# A rank that begins no collective for STUCK_S may wait for a rank that has ended. It looks every LOOK_EVERY_S.
STUCK_S, LOOK_EVERY_S = 3.0, 1.0
OWN_GPU = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) at the beginning of the script'
# Texts of torch's errors: no GPU for the script or for NCCL, and the loss of another rank in gloo and in NCCL.
NO_GPU = re.compile(
    r"NCCL is only supported with GPUs|nccl2? requires at least one CUDA device|doesn't have NCCL built in"
    r"|Found no NVIDIA driver|not compiled with CUDA|No CUDA GPUs are available"
)
LOST = re.compile(r"Connection (closed|reset) by peer|pair closure|Broken pipe|remote process exited", re.IGNORECASE)
EVEN = "give every rank the same number of batches (DistributedSampler does), or run the loop in `with model.join():`"


class Word(StrEnum):
    """Decision of rank 0 at an event: steps are not timed yet, are timed from now on, or so many more are timed."""

    WAIT = "wait"
    BEGIN = "begin"
    MORE = "more"


class Agreement:
    """This rank's side of the agreement. `event`: number of optimizer steps, and of steps marked in the script, so far.

    `until`: event after which the phase of timed steps ends. `backend`: library of the collectives, once joined.
    `folder`: the bundle, once rank 0 has begun to time steps. `processes`: process id of each rank, from then on.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.event = self.until = 0
        self.backend: str | None = None
        self.folder = ""
        self.processes: list[int] = []
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None
        self.hooks = CollectiveHooks()
        self._store: Any = None
        self._told = -1
        self._others = [other for other in range(size) if other != rank]

    def join(self, name: str) -> UsageError | None:
        """Connect the ranks at the first step of an optimizer. Returns an error if the script did not join its ranks.

        `name`: name of the script, for the error.
        """
        if self._store is not None:
            return None
        from torch import distributed  # noqa: PLC0415 - the script imports it first

        joined = distributed.get_world_size() if distributed.is_initialized() else 1
        if joined != self.size:
            return UsageError(
                f"{name} runs in {self.size} ranks, but has joined {joined} of them by init_process_group: each trains"
                " alone",
                hint="call torch.distributed.init_process_group and use DistributedDataParallel, or run one rank only",
            )
        store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - has no public name
        self._store = distributed.PrefixStore("rooflaunch", store)  # type: ignore[attr-defined]
        self.backend = distributed.get_backend()
        self.hooks.thread = threading.get_ident()
        self.hooks.observe_functional()
        self._watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._watcher.start()
        return None

    # --- decisions of rank 0

    def tell(self, word: Word, value: str = "") -> None:
        """Tell the other ranks what rank 0 decides at the present event, unless it has decided already."""
        if self._told != self.event:
            self._told = self.event
            self._store.set(f"event {self.event}", f"{word} {value}")

    def is_begun(self) -> bool:
        """Whether rank 0 begins timed steps at the present event; the bundle is then in `folder`."""
        word, value = self._decision()
        self.folder = value
        return word == Word.BEGIN

    def more_steps(self, wanted: int) -> int:
        """Number of further steps, on which all ranks agree: those `wanted` by rank 0; 0 if it has enough."""
        if self.rank == 0:
            self.tell(Word.MORE, str(wanted))
            return wanted
        word, value = self._decision()
        if word != Word.MORE:
            raise self.differs()
        return int(value)

    def _decision(self) -> tuple[str, str]:
        word, _, value = self._received([f"event {self.event}"])[0].partition(" ")
        return word, value

    def differs(self) -> RunFailedError:
        """Error to raise if this rank takes training steps of another kind than rank 0."""
        return RunFailedError(
            f"rank {self.rank} takes other steps than rank 0, at optimizer step {self.event}",
            hint=f"let all ranks train alike; or {STEP_HINT}",
        )

    def meet_at_start(self, gpus: Sequence[str]) -> None:
        """Wait until every rank is ready to time its steps. `gpus`: identities of the GPUs that this rank trains on."""
        users: dict[str, int] = {}
        met = [value.split() for value in self.meet(" ".join([str(os.getpid()), *gpus]))]
        self.processes = [int(process) for process, *_ in met]
        for rank, (_, *names) in enumerate(met):
            for name in names:
                if name in users:
                    raise UsageError(f"ranks {users[name]} and {rank} train on the same GPU", hint=OWN_GPU)
                users[name] = rank

    def meet(self, value: str = "") -> list[str]:
        """Wait until every rank has come here; return the values of all ranks."""
        self._store.set(f"met {self.event} {self.rank}", value)
        return self._received([f"met {self.event} {rank}" for rank in range(self.size)])

    def _received(self, keys: Sequence[str]) -> list[str]:
        began_s, pause_s = time.monotonic(), SHORTEST_PAUSE_S
        while not self._store.check(list(keys)):
            if gone := [rank for rank in self._others if self._store.check([f"ended {rank}"])]:
                raise self._too_early(gone[0])
            if time.monotonic() - began_s > LIMIT_S:
                raise RunFailedError(
                    f"rank {self.rank} waited {LIMIT_S:g} s for the other ranks at optimizer step {self.event}",
                    hint="run again; if it happens again, the ranks do not take the same steps",
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return [self._store.get(key).decode() for key in keys]

    # --- the end

    def end(self) -> None:
        """Tell the other ranks that this rank's script has ended, and wait for their end.

        Raises `RunFailedError` if another rank waits in a collective that this rank will never join.
        """
        if self._store is None:
            return
        self._store.set(f"ended {self.rank}", f"{self.hooks.begun} {self.event}")
        while not self._store.check([f"ended {rank}" for rank in self._others]):
            if any(self._store.check([f"stuck {rank} {self.rank}"]) for rank in self._others):
                raise self._too_early(self.rank)
            time.sleep(LONGEST_PAUSE_S)

    def close(self) -> None:
        """End the thread of this agreement: Python's exit would abort in a thread that talks to the store."""
        self._over.set()
        if self._watcher is not None:
            self._watcher.join(LOOK_EVERY_S)

    def explain(self, error: BaseException) -> RooflaunchError | None:
        """Error to report in place of the script's own `error`, if its cause is that the script runs in several ranks.

        None for any other error.
        """
        text = str(error)
        if NO_GPU.search(text):
            return UsageError(
                "the script asks for NVIDIA GPUs, or for NCCL, which needs them, and none is visible here",
                hint='on a CPU: init_process_group("gloo"), and device_ids=None for DistributedDataParallel',
            )
        if "Duplicate GPU" in text:
            return UsageError(f"rank {self.rank} trains on the same GPU as another rank", hint=OWN_GPU)
        if not LOST.search(text):
            return None
        return self.too_early() or LostRankError(
            f"rank {self.rank} lost another rank", hint="see that rank's own error; run again"
        )

    def too_early(self) -> RunFailedError | None:
        """Error if another rank has ended, but this rank has begun a later collective; else None."""
        ended = self._ended() if self._store is not None else []
        return self._too_early(ended[0]) if ended else None

    def _ended(self) -> list[int]:
        """Ranks that have ended, while this rank has begun a later collective."""
        gone = [rank for rank in self._others if self._store.check([f"ended {rank}"])]
        return [rank for rank in gone if int(self._store.get(f"ended {rank}").split()[0]) < self.hooks.begun]

    def _too_early(self, rank: int) -> RunFailedError:
        steps = self._store.get(f"ended {rank}").split()[1].decode()
        return RunFailedError(
            f"rank {rank} ended after {steps} optimizer steps, and another rank takes more: it waits for rank {rank}",
            hint=EVEN,
        )

    def _watch(self) -> None:
        """In a thread: tell a rank that has ended if this rank's main thread waits for it in a collective, for ever."""
        since_s, known = time.monotonic(), -1
        while not self._over.wait(LOOK_EVERY_S):
            if self.hooks.begun != known:
                since_s, known = time.monotonic(), self.hooks.begun
            elif time.monotonic() - since_s >= STUCK_S:
                # Without the store, the process that started the ranks is gone too.
                with suppress(RuntimeError):
                    for rank in self._ended():
                        self._store.set(f"stuck {self.rank} {rank}", "")


class RankSession(Session):
    """Observer of a script in one of several ranks. Ranks begin and end their timed steps at the same events.

    An event is a step of an optimizer, or the end of a step that the script marks. `on_meeting`: called in all ranks at
    once, before the first timed step.
    """

    def __init__(
        self,
        limits: Limits,
        program: Program,
        open_receiver: Callable[[Step, Work | None, Device], StepReceiver],
        finish: Callable[[], None],
        *,
        goes_on: bool,
        agreement: Agreement,
        on_meeting: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(limits, program, self._open_together, finish, goes_on=goes_on)
        self._agreement, self._on_meeting = agreement, on_meeting
        self._open_own = open_receiver

    def buffer_limits(self) -> tuple[int, float]:
        """Buffer one step only: if another rank fails, this process may be killed at any time."""
        return 1, math.inf

    def _unjoined(self) -> RooflaunchError | None:
        return self._agreement.join(self._name)

    def _follow_mark(self) -> None:
        if error := self._unjoined():
            self.refuse(error)
        self._agreement.event += 1
        super()._follow_mark()
        self._agree()

    def _follow(self, seen: Seen) -> None:
        self._agreement.event += 1
        super()._follow(seen)
        self._agree()

    def _agree(self) -> None:
        """Before the first timed step: begin to time steps if rank 0 has begun at this event."""
        if self.stage in (Stage.WARMUP, Stage.MEASURED, Stage.OVER):
            return
        if self._agreement.rank == 0:
            self._agreement.tell(Word.WAIT)
        elif self._agreement.is_begun():
            if self.evaluations.counter is None:
                raise self._agreement.differs()
            self.evaluations.stop_counting()
            self._start_receiver(chosen(self._works) if self._works else None)

    def _has_counted_enough(self) -> bool:
        return self._agreement.rank == 0 and super()._has_counted_enough()

    def _open_together(self, step: Step, work: Work | None, used: Device) -> StepReceiver:
        receiver = self._open_own(step, work, used)
        self._agreement.meet_at_start(self.optimizers.gpus())
        self._on_meeting()
        return receiver

    def _enter(self, stage: Stage) -> None:
        super()._enter(stage)
        warmup, iterations, _ = self._limits.filled(self._device)
        self._plan(warmup if stage is Stage.WARMUP else iterations)

    def _plan(self, steps: int) -> None:
        pattern = self.step.pattern if self.step else None
        self._agreement.until = self._agreement.event + steps * (len(pattern.segments) if pattern else 1)

    def _is_phase_over(self, receiver: StepReceiver) -> bool:  # noqa: ARG002 - only a profiler wants more
        """Whether the phase has all of its steps, counted by events: a rank may have left out a step of its own."""
        if self._agreement.event < self._agreement.until:
            return False
        if self.stage is Stage.WARMUP:
            return True
        _, iterations, least_s = self._limits.filled(self._device)
        passed_s = time.perf_counter() - self._began_s
        if passed_s < least_s:
            # The host has only queued the steps.
            with self._on_gpu:
                clock_for(self._device).synchronize()
            passed_s = time.perf_counter() - self._began_s
        by_time = math.ceil(self._taken * (least_s / passed_s - 1)) if passed_s < least_s else 0
        more = self._agreement.more_steps(max(iterations - self._taken, by_time))
        self._plan(more)
        return more == 0


# --- hooks into torch.distributed

# Functions by kind of collective, in torch.distributed and in its functional collectives, which are those of DTensor.
# torch 2.15 has new names for some of them.
FUNCTIONS: Mapping[Collective, Sequence[str]] = {
    Collective.ALL_REDUCE: ("all_reduce", "all_reduce_coalesced"),
    Collective.ALL_GATHER: (
        "all_gather", "all_gather_into_tensor", "all_gather_single", "all_gather_object",
        "all_gather_tensor", "all_gather_tensor_autograd", "all_gather_single_autograd",
        "all_gather_into_tensor_coalesced", "all_gather_single_coalesced",
    ),
    Collective.REDUCE_SCATTER: (
        "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "reduce_scatter_tensor_autograd",
        "reduce_scatter_single_autograd", "reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced",
    ),
    Collective.BROADCAST: ("broadcast", "broadcast_object_list"),
    Collective.ALL_TO_ALL: ("all_to_all", "all_to_all_single", "all_to_all_single_autograd"),
    Collective.POINT_TO_POINT: ("send", "recv", "isend", "irecv", "batch_isend_irecv"),
    Collective.BARRIER: ("barrier",),
    Collective.REDUCE: ("reduce",),
    Collective.GATHER: ("gather", "gather_object"),
    Collective.SCATTER: ("scatter", "scatter_object_list"),
}  # fmt: skip
FUNCTIONAL = "torch.distributed._functional_collectives"
# Attribute of an event: the last collective of the stream that recorded the event.
AWAITED = "_rooflaunch_collective"
# A communication hook of DistributedDataParallel, and its state.
Hook = tuple[Callable[[Any, Any], Any], Any]


class CollectiveHooks:
    """Hooks that count the collectives which this rank has begun, and mark them for `receiver`, if there is one.

    DistributedDataParallel averages gradients as before, through a communication hook that also reads the clock. As
    with `workload.steps.hooks`, values and random state are never changed.

    Collectives of DistributedDataParallel are those of its buckets and buffers. `begun`: number of collectives that all
    ranks of a group take part in. `thread`: the thread that trains, once known.
    """

    def __init__(self) -> None:
        self.begun = 0
        self.thread: int | None = None
        self.receiver: Collectives | None = None
        self._all_reduce: Callable[..., Any] = lambda *_: None
        self._is_compiling: Callable[[], bool] = bool
        # The hook of each DistributedDataParallel, in a list of one, so that it can be replaced.
        self._hooks: WeakKeyDictionary[Any, list[Hook]] = WeakKeyDictionary()
        # Collectives that go on beside the script's own work, by their torch.distributed.Work.
        self._works: WeakKeyDictionary[Any, Begun] = WeakKeyDictionary()
        self._work: Any = object
        self._is_inside = False
        # Kind of the functional collective that was begun last.
        self._functional: Collective | None = None

    def install(self, refuse: Callable[[UsageError], None]) -> None:
        """Wrap functions of torch.distributed; torch must be imported.

        `refuse` is called with the error of a script that starts processes of its own.
        """
        import torch  # noqa: PLC0415 - the script imports it first

        inner = torch.distributed.distributed_c10d
        self._all_reduce, self._is_compiling = inner.all_reduce, torch.compiler.is_compiling
        self._wrap_functions(inner, torch.distributed)
        self._observe_waits(inner.Work)
        self._observe_streams(torch.cuda.Stream)
        self._observe_parallel(torch.nn.parallel.DistributedDataParallel)
        _refuse_spawning(refuse)

    def observe_functional(self) -> None:
        """Wrap functional collectives, if the script has loaded them."""
        module: Any = sys.modules.get(FUNCTIONAL)
        if module is None:
            return
        self._wrap_functions(module, is_functional=True)
        wait = module.wait_tensor

        @functools.wraps(wait)
        def wait_tensor(tensor: Any) -> Any:
            receiver, kind = self.receiver, self._functional
            if self._is_compiling() or receiver is None or kind is None:
                return wait(tensor)
            # A tensor does not tell which collective fills it. It is nearly always waited for before the next one.
            waited = Begun(kind, receiver.mark())
            found = wait(tensor)
            receiver.finish(waited)
            return found

        module.wait_tensor = wait_tensor

    def _wrap_functions(self, *modules: Any, is_functional: bool = False) -> None:
        for kind, names in FUNCTIONS.items():
            for name in names:
                if original := getattr(modules[0], name, None):
                    observed = self._observed(kind, original, is_functional=is_functional)
                    for module in modules:
                        setattr(module, name, observed)

    def _observed(
        self,
        kind: Collective,
        original: Callable[..., Any],
        *,
        size: Callable[..., int] | None = None,
        is_functional: bool = False,
    ) -> Callable[..., Any]:
        """Wrap the function `original`, which begins a collective of `kind`, so that beginning and end are marked.

        `size`: computes the bytes of the collective from the arguments of the call.
        `is_functional`: the collective goes on until `wait_tensor` is called with its result.
        """
        size, is_message = size or largest_bytes, kind is Collective.POINT_TO_POINT

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            # A collective inside another one does not count: functions that send objects call other collectives.
            if self._is_compiling() or self._is_inside or self._is_aside():
                return original(*args, **kwargs)
            self._is_inside = True
            # Ranks send and receive different numbers of messages.
            self.begun += not is_message
            receiver = self.receiver
            try:
                if receiver is None:
                    return original(*args, **kwargs)
                if is_functional:
                    self._functional = kind
                    result = original(*args, **kwargs)
                    receiver.begin(kind, 1, size(*args, result))
                    return result
                number = len(args[0]) if is_message and args and isinstance(args[0], list) else 1
                begun = receiver.begin(kind, number, size(*args, **kwargs))
                result = original(*args, **kwargs)
                self._follow(receiver, begun, result)
                return result
            finally:
                self._is_inside = False

        return call

    def _is_aside(self) -> bool:
        """Whether this is a thread that the script has started beside its training, for example for a checkpoint.

        autograd calls hooks in threads that Python did not start.
        """
        if self.thread in (None, threading.get_ident()):
            return False
        return not isinstance(threading.current_thread(), threading._DummyThread)  # noqa: SLF001 - has no public name

    def _follow(self, receiver: Collectives, begun: Begun, result: Any) -> None:
        """Mark the end of a collective, or follow each `Work` in its `result`, which goes on after the call."""
        results: list[Any] = result if isinstance(result, list) else [result]
        works = [each for each in results if type(each) is self._work]
        if not works:
            receiver.finish(begun)
        for work in works:
            self._works[work] = receiver.follow(begun, work)

    def _observe_waits(self, kind: Any) -> None:
        """Mark waits for collectives. `kind`: torch.distributed.Work, whose objects C++ makes."""
        wait, self._work = kind.wait, kind

        @functools.wraps(wait)
        def wait_and_mark(work: Any, *args: Any, **kwargs: Any) -> Any:
            receiver = self.receiver
            begun = self._works.get(work) if receiver and not self._is_inside else None
            if receiver is None or begun is None:
                return wait(work, *args, **kwargs)
            since = receiver.mark()
            found = wait(work, *args, **kwargs)
            receiver.waited(begun, since)
            return found

        kind.wait = wait_and_mark

    def _observe_streams(self, kind: Any) -> None:
        """Mark waits of the training's stream for streams with collectives, as in FSDP. `kind`: torch.cuda.Stream."""
        record, wait = kind.record_event, kind.wait_event

        @functools.wraps(record)
        def record_and_tell(stream: Any, event: Any = None) -> Any:
            recorded, receiver = record(stream, event), self.receiver
            if receiver and (queued := receiver.beside.get(stream)):
                # Events of C++ have no attributes.
                with suppress(AttributeError):
                    setattr(recorded, AWAITED, queued)
            return recorded

        @functools.wraps(wait)
        def wait_and_mark(stream: Any, event: Any) -> None:
            receiver, awaited = self.receiver, getattr(event, AWAITED, None)
            if receiver is None or awaited is None or stream != receiver.home or not receiver.is_home():
                wait(stream, event)
                return
            since = receiver.mark()
            wait(stream, event)
            receiver.waited(awaited, since)

        kind.record_event, kind.wait_event = record_and_tell, wait_and_mark

    def _observe_parallel(self, kind: Any) -> None:
        make, register = kind.__init__, kind.register_comm_hook
        # No public function waits for the buffers alone.
        kind._sync_buffers = self._observed(  # noqa: SLF001
            Collective.BROADCAST,
            kind._sync_buffers,  # noqa: SLF001
            size=lambda parallel: largest_bytes(parallel.modules_buffers),
        )

        @functools.wraps(make)
        def make_and_hook(parallel: Any, *args: Any, **kwargs: Any) -> None:
            make(parallel, *args, **kwargs)
            # Some modes of DistributedDataParallel have registered a hook of their own.
            if parallel not in self._hooks:
                self._register(parallel, (self._average, parallel.process_group))

        @functools.wraps(register)
        def register_and_mark(parallel: Any, state: Any, hook: Any) -> None:
            if parallel not in self._hooks:
                self._register(parallel, (hook, state))
                return
            # A hook can be registered once only: ours calls the script's.
            parallel._check_comm_hook(hook)  # noqa: SLF001 - as the original does
            self._hooks[parallel][0] = hook, state

        kind.__init__, kind.register_comm_hook = make_and_hook, register_and_mark

    def _register(self, parallel: Any, hook: Hook) -> None:
        from torch import distributed  # noqa: PLC0415 - see above

        # No reference to `parallel`, which holds the function that follows.
        chosen = self._hooks[parallel] = [hook]

        def mark(_: object, bucket: Any) -> Any:
            self.begun += 1
            call, state = chosen[0]
            done = self.receiver.ready(bucket.buffer().nbytes) if self.receiver else None
            # The collective that the hook begins is the bucket's own.
            was, self._is_inside = self._is_inside, True
            try:
                average = call(state, bucket)
            finally:
                self._is_inside = was
            return average.then(done) if done else average

        # Not `parallel.register_comm_hook`: it keeps the function in an attribute, and a script may save the model.
        distributed._register_comm_hook(parallel.reducer, None, mark)  # type: ignore[attr-defined]  # noqa: SLF001

    def _average(self, group: Any, bucket: Any) -> Any:
        """Average of the gradients over the ranks of `group`, as DistributedDataParallel computes it without a hook."""
        shared = bucket.buffer().mul_(1 / group.size())
        work = self._all_reduce(shared, group=group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])


def largest_bytes(*args: Any, **kwargs: Any) -> int:
    """Total size of the tensors in that argument of a collective which has most: its input or its output."""
    largest = 0
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            largest = max(largest, value.nbytes)
        elif isinstance(value, list | tuple):
            # A `P2POp` holds a tensor.
            tensors = (each if isinstance(each, Tensor) else getattr(each, "tensor", None) for each in value)
            largest = max(largest, sum(each.nbytes for each in tensors if isinstance(each, Tensor)))
    return largest


def _refuse_spawning(refuse: Callable[[UsageError], None]) -> None:
    """Refuse `torch.multiprocessing.spawn`: each of the ranks would start as many processes again."""
    import torch.multiprocessing  # noqa: PLC0415 - see above

    def start(*_: Any, **__: Any) -> None:
        refuse(
            UsageError(
                "the script starts its own processes by torch.multiprocessing.spawn, but several ranks run it already",
                hint="let the script read RANK and WORLD_SIZE, as under torchrun, in place of starting processes",
            )
        )

    # The attribute of this name is the function; the module of the same name is only here.
    module = sys.modules["torch.multiprocessing.spawn"]
    module.start_processes = torch.multiprocessing.start_processes = start  # type: ignore[attr-defined]
