"""Judge claims by evidence: a claim holds, is disproved, or is not settled."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

from benchmarks.gpu_truth.evidence import GpuEvidence


class ClaimVerdict(StrEnum):
    """Result of judging a claim."""

    HOLDS = "holds"
    DISPROVED = "disproved"
    OPEN = "not settled"


class NotSettledError(Exception):
    """The evidence cannot settle the claim; the error's text says why."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The figures that were found, and whether the claim holds."""

    found: str
    holds: bool


@dataclass(frozen=True, kw_only=True)
class GpuClaim:
    """A claim of this project about GPUs, the expected finding, the names of the evidence, and the judging function.

    `judge` is called with the evidence of `parts`, in this order.
    """

    claim: str
    expected: str
    parts: tuple[str, ...]
    judge: Callable[..., Observation]

    def row(self, evidence: GpuEvidence) -> dict[str, Any]:
        """The claim with its verdict as a row of the table."""
        shown = {"claim": self.claim, "expected": self.expected, "found": None, "parts": list(self.parts)}
        missing = [part for part in self.parts if not isinstance(evidence.of(part), dict)]
        if missing:
            return {**shown, "verdict": ClaimVerdict.OPEN, "why": evidence.why_not(missing[0])}
        try:
            finding = self.judge(*map(evidence.of, self.parts))
        except NotSettledError as error:
            return {**shown, "verdict": ClaimVerdict.OPEN, "why": str(error)}
        # Evidence comes from other machines and versions: an unexpected shape must spoil only its own row.
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError):
            why = f"part {' or '.join(self.parts)} is not as the collector writes it"
            return {**shown, "verdict": ClaimVerdict.OPEN, "why": why}
        return {
            **shown,
            "found": finding.found,
            "verdict": ClaimVerdict.HOLDS if finding.holds else ClaimVerdict.DISPROVED,
            "why": None,
        }


def exact(found: Mapping[str, float], expected: float, *, within: float = 0.0) -> Observation:
    """Check that every figure equals `expected`; `within`: the allowed relative deviation."""
    holds = all(abs(value - expected) <= within * abs(expected) for value in found.values())
    return Observation(found=figures(found), holds=holds)


def figures(found: Mapping[str, float]) -> str:
    """Figures as text: `a 1, b 2.5`. Raises `NotSettledError` if there are none."""
    if not found:
        raise NotSettledError("there are no figures")
    return ", ".join(f"{name} {value:.4g}" for name, value in found.items())


def mean(values: Sequence[float | None]) -> float | None:
    """Mean of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def middle(values: Sequence[float]) -> float:
    """The median; `NotSettledError` for no values."""
    if not values:
        raise NotSettledError("there are no figures")
    return float(median(values))
