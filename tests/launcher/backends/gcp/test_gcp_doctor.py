"""`launch doctor gcp`: project, APIs, quotas and bucket; with stubs, and with the real clients."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from launcher import doctor as machine_doctor
from launcher.backends.gcp import backend, gpus
from launcher.backends.gcp.answers import Quota
from launcher.backends.gcp.backend import Services
from launcher.backends.gcp.compute import Compute
from launcher.backends.gcp.options import Settings
from launcher.protocol.backend import Check, Health
from tests.launcher.backends.gcp.fake_compute import FakeCompute
from tests.launcher.backends.gcp.fake_rest import ACCOUNT, BUCKET, PROJECT, SERVICES, FakeRest, disabled, refused
from tests.workload.storage.strict_gcs import StrictGcs
from workload.contract.errors import ExitCode, RooflaunchError, ToolError, UsageError
from workload.storage.gcs import Bucket

SETTINGS = Settings(project=PROJECT, bucket=BUCKET, repository="host/trainer", service_account=ACCOUNT)
NO_PERMISSION = ToolError("no permission", hint="ask")
QUOTAS_PAGE = f"ask for more: https://console.cloud.google.com/iam-admin/quotas?project={PROJECT}, filter"
ENABLE = f"gcloud services enable {{}} --project {PROJECT}"
NEEDED = "compute.googleapis.com storage.googleapis.com artifactregistry.googleapis.com"
Row = tuple[str, str, str, str]


def _given(value: Any) -> Any:
    if isinstance(value, RooflaunchError):
        raise value
    return value


@dataclass
class StubCompute:
    """A project with some quota of everything; what is an error raises."""

    everywhere: Any = field(default_factory=lambda: {"GPUS_ALL_REGIONS": Quota(limit=4, usage=1)})
    regions: Callable[[str], Mapping[str, Quota]] | None = None
    asked_regions: list[str] = field(default_factory=list)
    project: str = PROJECT

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
    held: Any = backend.BUCKET_PERMISSIONS

    def permitted(self, permissions: Any) -> frozenset[str]:
        return frozenset(_given(self.held)) & frozenset(permissions)


@dataclass
class World:
    """A sound project, to be spoiled."""

    rest: FakeRest = field(default_factory=FakeRest)
    compute: Any = field(default_factory=StubCompute)
    bucket: Any = field(default_factory=StubBucket)
    settings: Any = SETTINGS
    services_error: RooflaunchError | None = None

    def checks(self) -> list[Check]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backend, "resolve_settings", lambda *_, **__: (_given(self.settings), {"project": "option"}))
            patch.setattr(backend.compute_engine, "connect", lambda _: _given(self.compute))
            services = self.services_error or Services(PROJECT, self.rest)
            patch.setattr(backend, "connect_services", lambda _: _given(services))
            patch.setattr(backend.gcs, "connect", lambda name, **_: _given(self.bucket) if name == BUCKET else None)
            return list(backend.examine())

    def rows(self) -> list[Row]:
        return [(each.name, each.state.value, each.found, each.cure) for each in self.checks()]

    def row(self, name: str) -> Row:
        (row,) = (row for row in self.rows() if row[0] == name)
        return row

    def amiss(self) -> dict[str, str]:
        """What is not in order: name -> state."""
        return {each.name: each.state.value for each in self.checks() if each.state is not Health.OK}


@pytest.fixture
def world() -> World:
    return World()


def test_a_sound_project(world: World) -> None:
    rows = world.rows()
    quota_rows = [row for row in rows if row[0].startswith("quota ")]
    assert [row[0].removeprefix("quota ") for row in quota_rows] == list(gpus.load())
    assert [row for row in rows if row not in quota_rows] == [
        ("project", "ok", "my-project (option); Compute Engine answers", ""),
        ("APIs", "ok", "enabled: compute, storage, artifactregistry", ""),
        ("GPUS_ALL_REGIONS", "ok", "3 of 4 GPUs left", ""),
        ("bucket", "ok", f"gs://{BUCKET} answers", ""),
        ("bucket access", "ok", "objects can be read, written and replaced", ""),
    ]
    assert world.amiss() == {}
    assert len(world.compute.asked_regions) == 2 * len(set(world.compute.asked_regions)), "each region once, twice"


@pytest.mark.parametrize("what", ["settings", "compute", "services_error"])
def test_without_a_project_or_credentials_nothing_is_asked(what: str) -> None:
    error = UsageError("no project is set", hint="--project PROJECT")
    assert World(**{what: error}).rows() == [("project", "problem", str(error), error.hint)]


def test_a_project_that_does_not_answer_still_has_its_other_parts_looked_at(world: World) -> None:
    world.compute.everywhere = ToolError("the Compute Engine API is disabled", hint="enable it")
    world.rest.answers[SERVICES] = {"services": [{"config": {"name": "storage.googleapis.com"}}]}
    missing = "compute.googleapis.com artifactregistry.googleapis.com"
    assert world.rows()[:3] == [
        ("project", "problem", "the Compute Engine API is disabled", "enable it"),
        ("APIs", "problem", f"not enabled: {missing.replace(' ', ', ')}", ENABLE.format(missing)),
        ("bucket", "ok", f"gs://{BUCKET} answers", ""),
    ]
    assert world.compute.asked_regions == []


SERVICE = "serviceusage.googleapis.com"


@pytest.mark.parametrize(
    ("answer", "row"),
    [
        (
            disabled(SERVICE),
            ("note", f"not seen: {SERVICE} is not enabled in project '{PROJECT}'", ENABLE.format(NEEDED)),
        ),
        (refused(), ("note", f"not seen: {SERVICE}: Permission denied", ENABLE.format(NEEDED))),
        (refused("bad", 400), ("note", f"not seen: {SERVICE}: bad", ENABLE.format(NEEDED))),
    ],
    ids=["disabled", "forbidden", "other"],
)
def test_services_that_cannot_be_seen(answer: Any, row: tuple[str, str, str], world: World) -> None:
    world.rest.answers[SERVICES] = answer
    assert world.row("APIs") == ("APIs", *row)


CREATE = f"gcloud storage buckets create gs://{BUCKET} --project {PROJECT} --uniform-bucket-level-access"
GRANT = f"gcloud storage buckets add-iam-policy-binding gs://{BUCKET} --role roles/storage.objectUser"


@pytest.mark.parametrize(
    ("bucket", "row"),
    [
        (
            UsageError("bucket 'x' does not exist", hint="gcloud storage ls"),
            ("bucket", "problem", "bucket 'x' does not exist", f"infra/gcp/README.md, or {CREATE}"),
        ),
        (NO_PERMISSION, ("bucket", "problem", "no permission", "ask")),
        (
            StubBucket(held=["storage.objects.get", "storage.objects.list"]),
            (
                "bucket access",
                "problem",
                "you lack storage.objects.create, storage.objects.delete",
                f"the bucket's owner can run: {GRANT} --member user:YOU",
            ),
        ),
        (StubBucket(held=NO_PERMISSION), ("bucket access", "problem", "no permission", "ask")),
    ],
    ids=["missing", "closed", "read-only", "unknown"],
)
def test_bucket_that_is_missing_or_closed_is_a_problem(bucket: Any, row: Row, world: World) -> None:
    world.bucket = bucket
    assert world.row(row[0]) == row
    assert world.amiss() == {row[0]: row[1]}


def test_with_an_endpoint_elsewhere_google_is_not_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFLAUNCH_COMPUTE_ENDPOINT", "http://127.0.0.1:9")
    assert [row for row in world.rows() if row[1] != "ok"] == [
        (name, "note", "not checked: ROOFLAUNCH_COMPUTE_ENDPOINT is set", "") for name in ("APIs", "bucket access")
    ]
    assert world.rest.asked == []


# Quotas.


@pytest.mark.parametrize(
    ("quotas", "row"),
    [
        (
            {"GPUS_ALL_REGIONS": Quota(limit=0, usage=0)},
            (
                "problem",
                "0 GPUs, as in every new project: no VM with a GPU can start",
                f"{QUOTAS_PAGE} GPUS_ALL_REGIONS",
            ),
        ),
        (
            {"GPUS_ALL_REGIONS": Quota(limit=2, usage=2)},
            ("note", "0 of 2 GPUs left", f"launch status; or {QUOTAS_PAGE} GPUS_ALL_REGIONS"),
        ),
        ({}, ("note", "unknown: the project does not report this quota", "")),
    ],
    ids=["zero", "used-up", "untold"],
)
def test_gpus_of_all_regions(quotas: Any, row: tuple[str, str, str], world: World) -> None:
    world.compute.everywhere = quotas
    assert world.row("GPUS_ALL_REGIONS") == ("GPUS_ALL_REGIONS", *row)


UNTOLD = "unknown: no region reports this quota"


def test_the_best_regions_come_first(world: World) -> None:
    left = {"us-central1": 1, "us-east1": 4, "us-west1": 1, "europe-west4": 2, "asia-east1": 1, "us-east4": 0}

    def quotas(region: str) -> Mapping[str, Quota]:
        spot = {"PREEMPTIBLE_NVIDIA_T4_GPUS": Quota(limit=1, usage=1)}
        return spot | {"NVIDIA_T4_GPUS": Quota(limit=left.get(region, 0) + 3, usage=3)}

    world.compute.regions = quotas
    best = "us-east1 4, europe-west4 2, us-central1 1 and 2 more"
    assert world.row("quota t4")[1:] == ("ok", f"GPUs left, standard: {best}; preemptible: none left", "")
    # The L4's are not told by any region: that is unknown, not none.
    told = f"GPUs left, standard: {UNTOLD}; preemptible: {UNTOLD}"
    assert world.row("quota l4")[1:] == ("note", told, f"{QUOTAS_PAGE} NVIDIA_L4_GPUS")
    assert "quota" not in world.amiss(), "one GPU that can be had is enough"


def test_no_quota_of_any_gpu(world: World) -> None:
    metrics = [gpu.quota for gpu in gpus.load().values()]
    world.compute.regions = lambda _: {name: Quota(limit=0, usage=0) for name in metrics}
    assert world.row("quota") == ("quota", "problem", "no region has any GPU quota left", f"{QUOTAS_PAGE} GPU")
    assert world.row("quota v100")[1:3] == ("note", f"GPUs left, standard: none left; preemptible: {UNTOLD}")


def test_preemptible_quota_alone_is_enough_and_a_silent_region_is_named(world: World) -> None:
    """A VM of ours lives for 7 days at most, and takes either."""

    def quotas(region: str) -> Mapping[str, Quota]:
        if region == "me-west1":
            raise NO_PERMISSION
        preemptible = Quota(limit=2 if region == "us-east1" else 0, usage=0)
        return {"NVIDIA_T4_GPUS": Quota(limit=1, usage=1), "PREEMPTIBLE_NVIDIA_T4_GPUS": preemptible}

    world.compute.regions = quotas
    assert world.row("quota t4")[1:3] == ("ok", "GPUs left, standard: none left; preemptible: us-east1 2")
    assert world.row("regions") == ("regions", "note", "not seen: me-west1: no permission", "ask")


# With the real clients.


@pytest.fixture
def clouds(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeCompute, StrictGcs]]:
    with FakeCompute() as compute, StrictGcs() as gcs:
        monkeypatch.setenv("ROOFLAUNCH_COMPUTE_ENDPOINT", compute.url)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
        monkeypatch.setenv("ROOFLAUNCH_PROJECT", PROJECT)
        monkeypatch.setenv("ROOFLAUNCH_BUCKET", "strict-test")
        yield compute, gcs


@pytest.mark.world
def test_for_real(clouds: tuple[FakeCompute, StrictGcs], monkeypatch: pytest.MonkeyPatch) -> None:
    compute, _ = clouds
    compute.set_quota("global", "GPUS_ALL_REGIONS", 2)
    compute.set_quota("us-central1", "NVIDIA_L4_GPUS", 5000)
    found = {
        each.name: each for each in reversed(machine_doctor.examine(["gcp"], checks_of=lambda _: backend.examine()))
    }
    assert found["project"].found == "my-project (environment); Compute Engine answers"
    assert found["GPUS_ALL_REGIONS"].state is Health.OK
    assert found["quota l4"].found.startswith("GPUs left, standard: us-central1 5000, ")
    assert found["bucket"].state is Health.OK
    assert machine_doctor.exit_code(list(found.values())) is ExitCode.DONE
    regions = {region for gpu in gpus.load().values() for region in gpu.regions}
    assert compute.count("GET .*/regions/") == len(regions)
    monkeypatch.setenv("ROOFLAUNCH_BUCKET", "no-such-bucket")
    (bucket,) = (each for each in backend.examine({"project": "other-project"}) if each.name == "bucket")
    assert (bucket.state, bucket.found) == (Health.PROBLEM, "bucket 'no-such-bucket' does not exist")
    assert "--project other-project" in bucket.cure


def test_stubs_are_as_the_real_ones() -> None:
    """A method that is renamed there fails here."""
    for stub, real in ((StubCompute, Compute), (StubBucket, Bucket)):
        methods = {name for name, each in vars(stub).items() if callable(each) and not name.startswith("_")}
        assert methods <= set(dir(real))
