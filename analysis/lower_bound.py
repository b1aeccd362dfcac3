"""Where counted FLOP are fewer than the step's, so that rate and intensity are no more than a lower bound. Pure.

One rule for the table, the figures, the report and the audit: a lower bound is marked, has no verdict and no share of a
roof, and is compared with nothing.
"""

from typing import TYPE_CHECKING

from workload.contract.vocabulary import MODEL_RATIO_FROM, MODEL_RATIO_TO

if TYPE_CHECKING:
    import pandas as pd

LOWER_BOUND = "FLOP are a lower bound"
TENSOR = "tensor operations that nothing counts"
PARTLY = "not every operation of a number type was counted"
PARTIAL = "the profile is partial"
FEWER = "fewer than the model has"
NO_BACKWARD = "no kernels of a backward pass, so a part of a step"


def of_kernels(kernels: "pd.DataFrame") -> str | None:
    """Which operations of a profile's launches nothing counts, where some were counted; None where all were."""
    is_counted = kernels["flop"].notna()
    if (is_counted & kernels["hides_tensor_flop"]).any():
        return TENSOR
    return PARTLY if (is_counted & kernels["flop_is_lower_bound"]).any() else None


def reasons(
    *, uncounted: str | None, is_partial: bool, has_backward: bool | None, counted: float | None, model: float | None
) -> tuple[str, ...]:
    """Why FLOP that were counted are not all of the step's; none where they are.

    `uncounted`: which operations have no counter. `has_backward`: None where nobody knows. `counted`, `model`: FLOP of
    as many steps, by counters and by formula.
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
    """Executed FLOP by those of the model's formulas."""
    return counted_flop / model_flop if counted_flop is not None and model_flop else None


def model_warning(ratio: float | None) -> str | None:
    """What to say where a counter and the formulas disagree by more than kernels explain."""
    if ratio is None or MODEL_RATIO_FROM <= ratio <= MODEL_RATIO_TO:
        return None
    cause = (
        "tensor operations or the backward pass are missing"
        if ratio < MODEL_RATIO_FROM
        else "padding, recomputation, or more steps than were said"
    )
    return f"counted FLOP are {ratio:.3g} x the model's: {cause}"
