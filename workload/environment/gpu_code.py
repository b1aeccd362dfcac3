"""Tests if this build of torch has code for given GPUs; as a script, `python gpu_code.py 7.5 8.0` exits with 1 if not.

A cubin runs on its own compute capability and on later minor ones of the same major version:
docs.nvidia.com/cuda/ampere-compatibility-guide, "Binary compatibility". PTX does not count. It is compiled at the first
start, which takes minutes and would distort measurements.
"""

import sys
from collections.abc import Iterable, Sequence


def missing(capabilities: Iterable[str], targets: Sequence[str]) -> list[str]:
    """Compute capabilities (`8.9`) that no target (`sm_86`) supports, in the order of `capabilities`."""
    built = {_split(target.removeprefix("sm_")) for target in targets if target.startswith("sm_")}
    asked = {name: tuple(map(int, name.split("."))) for name in capabilities}
    return [name for name, (major, minor) in asked.items() if not any(major == of and minor >= at for of, at in built)]


def built_targets() -> list[str]:
    """Targets that torch was built for: `sm_75`, `sm_80`, …; empty for a CPU build. Needs no GPU."""
    import torch  # noqa: PLC0415 - only the script needs it

    # torch.cuda.get_arch_list() is empty on a machine without a GPU.
    flags = getattr(torch._C, "_cuda_getArchFlags", None)  # noqa: SLF001 - see above
    text: str | None = flags() if flags else None
    return (text or "").split()


def _split(digits: str) -> tuple[int, int]:
    number = digits.rstrip("abcdefghijklmnopqrstuvwxyz")
    return int(number[:-1]), int(number[-1])


def main(capabilities: Sequence[str]) -> int:
    """Print the `capabilities` for which torch has no code. Returns 0 if torch has code for all of them, else 1."""
    targets = built_targets()
    absent = missing(capabilities, targets)
    if absent:
        print(f"error: torch has no code for compute capability {', '.join(absent)}; it has {' '.join(targets)}")
    return 1 if absent else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
