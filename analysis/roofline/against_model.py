"""Counted FLOP against the model: are they complete, and do they fit what the user said about an import? Pure.

Table, figures, report and audit follow one rule: a lower bound is marked, has no verdict and no share of a roof, and is
compared with nothing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from analysis.kernels import in_steps
from analysis.loading import model_work
from analysis.loading.model_work import ModelWork
from analysis.readers.ncu.metrics import Family, is_backward
from workload.contract.record import Spec
from workload.contract.text import counted, si
from workload.contract.vocabulary import MODEL_RATIO_FROM, MODEL_RATIO_TO

if TYPE_CHECKING:
    import pandas as pd

    from analysis.readers.trace_model import TracedModel

TENSOR = "tensor operations that are not counted"
PARTLY = "some operations of a number type were not counted"
PARTIAL = "the profile is partial"
FEWER = "fewer than the model has"
NO_BACKWARD = "no kernels of a backward pass, so a part of a step"


# Families of kernels that compute no products: the model's formulas count products alone.
_WITHOUT_PRODUCTS = (
    *(Family.BATCH_NORM, Family.LAYER_NORM, Family.ELEMENTWISE, Family.POOLING, Family.REDUCTION, Family.OPTIMIZER),
    Family.COPY,
)
# Winograd's algorithm for filters of 3 x 3 saves 36 / 16 of the FLOP for tiles of 2 x 2 outputs, as cuDNN's fused
# kernels `tile148` do, and 144 / 36 for tiles of 4 x 4 (Lavin and Gray, arXiv:1509.09308).
_SAVES_2X2, _SAVES_4X4 = 2.25, 4.0


def model_flop(kernels: "pd.DataFrame") -> tuple[float, float]:
    """The least and the most FLOP by formula that the counted FLOP of these launches can stand for.

    Convolutions by Winograd or FFT execute fewer FLOP than their formula has. In kernels that only transform, the
    products are in the GEMM that follows. FFT has no limit.
    """
    names = kernels["name"].astype("category")

    def is_named(pattern: str) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        return names.cat.categories.astype(str).str.contains(pattern, case=False)[names.cat.codes.to_numpy()]

    is_fast, family, flop = is_named("winograd"), kernels["family"].astype(str), kernels["flop"].to_numpy()
    follows = np.concatenate([[False], is_fast[:-1]]) & (family == Family.GEMM).to_numpy()
    saves = np.where(is_fast | follows, np.where(is_named("tile148"), _SAVES_2X2, _SAVES_4X4), 1.0)
    least = flop[~family.isin(_WITHOUT_PRODUCTS).to_numpy()].sum()
    return float(least), math.inf if is_named(r"fft\dd|cgemm").any() else float((flop * saves).sum())


def uncounted_operations(kernels: "pd.DataFrame") -> str | None:
    """Text on operations of counted kernels that the counters missed; None if no such operation is known."""
    is_counted = kernels["flop"].notna()
    if (is_counted & kernels["hides_tensor_flop"]).any():
        return TENSOR
    return PARTLY if (is_counted & kernels["flop_is_lower_bound"]).any() else None


def reasons(
    *, uncounted: str | None, is_partial: bool, has_backward: bool | None, counted: float | None, model: float | None
) -> tuple[str, ...]:
    """Reasons why counted FLOP are incomplete; empty if they are complete.

    `uncounted`: operations without a counter. `has_backward`: None if unknown. `counted`, `model`: FLOP of the same
    number of steps, by counters and by formula.
    """
    known = []
    if uncounted:
        known.append(uncounted)
    if is_partial:
        known.append(PARTIAL)
    if has_backward is False:
        known.append(NO_BACKWARD)
    if not known and counted is not None and model and counted < MODEL_RATIO_FROM * model:
        known.append(FEWER)
    return tuple(known)


def counted_over_model(counted_flop: float | None, model_flop: float | None) -> float | None:
    """Counted FLOP divided by those of the model's formulas; None if either is unknown."""
    return counted_flop / model_flop if counted_flop is not None and model_flop else None


