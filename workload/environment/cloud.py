"""Facts of a rented machine from the metadata server of its cloud, within a second.

This module decides which cloud it is. A run on any other machine must not wait for an answer, so the firmware or a
variable decides whether a server is asked at all.
"""

import time
from collections.abc import Callable

from workload.environment.ec2 import ec2_facts
from workload.environment.gce import gce_facts
from workload.environment.machine import HostSystem
from workload.environment.metadata import EC2_VARIABLE, HOST_VARIABLE, InstanceMetadata, MetadataServer, named_address
from workload.environment.system import dmi_makers

# Limit of all requests together. On a VM an answer takes about a millisecond.
LIMIT_S = 1.0
# Limit of one answer: these values are short.
MOST_BYTES = 64 * 1024
# EC2's older types of instances run on Xen: their firmware is Xen's, and their UUID begins with these letters.
XEN_UUID, EC2_UUID = "/sys/hypervisor/uuid", "ec2"


def cloud_facts(machine: HostSystem, *, clock: Callable[[], float] = time.monotonic) -> dict[str, object] | None:
    """Facts of the VM, for section `cloud` of run.json; None on any other machine, and if no server answers.

    A fact that the server does not know is None.
    """
    variable = _variable(machine)
    address = named_address(machine.environ, variable) if variable else None
    if address is None:
        return None
    deadline_s = clock() + LIMIT_S
    if variable == EC2_VARIABLE:
        return ec2_facts(InstanceMetadata(address=address, deadline_s=deadline_s, clock=clock, most_bytes=MOST_BYTES))
    return gce_facts(MetadataServer(address=address, deadline_s=deadline_s, clock=clock, most_bytes=MOST_BYTES))


def _variable(machine: HostSystem) -> str | None:
    """Variable that may hold the metadata server's address, and that identifies the cloud; None if there is no server.

    A variable that is set decides, otherwise the firmware's maker. A Linux without firmware may be a VM of Google's.
    """
    for variable in (HOST_VARIABLE, EC2_VARIABLE):
        if machine.environ.get(variable):
            return variable
    makers = dmi_makers(machine)
    if any(maker.startswith("Amazon EC2") for maker in makers) or (machine.text(XEN_UUID) or "").startswith(EC2_UUID):
        return EC2_VARIABLE
    is_google = any(maker.startswith("Google") for maker in makers)
    return HOST_VARIABLE if is_google or (not makers and machine.exists("/proc/self")) else None
