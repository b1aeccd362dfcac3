"""The tables of `analyze variance`, by name. Light: the command line needs it before pandas."""

from enum import StrEnum


class Part(StrEnum):
    """One of them."""

    BETWEEN = "between"
    WITHIN = "within"
    CAUSES = "causes"
