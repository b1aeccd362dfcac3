"""Closed sets that the command line offers. Light: `--help` needs them, and not what they choose between."""

from enum import StrEnum


class Runtime(StrEnum):
    """`auto`: a container if there is an engine with the image for this code, else a process."""

    AUTO = "auto"
    PROCESS = "process"
    DOCKER = "docker"


class DoctorPart(StrEnum):
    """What `launch doctor` can examine on this machine, beside every backend."""

    DOCKER = "docker"
    GPU = "gpu"


# What is looked at unless parts are named: nothing that needs the network.
HERE = tuple(map(str, DoctorPart))
