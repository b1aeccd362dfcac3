"""Counts the work of a training step: FLOP, bytes and parameters, on tensors without memory.

Model, loss, backward pass and optimizer step run once under `FakeTensorMode`: shapes, element types and the choice of
attention kernel are those of the device, autocast included, but nothing is computed or allocated. Plain meta tensors
would take half the time and be wrong: autocast ignores them, and they always take attention's math path.
"""

import contextlib
import importlib.util
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from workload.contract.errors import UsageError
from workload.contract.record import ComplexityRecord
from workload.contract.spec import Device, Optimizer, Precision
from workload.environment import resource_errors
from workload.environment.device import AUTOCAST_DTYPES
from workload.model import models
from workload.model.flop import FlopCounter, Tally
from workload.steps.training_step import make_optimizer

METHOD = (
    "own formula table over dispatched ops in train mode, forward and backward; 1 fused multiply-add = 2 FLOP; "
    "element-wise, normalisation and pooling ops count 0 FLOP; attention's recomputation is not counted. "
    "Bytes are modelled: lower = each tensor once, upper = each op from and to memory"
)
# Error text of F.batch_norm for one value per channel.
SINGLE_VALUE = "Expected more than 1 value per channel when training"

# Modules in run.json: the ten with most FLOP do about half of the work of ResNet50, and all of AlexNet's.
RECORDED_MODULES = 10
# Names of what the model itself does, outside its parts, and of what no module does.
MODEL, OUTSIDE = "(model)", "(loss, optimizer)"
# Functions by which torch.nn and torchvision create parameters and statistics.
WEIGHT_FACTORIES = frozenset({torch.empty, torch.ones, torch.zeros})
# One thread computes a smaller forward pass in 0.05 to 0.3 s. Several threads wait for each other after every
# operation, for 0.3 s or more in all if another process uses a CPU.
ONE_THREAD_FLOP = 1e10
FAKE_TENSOR_LOGGER = "torch._subclasses.fake_tensor"
FVCORE_LOGGER = "fvcore.nn.jit_analysis"


@dataclass(frozen=True, kw_only=True)
class Complexity:
    """Work of one training step, and of one image of it.

    A step is forward, loss, backward and optimizer on `batch_size` x `grad_accumulation` images. FLOP are model FLOP (1
    fused multiply-add = 2). Bytes are an interval from a model, not measured. `forward_*`: forward pass in train mode,
    including auxiliary heads. `fvcore_mac_per_image`: None if not requested or not installed. `activation_values`:
    values that one forward pass of the batch keeps for the backward pass, without parameters and images;
    `activation_layer`: the module that keeps most. `layers`: number of layers by kind, see `models.layer_kinds`.
    `flop_by_module`, `bytes_by_module`: `train_flop_per_step`, `bytes_per_step_upper` by the innermost module
    (`layer3.0.conv1`), `MODEL` or `OUTSIDE`.
    """

    parameters: int
    forward_mac_per_image: int
    forward_flop_per_image: int
    train_flop_per_step: int
    train_flop_per_image: int
    flop_by_op: Mapping[str, int]
    bytes_per_step_lower: int
    bytes_per_step_upper: int
    fvcore_mac_per_image: float | None
    uncounted: tuple[str, ...]
    method: str
    activation_values: int
    activation_bytes: int
    activation_layer: str
    activation_layer_bytes: int
    layers: Mapping[str, int]
    forward_flop_by_module: Mapping[str, int]
    flop_by_module: Mapping[str, int]
    bytes_by_module: Mapping[str, int]

    def record(self) -> ComplexityRecord:
        """Section `complexity` of run.json; of the modules only those with most FLOP."""
        largest = sorted(self.flop_by_module, key=lambda name: -self.flop_by_module[name])[:RECORDED_MODULES]
        facts = asdict(self)
        del facts["forward_flop_by_module"], facts["layers"]
        for counts in ("flop_by_module", "bytes_by_module"):
            facts[counts] = {name: facts[counts].get(name, 0) for name in largest}
        return ComplexityRecord(**facts)


