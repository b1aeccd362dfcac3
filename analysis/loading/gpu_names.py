"""Recognize GPU names in labels and file names, and compare them with full device names."""

import functools
import re

# Matches `rtx4080laptop`, `Tesla V100-SXM2-16GB`, `H100_SXM5`, `AMD Instinct MI300X`.
GPU = re.compile(
    r"(?<![a-z0-9])(?:(?:(?:geforce|quadro)[-_ ]*)?(rtx|gtx)[-_ ]*(\d{4})([-_ ]*ti|[-_ ]*super)?"
    r"|(p4|p40|p100|v100|t4|a10|a30|a40|a100|l4|l40|h100|h200|mi\d{2,3}[ax]?))(?![0-9])",
    re.IGNORECASE,
)
LAPTOP = re.compile(r"laptop|mobile", re.IGNORECASE)


# A report asks for the same few names thousands of times.
@functools.lru_cache(maxsize=1024)
def gpus_named(text: str) -> frozenset[str]:
    """Short names of the GPUs in a text: `v100` for `tesla v100-sxm2`; laptop GPUs differ from desktop ones."""
    laptop = " laptop" if LAPTOP.search(text) else ""
    gpus = set()
    for match in GPU.finditer(text.replace("_", " ")):
        family, number, suffix, other = match.groups()
        geforce = f"{family}{number}{(suffix or '').strip('-_ ')}{laptop}"
        gpus.add((other or geforce).lower())
    return frozenset(gpus)


def is_among(gpu: str, known: frozenset[str]) -> bool:
    """Whether a short name means one of the `known` GPUs: `mi300` is the series of `mi300x` and `mi300a`."""
    return gpu in known or any(gpu == one.rstrip("ax") for one in known)


def can_name(label: str, device: str) -> bool:
    """Whether a label can mean the device with this full name, as `v100` for `Tesla V100-SXM2-16GB`."""
    named = gpus_named(label)
    known = gpus_named(device)
    return all(is_among(gpu, known) for gpu in named) if named else folded(label) in folded(device)


def folded(name: str) -> str:
    """Letters and digits of a name, without case: `ResNet-50` and `resnet50` are the same."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())
