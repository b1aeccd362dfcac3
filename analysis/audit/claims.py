"""Audit of published figures, one per row of a CSV, against the model's work and the device's peaks.

Only the columns `name`, `device_name` and `model` are required; a rule skips rows without the figures that the rule
compares. Names of columns contain the unit, for example `step_s`; `efficiency` is a fraction.
"""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from analysis.audit.flop import OVER_PEAK
from analysis.audit.rule import Finding, Hit, Rule, Severity, by_severity
from analysis.loading import model_work
from analysis.loading.units import IMAGES
from workload.contract import peaks
from workload.contract.errors import UsageError
from workload.contract.peaks import Peak
from workload.contract.spec import IMAGENET_IMAGE_SIZE, Precision
from workload.contract.text import percent, seconds, si
from workload.contract.vocabulary import MODEL_RATIO_FROM, MODEL_RATIO_TO

# The number of MACs is half of the FLOP; rounding and means of rates change published figures by some 20 %.
MAC_SHARE_FROM, MAC_SHARE_TO = 0.4, 0.6
# Vendors round their peaks, and clocks differ between boards; the peak of another device differs by more.
PEAK_WITHIN = 0.07
# A wrong SI prefix is a factor of 1000; no other error gives a factor in this range.
THOUSAND_FROM, THOUSAND_TO = 800.0, 1250.0
# Intensities are published with three digits or more.
INTENSITY_WITHIN = 0.02


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Published figures of one row. `efficiency`: fraction of `peak_flop_per_s`.

    `estimated_step_s`: published estimate of the step time, which should be `flop_per_step` / `peak_flop_per_s`.
    """

    name: str
    device_name: str
    model: str
    batch_size: float | None = None
    image_size: float | None = None
    precision: str | None = None
    images_per_s: float | None = None
    step_s: float | None = None
    flop_per_s: float | None = None
    flop_per_step: float | None = None
    bytes_per_s: float | None = None
    intensity_flop_per_byte: float | None = None
    efficiency: float | None = None
    peak_flop_per_s: float | None = None
    estimated_step_s: float | None = None

    @property
    def flop_per_image(self) -> float | None:
        """Published FLOP/s (or efficiency x peak) divided by images/s; None if a figure is missing."""
        rate = self.flop_per_s or (self.efficiency or 0.0) * (self.peak_flop_per_s or 0.0)
        return rate / self.images_per_s if rate and self.images_per_s else None

    @property
    def model_flop_per_image(self) -> float | None:
        """Training FLOP per image by the model's formulas; None if the model is unknown at this image size."""
        work = model_work.find(self.model, self.image_size or IMAGENET_IMAGE_SIZE)
        return work.train_flop_per_image if work else None

    @property
    def peak(self) -> Peak | None:
        return peaks.find(self.device_name, precision=self.precision or Precision.FP32)


TEXTS = ("name", "device_name", "model", "precision")
REQUIRED = ("name", "device_name", "model")


def read(path: Path) -> list[Claim]:
    """Read the rows of a CSV. Raises `UsageError` for an unreadable file, a wrong column or a wrong cell."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"'{path}' cannot be read: {error}", hint="--claims FILE.csv") from error
    lines = csv.DictReader(text.splitlines())
    known = [field.name for field in fields(Claim)]
    unknown = [name for name in lines.fieldnames or () if name not in known]
    lacking = [name for name in REQUIRED if name not in (lines.fieldnames or ())]
    if unknown or lacking:
        fault = f"has the unknown column '{unknown[0][:80]}'" if unknown else f"has no column {lacking[0]}"
        raise UsageError(f"'{path}' {fault}", hint=f"columns: {', '.join(known)}")
    try:
        return [_claim(path, number, row) for number, row in enumerate(lines, start=2)]
    except csv.Error as error:
        raise UsageError(f"'{path}' is no CSV: {error}", hint="--claims FILE.csv") from error


def _claim(path: Path, line: int, row: Mapping[str | None, str | None]) -> Claim:
    cells: dict[str, Any] = {}
    for name, cell in row.items():
        value = cell.strip() if isinstance(cell, str) else cell
        if name is None:
            raise UsageError(f"'{path}' line {line} has too many cells", hint="quote cells that hold a comma")
        if value and name not in TEXTS:
            with suppress(ValueError):
                cells[name] = float(value)
            if not math.isfinite(cells.get(name, math.nan)) or cells[name] <= 0:
                text = f"'{path}' line {line}: {name} must be a positive number; got '{value[:80]}'"
                raise UsageError(text, hint="correct the cell")
        elif value:
            cells[name] = value
    if lacking := [name for name in REQUIRED if name not in cells]:
        raise UsageError(f"'{path}' line {line} has no {lacking[0]}", hint="fill the cell")
    return Claim(**cells)


# --- rules


@dataclass(frozen=True, kw_only=True)
class Published:
    """Published figures that rules check, in place of `AuditEvidence`."""

    claims: Sequence[Claim]
    unit: str = IMAGES


def audit_claims(claims: Sequence[Claim]) -> list[Finding]:
    """Findings on published figures, errors first."""
    return by_severity(finding for rule in CLAIM_RULES for finding in rule.findings(Published(claims=claims)))


def each_claim(check: Callable[[Claim], str | None]) -> Callable[[Published], Iterator[Hit]]:
    """Make a rule's check from a function that returns the figure of a claim that breaks the rule, or None."""
    return lambda published: (
        Hit(subject=(claim.name,), figure=figure) for claim in published.claims if (figure := check(claim)) is not None
    )


