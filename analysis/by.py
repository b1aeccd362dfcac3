"""What a row of the kernels' table sums up; apart from the rest, because `analyze --help` loads no pandas."""

from enum import StrEnum


class By(StrEnum):
    """Kinds of kernels, or kernels by name."""

    FAMILY = "family"
    KERNEL = "kernel"
