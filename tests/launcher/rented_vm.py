"""A launch on a rented VM, and its VM, as most tests want them; `dataclasses.replace` for the rest."""

from launcher.protocol.backend import Condition, Machine
from launcher.protocol.records import Request

NAME = "rooflaunch-t4-20261121-120000-3fa9c1"
ZONE = "us-central1-a"
LAUNCHED_S = 1795262400.0  # 2026-11-21T12:00:00Z
REQUEST = Request(
    name=NAME,
    backend="gcp",
    launched_at="2026-11-21T12:00:00.000+00:00",
    store="gs://my-bucket",
    place="gcp-t4",
    runtime="docker",
    gpu="t4",
    gpu_count=1,
    machine_type="n1-standard-4",
    spot=False,
    zones=[ZONE],
    image="host/p/trainer@sha256:" + "0" * 64,
    options={"project": "my-project", "flavour": "cuda", "vm_image": "projects/p/global/images/family/f"},
    limit_s=3600,
    spec={"model": "resnet18"},
    prices={"us-central1": {"usd_per_h": 0.54, "source": "a list", "read": "2026-07"}},
)
MACHINE = Machine(
    name=NAME,
    zone=ZONE,
    condition=Condition.RUNNING,
    status="RUNNING",
    created_s=LAUNCHED_S + 30,
    deadline_s=int(LAUNCHED_S) + 3600,
)
