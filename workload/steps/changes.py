"""Makes the changes of `--change` in the script's process, sees the settings of its constructors, and keeps its losses.

The script's code, its random state and everything that is not named by a change stay as they are. A change without an
effect is an error, so that no comparison measures the same program twice.
"""

import functools
import inspect
import random
import sys
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
import torch.fx  # before `Module.__call__` is replaced: torch.fx keeps the function that it finds there
import torch.utils.data
from torch.nn import Module
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes

from workload.contract.changes import Change, Via, changes_of
from workload.contract.errors import UsageError
from workload.contract.record_sections import Constructor

# Most losses that are kept: as many steps show whether two programs train alike.
MOST_LOSSES = 64
# Most constructors in run.json: a script that makes a DataLoader in each epoch has many, all alike.
MOST_SEEN = 16
ALREADY = "the script does it already"
LOADER_SETTINGS = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory")
OPTIMIZER_SETTINGS = ("foreach", "fused")
TORCH, OURS = Path(torch.__file__).resolve().parent, Path(__file__).resolve().parents[1]
# Reads and sets each setting of torch, by the form of its change.
SETTINGS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "torch.set_num_threads({})": (torch.get_num_threads, torch.set_num_threads),
    "torch.set_float32_matmul_precision({})": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    "torch.backends.cudnn.benchmark={}": (
        lambda: torch.backends.cudnn.benchmark,
        lambda value: setattr(torch.backends.cudnn, "benchmark", value),
    ),
}
FLUSH, SEEDS = "torch.set_flush_denormal({})", "seeds(shift={})"
# Why a change was never made, by how it is made; settings are made with the first optimizer.
NO_OPTIMIZER = "the script makes no optimizer of torch.optim"
WHY_NEVER = {
    Via.METHOD: "the script never calls zero_grad",
    Via.MODULE: "the script calls no module with trained parameters",
}


