"""Facts of a rented machine from the metadata server of its cloud, within a second.

This module decides which cloud it is. A run on any other machine must not wait for an answer, so the firmware or a
variable decides whether a server is asked at all. Only the named keys are requested, one by one: a recursive query
would also return service accounts, SSH keys and start-up scripts. The account's number and the private address of EC2's
identity document are dropped. A VM's agent uses the clients too. Standard library only.

Keys: cloud.google.com/compute/docs/metadata/predefined-metadata-keys and
docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-metadata.html, read 2026-11.
"""

import http.client
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from workload.environment.machine import HostSystem, as_integer, dmi_makers, system_facts

# --- clients of the metadata servers

HOST_VARIABLE = "GCE_METADATA_HOST"
# An address, because a look-up of the server's name could take seconds outside of the cloud, and the name may be
# unknown in a container.
METADATA_ADDRESS = ("169.254.169.254", 80)
FLAVOR = "Google"
# Variable with the URL of EC2's metadata server; boto3 reads it too.
EC2_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
# Without a metadata server, a connection attempt gets no answer and waits this long.
CONNECT_LIMIT_S = 0.3
# Google limits a value to 256 KB: https://cloud.google.com/compute/docs/metadata/overview
LONGEST_ANSWER_BYTES = 512 * 1024


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer of a metadata server; `tag`, which only Google's server sends, changes with the value."""

    status: int
    text: str
    tag: str


@dataclass(frozen=True, kw_only=True)
class LocalServer:
    """Client of the HTTP server that a cloud runs for a VM; no request starts after `deadline_s` on `clock`."""

    address: tuple[str, int]
    deadline_s: float
    clock: Callable[[], float] = time.monotonic
    connect_limit_s: float = CONNECT_LIMIT_S
    most_bytes: int = LONGEST_ANSWER_BYTES

    def exchange(self, words: str, headers: Mapping[str, str], content: bytes | None = None) -> Answer:
        """Send a request and return the answer. `words`: method and path.

        Raises `OSError` if no readable answer comes in time.
        """
        method, _, path = words.partition(" ")
        connection = http.client.HTTPConnection(*self.address, timeout=min(self.connect_limit_s, self._left_s()))
        try:
            connection.connect()
            connection.sock.settimeout(self._left_s())
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            self.check(response)
            read = response.read(self.most_bytes + 1)
            if len(read) > self.most_bytes:
                raise OSError("longer than any metadata value")
            return Answer(status=response.status, text=read.decode(), tag=response.getheader("ETag") or "")
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(f"unreadable answer: {error}") from error
        finally:
            connection.close()

    def check(self, response: http.client.HTTPResponse) -> None:
        """Raise `OSError` if the head of the answer shows that it is from another server."""

    def _left_s(self) -> float:
        left_s = self.deadline_s - self.clock()
        if left_s <= 0:
            raise TimeoutError("timed out")
        return left_s


class MetadataServer(LocalServer):
    """Compute Engine's metadata server."""

    def ask(self, key: str, *, put: str | None = None) -> Answer:
        """Request a key's value, or with `put` store a value; return the answer.

        Raises `OSError` if no answer comes in time, or if it is not from Google's metadata server.
        """
        method, content = ("GET", None) if put is None else ("PUT", put.encode())
        return self.exchange(f"{method} /computeMetadata/v1/{key}", {"Metadata-Flavor": FLAVOR}, content)

    def check(self, response: http.client.HTTPResponse) -> None:
        """Raise `OSError` for an answer without Google's header."""
        if response.getheader("Metadata-Flavor") != FLAVOR:
            raise OSError("the answer is not from Google's metadata server")


