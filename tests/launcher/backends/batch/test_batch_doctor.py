"""`launch doctor batch` against a fake service, a folder in place of a bucket, and canned answers of IAM."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from launcher import doctor as machine_doctor
from launcher.backends.batch.backend import CloudBatch
from launcher.backends.batch.options import Where
from launcher.backends.batch.service import ENDPOINT_VARIABLE, BatchService
from launcher.backends.gcp.backend import Services
from launcher.backends.gcp.options import Settings
from launcher.protocol.backend import Check
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


def checks(*, bucket: Any = None) -> list[Check]:
    clock, rest = Clock(), FakeRest()

    def service(project: str, region: str) -> BatchService:
        return BatchService(project, region, sleep=clock.sleep, monotonic=clock.now)

    batch = CloudBatch(service=service, services=lambda name: Services(name, rest), bucket=bucket or (lambda _: None))
    return list(batch.checks(HERE))


def no_bucket(name: str) -> None:
    raise UsageError(f"no bucket '{name}'", hint="infra/gcp/")


def test_checks_of_a_sound_and_of_a_spoiled_project(
    fake: FakeBatch, monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None]
) -> None:
    fake.add_stranger("database")
    parts = {"sound": checks(), "no bucket": checks(bucket=no_bucket)}
    fake.refuses = (403, "SERVICE_DISABLED", "Batch API has not been used in project my-project before")
    parts["API is off"] = checks()
    monkeypatch.delenv(ENDPOINT_VARIABLE)
    settings = Settings(project=PROJECT, bucket="b-b", repository="r/r", service_account=fake_rest.ACCOUNT)
    for role in ("roles/batch.agentReporter", fake_rest.VM_ROLE):
        rest = FakeRest(answers={**fake_rest.sound(), fake_rest.PROJECT_POLICY: fake_rest.policy(role)})
        batch = CloudBatch(services=lambda name, rest=rest: Services(name, rest))
        parts[f"a VM with {role}"] = [batch.role_check(settings)]
    golden("doctor.txt", "\n".join(f"## {name}\n{machine_doctor.render(found)}\n" for name, found in parts.items()))
