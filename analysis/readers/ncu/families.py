"""Classify kernels by name: the ordered patterns of families.toml."""

import functools
import re
import tomllib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from workload.contract.vocabulary import TELLING_CHARACTERS

_TABLE = Path(__file__).with_name("families.toml")


class Family(StrEnum):
    """Kinds of kernels in a training step."""

    CONVOLUTION = "convolution"
    GEMM = "GEMM"
    BATCH_NORM = "batch norm"
    LAYER_NORM = "layer norm"
    ELEMENTWISE = "elementwise"
    POOLING = "pooling"
    REDUCTION = "reduction"
    ATTENTION = "softmax/attention"
    OPTIMIZER = "optimizer"
    COPY = "copy"
    OTHER = "other"


def family(name: str) -> Family:
    """The family of the first rule that matches a kernel's name; `other` if none does."""
    beginning = name[:TELLING_CHARACTERS]
    return next((family for pattern, family in _rules() if pattern.search(beginning)), Family.OTHER)


def is_backward(name: str) -> bool:
    """Whether only a backward pass launches kernels of this name; many backward kernels have neutral names."""
    return _pattern("backward").search(name[:TELLING_CHARACTERS]) is not None


@functools.cache
def _content() -> dict[str, Any]:
    return tomllib.loads(_TABLE.read_text(encoding="utf-8"))


@functools.cache
def _rules() -> tuple[tuple[re.Pattern[str], Family], ...]:
    return tuple((_any_of(rule["names"]), Family(rule["family"])) for rule in _content()["rule"])


@functools.cache
def _pattern(section: str) -> re.Pattern[str]:
    return _any_of(_content()[section]["names"])


def _any_of(patterns: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.IGNORECASE)