@dataclass(kw_only=True)
class Made:
    """A DataLoader or optimizer that the script made. `line`: the user's line, None inside a library.

    `before`: the script's own values of changed settings. `refused`: by change, why it was not made here.
    """

    reference: weakref.ref[Any]
    line: str | None
    before: dict[str, Any] = field(default_factory=dict)
    refused: dict[Change, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """Place for a message."""
        return self.line or "a line in a library"


class Changes:
    """Changes of one run, from the import of torch until the training step is known.

    `text`: result of `workload.contract.changes.parse`. `folder`: of the script; paths of lines are relative to it.
    """

    def __init__(self, text: str | None, folder: Path) -> None:
        self._changes, self._folder = changes_of(text), folder
        self._made: list[Made] = []
        # The object whose constructor runs: constructors of its base classes are part of it.
        self._making: Any = None
        self._done: set[Change] = {change for change in self._changes if change.row.via is Via.ENVIRONMENT}
        self._why: dict[Change, str] = {}
        self._known_modules = weakref.WeakSet[Module]()
        self._stop: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Wrap the constructors and functions that the changes need, after the import of torch."""
        self._watch_constructor(torch.utils.data.DataLoader)
        kinds = [kind for kind in vars(torch.optim).values() if isinstance(kind, type)]
        for kind in dict.fromkeys(kind for kind in kinds if issubclass(kind, torch.optim.Optimizer)):
            self._watch_constructor(kind)
        for change in self._via(Via.METHOD):
            for owner in (torch.optim.Optimizer, Module):
                self._change_zero_grad(owner, change)
        if self._via(Via.MODULE):
            self._watch_calls(Module.__call__)
        for change in self._via(Via.SETTING):
            if change.row.form == FLUSH:
                self._flush_denormals(change)
            elif change.row.form == SEEDS:
                self._shift_seeds(change)

    def _via(self, via: Via, name: str | None = None) -> list[Change]:
        return [each for each in self._changes if each.row.via is via and name in (None, each.row.name)]

    def _note(self, change: Change, why: str) -> None:
        """Note that a change was made, or if there is a reason `why` not, that reason; one place is enough."""
        if why:
            self._why.setdefault(change, why)
        else:
            self._done.add(change)

    # --- constructors

    def _watch_constructor(self, kind: type) -> None:
        make: Callable[..., None] = kind.__init__  # type: ignore[misc]
        if "__init__" not in vars(kind):
            return
        signature = inspect.signature(make)
        is_loader = issubclass(kind, torch.utils.data.DataLoader)
        changes = self._via(Via.CONSTRUCTOR, "DataLoader" if is_loader else "optimizer")

        @functools.wraps(make)
        def make_changed(this: Any, *args: Any, **kwargs: Any) -> None:
            if self._making is this:
                make(this, *args, **kwargs)
                return
            made, outer = Made(reference=weakref.ref(this), line=line_of_user(self._folder)), self._making
            if not is_loader:
                self._set_settings()
            bound = None
            with suppress(TypeError):  # the constructor itself reports wrong arguments
                bound = signature.bind(this, *args, **kwargs) if changes else None
            if bound:
                bound.apply_defaults()
                _change_arguments(bound.arguments, made, changes, type(this).__name__)
                args, kwargs = bound.args[1:], bound.kwargs
            self._making = this
            try:
                make(this, *args, **kwargs)
            finally:
                self._making = outer
            self._made = [each for each in self._made if each.reference() is not None]
            self._made.append(made)

        kind.__init__ = make_changed  # type: ignore[misc]

    def _set_settings(self) -> None:
        """Change settings when the script makes its first optimizer: the script's own settings precede it."""
        for change in self._via(Via.SETTING):
            if change.row.form in SETTINGS and change not in self._done:
                read, write = SETTINGS[change.row.form]
                why = ALREADY if read() == change.value else ""
                write(change.value)
                self._note(change, why or _no_gpu(change))

    def _flush_denormals(self, change: Change) -> None:
        # At once: threads of torch take the processor's mode from the thread that starts them.
        original = torch.set_flush_denormal
        self._note(change, "" if original(True) else "this processor cannot flush them")

        @functools.wraps(original)
        def set_and_note(mode: bool) -> bool:
            self._done.discard(change)
            self._note(change, ALREADY if mode else "the script switches it off")
            return original(mode)

        torch.set_flush_denormal = set_and_note  # type: ignore[assignment]

    def _shift_seeds(self, change: Change) -> None:
        """Shift every seed that the script or a library such as transformers or lightning sets from now on."""
        self._note(change, "the script sets no seed")
        numpy = getattr(sys.modules.get("numpy"), "random", None)  # torch has imported it, if there is one
        places = [(torch, "manual_seed"), (torch.cuda, "manual_seed"), (torch.cuda, "manual_seed_all")]
        places += [(random, "seed"), *([(numpy, "seed"), (numpy, "default_rng")] if numpy else [])]
        for owner, name in places:
            setattr(owner, name, self._with_shift(getattr(owner, name), change))

    def _with_shift(self, original: Callable[..., Any], change: Change) -> Callable[..., Any]:
        def moved(seed: Any) -> Any:
            if not isinstance(seed, Integral):
                return seed
            self._note(change, "")
            return int(seed) + change.value

        @functools.wraps(original)
        def seed_shifted(*given: Any, **named: Any) -> Any:
            # `a` is the name of the argument of random.seed.
            named = {name: moved(value) if name in ("seed", "a") else value for name, value in named.items()}
            return original(*map(moved, given[:1]), *given[1:], **named)

        return seed_shifted

    # --- methods and modules

    def _change_zero_grad(self, owner: Any, change: Change) -> None:
        original = owner.zero_grad

        @functools.wraps(original)
        def zero_grad(this: Any, set_to_none: bool = True) -> None:
            self._note(change, ALREADY if set_to_none == change.value else "")
            original(this, set_to_none=change.value)

        owner.zero_grad = zero_grad

    def _watch_calls(self, original: Callable[..., Any]) -> None:
        """Change each outermost module with trained parameters at its first call, until the training step is known."""
        is_on = True

        @functools.wraps(original)
        def call(this: Module, *args: Any, **kwargs: Any) -> Any:
            # During the call, modules inside have the original function: torch.compile looks at it.
            Module.__call__ = original  # type: ignore[method-assign]
            try:
                if torch.is_grad_enabled() and this not in self._known_modules:
                    self._meet(this)
                return original(this, *args, **kwargs)
            finally:
                if is_on:
                    Module.__call__ = call  # type: ignore[method-assign]

        def stop() -> None:
            nonlocal is_on
            is_on = False
            Module.__call__ = original  # type: ignore[method-assign]

        Module.__call__, self._stop = call, stop  # type: ignore[method-assign]

    def _meet(self, module: Module) -> None:
        self._known_modules.update(module.modules())
        trained = [each for each in module.parameters() if each.requires_grad]
        for change in self._via(Via.MODULE) if trained else ():
            self._note(change, MODULES[change.row.form](module, trained))

    # --- when the training step is known

    def settle(self, in_step: set[int]) -> list[str]:
        """Stop changing. Return notes on constructors that were left as they are.

        `in_step`: identities of the DataLoaders and optimizers of the training step. Raises `UsageError` for a change
        that has no effect on the step.
        """
        self._stop()
        dynamo = sys.modules.get("torch._dynamo")
        notes = []
        for change in self._changes:
            why = "" if change in self._done else self._why.get(change, WHY_NEVER.get(change.row.via, NO_OPTIMIZER))
            if change.row.via is Via.CONSTRUCTOR:
                why = self._why_not_in_step(change, in_step)
            elif change.row.form in SETTINGS and not why and SETTINGS[change.row.form][0]() != change.value:
                why = f"the script sets it to {SETTINGS[change.row.form][0]()} afterwards"
            elif change.row.form == "torch.compile" and not why:
                compiled = dynamo.utils.counters["stats"]["unique_graphs"] if dynamo else 0
                why = "" if compiled else "torch.compile found nothing to compile in it"
            if why:
                raise UsageError(f"--change '{change.text}' has no effect: {why}", hint="leave it out")
            refused = {made.where: made.refused[change] for made in self._made if change in made.refused}
            notes += [f"{change.text} not at {where}: {why}" for where, why in refused.items() if why != ALREADY]
        return notes

    def _why_not_in_step(self, change: Change, in_step: set[int]) -> str:
        is_loader = change.row.name == "DataLoader"
        kind: type = torch.utils.data.DataLoader if is_loader else torch.optim.Optimizer
        of_kind = [(made, thing) for made in self._made if isinstance(thing := made.reference(), kind)]
        used = [(made, thing) for made, thing in of_kind if id(thing) in in_step]
        if not used:
            name = "DataLoader" if is_loader else "optimizer of torch.optim"
            return f"the training step uses no {name}" if of_kind else f"the script makes no {name}"
        # A library copies the DataLoader that the user's line has made, with its settings.
        has_changed = any(_is_changed(made, thing, change) for made, thing in of_kind)
        reasons = []
        for made, thing in used:
            if _value_of(thing, change) == change.value and (
                _is_changed(made, thing, change) or (made.line is None and has_changed)
            ):
                return ""
            reset = f"the script sets it to {_value_of(thing, change)} afterwards, as when it loads a checkpoint"
            already = ALREADY if _value_of(thing, change) == change.value else reset
            reasons.append(f"{made.where}: {made.refused.get(change, already)}")
        return "; ".join(dict.fromkeys(reasons))

    def constructors(self, in_step: set[int]) -> tuple[Constructor, ...]:
        """DataLoaders and optimizers that the script has made and keeps, those of the training step first."""
        seen = []
        for made in self._made:
            if (thing := made.reference()) is not None:
                facts = {name: _setting(thing, name) for name in (*LOADER_SETTINGS, *OPTIMIZER_SETTINGS)}
                is_iterable = isinstance(getattr(thing, "dataset", None), torch.utils.data.IterableDataset)
                groups = getattr(thing, "param_groups", None)
                lacks = tuple(name for name in OPTIMIZER_SETTINGS if groups and name not in groups[0])
                seen.append(
                    Constructor(
                        name=type(thing).__name__,
                        line=made.line,
                        is_in_step=id(thing) in in_step,
                        is_iterable=is_iterable or None,
                        lacks=lacks or None,
                        **facts,
                    )
                )
        return tuple(sorted(dict.fromkeys(seen), key=lambda each: not each.is_in_step))[:MOST_SEEN]


def settings() -> dict[str, str]:
    """Settings of torch at this moment, by the form of their change."""
    return {form: str(read()) for form, (read, _) in SETTINGS.items()}


def line_of_user(folder: Path) -> str | None:
    """Line that calls a function of torch, such as `train.py:41`, relative to `folder`; None inside a library."""
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001 - what traceback uses too
    while frame is not None:
        path = Path(frame.f_code.co_filename).resolve()
        if not path.is_relative_to(TORCH) and not path.is_relative_to(OURS):
            is_users = path.is_relative_to(folder) and "site-packages" not in path.parts
            return f"{path.relative_to(folder).as_posix()}:{frame.f_lineno}" if is_users else None
        frame = frame.f_back
    return None


def _setting(thing: Any, name: str) -> Any:
    groups = getattr(thing, "param_groups", None)
    return groups[0].get(name) if groups else getattr(thing, name, None)


def _value_of(thing: Any, change: Change) -> Any:
    value = _setting(thing, change.row.argument)
    return bool(value) if isinstance(change.value, bool) else value


def _is_changed(made: Made, thing: Any, change: Change) -> bool:
    """Whether the change was made in this constructor, and differs from what torch does by default."""
    name = change.row.argument
    if change in made.refused or name not in made.before:
        return False
    before = made.before[name]
    if name == "foreach" and before is None and not made.before.get("fused"):
        # torch chooses it itself on a GPU: torch.optim.optimizer._default_to_fused_or_foreach.
        before = all(tensor.is_cuda for group in thing.param_groups for tensor in group["params"])
    return bool(before) != change.value if isinstance(change.value, bool) else before != change.value


def _change_arguments(arguments: dict[str, Any], made: Made, changes: Sequence[Change], kind: str) -> None:
    """Change a constructor's arguments in place; keep the script's own values, and why a change is not made."""
    made.before = {name: arguments[name] for name in (*LOADER_SETTINGS, *OPTIMIZER_SETTINGS) if name in arguments}
    for change in changes:
        name, value = change.row.argument, change.value
        if name not in arguments:
            made.refused[change] = f"{kind} has no argument {name}"
        elif why := _why_not(arguments, change):
            made.refused[change] = why
        else:
            arguments[name] = value
            if name == "num_workers" and not value:
                arguments |= {"prefetch_factor": None, "persistent_workers": False}
            # They exclude each other; where both are changes, torch says so.
            other = {"foreach": "fused", "fused": "foreach"}.get(name)
            if other in arguments and value and other not in [each.row.argument for each in changes]:
                arguments[other] = None


def _why_not(arguments: Mapping[str, Any], change: Change) -> str:
    """Why a change of a constructor's argument is not made; empty if it can be."""
    name, value, own = change.row.argument, change.value, arguments[change.row.argument]
    # torch's own number of batches ahead, if there are workers.
    own = 2 if name == "prefetch_factor" and own is None and arguments["num_workers"] else own
    if name in LOADER_SETTINGS and own == value:
        return ALREADY
    is_iterable = isinstance(arguments.get("dataset"), torch.utils.data.IterableDataset)
    if name == "num_workers" and is_iterable and value > 1 and own <= 1:
        return "its data set is iterable, and each worker would repeat the data"
    if name in ("prefetch_factor", "persistent_workers") and value and not arguments["num_workers"]:
        return "it has no workers: DataLoader(num_workers=2)"
    return _no_gpu(change)


def _no_gpu(change: Change) -> str:
    return "there is no NVIDIA GPU" if change.row.device == "cuda" and not torch.cuda.is_available() else ""


def _compile(module: Module, _: Sequence[torch.Tensor]) -> str:
    if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:  # noqa: SLF001 - no public name
        return ALREADY
    # Dropout then draws the numbers that it draws without the compiler, so that the losses can be compared.
    module.compile(options={"fallback_random": True})
    return ""


def _to_channels_last(module: Module, _: Sequence[torch.Tensor]) -> str:
    of_images = [each for each in module.parameters() if each.dim() == 4]  # noqa: PLR2004 - of Conv2d
    if not of_images:
        return "the model has no parameter of four dimensions, such as those of Conv2d"
    if all(each.is_contiguous(memory_format=torch.channels_last) for each in of_images):
        return ALREADY
    module.to(memory_format=torch.channels_last)
    return ""


def _autocast(module: Module, trained: Sequence[torch.Tensor]) -> str:
    device, own = trained[0].device.type, vars(module).get("forward")
    if torch.is_autocast_enabled(device):
        return ALREADY

    @functools.wraps(own or type(module).forward)
    def forward_in_bf16(this: Module, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, torch.bfloat16):
            found = own(*args, **kwargs) if own else type(this).forward(this, *args, **kwargs)
        # The script's loss is not inside; autocast would compute it in fp32.
        return _pytree.tree_map_only(
            torch.Tensor, lambda tensor: tensor.float() if tensor.dtype is torch.bfloat16 else tensor, found
        )

    # A bound method, so that copies of the module get one of their own.
    module.forward = types.MethodType(forward_in_bf16, module)
    return ""


# Changes of a module, which return why they are not made, by the form of their change.
MODULES: Mapping[str, Callable[[Module, Sequence[torch.Tensor]], str]] = {
    "channels_last": _to_channels_last,
    "autocast(bfloat16)": _autocast,
    "torch.compile": _compile,
}


class Losses:
    """Losses of the first backward passes, kept on their device and read at the end, so that no step waits for them."""

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []

    def add(self, loss: Any) -> None:
        """Keep a copy of a backward pass's root if it is one number."""
        if len(self._kept) >= MOST_LOSSES or not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            return
        if loss.is_floating_point() and not (loss.is_cuda and torch.cuda.is_current_stream_capturing()):
            # A counter of operations would take the copies for memory that the script leaves behind.
            with _disable_current_modes():
                self._kept.append(loss.detach().clone())

    def texts(self) -> tuple[str, ...] | None:
        """The losses as `float.hex`; None if there are none."""
        return tuple(float(loss).hex() for loss in self._kept) or None
