"""Compute Engine as a backend of `launch`: what is asked before there is a VM, and who is asked."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from launcher.backends.gcp import compute
from launcher.backends.gcp.compute import Compute
from launcher.backends.gcp.machines import ComputeMachines
from launcher.backends.gcp.settings import Settings
from launcher.checks import Check
from launcher.jobs import launches
from launcher.jobs.records import LAUNCHES
from workload.storage import gcs
from workload.storage.gcs import Bucket


@dataclass(frozen=True, kw_only=True)
class ComputeEngine:
    """The backend `gcp`; a test replaces what it reaches out to."""

    name: str = "gcp"
    connect: Callable[[str], Compute] = compute.connect
    sleep: Callable[[float], None] = time.sleep

    def machines(self, settings: Settings) -> ComputeMachines:
        return ComputeMachines(self.connect(settings.project), sleep=self.sleep)

    def store(self, settings: Settings) -> Bucket:
        return gcs.connect(settings.bucket, prefix=LAUNCHES, jobs=launches.READERS)

    def checks(self, where: Any) -> Iterator[Check]:
        from launcher.backends.gcp import doctor  # noqa: PLC0415 - only `launch doctor` needs it

        return iter(doctor.examine(where))


backend = ComputeEngine()