def count(
    model: str,
    *,
    num_classes: int,
    image_size: int,
    batch_size: int,
    precision: Precision | str = Precision.FP32,
    optimizer: Optimizer | str = Optimizer.SGD,
    grad_accumulation: int = 1,
    device: Device | str = Device.CPU,
    with_fvcore: bool = False,
) -> Complexity:
    """Count one training step; `image_size`: edge in pixels, `device`: decides the kernels.

    Raises `UsageError` if the model rejects the images or the batch. `with_fvcore` computes a real forward pass of one
    image (0.1 to 0.8 s on two CPU cores).
    """
    shape = (batch_size, 3, image_size, image_size)
    with _MetaWeights():
        module = models.build(model, num_classes=num_classes, image_size=image_size).train()
    # FakeTensorMode logs a traceback for every shape that a model rejects.
    with _quiet(FAKE_TENSOR_LOGGER), FakeTensorMode(), _rejections(model, shape):
        kinds = (Optimizer(optimizer), Precision(precision))
        step = _FakeStep(module, *kinds, device_type=_countable_device(Device(device)), shape=shape)
        counted = step.count(grad_accumulation)
    forward_flop_per_image = round(counted.forward.flop / batch_size)
    fvcore_mac = None
    if with_fvcore:
        threads = 1 if forward_flop_per_image < ONE_THREAD_FLOP else torch.get_num_threads()
        with _threads(threads):
            fvcore_mac = fvcore_mac_per_image(model, num_classes=num_classes, image_size=image_size)
    by_layer: Counter[str] = Counter()
    for tensor in counted.kept:
        by_layer[tensor.module] += tensor.bytes
    return Complexity(
        parameters=counted.parameters,
        forward_mac_per_image=forward_flop_per_image // 2,
        forward_flop_per_image=forward_flop_per_image,
        train_flop_per_step=counted.step.flop,
        train_flop_per_image=round(counted.step.flop / (batch_size * grad_accumulation)),
        flop_by_op=counted.step.flop_by_op,
        bytes_per_step_lower=counted.step.bytes_lower,
        bytes_per_step_upper=counted.step.bytes_upper,
        fvcore_mac_per_image=fvcore_mac,
        uncounted=counted.uncounted,
        method=METHOD,
        activation_values=sum(tensor.values for tensor in counted.kept),
        activation_bytes=sum(by_layer.values()),
        activation_layer=max(by_layer, key=lambda name: by_layer[name], default=""),
        activation_layer_bytes=max(by_layer.values(), default=0),
        layers=models.layer_kinds(module),
        forward_flop_by_module=counted.forward.flop_by_module,
        flop_by_module=counted.step.flop_by_module,
        bytes_by_module=counted.step.bytes_by_module,
    )


def _countable_device(device: Device) -> str:
    """Device whose kernels are counted: CUDA if available and requested, else the CPU."""
    return "cuda" if device in (Device.CUDA, Device.AUTO) and torch.cuda.is_available() else "cpu"


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """A tensor that the forward pass keeps for the backward pass."""

    module: str
    values: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class _Counted:
    parameters: int
    forward: Tally
    step: Tally
    uncounted: tuple[str, ...]
    kept: tuple[_Kept, ...]


class _ModuleCounter(FlopCounter):
    """Counter that knows the innermost module of each op, of the forward and of the backward pass.

    `kept`: what the forward pass keeps for the backward pass, if `keep` is the hook of autograd for saved tensors.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.kept: list[_Kept] = []
        self._entered = [OUTSIDE]
        self._next_number = torch._C._autograd._get_sequence_nr()  # noqa: SLF001
        self._of_number: dict[int, str] = {}
        # Weak references: see `FlopCounter`.
        self._seen: dict[int, StorageWeakRef] = {}
        for tensor in (*model.parameters(), *model.buffers()):
            self.ignore(tensor)
        for name, module in model.named_modules():
            module.register_forward_pre_hook(partial(self._enter, name or MODEL))
            module.register_forward_hook(self._leave)

    def __torch_dispatch__(
        self, func: OpOverload, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count the op for the module that runs, or for the module whose op the backward pass now differentiates."""
        # Autograd numbers the ops of the forward pass, and each op of the backward pass knows the number of its forward
        # op. torch.compile uses these numbers for the same purpose (`torch.fx.experimental.proxy_tensor`).
        node = torch._C._current_autograd_node()  # noqa: SLF001
        if node is None:
            self.module = self._entered[-1]
            created = torch._C._autograd._get_sequence_nr()  # noqa: SLF001
            self._of_number |= dict.fromkeys(range(self._next_number, created), self.module)
            self._next_number = created
        else:
            self.module = self._of_number.get(node._sequence_nr(), OUTSIDE)  # noqa: SLF001
        return super().__torch_dispatch__(func, _types, args, kwargs)

    def ignore(self, tensor: torch.Tensor) -> bool:
        """Do not count this tensor's storage in `kept` from now on; return whether it was counted or ignored before."""
        reference = StorageWeakRef(tensor.untyped_storage())
        return self._seen.setdefault(reference.cdata, reference) is not reference

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count a tensor that autograd saves, once for each storage."""
        if not self.ignore(tensor):
            stored_bytes = tensor.untyped_storage().nbytes()
            values = stored_bytes // tensor.element_size()
            self.kept.append(_Kept(module=self._entered[-1], values=values, bytes=stored_bytes))
        return tensor

    def _enter(self, name: str, *_: object) -> None:
        self._entered.append(name)

    def _leave(self, *_: object) -> None:
        self._entered.pop()


class _FakeStep:
    """Training step on tensors that have a shape, a type and a device, but no memory; used inside FakeTensorMode."""

    def __init__(
        self, module: nn.Module, optimizer: Optimizer, precision: Precision, *, device_type: str, shape: tuple[int, ...]
    ) -> None:
        _materialize(module, device_type)
        self._module = module
        self._optimizer = make_optimizer(module.parameters(), optimizer)
        self._precision = precision
        self._device_type = device_type
        self._images = torch.empty(shape, device=device_type)
        self._labels = torch.empty(shape[0], dtype=torch.long, device=device_type)
        self._counter = _ModuleCounter(module)
        self._counter.ignore(self._images)

    def count(self, grad_accumulation: int) -> _Counted:
        """Counts of one steady step: every pass after the first adds to existing gradients."""
        forward, first = self._pass()
        passes, kept = first, tuple(self._counter.kept)
        if grad_accumulation > 1:
            _, later = self._pass()
            passes = first.plus(later, times=grad_accumulation - 1)
        return _Counted(
            parameters=sum(parameter.numel() for parameter in self._module.parameters()),
            forward=forward,
            step=passes.plus(self._update()),
            uncounted=tuple(sorted(self._counter.uncounted)),
            kept=kept,
        )

    def _pass(self) -> tuple[Tally, Tally]:
        """Counts of the forward pass, and of forward pass, loss and backward pass together."""
        before = self._counter.tally()
        dtype = AUTOCAST_DTYPES.get(self._precision)
        autocast = torch.autocast(self._device_type, dtype=dtype, enabled=dtype is not None)
        with self._counter:
            with autocast, saved_tensors_hooks(self._counter.keep, lambda tensor: tensor):
                output = self._module(self._images)
                forward = self._counter.tally().plus(before, times=-1)
                loss = models.loss(output, self._labels)
            loss.backward()
        return forward, self._counter.tally().plus(before, times=-1)

    def _update(self) -> Tally:
        """Counts of one optimizer step, after an uncounted one that creates the optimizer's state."""
        self._optimizer.step()
        before = self._counter.tally()
        with self._counter:
            if self._precision is Precision.AMP:
                # Like GradScaler, divide all gradients by the loss scale in one pass.
                gradients = [each.grad for each in self._module.parameters() if each.grad is not None]
                torch._foreach_mul_(gradients, 1.0)
            self._optimizer.step()
        return self._counter.tally().plus(before, times=-1)


