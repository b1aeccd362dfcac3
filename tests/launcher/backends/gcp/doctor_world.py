"""A project for tests of `launch doctor gcp`: every check passes until a test changes a part of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.backends.gcp import doctor, gpus
from launcher.backends.gcp.doctor import CloudPorts
from launcher.backends.gcp.resources import Quota
from launcher.backends.gcp.services import Services
from launcher.backends.gcp.settings import Settings
from launcher.protocol.backend import Check
from launcher.protocol.backend import Health as State
from tests.launcher.backends.gcp.fake_rest import ACCOUNT, BUCKET, PROJECT, FakeRest
from workload.contract.errors import RooflaunchError, ToolError

IMAGE = f"us-central1-docker.pkg.dev/{PROJECT}/rooflaunch/trainer"
SETTINGS = Settings(project=PROJECT, bucket=BUCKET, repository=IMAGE, service_account=ACCOUNT)
NO_PERMISSION = ToolError("no permission", hint="ask")
Row = tuple[str, str, str, str]


@dataclass
class StubCompute:
    """A project with some quota of everything; what is an error raises."""

    everywhere: Any = field(default_factory=lambda: {"GPUS_ALL_REGIONS": Quota(limit=4, usage=1)})
    regions: Callable[[str], Mapping[str, Quota]] | None = None
    asked_regions: list[str] = field(default_factory=list)

    def project_quotas(self) -> Any:
        return _given(self.everywhere)

    def region_quotas(self, region: str) -> Mapping[str, Quota]:
        self.asked_regions.append(region)
        if self.regions:
            return self.regions(region)
        metrics = {gpu.quota for gpu in gpus.load().values()}
        return {name: Quota(limit=2, usage=1) for each in metrics for name in (each, f"PREEMPTIBLE_{each}")}


@dataclass
class StubBucket:
    name: str = BUCKET
    held: Any = doctor.BUCKET_PERMISSIONS

    def permitted(self, permissions: Any) -> frozenset[str]:
        return frozenset(_given(self.held)) & frozenset(permissions)


def _given(value: Any) -> Any:
    if isinstance(value, RooflaunchError):
        raise value
    return value


@dataclass
class World:
    """A sound project, to be spoiled."""

    rest: FakeRest = field(default_factory=FakeRest)
    compute: StubCompute = field(default_factory=StubCompute)
    bucket: Any = field(default_factory=StubBucket)
    settings: Any = SETTINGS
    services_error: RooflaunchError | None = None
    compute_error: RooflaunchError | None = None
    endpoint: str | None = None

    def checks(self) -> list[Check]:
        cloud = CloudPorts(
            compute=lambda project: _given(self.compute_error or self.compute) if project == PROJECT else None,  # type: ignore[arg-type,return-value]
            bucket=lambda name: _given(self.bucket) if name == BUCKET else None,
            services=lambda project: _given(self.services_error or Services(project, self.rest)),
            endpoint=self.endpoint,
        )
        return list(doctor.checks(lambda: (_given(self.settings), {"project": "option"}), cloud))

    def rows(self) -> list[Row]:
        return [(each.name, each.state.value, each.found, each.cure) for each in self.checks()]

    def row(self, name: str) -> Row:
        (row,) = (row for row in self.rows() if row[0] == name)
        return row

    def amiss(self) -> dict[str, str]:
        """What is not in order: name -> state."""
        return {each.name: each.state.value for each in self.checks() if each.state is not State.OK}
