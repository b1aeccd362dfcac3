"""Roofs, the work of a step, and its arithmetic intensity. Pure."""

from dataclasses import dataclass

from workload.contract.verdict import RoofKind


@dataclass(frozen=True, kw_only=True)
class Roof:
    """The upper limit of a device: `flop_per_s` right of the ridge, `bytes_per_s` times intensity left of it."""

    kind: RoofKind
    flop_per_s: float
    bytes_per_s: float

    def at(self, intensity: float) -> float:
        """FLOP/s that a step of this intensity (FLOP/byte) can reach."""
        return min(self.flop_per_s, intensity * self.bytes_per_s)

    @property
    def ridge(self) -> float:
        """Intensity in FLOP/byte above which arithmetic is the limit."""
        return self.flop_per_s / self.bytes_per_s


@dataclass(frozen=True, kw_only=True)
class Work:
    """FLOP of a step, and lower and upper bound of the bytes that it moves; None if unknown."""

    flop: float | None
    bytes_low: float | None
    bytes_high: float | None

    def moved(self, step_s: float | None, roof: Roof | None) -> float | None:
        """Bytes from which the intensity is computed: the upper bound, limited to what memory can move in `step_s`.

        Eager PyTorch writes each operation's result to memory, so the upper bound is the better estimate. Bytes beyond
        the measured bandwidth must have stayed in caches. None if unknown.
        """
        if self.bytes_low is None or self.bytes_high is None:
            return None
        if step_s is None or roof is None:
            return self.bytes_high
        return max(self.bytes_low, min(self.bytes_high, step_s * roof.bytes_per_s))


def intensity(flop: float | None, moved_bytes: float | None) -> float | None:
    """FLOP per byte of a step: the sum of FLOP over the sum of bytes, never a mean over kernels. None if unknown."""
    return flop / moved_bytes if flop is not None and moved_bytes else None
