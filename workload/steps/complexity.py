"""Counts the work of a training step: FLOP, bytes and parameters, on tensors without memory.

Model, loss, backward pass and optimizer step run once under `FakeTensorMode`: shapes, element types and the choice of
attention kernel are those of the device, autocast included, but nothing is computed or allocated. Plain meta tensors
would take half the time and be wrong: autocast ignores them, and they always take attention's math path.
"""

import contextlib
import importlib.util
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from workload.contract import allocations
from workload.contract.allocations import Kind
from workload.contract.errors import UsageError, explain_shortage
from workload.contract.fields import from_facts
from workload.contract.operating_system import replace_text
from workload.contract.record import ComplexityRecord, StepMemory
from workload.contract.spec import Device, Optimizer, Precision
from workload.environment.collect import version
from workload.environment.device import AUTOCAST_DTYPES
from workload.model import flop, models
from workload.model.flop import FlopCounter, Tally
from workload.steps import step_memory, training_step
from workload.steps.step_memory import CountedMemory, StorageFollower
from workload.steps.training_step import make_optimizer

METHOD = (
    "own formula table over dispatched ops in train mode, forward and backward; 1 fused multiply-add = 2 FLOP; "
    "element-wise, normalisation and pooling ops count 0 FLOP; attention's recomputation is not counted; "
    "causal attention counts only the pairs of query and key that its kernel keeps. "
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

KEPT_COUNTS = ".complexity.json"
# An entry has up to 60 kB: this many are read in some milliseconds.
MAX_ENTRIES = 50
# Entries hold for the same code and versions of these packages.
PACKAGES = ("torch", "torchvision", "fvcore")


@dataclass(frozen=True, kw_only=True)
class Complexity:
    """Work of one training step, and of one image of it.

    A step is forward, loss, backward and optimizer on `batch_size` x `grad_accumulation` images. FLOP are model FLOP (1
    fused multiply-add = 2). Bytes are an interval from a model, not measured. `forward_*`: forward pass in train mode,
    including auxiliary heads. `fvcore_mac_per_image`: None if not requested or not installed. `layers`: number of
    layers by kind, see `models.layer_kinds`. `flop_by_module`, `bytes_by_module`: `train_flop_per_step`,
    `bytes_per_step_upper` by the innermost module (`layer3.0.conv1`), `MODEL` or `OUTSIDE`. `allocations`: content of
    `allocations.csv`.
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
    layers: Mapping[str, int]
    forward_flop_by_module: Mapping[str, int]
    flop_by_module: Mapping[str, int]
    bytes_by_module: Mapping[str, int]
    memory: StepMemory
    allocations: str

    def record(self) -> ComplexityRecord:
        """Section `complexity` of run.json; of the modules only those with most FLOP."""
        largest = sorted(self.flop_by_module, key=lambda name: -self.flop_by_module[name])[:RECORDED_MODULES]
        facts = asdict(self)
        for name in ("forward_flop_by_module", "layers", "memory", "allocations"):
            del facts[name]
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
    # Kernels of CUDA are counted if there is a GPU, else those of the CPU.
    is_cuda = Device(device) in (Device.CUDA, Device.AUTO) and torch.cuda.is_available()
    # FakeTensorMode logs a traceback for every shape that a model rejects.
    with _quiet(FAKE_TENSOR_LOGGER), FakeTensorMode(), _rejections(model, shape):
        kinds: tuple[Any, ...] = (Optimizer(optimizer), Precision(precision), "cuda" if is_cuda else "cpu")
        fake = _FakeStep(module, *kinds, shape=shape)
        # A steady step: every pass after the first adds to existing gradients.
        forward, step = fake.pass_()
        if grad_accumulation > 1:
            step = step.plus(fake.pass_()[1], times=grad_accumulation - 1)
        step = step.plus(fake.update())
        counted = fake.memory()
        larger = _FakeStep(module, *kinds, shape=(2 * batch_size, *shape[1:]), is_first=False)
        for _ in range(min(grad_accumulation, 2)):
            larger.pass_()
        twice = larger.memory()
    rows = counted.allocations(batch_size, twice)
    memory = counted.record(rows, samples=batch_size, method=counted.method(twice))
    forward_flop_per_image = round(forward.flop / batch_size)
    fvcore_mac = None
    if with_fvcore:
        threads = torch.get_num_threads()
        torch.set_num_threads(1 if forward_flop_per_image < ONE_THREAD_FLOP else threads)
        try:
            fvcore_mac = fvcore_mac_per_image(model, num_classes=num_classes, image_size=image_size)
        finally:
            torch.set_num_threads(threads)
    return Complexity(
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        forward_mac_per_image=forward_flop_per_image // 2,
        forward_flop_per_image=forward_flop_per_image,
        train_flop_per_step=step.flop,
        train_flop_per_image=round(step.flop / (batch_size * grad_accumulation)),
        flop_by_op=step.flop_by_op,
        bytes_per_step_lower=step.bytes_lower,
        bytes_per_step_upper=step.bytes_upper,
        fvcore_mac_per_image=fvcore_mac,
        uncounted=tuple(sorted(fake.counter.uncounted)),
        method=METHOD,
        layers=models.layer_kinds(module),
        forward_flop_by_module=forward.flop_by_module,
        flop_by_module=step.flop_by_module,
        bytes_by_module=step.bytes_by_module,
        memory=memory,
        allocations=allocations.as_text(rows),
    )


class _ModuleCounter(FlopCounter):
    """Counter that knows the innermost module of each op, of the forward and of the backward pass."""

    def __init__(self, model: nn.Module, follower: StorageFollower) -> None:
        super().__init__()
        self._follower = follower
        self._entered = [OUTSIDE]
        self._next_number = torch._C._autograd._get_sequence_nr()  # noqa: SLF001
        self._of_number: dict[int, str] = {}
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

    def ran(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Follow the storages of an op."""
        self._follower.where = self.module
        self._follower.ran(func, (*args, *kwargs.values()), output, None)

    def _enter(self, name: str, *_: object) -> None:
        self._entered.append(name)

    def _leave(self, *_: object) -> None:
        self._entered.pop()


class _FakeStep:
    """Training step on tensors that have a shape, a type and a device, but no memory; used inside FakeTensorMode.

    `is_first`: False for a step with a module that has made one, whose gradients it has.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        precision: Precision,
        device_type: str,
        *,
        shape: tuple[int, ...],
        is_first: bool = True,
    ) -> None:
        if is_first:
            # `Module.to_empty` would read the real tensors, which `FakeTensorMode` forbids.
            module._apply(lambda t: torch.empty(t.shape, dtype=t.dtype, device=device_type))  # noqa: SLF001 - as Module.to
        self._module = module
        self._optimizer = make_optimizer(module.parameters(), optimizer)
        self._precision = precision
        self._device_type = device_type
        self._follower = StorageFollower(device_type)
        self.counter = _ModuleCounter(module, self._follower)
        if is_first:
            # A steady step begins with the gradients and the optimizer's state of the step before.
            for parameter in module.parameters():
                parameter.grad = torch.empty_like(parameter)
            self._optimizer.step()
        self._follower.called(module, ())
        self._follower.optimizer(self._optimizer)
        self._images = torch.empty(shape, device=self._device_type)
        self._labels = torch.empty(shape[0], dtype=torch.long, device=self._device_type)
        self._follower.holds((self._images, self._labels), Kind.INPUTS)
        self._adds = False

    def pass_(self) -> tuple[Tally, Tally]:
        """Counts of the forward pass, and of forward pass, loss and backward pass together."""
        before = self.counter.tally()
        dtype = AUTOCAST_DTYPES.get(self._precision)
        autocast = torch.autocast(self._device_type, dtype=dtype, enabled=dtype is not None)
        with self.counter:
            with autocast:
                output = self._module(self._images)
                forward = self.counter.tally().plus(before, times=-1)
                loss = models.loss(output, self._labels)
                del output
            # As our trainer does, free the gradients between the forward and the backward pass.
            if not self._adds:
                self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self._adds = True
        return forward, self.counter.tally().plus(before, times=-1)

    def update(self) -> Tally:
        """Counts of one optimizer step."""
        before = self.counter.tally()
        with self.counter:
            if self._precision is Precision.AMP:
                # Like GradScaler, divide all gradients by the loss scale in one pass.
                gradients = [each.grad for each in self._module.parameters() if each.grad is not None]
                torch._foreach_mul_(gradients, 1.0)
            self._optimizer.step()
        return self.counter.tally().plus(before, times=-1)

    def memory(self) -> CountedMemory:
        """Storages of all passes and the optimizer step that were counted."""
        return self._follower.end_step([self._optimizer])


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


@contextlib.contextmanager
def _rejections(model: str, shape: tuple[int, ...]) -> Iterator[None]:
    """Convert errors of a model's own checks and kernels about unsuitable images to `UsageError`."""
    try:
        yield
    except (AssertionError, RuntimeError, ValueError) as error:
        if explain_shortage(error, ""):
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
    module._apply(lambda t: torch.zeros(t.shape, dtype=t.dtype))  # noqa: SLF001 - see `_FakeStep`
    image = torch.zeros(1, 3, image_size, image_size)
    # fvcore lists the ops it does not know; torch.jit warns about tracing and about its own deprecation.
    with _quiet(FVCORE_LOGGER), _rejections(model, image.shape):
        from fvcore.nn import FlopCountAnalysis  # noqa: PLC0415 - optional

        return float(FlopCountAnalysis(module, image).total())


@contextlib.contextmanager
def _quiet(*names: str) -> Iterator[None]:
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


# --- counts that are kept beside the bundles, because counting takes as long as a short run


def read_kept(folder: Path, asked: Mapping[str, Any]) -> Complexity | None:
    """Stored count for the arguments `asked` of `complexity.count`; None if `folder` has none."""
    with contextlib.suppress(KeyError, TypeError, ValueError):
        facts = _entries(folder)[_key(asked)]
        memory = from_facts(StepMemory, facts["memory"])
        return Complexity(**{**facts, "uncounted": tuple(facts["uncounted"]), "memory": memory})
    return None


def keep(folder: Path, asked: Mapping[str, Any], counted: Complexity) -> None:
    """Store a count if it is new. The oldest entries make room for it; a folder that cannot be written is no error."""
    stored, key = _entries(folder), _key(asked)
    if key in stored:
        return
    newest = dict([*stored.items()][-(MAX_ENTRIES - 1) :])
    text = json.dumps({"counted_by": _counted_by(), "counts": {**newest, key: asdict(counted)}})
    with contextlib.suppress(OSError):
        replace_text(folder / KEPT_COUNTS, text, shared=True, durable=False)


def _entries(folder: Path) -> dict[str, Any]:
    """Stored counts by key; empty if the file is absent, damaged, or of other code or packages."""
    with contextlib.suppress(OSError, KeyError, TypeError, ValueError, AttributeError):
        content = json.loads((folder / KEPT_COUNTS).read_text(encoding="utf-8"))
        if content["counted_by"] == _counted_by():
            return dict(content["counts"])
    return {}


def _key(asked: Mapping[str, Any]) -> str:
    return json.dumps(asked, sort_keys=True)


@cache
def _counted_by() -> str:
    code = sha256()
    for file in (__file__, flop.__file__, models.__file__, training_step.__file__, step_memory.__file__):
        code.update(Path(file).read_bytes())
    return " ".join([code.hexdigest(), *(version(name) or "absent" for name in PACKAGES)])
