"""How a claim is judged: it holds, it is disproved, or the evidence does not settle it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

from analysis.truth.evidence import GpuEvidence


class ClaimVerdict(StrEnum):
    """What the evidence says of a claim."""

    HOLDS = "holds"
    DISPROVED = "disproved"
    OPEN = "not settled"


class NotSettledError(Exception):
    """The evidence cannot answer; its text says why."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What was found, and whether the claim holds."""

    found: str
    holds: bool


@dataclass(frozen=True, kw_only=True)
class GpuClaim:
    """What this project says of GPUs, what should then be found, in which parts, and how they are read.

    `judge` gets the evidence of these parts, in this order.
    """

    claim: str
    expected: str
    parts: tuple[str, ...]
    judge: Callable[..., Observation]

    def row(self, evidence: GpuEvidence) -> dict[str, Any]:
        """As a row of the table."""
        shown = {"claim": self.claim, "expected": self.expected, "found": None, "parts": list(self.parts)}
        missing = [part for part in self.parts if not isinstance(evidence.of(part), dict)]
        if missing:
            return {**shown, "verdict": ClaimVerdict.OPEN, "why": evidence.why_not(missing[0])}
        try:
            finding = self.judge(*map(evidence.of, self.parts))
        except NotSettledError as error:
            return {**shown, "verdict": ClaimVerdict.OPEN, "why": str(error)}
        # Evidence comes from other machines and other versions: whatever its shape, it costs its own row.
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
    """Whether every figure is the expected one, within a share of it."""
    holds = all(abs(value - expected) <= within * abs(expected) for value in found.values())
    return Observation(found=figures(found), holds=holds)


def figures(found: Mapping[str, float]) -> str:
    """`a 1, b 2.5`."""
    if not found:
        raise NotSettledError("there are no figures")
    return ", ".join(f"{name} {value:.4g}" for name, value in found.items())


def mean(values: Sequence[float | None]) -> float | None:
    """Of what is known; None for nothing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def middle(values: Sequence[float]) -> float:
    """The median; raises for none."""
    if not values:
        raise NotSettledError("there are no figures")
    return float(median(values))
