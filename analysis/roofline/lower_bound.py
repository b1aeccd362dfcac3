"""Detect counted FLOP that are incomplete, so that rate and intensity are only lower bounds. Pure.

Table, figures, report and audit follow one rule: a lower bound is marked, has no verdict and no share of a roof, and is
compared with nothing.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from analysis.readers.ncu.families import Family
from workload.contract.vocabulary import MODEL_RATIO_FROM, MODEL_RATIO_TO

if TYPE_CHECKING:
    import pandas as pd

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
