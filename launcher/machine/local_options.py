"""Options of `launch local`, besides those of the run. Imports little, for `launch --help`."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher import sizes
from launcher.choice import choice
from launcher.kinds import Runtime
from workload.contract.errors import UsageError

if TYPE_CHECKING:
    from launcher.machine.containers import ContainerLimits


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """Options of `launch local`. `image` and `flavour` ask for a container.

    A limit of None allows as much as the machine has.
    """

    runtime: Runtime = choice(
        "auto: a container if its image is built, else a process",
        default=Runtime.AUTO,
        metavar="|".join(Runtime),
        show_default=False,
    )
    image: str | None = choice("run this image", default=None, metavar="NAME")
    flavour: str | None = choice("use the image of this flavour", default=None, metavar="cpu|cuda|volta")
    shm_size: str = choice(
        "a container's /dev/shm, for each device", default=sizes.text(sizes.DEFAULT_SHM_BYTES), metavar="SIZE"
    )
    memory: str | None = choice("a container's memory limit, for example 8g", default=None, metavar="SIZE")
    cpus: float | None = choice("a container's CPU limit, for example 1.5", default=None, metavar="N")
    gpu_index: int | None = choice("the GPU with this index in nvidia-smi", default=None, metavar="N", min=0)

    def limits(self) -> "ContainerLimits":
        """Limits of the container. Raises `UsageError` for a text that is no limit."""
        from launcher.machine.containers import ContainerLimits  # noqa: PLC0415 - a help text has no use for it

        if self.cpus is not None and not (math.isfinite(self.cpus) and self.cpus > 0):
            raise UsageError(f"--cpus must be a positive number; got '{self.cpus:g}'", hint="--cpus 1.5")
        return ContainerLimits(
            shm_bytes=sizes.parse_bytes(self.shm_size, flag="--shm-size", example="2g"),
            memory_bytes=(
                None if self.memory is None else sizes.parse_bytes(self.memory, flag="--memory", example="8g")
            ),
            cpus=self.cpus,
        )

    def asked_runtime(self) -> Runtime:
        """Requested runtime. An image, a flavour or a limit asks for a container.

        Raises `UsageError` if two options contradict each other.
        """
        is_limited = self.limits() != LocalOptions().limits()
        asked = {"image": self.image, "flavour": self.flavour, "limits": is_limited}
        for_a_container = [name for name, is_asked in asked.items() if is_asked]
        if self.runtime is Runtime.PROCESS and for_a_container:
            raise UsageError(
                f"{' and '.join(for_a_container)} cannot be used with --runtime process: only containers have them",
                hint="--runtime docker, or leave them out",
            )
        return Runtime.DOCKER if for_a_container else self.runtime
