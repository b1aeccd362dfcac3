"""A roof, the work of a step below it, and its intensity. Pure."""

from dataclasses import dataclass

from workload.contract.verdict import RoofKind


@dataclass(frozen=True, kw_only=True)
class Roof:
    """The most that a device does: right of the ridge `flop_per_s`, left of it `bytes_per_s` times intensity."""

    kind: RoofKind
    flop_per_s: float
    bytes_per_s: float

    def at(self, intensity: float) -> float:
        """FLOP/s that a step of this intensity (FLOP/byte) can reach."""
        return min(self.flop_per_s, intensity * self.bytes_per_s)

    @property
    def ridge(self) -> float:
        """FLOP/byte from which on arithmetic is the limit."""
        return self.flop_per_s / self.bytes_per_s


@dataclass(frozen=True, kw_only=True)
class Work:
    """A step: its FLOP, and from how many to how many bytes it moves; None for what is unknown."""

    flop: float | None
    bytes_low: float | None
    bytes_high: float | None

    def moved(self, step_s: float | None, roof: Roof | None) -> float | None:
        """The bytes to place the step by: the upper end, but no more than the memory can move in its time.

        Eager PyTorch writes each operation's result to memory, so the upper end is the better guess; what lies beyond
        the measured bandwidth must have stayed in caches.
        """
        if self.bytes_low is None or self.bytes_high is None:
            return None
        if step_s is None or roof is None:
            return self.bytes_high
        return max(self.bytes_low, min(self.bytes_high, step_s * roof.bytes_per_s))


def intensity(flop: float | None, moved_bytes: float | None) -> float | None:
    """FLOP per byte: of a step the sum of FLOP by the sum of bytes, never a mean over kernels."""
    return flop / moved_bytes if flop is not None and moved_bytes else None