class _MetaWeights(TorchFunctionMode):
    """Mode for weights without memory.

    Tensors that constructors compute with (RegNet) stay real, unlike under `torch.device("meta")`.
    """

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in WEIGHT_FACTORIES:
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


def _materialize(module: nn.Module, device_type: str) -> None:
    """Replace parameters and buffers by fake tensors.

    `Module.to_empty` would read the real tensors, which `FakeTensorMode` forbids.
    """
    module._apply(lambda t: torch.empty(t.shape, dtype=t.dtype, device=device_type))  # noqa: SLF001 - as Module.to does


@contextlib.contextmanager
def _rejections(model: str, shape: tuple[int, ...]) -> Iterator[None]:
    """Convert errors of a model's own checks and kernels about unsuitable images to `UsageError`."""
    try:
        yield
    except (AssertionError, RuntimeError, ValueError) as error:
        if resource_errors.explain(error, ""):
            raise
        if SINGLE_VALUE in str(error):
            raise UsageError(
                f"{model} cannot train on {shape[-1]}x{shape[-1]} images at batch size {shape[0]}: batch normalisation "
                "needs more than one value per channel",
                hint="--batch-size 2",
            ) from error
        # A subclass of these errors comes from FakeTensorMode: an op is not supported, and the images are not the
        # cause.
        if type(error) not in (AssertionError, RuntimeError, ValueError):
            raise
        raise models.rejection(model, shape[-1], error) from error


def fvcore_mac_per_image(model: str, *, num_classes: int, image_size: int) -> float | None:
    """MACs of one image in eval mode, as fvcore counts (several per element of a batch norm); None without fvcore.

    Traces one real forward pass on the CPU with zero weights: 0.1 s (resnet18) to 0.8 s (vgg16) on two cores.
    """
    if importlib.util.find_spec("fvcore") is None:
        return None
    with _MetaWeights():
        module = models.build(model, num_classes=num_classes, image_size=image_size).eval()
    module._apply(lambda t: torch.zeros(t.shape, dtype=t.dtype))  # noqa: SLF001 - see `_materialize`
    image = torch.zeros(1, 3, image_size, image_size)
    # fvcore lists the ops it does not know; torch.jit warns about tracing and about its own deprecation.
    with _quiet(FVCORE_LOGGER), _rejections(model, image.shape):
        from fvcore.nn import FlopCountAnalysis  # noqa: PLC0415 - optional

        return float(FlopCountAnalysis(module, image).total())


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    """Use this number of threads for PyTorch's operators inside the `with` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Suppress Python warnings and the messages of the loggers with these `names`."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