def mac_as_flop(claim: Claim) -> str | None:
    stated, model = claim.flop_per_image, claim.model_flop_per_image
    if not stated or not model or not MAC_SHARE_FROM <= stated / model <= MAC_SHARE_TO:
        return None
    figure = (
        f"{stated / 1e9:.3g} GFLOP per image are published, but training takes {model / 1e9:.3g}: "
        f"{stated / model:.2f} x"
    )
    return f"{figure}{_corrected(claim, model)}"


def _corrected(claim: Claim, model: float) -> str:
    """Text on the correct efficiency: `model` (FLOP per image) x images/s, divided by the device's peak.

    Empty if images/s or peak is unknown.
    """
    peak = claim.peak
    if peak is None or not claim.images_per_s:
        return ""
    rate = claim.images_per_s * model
    right = percent(rate / peak.flop_per_s, decimals=1)
    if peak.flop_per_s_low:
        right += f" to {percent(rate / peak.flop_per_s_low, decimals=1)} (by power limit)"
    was = f", not {percent(claim.efficiency, decimals=1)}" if claim.efficiency else ""
    return f"; {right} of the peak of {peak.gpu}{was}"


def wrong_peak(claim: Claim) -> str | None:
    peak, stated = claim.peak, claim.peak_flop_per_s
    if peak is None or not stated:
        return None
    low, high = peak.flop_per_s_low or peak.flop_per_s, peak.flop_per_s
    if low * (1 - PEAK_WITHIN) <= stated <= high * (1 + PEAK_WITHIN):
        return None
    span = f"{low / 1e12:g} to {high / 1e12:g}" if low < high else f"{high / 1e12:g}"
    owners = sorted({gpu.gpu for gpu in peaks.gpus() for row in gpu.peaks if row.tflop_per_s * 1e12 == stated})
    owner_words = f", which is that of {', '.join(owners)}" if owners else ""
    return f"{stated / 1e12:g} TFLOP/s{owner_words}; {peak.gpu} has {span}"


def above_peak(claim: Claim) -> str | None:
    peak = claim.peak
    if peak is None:
        return None
    excesses = [
        f"{percent(rate / limit, decimals=1)} of {si(limit, unit)}"
        for rate, limit, unit in (
            (claim.flop_per_s, peak.flop_per_s, "FLOP/s"),
            (claim.bytes_per_s, peak.bytes_per_s, "B/s"),
        )
        if rate and rate > OVER_PEAK * limit
    ]
    return ", ".join(excesses) or None


def _counted_over_model(claim: Claim) -> float | None:
    model = claim.model_flop_per_image
    if not claim.flop_per_s or not claim.step_s or not claim.batch_size or not model:
        return None
    return claim.flop_per_s * claim.step_s / (model * claim.batch_size)


def _may_hide_tensor_work(claim: Claim) -> bool:
    """Whether fp32 work may run on tensor cores: PyTorch uses TF32 for convolutions by default if the device has it."""
    return claim.precision in {None, Precision.FP32, Precision.TF32} and bool(
        peaks.find(claim.device_name, precision=Precision.TF32)
    )


def tensor_flop_missing(claim: Claim) -> str | None:
    ratio = _counted_over_model(claim)
    if ratio is None or ratio >= MODEL_RATIO_FROM or not _may_hide_tensor_work(claim):
        return None
    return f"{_counts(claim, ratio)}, on a device with TF32"


