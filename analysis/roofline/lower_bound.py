"""Detect counted FLOP that are incomplete, so that rate and intensity are only lower bounds. Pure.

Table, figures, report and audit follow one rule: a lower bound is marked, has no verdict and no share of a roof, and is
compared with nothing.
"""

from typing import TYPE_CHECKING

from workload.contract.vocabulary import MODEL_RATIO_FROM, MODEL_RATIO_TO

if TYPE_CHECKING:
    import pandas as pd

TENSOR = "tensor operations that are not counted"
PARTLY = "some operations of a number type were not counted"
PARTIAL = "the profile is partial"
FEWER = "fewer than the model has"
NO_BACKWARD = "no kernels of a backward pass, so a part of a step"


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


def model_warning(ratio: float | None) -> str | None:
    """A warning if counters and formulas disagree by more than kernels explain; else None."""
    if ratio is None or MODEL_RATIO_FROM <= ratio <= MODEL_RATIO_TO:
        return None
    cause = (
        "tensor operations or the backward pass are missing"
        if ratio < MODEL_RATIO_FROM
        else "padding, recomputation, or more steps than were said"
    )
    return f"counted FLOP are {ratio:.3g} x the model's: {cause}"
