"""`launch doctor gcp`: the order of its checks, services, bucket, and the real clients."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import pytest

from launcher import doctor as machine_doctor
from launcher.backends.gcp import doctor, gpus
from launcher.backends.gcp.compute import Compute
from launcher.protocol.backend import Health as State
from tests.launcher.backends.gcp.doctor_world import (
    NO_PERMISSION,
    Row,
    StubBucket,
    StubCompute,
    World,
)
from tests.launcher.backends.gcp.fake_compute import FakeCompute
from tests.launcher.backends.gcp.fake_rest import BUCKET, PROJECT, SERVICES, disabled, refused
from tests.workload.storage.strict_gcs import StrictGcs
from workload.contract.errors import ExitCode, RooflaunchError, ToolError, UsageError
from workload.storage import gcs as storage
from workload.storage.gcs import Bucket


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
    assert {check.part for check in world.checks()} == {"gcp"}


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("settings", UsageError("no project is set", hint="--project PROJECT")),
        ("compute_error", ToolError("no credentials", hint="gcloud auth login")),
        ("services_error", ToolError("no package", hint="pip install it")),
    ],
)
def test_without_a_project_or_credentials_nothing_is_asked(what: str, error: RooflaunchError) -> None:
    assert World(**{what: error}).rows() == [("project", "problem", str(error), error.hint)]


def test_a_project_that_does_not_answer_still_has_its_other_parts_looked_at(world: World) -> None:
    hint = f"gcloud services enable compute.googleapis.com --project {PROJECT}"
    world.compute.everywhere = ToolError("the Compute Engine API is disabled", hint=hint)
    world.rest.answers[SERVICES] = {"services": [{"config": {"name": "storage.googleapis.com"}}]}
    rows = world.rows()
    assert rows[:3] == [
        ("project", "problem", "the Compute Engine API is disabled", hint),
        (
            "APIs",
            "problem",
            "not enabled: compute.googleapis.com, artifactregistry.googleapis.com",
            f"gcloud services enable compute.googleapis.com artifactregistry.googleapis.com --project {PROJECT}",
        ),
        ("bucket", "ok", f"gs://{BUCKET} answers", ""),
    ]
    assert world.compute.asked_regions == []


@pytest.mark.parametrize(
    ("answer", "state", "found", "cure"),
    [
        (
            disabled("serviceusage.googleapis.com"),
            "note",
            f"not seen: serviceusage.googleapis.com is not enabled in project '{PROJECT}'",
            (
                "gcloud services enable compute.googleapis.com storage.googleapis.com artifactregistry.googleapis.com "
                f"--project {PROJECT}"
            ),
        ),
        (
            refused(),
            "note",
            "not seen: serviceusage.googleapis.com: Permission denied",
            (
                "gcloud services enable compute.googleapis.com storage.googleapis.com artifactregistry.googleapis.com "
                f"--project {PROJECT}"
            ),
        ),
        (
            refused("bad", 400),
            "problem",
            "serviceusage.googleapis.com: bad",
            "run again; if the error stays, report it as a bug",
        ),
    ],
    ids=["disabled", "forbidden", "other"],
)
def test_services_that_cannot_be_seen(answer: Any, state: str, found: str, cure: str, world: World) -> None:
    world.rest.answers[SERVICES] = answer
    assert world.row("APIs") == ("APIs", state, found, cure)


@pytest.mark.parametrize(
    ("bucket", "row"),
    [
        (
            UsageError("bucket 'x' does not exist", hint="gcloud storage ls"),
            (
                "bucket",
                "problem",
                "bucket 'x' does not exist",
                (
                    f"infra/gcp/README.md, or gcloud storage buckets create gs://{BUCKET} --project {PROJECT} "
                    "--uniform-bucket-level-access"
                ),
            ),
        ),
        (NO_PERMISSION, ("bucket", "problem", "no permission", "ask")),
        (
            StubBucket(held=["storage.objects.get", "storage.objects.list"]),
            (
                "bucket access",
                "problem",
                "you lack storage.objects.create, storage.objects.delete",
                (
                    f"the bucket's owner can run: gcloud storage buckets add-iam-policy-binding gs://{BUCKET} "
                    "--role roles/storage.objectUser --member user:YOU"
                ),
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


def test_with_an_endpoint_elsewhere_google_is_not_asked(world: World) -> None:
    world.endpoint = "ROOFLAUNCH_COMPUTE_ENDPOINT"
    rows = [row for row in world.rows() if row[1] != "ok"]
    assert rows == [
        (name, "note", "not checked: ROOFLAUNCH_COMPUTE_ENDPOINT is set", "") for name in ("APIs", "bucket access")
    ]
    assert world.rest.asked == []


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
def test_for_real(clouds: tuple[FakeCompute, StrictGcs]) -> None:
    compute, _ = clouds
    compute.set_quota("global", "GPUS_ALL_REGIONS", 2)
    compute.set_quota("us-central1", "NVIDIA_L4_GPUS", 5000)
    found = {
        each.name: each for each in reversed(machine_doctor.examine(["gcp"], checks_of=lambda _: doctor.examine()))
    }
    assert found["project"].found == "my-project (environment); Compute Engine answers"
    assert found["GPUS_ALL_REGIONS"].state is State.OK
    assert found["quota l4"].found.startswith("GPUs left, standard: us-central1 5000, ")
    assert found["bucket"].state is State.OK
    assert machine_doctor.exit_code(list(found.values())) is ExitCode.DONE
    regions = {region for gpu in gpus.load().values() for region in gpu.regions}
    assert compute.count("GET .*/regions/") == len(regions)
    assert len(machine_doctor.render(list(found.values())).splitlines()) >= len(found)


@pytest.mark.world
def test_a_bucket_as_the_real_client_sees_it(clouds: tuple[FakeCompute, StrictGcs]) -> None:
    _, gcs = clouds
    bucket = storage.connect("strict-test", prefix="")
    gcs.permissions = set(doctor.BUCKET_PERMISSIONS)
    assert [check.state for check in doctor._writable_checks(bucket)] == [State.OK]
    gcs.permissions.discard("storage.objects.delete")
    assert [check.found for check in doctor._writable_checks(bucket)] == ["you lack storage.objects.delete"]


@pytest.mark.world
@pytest.mark.usefixtures("clouds")
def test_a_bucket_of_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFLAUNCH_BUCKET", "no-such-bucket")
    (found,) = (each for each in doctor.examine() if each.name == "bucket")
    assert (found.state, found.found) == (State.PROBLEM, "bucket 'no-such-bucket' does not exist")


def test_an_option_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(given: Mapping[str, str | None], *_: Any, **__: Any) -> Any:
        assert given == {"project": "other-project"}
        raise UsageError("as the test wants", hint="nothing")

    monkeypatch.setattr(doctor, "resolve_settings", resolve)
    (check,) = doctor.examine({"project": "other-project"})
    assert json.loads(json.dumps(asdict(check))) == {
        "part": "gcp",
        "name": "project",
        "state": "problem",
        "found": "as the test wants",
        "cure": "nothing",
    }


def test_stubs_are_as_the_real_ones() -> None:
    """A method that is renamed there fails here."""
    for stub, real in ((StubCompute, Compute), (StubBucket, Bucket)):
        methods = {name for name, each in vars(stub).items() if callable(each) and not name.startswith("_")}
        assert methods <= set(dir(real))