def model_warning(ratio: float | None, at_most: float | None = None) -> str | None:
    """A warning if counters and formulas disagree by more than kernels explain; else None.

    `at_most`: `ratio` with the FLOP that fast convolutions saved.
    """
    if ratio is None or MODEL_RATIO_FROM <= ratio <= MODEL_RATIO_TO or ratio < MODEL_RATIO_FROM <= (at_most or 0.0):
        return None
    cause = (
        "tensor operations or the backward pass are missing"
        if ratio < MODEL_RATIO_FROM
        else "padding, recomputation, or more steps than were said"
    )
    return f"counted FLOP are {ratio:.3g} x the model's: {cause}"


# Range of the ratio in which counted FLOP fit another interpretation: padding and element-wise work add 10 %.
FITS_FROM, FITS_TO = 0.85, 1.2
# Number of classes of the models in the table; for other data sets, the last layer is replaced.
CLASSES = 1000


@dataclass(frozen=True, kw_only=True)
class _Claim:
    """Counted FLOP of a profile, and the model, batch size and steps that the user named; `steps`: None if not named.

    `flop_from`, `flop_to`: FLOP by formula that the counted FLOP can stand for. `is_input_known`: batch size and image
    size are those of the profile's own first input.
    """

    flop: float
    flop_from: float
    flop_to: float
    work: ModelWork
    batch_size: int
    steps: int | None
    is_forward_alone: bool
    is_input_known: bool = False

    def per_image(self, work: ModelWork) -> int:
        return work.forward_flop_per_image if self.is_forward_alone else work.train_flop_per_image

    @property
    def expected(self) -> float:
        return self.per_image(self.work) * self.batch_size * (self.steps or 1)

    @property
    def ratio(self) -> float:
        return self.flop / self.expected

    @property
    def is_low(self) -> bool:
        return self.flop_to < MODEL_RATIO_FROM * self.expected

    @property
    def is_high(self) -> bool:
        return self.flop_from > MODEL_RATIO_TO * self.expected

    def fits(self, expected: float) -> bool:
        """Whether the counted FLOP can be those of another interpretation."""
        return FITS_FROM * expected <= self.flop_to and self.flop_from <= FITS_TO * expected


def contradiction(spec: Spec, kernels: "pd.DataFrame", *, steps: float | None, is_partial: bool) -> str | None:
    """A sentence if counted FLOP and those of the named model differ by more than kernels explain, with likely causes.

    None if both agree, if either is unknown, or if the counted FLOP are too low because the count is known to be
    incomplete.
    """
    size, _ = model_work.image_size_of(spec)
    work = model_work.find(spec.model, size)
    kernels, _ = in_steps(kernels)
    if work is None or kernels.empty or kernels["flop"].isna().any():
        return None
    flop_from, flop_to = model_flop(kernels)
    claim = _Claim(
        flop=float(kernels["flop"].sum()),
        flop_from=flop_from,
        flop_to=flop_to,
        work=work,
        batch_size=spec.batch_size,
        steps=int(steps) if steps else None,
        is_forward_alone=not any(is_backward(str(name)) for name in kernels["name"].unique()),
    )
    is_known_to_be_low = is_partial or uncounted_operations(kernels) is not None
    is_wrong = claim.is_high or (claim.is_low and not is_known_to_be_low)
    return _sentence(claim, "counted") if is_wrong else None


