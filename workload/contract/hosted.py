"""Services that host notebooks: how a process finds out that it runs there, and how their users get a GPU."""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Service:
    """A service. `variable`: environment variable that its machines set; `gpu`: how its user gets a GPU."""

    name: str
    variable: str
    gpu: str


# Kaggle first: its image is made from Colab's, and may keep the variables of that image. Source: Kaggle/docker-python
# 78aaa43, Dockerfile.tmpl and patches/kaggle_module_resolver.py, read 2026-11.
SERVICES = (
    Service(
        name="Kaggle",
        variable="KAGGLE_KERNEL_RUN_TYPE",
        gpu="Settings > Accelerator, or enable_gpu in kernel-metadata.json",
    ),
    Service(name="Colab", variable="COLAB_RELEASE_TAG", gpu="Runtime > Change runtime type > T4 GPU"),
)
# Hint if the GPU's driver refuses to count: users cannot change the settings of the service's driver.
WITHOUT_COUNTERS = "--profile torch, which needs no counters: the driver belongs to the service"


def service(environ: Mapping[str, str] = os.environ) -> Service | None:
    """The service on which this process runs; None elsewhere."""
    return next((service for service in SERVICES if service.variable in environ), None)
