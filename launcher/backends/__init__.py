"""Providers of machines: one package for each kind of place, looked up here by name and imported when it is used."""

from collections.abc import Mapping

# A backend's name, as in `launch NAME` and in run.json -> its package (see `launcher.backends.door`).
BACKENDS: Mapping[str, str] = {
    "gcp": "launcher.backends.gcp",
    "ssh": "launcher.backends.ssh",
    "batch": "launcher.backends.batch",
    "slurm": "launcher.backends.slurm",
}
# A backend's name -> the module whose `register` adds commands that only this backend has.
OWN_COMMANDS: Mapping[str, str] = {"gcp": "launcher.backends.gcp.app"}
