"""Hooks into PyTorch that report a script's batches, backward passes, optimizer steps and checkpoints.

`when_imported` waits until the script imports torch, so that environment variables that the script sets before the
import take effect.
Each wrapper calls the original and tells an observer; arguments, results and random state are never changed.
"""

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workload.steps.changes import Losses
    from workload.steps.session import Session
    from workload.steps.step_log import StepLog
    from workload.steps.step_work import Site

# Optimizers outside torch.optim: module, class, and the method that changes the parameters.
OTHER_OPTIMIZERS = (
    ("keras.src.optimizers.base_optimizer", "BaseOptimizer", "apply"),
    ("fastai.optimizer", "Optimizer", "step"),
)


class _Finder(importlib.abc.MetaPathFinder):
    """Finder for one module until its first import: delegates to Python's finders, and calls `then` after the import.

    A search is no import: transformers and datasets look for torch before they import it.
    """

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        for finder in (other for other in sys.meta_path if other is not self):
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                loader: Any = spec.loader
                loader.exec_module = functools.partial(self._execute, loader)
                return spec
        return None

    def _execute(self, loader: Any, module: types.ModuleType) -> None:
        # The loader's own method is called, and is found again from now on.
        del loader.exec_module
        loader.exec_module(module)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._then()


def when_imported(name: str, then: Callable[[], None]) -> None:
    """Call `then` now if the module `name` was imported already, else after its import."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _Finder(name, then))


def install(observer: "Session | StepLog", losses: "Losses | None" = None) -> None:
    """Wrap the functions that a training loop calls. torch must be imported. Forked children are not observed.

    `losses`: keeps the loss of each backward pass.
    """
    import torch  # noqa: PLC0415 - see `when_imported`
    import torch.utils.data  # noqa: PLC0415
    from torch.optim import optimizer as optimizers  # noqa: PLC0415

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=observer.silence)
    _observe_loaders(observer, torch.utils.data)
    _observe_backward(observer, torch.autograd, losses)
    # Optimizers that are stepping now, the outermost first. One list serves all threads, because optimizer steps in a
    # second thread are refused anyway.
    stack: list[Any] = []

    def before(optimizer: Any, *_: Any) -> None:
        # A wrapper optimizer and the optimizer inside it count as one step. If an optimizer steps again while still in
        # this list, its earlier step raised an error.
        if stack:
            del stack[next((index for index, known in enumerate(stack) if known is optimizer), len(stack)) :]
        stack.append(optimizer)
        if len(stack) == 1 and observer.active:
            observer.stepping(optimizer)

    def after(optimizer: Any, *_: Any) -> None:
        if len(stack) == 1:
            stack.clear()
        else:
            del stack[next((index for index, known in enumerate(stack) if known is optimizer), 0) :]
        if not stack and observer.active:
            observer.stepped(optimizer)

    optimizers.register_optimizer_step_pre_hook(before)
    optimizers.register_optimizer_step_post_hook(after)
    for module, name, method in OTHER_OPTIMIZERS:
        patch = functools.partial(_observe_other_optimizer, module, name, method, before, after)
        when_imported(module, patch)
    _observe_scaler(observer, torch.amp.GradScaler)
    _around(observer, torch, "save", observer.saving, observer.saved)
    _observe_gradient_switches(observer, torch)
    _observe_graphs(observer, torch.cuda.CUDAGraph)


def _observe_loaders(observer: "Session | StepLog", data: Any) -> None:
    iterator = data.dataloader._BaseDataLoaderIter  # noqa: SLF001 - every DataLoader's iterator is one; there is no hook
    fetch, start = iterator.__next__, data.DataLoader.__iter__

    def make_and_note(cls: Any, loader: Any, *_args: Any, **_kwargs: Any) -> Any:
        # Not in `begin`: Ultralytics makes an iterator without `__iter__`, and uses it in every epoch. Not around
        # `__init__`, whose warnings would name this file.
        made = object.__new__(cls)
        made.rooflaunch_loader = loader
        return made

    @functools.wraps(start)
    def begin(self: Any) -> Any:
        if not observer.active:
            return start(self)
        # With worker processes, making the iterator takes as long as starting these processes.
        observer.fetch_began()
        made = start(self)
        observer.fetched(None, None)
        return made

    @functools.wraps(fetch)
    def fetch_and_report(self: Any) -> Any:
        if not observer.active:
            return fetch(self)
        observer.fetch_began()
        batch = None
        try:
            batch = fetch(self)
        finally:
            observer.fetched(getattr(self, "rooflaunch_loader", self), batch)
        return batch

    data.DataLoader.__iter__, iterator.__new__, iterator.__next__ = begin, staticmethod(make_and_note), fetch_and_report


def _observe_backward(observer: "Session | StepLog", autograd: Any, losses: "Losses | None") -> None:
    # Checkpointed layers run a backward pass inside the backward pass, on a GPU in another thread.
    is_inside = [False]

    def observed(original: Any) -> Any:
        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            if is_inside[0] or not observer.active:
                return original(*args, **kwargs)
            is_inside[0] = True
            observer.backward_began(args or kwargs)
            try:
                result = original(*args, **kwargs)
            finally:
                is_inside[0] = False
            observer.backward_ended()
            if losses:
                losses.add(args[0] if args else kwargs.get("tensors"))
            return result

        return run

    # `Tensor.backward` looks up `torch.autograd.backward` by name, and so calls the wrapper. `torch.autograd.grad`
    # serves penalties, which are part of the forward pass.
    autograd.backward = observed(autograd.backward)
    grad = autograd.grad

    @functools.wraps(grad)
    def grad_and_report(*args: Any, **kwargs: Any) -> Any:
        result = grad(*args, **kwargs)
        if not is_inside[0] and observer.active:
            observer.gradient_taken()
        return result

    autograd.grad = grad_and_report


def _observe_other_optimizer(
    module: str, name: str, method: str, before: Callable[[Any], None], after: Callable[[Any], None]
) -> None:
    """Observe the steps of an optimizer outside torch.optim, whose own optimizers have hooks."""
    kind = getattr(sys.modules[module], name)
    step = getattr(kind, method)

    @functools.wraps(step)
    def step_and_report(self: Any, *args: Any, **kwargs: Any) -> Any:
        before(self)
        result = step(self, *args, **kwargs)
        after(self)
        return result

    setattr(kind, method, step_and_report)


def _observe_scaler(observer: "Session | StepLog", scaler: Any) -> None:
    step = scaler.step

    @functools.wraps(step)
    def step_and_report(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        has_stepped = [False]
        handle = optimizer.register_step_post_hook(lambda *_: has_stepped.__setitem__(0, True))
        try:
            result = step(self, optimizer, *args, **kwargs)
        finally:
            handle.remove()
        if not has_stepped[0] and observer.active:
            observer.left_out(optimizer)
        return result

    scaler.step = step_and_report


def _around(
    observer: "Session | StepLog", owner: Any, name: str, before: Callable[[], None] | None, after: Callable[[], None]
) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        if before and observer.active:
            before()
        try:
            return original(*args, **kwargs)
        finally:
            if observer.active:
                after()

    setattr(owner, name, run)


def _observe_gradient_switches(observer: "Session | StepLog", torch: Any) -> None:
    """Observe the outermost `no_grad`, `inference_mode` or `set_grad_enabled(False)`, as a block or a decorator."""
    is_on = torch.is_grad_enabled

    def patch(kind: Any, *, is_set_at_once: bool) -> None:
        enter, leave = kind.__enter__, kind.__exit__

        @functools.wraps(enter)
        def enter_and_report(self: Any) -> Any:
            was_on = self.prev and not self.mode if is_set_at_once else is_on()
            result = enter(self)
            if was_on and observer.active and not is_on():
                observer.gradients_off(_site(sys._getframe(1)))  # noqa: SLF001 - as traceback does
            return result

        @functools.wraps(leave)
        def leave_and_report(self: Any, *details: Any) -> Any:
            was_off = observer.active and not is_on()
            result = leave(self, *details)
            if was_off and is_on():
                observer.gradients_on()
            return result

        kind.__enter__, kind.__exit__ = enter_and_report, leave_and_report

    patch(torch.no_grad, is_set_at_once=False)
    patch(torch.inference_mode, is_set_at_once=False)
    patch(torch.set_grad_enabled, is_set_at_once=True)


def _observe_graphs(observer: "Session | StepLog", kind: Any) -> None:
    """Observe captures and replays of CUDA graphs: one call for each of them, and none in other steps."""
    _around(observer, kind, "capture_begin", observer.capture_began, lambda: None)
    _around(observer, kind, "capture_end", None, observer.capture_ended)
    _around(observer, kind, "replay", None, observer.replayed)


def _site(frame: Any) -> "Site":
    # Skip the frames of torch.utils._contextlib, from which a decorated function is entered.
    while frame.f_back is not None and frame.f_code.co_filename.endswith("_contextlib.py"):
        frame = frame.f_back
    caller = frame.f_back or frame
    return frame.f_code, frame.f_lineno, caller.f_code, caller.f_lineno