def counted_against_model(claim: Claim) -> str | None:
    ratio = _counted_over_model(claim)
    if ratio is None or MODEL_RATIO_FROM <= ratio <= MODEL_RATIO_TO:
        return None
    return None if ratio < MODEL_RATIO_FROM and _may_hide_tensor_work(claim) else _counts(claim, ratio)


def _counts(claim: Claim, ratio: float) -> str:
    assert claim.flop_per_s is not None
    assert claim.step_s is not None
    counted = claim.flop_per_s * claim.step_s
    return f"{counted / 1e9:.4g} GFLOP per step counted, {ratio:.2f} x those of training"


def wrong_unit(claim: Claim) -> str | None:
    if not claim.estimated_step_s or not claim.flop_per_step or not claim.peak_flop_per_s:
        return None
    right = claim.flop_per_step / claim.peak_flop_per_s
    if not THOUSAND_FROM <= claim.estimated_step_s / right <= THOUSAND_TO:
        return None
    return f"{claim.estimated_step_s:g} s are published for {si(claim.flop_per_step, 'FLOP')}: {seconds(right)}"


def wrong_intensity(claim: Claim) -> str | None:
    if not claim.flop_per_s or not claim.bytes_per_s or not claim.intensity_flop_per_byte:
        return None
    right = claim.flop_per_s / claim.bytes_per_s
    if abs(claim.intensity_flop_per_byte / right - 1) <= INTENSITY_WITHIN:
        return None
    return f"{claim.intensity_flop_per_byte:.4g} FLOP/byte are published, but FLOP/s divided by bytes/s are {right:.4g}"


CLAIM_RULES = (
    Rule(
        name="MACs counted as FLOP",
        severity=Severity.ERROR,
        threshold=f"the model's own count of training FLOP; {MAC_SHARE_FROM:g} to {MAC_SHARE_TO:g} x this count "
        "means that MACs were counted",
        why="vendors' peaks count a fused multiply-add as 2, so the efficiency is half of the true one",
        cure="count a multiply-accumulate as 2 FLOP, forward and backward",
        check=each_claim(mac_as_flop),
    ),
    Rule(
        name="wrong peak",
        severity=Severity.ERROR,
        threshold=f"within {percent(PEAK_WITHIN)} of the vendor's figure for this device, at any of its power limits",
        why="a fraction of another device's peak says nothing about this device",
        cure="use the peak of this device: workload/contract/peaks.toml",
        check=each_claim(wrong_peak),
    ),
    Rule(
        name="above a roof",
        severity=Severity.ERROR,
        threshold=f"at most {percent(OVER_PEAK)} of the vendor's peak, because nothing runs faster than the device",
        why="the roof belongs to another device or another precision, or too many FLOP were counted",
        cure="check device and precision: fp32 on a device with TF32 is often TF32",
        check=each_claim(above_peak),
    ),
    Rule(
        name="tensor FLOP missing",
        severity=Severity.ERROR,
        threshold=f"at least {MODEL_RATIO_FROM:g} x the model's training FLOP: Winograd and FFT kernels save less",
        why="the counters of fadd, fmul and ffma leave out tensor cores: FLOP/s and intensity are many times too low",
        cure="count tensor operations too (launch local --profile ncu), or measure with TF32 off",
        check=each_claim(tensor_flop_missing),
    ),
    Rule(
        name="counted FLOP against model",
        severity=Severity.WARNING,
        threshold=f"{MODEL_RATIO_FROM:g} to {MODEL_RATIO_TO:g} x the model's training FLOP",
        why="some work was not counted or was counted twice, or the label names another model or image size",
        cure="compare the counters with a product of known size; check model, image size and steps",
        check=each_claim(counted_against_model),
    ),
    Rule(
        name="wrong unit of time",
        severity=Severity.ERROR,
        threshold=f"the estimate is FLOP divided by the peak; a factor of {THOUSAND_FROM:g} to {THOUSAND_TO:g} means a "
        "wrong unit",
        why="milliseconds were published as seconds",
        cure="FLOP divided by FLOP/s gives seconds",
        check=each_claim(wrong_unit),
    ),
    Rule(
        name="wrong intensity",
        severity=Severity.ERROR,
        threshold=f"within {percent(INTENSITY_WITHIN)} of FLOP/s divided by bytes/s, because both rates have the same "
        "duration",
        why="the point is at a wrong place in the roofline; likely causes are a mean over kernels, or prefixes of 1024",
        cure="divide the sum of FLOP by the sum of bytes, and use decimal prefixes",
        check=each_claim(wrong_intensity),
    ),
)