def trace_contradictions(
    spec: Spec, flop: float, model: "TracedModel", *, passes_per_step: int, has_backward: bool
) -> Iterator[str]:
    """Sentences on contradictions between a trace's shapes and the named model: operators, weights, FLOP of a step.

    `flop`: FLOP of a step, without those that gradient checkpointing repeats. The trace's own input takes precedence
    over the user's batch size.
    """
    size, _ = model_work.image_size_of(spec)
    named = next(iter(model_work.at_all_sizes(spec.model)), None)
    if named is None:
        return
    if not model.has_convolution and model.has_embedding:
        yield f"the trace embeds tokens and has no convolution, but the import was given model '{spec.model}'"
        return
    if other := _other_model(model, named):
        yield f"{other}, but the import was given model '{spec.model}'"
        return
    work = model_work.find(spec.model, model.image_size or size)
    if work is None:
        return
    images = (model.batch_size or 0) * passes_per_step if model.is_of_images else 0
    claim = _Claim(
        flop=flop,
        flop_from=flop,
        flop_to=flop,
        work=work,
        batch_size=images or spec.batch_size,
        steps=1,
        is_forward_alone=not has_backward,
        is_input_known=bool(images and model.image_size),
    )
    if claim.is_low or claim.is_high:
        yield _sentence(claim, "by the trace's shapes")


def _other_model(model: "TracedModel", named: ModelWork) -> str | None:
    """A sentence if the trace's number of weights fits another model, or none, but not the named one; else None.

    The last layer may have another number of classes.
    """
    parameters = model.with_classes(CLASSES)
    if not parameters or parameters in {work.parameters for work in model_work.at_all_sizes(named.model)}:
        return None
    owners = sorted({work.model for work in model_work.table().values() if work.parameters == parameters})
    if owners:
        return f"the trace's {model.parameters} parameters are those of {' or '.join(owners)}"
    # In a trace of compiled code only gradients show which weights there are, and frozen layers have none: then the
    # trace does not show the whole model.
    is_whole = model.parameters_in_modules is not None and model.parameters_in_modules == model.parameters
    ratio = parameters / named.parameters
    if ratio <= MODEL_RATIO_TO and (ratio >= MODEL_RATIO_FROM or not is_whole):
        return None
    return f"the trace's weights have {model.parameters} parameters, {named.model} {named.parameters}"


def _sentence(claim: _Claim, origin: str) -> str:
    where = f"in {counted(claim.steps, 'step')}" if claim.steps else "in the whole profile"
    what = (
        f"{'the forward pass' if claim.is_forward_alone else 'a step'} of {claim.work.model}"
        f" at batch size {claim.batch_size}"
    )
    expected = f"{si(claim.expected / (claim.steps or 1), 'FLOP', 4)} by the model in {what}"
    times = f" x {claim.steps}" if (claim.steps or 1) > 1 else ""
    return (
        f"{si(claim.flop, 'FLOP', 4)} {origin} {where}, {expected}{times}: {claim.ratio:.3g} x;"
        f" likely {', or '.join(_causes(claim))}"
    )


def _causes(claim: _Claim) -> Iterator[str]:
    for work in model_work.at_all_sizes(claim.work.model):
        is_possible = work.image_size != claim.work.image_size and not claim.is_input_known
        if is_possible and claim.fits(claim.per_image(work) * claim.batch_size * (claim.steps or 1)):
            yield f"images of {work.image_size} x {work.image_size} pixels (--image-size {work.image_size})"
    if claim.is_input_known:
        if claim.ratio < 1:
            yield "a part of a step"
        yield f"another model than {claim.work.model}"
        return
    images = claim.flop / claim.per_image(claim.work)
    named = claim.batch_size * (claim.steps or 1)
    steps = round(images / claim.batch_size)
    if claim.ratio > 1 and steps > 1 and FITS_FROM <= images / (steps * claim.batch_size) <= FITS_TO:
        yield f"{steps} steps (--profile-steps {steps})"
    if images >= MODEL_RATIO_FROM and round(images) != named:
        yield f"another batch size: the FLOP are those of {counted(max(1, round(images)), 'image')}, not of {named}"
    if claim.ratio < 1:
        yield "a part of a step"
    yield f"another model than {claim.work.model}"