class InstanceMetadata(LocalServer):
    """EC2's metadata server, version 2: it answers only requests with a token that it has issued."""

    def ask(self, key: str) -> str | None:
        """Value of a key below `/latest/`; None if the server lacks the key.

        Raises `OSError` if no answer comes in time, or for any other status.
        """
        token = self.exchange("PUT /latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, b"")
        answer = self.exchange(f"GET /latest/{key}", {"X-aws-ec2-metadata-token": _accepted(token).text})
        return None if answer.status == HTTPStatus.NOT_FOUND else _accepted(answer).text.strip()


def _accepted(answer: Answer) -> Answer:
    if answer.status != HTTPStatus.OK:
        raise OSError(f"HTTP {answer.status}")
    return answer


def named_address(environ: Mapping[str, str], variable: str = HOST_VARIABLE) -> tuple[str, int] | None:
    """Host and port from a variable; `METADATA_ADDRESS` if the variable is not set, None if it is malformed."""
    named = environ.get(variable)
    if not named:
        return METADATA_ADDRESS
    try:
        parts = urlsplit(named if "://" in named else f"//{named}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    return (host, port or METADATA_ADDRESS[1]) if host else None


# --- facts of a rented machine


# Limit of all requests together. On a VM an answer takes about a millisecond.
LIMIT_S = 1.0
# Limit of one answer: these values are short.
MOST_BYTES = 64 * 1024
# EC2's older types of instances run on Xen: their firmware is Xen's, and their UUID begins with these letters.
XEN_UUID, EC2_UUID = "/sys/hypervisor/uuid", "ec2"
# Our name -> key of Compute Engine's server, for texts and for flags.
GCE_TEXTS = {
    "instance_id": "instance/id",
    "instance_name": "instance/name",
    "zone": "instance/zone",
    "machine_type": "instance/machine-type",
    "image": "instance/image",
    "cpu_platform": "instance/cpu-platform",
    "physical_host": "instance/attributes/physical_host",
}
GCE_FLAGS = {
    "preempted": "instance/preempted",
    "spot": "instance/scheduling/preemptible",
}
EC2_IDENTITY = "dynamic/instance-identity/document"
# Our name -> name in EC2's identity document.
EC2_TEXTS = {"instance_id": "instanceId", "machine_type": "instanceType", "image": "imageId", "region": "region"}
# A zone's id (`use1-az4`) names the same zone in all accounts; a zone's letter (`us-east-1a`) does not.
EC2_ZONE = "meta-data/placement/availability-zone-id"
# `on-demand`, `spot`, `scheduled` or `capacity-block`.
EC2_LIFE_CYCLE = "meta-data/instance-life-cycle"
# Only dedicated hosts have this key.
EC2_HOST = "meta-data/placement/host-id"


def cloud_facts(machine: HostSystem, *, clock: Callable[[], float] = time.monotonic) -> dict[str, object] | None:
    """Facts of the VM, for section `cloud` of run.json; None on any other machine, and if no server answers.

    A fact that the server does not know is None.
    """
    variable = _variable(machine)
    address = named_address(machine.environ, variable) if variable else None
    if address is None:
        return None
    deadline_s = clock() + LIMIT_S
    with suppress(OSError):
        if variable == EC2_VARIABLE:
            return _of_ec2(InstanceMetadata(address=address, deadline_s=deadline_s, clock=clock, most_bytes=MOST_BYTES))
        return _of_gce(MetadataServer(address=address, deadline_s=deadline_s, clock=clock, most_bytes=MOST_BYTES))
    return None


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


def _of_gce(server: MetadataServer) -> dict[str, object]:
    """Facts of a VM of Compute Engine. Raises `OSError` if its server does not answer."""
    server.ask("instance/id")

    def text(key: str) -> str | None:
        with suppress(OSError):
            answer = server.ask(key)
            return answer.text.strip() or None if answer.status == HTTPStatus.OK else None
        return None

    texts = {name: text(key) for name, key in GCE_TEXTS.items()}
    # The server gives whole paths: `projects/1/zones/us-central1-a`. The path of an image names its owner, and is kept.
    short = {name: (texts[name] or "").rpartition("/")[2] or None for name in ("zone", "machine_type")}
    flags = {name: {"TRUE": True, "FALSE": False}.get((text(key) or "").upper()) for name, key in GCE_FLAGS.items()}
    return {"provider": "gce", **texts, **short, **flags}


def _of_ec2(server: InstanceMetadata) -> dict[str, object] | None:
    """Facts of an EC2 instance; None if its identity is unreadable. Raises `OSError` if its server does not answer."""
    identity: object = None
    with suppress(ValueError):
        identity = json.loads(server.ask(EC2_IDENTITY) or "{}")
    if not isinstance(identity, dict):
        return None

    def text(key: str) -> str | None:
        with suppress(OSError):
            return server.ask(key) or None
        return None

    life_cycle = text(EC2_LIFE_CYCLE)
    return {
        "provider": "ec2",
        **{ours: str(identity[theirs]) if identity.get(theirs) else None for ours, theirs in EC2_TEXTS.items()},
        "zone": text(EC2_ZONE),
        "spot": None if life_cycle is None else life_cycle == "spot",
        "physical_host": text(EC2_HOST),
    }


# --- facts that a container cannot see

# Our name -> Slurm's variable (sbatch(1), OUTPUT ENVIRONMENT VARIABLES).
SLURM = {
    "job_id": "SLURM_JOB_ID",
    "cluster": "SLURM_CLUSTER_NAME",
    "partition": "SLURM_JOB_PARTITION",
    "constraint": "SLURM_JOB_CONSTRAINTS",
    "node_name": "SLURMD_NODENAME",
    "gpus_on_node": "SLURM_GPUS_ON_NODE",
}
SLURM_COUNTS = {"cpus_per_task": "SLURM_CPUS_PER_TASK", "restart_count": "SLURM_RESTART_COUNT"}


def outside_facts(machine: HostSystem | None = None) -> dict[str, dict[str, object]]:
    """Facts by section of run.json's `environment`; a section that does not apply is absent."""
    machine = machine or HostSystem()
    sections = {"host": system_facts(machine), "cloud": cloud_facts(machine), "slurm": slurm_facts(machine)}
    return {name: section for name, section in sections.items() if section is not None}


def slurm_facts(machine: HostSystem) -> dict[str, object] | None:
    """Facts of the Slurm job; None outside a job."""
    if "SLURM_JOB_ID" not in machine.environ:
        return None
    facts: dict[str, object] = {name: machine.environ.get(variable) for name, variable in SLURM.items()}
    counts = {name: as_integer(machine.environ.get(variable)) for name, variable in SLURM_COUNTS.items()}
    return {**facts, **counts}
