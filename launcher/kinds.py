"""Closed sets of values that the command line offers. Imports little, because `--help` loads this module."""

from enum import StrEnum


class Runtime(StrEnum):
    """Where a run executes. `auto`: in a container if an engine has the image for this code, else in a process."""

    AUTO = "auto"
    PROCESS = "process"
    DOCKER = "docker"


class DoctorPart(StrEnum):
    """Parts that `launch doctor` can examine on this machine, besides the backends."""

    DOCKER = "docker"
    GPU = "gpu"


# Parts that are examined if none is named: none of them needs the network.
HERE = tuple(map(str, DoctorPart))
