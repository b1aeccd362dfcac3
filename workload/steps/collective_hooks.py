"""Hooks into torch.distributed that mark the collectives of a script, in a process that is one of several ranks.

DistributedDataParallel averages gradients as before, through a communication hook that also reads the clock. As with
`workload.steps.hooks`, values and random state are never changed.
"""

import functools
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

from workload.contract.errors import UsageError
from workload.measure.collectives import Collectives

# Functions of torch.distributed that return when their collective is done, unless `async_op` is set.
BLOCKING = (
    "all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all", "barrier",
    "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single",
    "all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list",
)  # fmt: skip
# A communication hook of DistributedDataParallel, and its state.
Hook = tuple[Callable[[Any, Any], Any], Any]


class CollectiveHooks:
    """Hooks that count the collectives which this rank has begun, and mark them for `receiver`, if there is one.

    Collectives of DistributedDataParallel are those of its buckets and buffers. `has_async`: the script itself has
    begun collectives that return before they are done, whose waits are not marked.
    """

    def __init__(self) -> None:
        self.begun = 0
        self.has_async = False
        self.receiver: Collectives | None = None
        self._all_reduce: Callable[..., Any] = lambda *_: None
        # The hook of each DistributedDataParallel, in a list of one, so that it can be replaced.
        self._hooks: WeakKeyDictionary[Any, list[Hook]] = WeakKeyDictionary()
        self._is_inside = False

    @property
    def has_parallel(self) -> bool:
        """Whether the script trains with DistributedDataParallel."""
        return len(self._hooks) > 0

    def install(self, refuse: Callable[[UsageError], None]) -> None:
        """Wrap functions of torch.distributed; torch must be imported.

        `refuse` is called with the error of a script that starts processes of its own.
        """
        import torch  # noqa: PLC0415 - the script imports it first

        inner = torch.distributed.distributed_c10d
        self._all_reduce = inner.all_reduce
        for name in BLOCKING:
            observed = self._blocking(getattr(inner, name))
            for module in (torch.distributed, inner):
                setattr(module, name, observed)
        self._observe_parallel(torch.nn.parallel.DistributedDataParallel)
        _refuse_spawning(refuse)

    def _blocking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            # A collective inside another one does not count: functions that send objects call other collectives.
            if self._is_inside:
                return original(*args, **kwargs)
            self._is_inside = True
            self.begun += 1
            receiver = self.receiver
            try:
                with receiver.waiting() if receiver else nullcontext():
                    unfinished = original(*args, **kwargs)
                self.has_async |= unfinished is not None
                return unfinished
            finally:
                self._is_inside = False

        return call

    def _observe_parallel(self, kind: Any) -> None:
        make, register = kind.__init__, kind.register_comm_hook
        kind._sync_buffers = self._blocking(kind._sync_buffers)  # noqa: SLF001 - no public function waits for them alone

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
            if self.receiver is None:
                return call(state, bucket)
            done = self.receiver.ready()
            return call(state, bucket).then(done)

        # Not `parallel.register_comm_hook`: it keeps the function in an attribute, and a script may save the model.
        distributed._register_comm_hook(parallel.reducer, None, mark)  # type: ignore[attr-defined]  # noqa: SLF001

    def _average(self, group: Any, bucket: Any) -> Any:
        """Average of the gradients over the ranks of `group`, as DistributedDataParallel computes it without a hook."""
        shared = bucket.buffer().mul_(1 / group.size())
        work = self._all_reduce(shared, group=group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])


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
