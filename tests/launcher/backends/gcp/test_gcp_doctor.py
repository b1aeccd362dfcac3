"""`launch doctor gcp`: project, APIs, quotas and bucket; stubs against a golden file, and the real clients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from launcher import doctor as machine_doctor
from launcher.backends.gcp import answers, backend, gpus
from launcher.backends.gcp.answers import Quota
from launcher.backends.gcp.backend import Services
from launcher.backends.gcp.compute import Compute
from launcher.backends.gcp.options import Settings
from launcher.protocol.backend import Check, Health
from tests.launcher.backends.gcp.fake_compute import FakeCompute
from tests.launcher.backends.gcp.fake_rest import ACCOUNT, BUCKET, PROJECT, SERVICES, FakeRest, disabled, refused, sound
from tests.workload.storage.strict_gcs import StrictGcs
from workload.contract.errors import ExitCode, RooflaunchError, ToolError, UsageError
from workload.storage.gcs import Bucket

SETTINGS = Settings(project=PROJECT, bucket=BUCKET, repository="host/trainer", service_account=ACCOUNT)
NO_PERMISSION = ToolError("no permission", hint="ask")
QUOTAS = {gpu.quota for gpu in gpus.load().values()}
T4, PREEMPTIBLE_T4 = "NVIDIA_T4_GPUS", "PREEMPTIBLE_NVIDIA_T4_GPUS"
Quotas = Callable[[str], Mapping[str, Quota]]


def _given(value: Any) -> Any:
    if isinstance(value, RooflaunchError):
        raise value
    return value


def one_left(_: str) -> dict[str, Quota]:
    return {name: Quota(limit=2, usage=1) for each in QUOTAS for name in (each, f"PREEMPTIBLE_{each}")}


@dataclass
class StubCompute:
    """A project with some quota of everything; what is an error raises."""

    everywhere: Any = field(default_factory=lambda: {"GPUS_ALL_REGIONS": Quota(limit=4, usage=1)})
    regions: Quotas = one_left
    asked_regions: list[str] = field(default_factory=list)
    project: str = PROJECT

    def project_quotas(self) -> Any:
        return _given(self.everywhere)

    def region_quotas(self, region: str) -> Mapping[str, Quota]:
        self.asked_regions.append(region)
        return self.regions(region)


@dataclass
class StubBucket:
    name: str = BUCKET
    held: Any = backend.BUCKET_PERMISSIONS

    def permitted(self, permissions: Any) -> frozenset[str]:
        return frozenset(_given(self.held)) & frozenset(permissions)


def checks(
    *,
    services: Any = None,
    compute: Any = None,
    bucket: Any = None,
    settings: Any = SETTINGS,
) -> list[Check]:
    """Checks of a sound project, or of one that is spoiled. `services`: an error, or the answer to what is enabled."""
    rest = FakeRest(sound() | ({} if services is None else {SERVICES: services}))
    connected = services if isinstance(services, UsageError) else Services(PROJECT, rest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "resolve_settings", lambda *_, **__: (_given(settings), {"project": "option"}))
        patch.setattr(backend.compute_engine, "connect", lambda _: _given(compute or StubCompute()))
        patch.setattr(backend, "connect_services", lambda _: _given(connected))
        patch.setattr(backend.gcs, "connect", lambda name, **_: _given(bucket or StubBucket(name)))
        return list(backend.examine())


def best_first(region: str) -> Mapping[str, Quota]:
    left = {"us-central1": 1, "us-east1": 4, "us-west1": 1, "europe-west4": 2, "asia-east1": 1, "us-east4": 0}
    # The L4's are not told by any region: that is unknown, not none.
    return {PREEMPTIBLE_T4: Quota(limit=1, usage=1), T4: Quota(limit=left.get(region, 0) + 3, usage=3)}


def only_preemptible(region: str) -> Mapping[str, Quota]:
    if region == "me-west1":
        raise NO_PERMISSION
    return {T4: Quota(limit=1, usage=1), PREEMPTIBLE_T4: Quota(limit=2 if region == "us-east1" else 0, usage=0)}


NO_PROJECT = UsageError("no project is set", hint="--project PROJECT")
SPOILED: dict[str, dict[str, Any]] = {
    "no project": {"settings": NO_PROJECT},
    "no credentials": {"compute": NO_PROJECT},
    "no credentials for other services": {"services": NO_PROJECT},
    "Compute Engine is off": {
        "compute": StubCompute(ToolError("the Compute Engine API is disabled", hint="enable it")),
        "services": {"services": [{"config": {"name": "storage.googleapis.com"}}]},
    },
    "services are off": {"services": disabled("serviceusage.googleapis.com")},
    "services are hidden": {"services": refused()},
    "services fail": {"services": refused("bad", 400)},
    "no bucket": {"bucket": UsageError("bucket 'x' does not exist", hint="gcloud storage ls")},
    "closed bucket": {"bucket": NO_PERMISSION},
    "read-only bucket": {"bucket": StubBucket(held=["storage.objects.get", "storage.objects.list"])},
    "bucket with unknown rights": {"bucket": StubBucket(held=NO_PERMISSION)},
    "new project": {"compute": StubCompute({"GPUS_ALL_REGIONS": Quota(limit=0, usage=0)})},
    "all GPUs in use": {"compute": StubCompute({"GPUS_ALL_REGIONS": Quota(limit=2, usage=2)})},
    "quota that is not told": {"compute": StubCompute({})},
    "best regions first": {"compute": StubCompute(regions=best_first)},
    "no quota of any GPU": {"compute": StubCompute(regions=lambda _: dict.fromkeys(QUOTAS, Quota(limit=0, usage=0)))},
    "preemptible alone, and a silent region": {"compute": StubCompute(regions=only_preemptible)},
}


def test_checks_of_a_sound_and_of_spoiled_projects(golden: Callable[[str, str], None]) -> None:
    """Of a spoiled project the rows that a sound one does not have, and how many others there are."""
    usual = checks()
    parts = [f"## sound\n{machine_doctor.render(usual)}\n"]
    for name, changes in SPOILED.items():
        found = checks(**changes)
        other = [check for check in found if check not in usual]
        parts.append(f"## {name}\n{machine_doctor.render(other)}\nand {len(found) - len(other)} as usual\n")
    golden("doctor.txt", "\n".join(parts))


def test_each_region_is_asked_once() -> None:
    compute = StubCompute()
    checks(compute=compute)
    assert len(compute.asked_regions) == len(set(compute.asked_regions)) > 1


def test_with_an_endpoint_elsewhere_google_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(answers.ENDPOINT_VARIABLE, "http://127.0.0.1:9")
    assert [(check.name, check.found) for check in checks() if check.state is not Health.OK] == [
        (name, f"not checked: {answers.ENDPOINT_VARIABLE} is set") for name in ("APIs", "bucket access")
    ]


@pytest.mark.world
def test_doctor_with_the_real_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeCompute() as compute, StrictGcs() as gcs:
        monkeypatch.setenv(answers.ENDPOINT_VARIABLE, compute.url)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
        monkeypatch.setenv("ROOFLAUNCH_PROJECT", PROJECT)
        monkeypatch.setenv("ROOFLAUNCH_BUCKET", "strict-test")
        compute.set_quota("us-central1", "NVIDIA_L4_GPUS", 5000)
        rows = machine_doctor.examine(["gcp"], checks_of=lambda _: backend.examine())
        found = {each.name: each for each in rows}
        assert found["project"].found == "my-project (environment); Compute Engine answers"
        assert found["quota l4"].found.startswith("GPUs left, standard: us-central1 5000, ")
        assert found["bucket"].state is Health.OK
        assert machine_doctor.exit_code(list(found.values())) is ExitCode.DONE
        monkeypatch.setenv("ROOFLAUNCH_BUCKET", "no-such-bucket")
        (bucket,) = (each for each in backend.examine({"project": "other-project"}) if each.name == "bucket")
        assert (bucket.state, bucket.found) == (Health.PROBLEM, "bucket 'no-such-bucket' does not exist")
        assert "--project other-project" in bucket.cure


def test_stubs_are_as_the_real_ones() -> None:
    """A method that is renamed there fails here."""
    for stub, real in ((StubCompute, Compute), (StubBucket, Bucket)):
        methods = {name for name, each in vars(stub).items() if callable(each) and not name.startswith("_")}
        assert methods - {"regions"} <= set(dir(real))
