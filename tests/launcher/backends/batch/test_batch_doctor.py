"""`launch doctor batch` against a fake service, a folder in place of a bucket, and canned answers of IAM."""

from collections.abc import Iterator
from typing import Any

import pytest

from launcher.backends.batch.backend import CloudBatch
from launcher.backends.batch.options import Where
from launcher.backends.batch.service import ENDPOINT_VARIABLE, BatchService
from launcher.backends.gcp.backend import Services
from launcher.backends.gcp.options import Settings
from launcher.protocol.backend import Check, Health
from tests.launcher.backends.batch.fake_batch import PROJECT, REGION, FakeBatch
from tests.launcher.backends.gcp import fake_rest
from tests.launcher.backends.gcp.fake_compute import Clock
from tests.launcher.backends.gcp.fake_rest import FakeRest
from workload.contract.errors import UsageError

pytestmark = pytest.mark.world
HERE = Where(region=REGION, project=PROJECT)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBatch]:
    with FakeBatch() as service:
        monkeypatch.setenv(ENDPOINT_VARIABLE, service.url)
        yield service


def checks(rest: FakeRest, *, bucket: Any = None) -> dict[str, Check]:
    clock = Clock()

    def service(project: str, region: str) -> BatchService:
        return BatchService(project, region, sleep=clock.sleep, monotonic=clock.now)

    batch = CloudBatch(service=service, services=lambda name: Services(name, rest), bucket=bucket or (lambda _: None))
    return {check.name: check for check in batch.checks(HERE)}


def test_a_region_that_answers(fake: FakeBatch) -> None:
    fake.add_stranger("database")
    found = checks(FakeRest())
    assert found["API"].found == "Batch answers in us-central1 of my-project; 0 running jobs of rooflaunch"
    assert found["bucket"].found == "gs://my-project-rooflaunch/batch can be read"
    assert found["the rest"].cure == "launch doctor gcp"
    assert [check.state for check in found.values() if check.state is Health.PROBLEM] == []


def test_an_api_that_is_off(fake: FakeBatch) -> None:
    fake.refuses = (403, "SERVICE_DISABLED", "Batch API has not been used in project my-project before")
    check = checks(FakeRest())["API"]
    assert (check.state, check.found) == (Health.PROBLEM, "the Batch API is disabled in project 'my-project'")
    assert check.cure == "gcloud services enable batch.googleapis.com --project my-project"


def test_a_bucket_that_is_not_there(fake: FakeBatch) -> None:
    del fake

    def no_bucket(name: str) -> None:
        raise UsageError(f"no bucket '{name}'", hint="infra/gcp/")

    check = checks(FakeRest(), bucket=no_bucket)["bucket"]
    assert (check.state, check.found) == (Health.PROBLEM, "no bucket 'my-project-rooflaunch'")


@pytest.mark.parametrize(
    ("role", "state", "found"),
    [
        ("roles/batch.agentReporter", Health.OK, f"{fake_rest.ACCOUNT} may report to Batch"),
        (
            fake_rest.VM_ROLE,
            Health.PROBLEM,
            f"{fake_rest.ACCOUNT} lacks roles/batch.agentReporter: Batch would consider the VM's tasks lost",
        ),
    ],
    ids=["given", "missing"],
)
def test_the_role_of_the_vm(role: str, state: Health, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENDPOINT_VARIABLE, raising=False)
    rest = FakeRest(answers={**fake_rest.sound(), fake_rest.PROJECT_POLICY: fake_rest.policy(role)})
    settings = Settings(project=PROJECT, bucket="b-b", repository="r/r", service_account=fake_rest.ACCOUNT)
    check = CloudBatch(services=lambda name: Services(name, rest)).role_check(settings)
    assert (check.state, check.found) == (state, found)
    if state is Health.PROBLEM:
        assert check.cure.endswith("--role roles/batch.agentReporter; infra/gcp/ grants this role")
