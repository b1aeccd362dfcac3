"""Sweeps in a fake cloud: the real backend and driver, a fake Compute Engine, a real server of Cloud Storage."""

from collections.abc import Sequence
from typing import Any, NoReturn

from launcher.backends.gcp.backend import ComputeEngine
from launcher.backends.gcp.options import Options, Where
from launcher.sweep.drive import drive
from launcher.sweep.places import Place, Sweep
from launcher.sweep.work import SweepOutcome
from tests.launcher.backends.gcp.canned_cloud import IMAGE, ZONE, Cloud
from tests.launcher.sweep.sweeps import NAME, configurations_of, plan_of
from tests.workload.storage.gcs_server import BUCKET
from workload.contract.errors import ToolError
from workload.contract.spec import RunSpec


def no_docker() -> NoReturn:
    raise ToolError("no Docker engine: /var/run/docker.sock does not exist", hint="start Docker")


def t4(name: str = "t4", *, machines: int = 0, **options: Any) -> Place:
    chosen = Options(**{"gpu": "t4", "zones": (ZONE,), "fallback": False, "image": IMAGE, **options})
    return Place(
        name=name, backend="gcp", options=chosen, where=Where(project="my-project", bucket=BUCKET), machines=machines
    )


def cloud_sweep(*places: Place, blocks: int = 2, name: str = NAME, **lists: Sequence[Any]) -> Sweep:
    """Every configuration of the lists at every place."""
    made = configurations_of(RunSpec(), **(lists or {"model": ["resnet18", "resnet50"]}))
    plans = tuple(plan_of(place, made, blocks, job=name) for place in places or (t4(),))
    return Sweep(name=name, repeats=blocks, seed=0, places=plans)


def gcp_of(cloud: Cloud) -> ComputeEngine:
    return ComputeEngine(
        compute=lambda _: cloud.compute,
        bucket=lambda _: cloud.bucket,
        engine=no_docker,
        default_project=lambda: "my-project",
        sleep=cloud.clock.sleep,
    )


def swept(cloud: Cloud, sweep: Sweep, **changes: Any) -> SweepOutcome:
    """Drive a sweep in this cloud without a terminal; `changes`: other arguments of `drive`."""
    plain: dict[str, Any] = {
        "output": cloud.output,
        "backend_of": {"gcp": gcp_of(cloud)}.__getitem__,
        "ask": lambda _: None,
        "sleep": cloud.clock.sleep,
    }
    return drive(sweep, **{**plain, **changes})
