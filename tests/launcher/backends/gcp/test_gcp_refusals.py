"""Errors of the launcher for failures of Compute Engine, its credentials and the network."""

import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import json_format

from launcher.backends.gcp import answers
from launcher.backends.gcp import compute as border
from launcher.backends.gcp.answers import DeniedError, OperationFault, RefusedError
from launcher.backends.gcp.compute import Compute
from tests.launcher.backends.gcp import fake_compute
from tests.launcher.backends.gcp.compute_bodies import ID, A, gpu_body
from tests.launcher.backends.gcp.compute_bodies import VM_NAME as NAME
from tests.launcher.backends.gcp.fake_compute import Clock, FakeCompute
from tests.launcher.backends.told import errors_of
from tests.ports import held_port
from workload.contract.errors import ExitCode, InterruptedRunError, ToolError
from workload.contract.process import stoppable
from workload.storage.store import UnreachableError

pytestmark = pytest.mark.world


def test_service_that_stays_busy_is_asked_for_half_a_minute(fake: FakeCompute, compute: Compute, clock: Clock) -> None:
    fake.burst(429, 1000)
    with pytest.raises(UnreachableError) as caught:
        compute.get(A, NAME)
    assert caught.value.report() == (
        f"error: Compute Engine at {fake.url} answers that it is busy (429): busy (429)\nhint: "
        "wait a minute, then run again, with fewer commands at the same time"
    )
    assert 14 < clock.slept_s <= 30


def test_a_connection_that_is_refused(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    with held_port() as port:
        url = f"http://127.0.0.1:{port}"
        monkeypatch.setenv(answers.ENDPOINT_VARIABLE, url)
        with pytest.raises(UnreachableError) as caught:
            border.connect("test-project", sleep=clock.sleep, monotonic=clock.now).instances()
    assert str(caught.value) == f"Compute Engine cannot be reached at {url}: Connection refused"
    assert 14 < clock.slept_s <= 30


def test_a_log_in_page_of_the_network_is_no_bug_of_ours(
    fake: FakeCompute, compute: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    def welcome(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b"<html>Welcome</html>")
        handler.close_connection = True

    for method in ("do_GET", "do_DELETE"):
        monkeypatch.setattr(fake_compute._Handler, method, welcome)
    for ask in (lambda: compute.get(A, NAME), lambda: compute.delete(A, NAME), compute.project_quotas):
        with pytest.raises(UnreachableError) as caught:
            ask()
        assert caught.value.report() == (
            f"error: another server than Compute Engine answers at {fake.url}: a log-in page of this "
            "network, or a proxy\nhint: open a page in a browser and log in to the network, or correct "
            "HTTPS_PROXY; then run again"
        )


def test_ctrl_c_while_an_answer_is_read_is_no_foreign_answer(
    fake: FakeCompute, compute: Compute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """json_format makes a ParseError of every exception, so a launcher would have gone on after Ctrl-C."""
    del fake
    monkeypatch.setattr(json_format, "_DuplicateChecker", lambda _: signal.raise_signal(signal.SIGINT))
    with stoppable(), pytest.raises(InterruptedRunError):
        compute.project_quotas()


def test_a_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv(answers.ENDPOINT_VARIABLE, url)
        monkeypatch.setattr(border, "ANSWER_S", 0.1)
        monkeypatch.setattr(border, "RETRY_S", 0.0)
        compute = border.connect("test-project")
        with pytest.raises(UnreachableError) as caught:
            compute.get(A, NAME)
        assert str(caught.value) == f"Compute Engine cannot be reached at {url}: no answer in time"


DISABLED = "Compute Engine API has not been used in project 123 before or it is disabled."
SHIELDED, ADDRESS = "constraints/compute.requireShieldedVm", "constraints/compute.vmExternalIpAccess"
# What the cloud answers: status, message, reason, and the reason in the newer format.
Answer = tuple[int, str, str, str]
LISTS: dict[str, Answer] = {
    "disabled": (403, DISABLED, "accessNotConfigured", ""),
    "disabled, new format": (403, DISABLED, "", "SERVICE_DISABLED"),
    "no permission": (403, "Required 'compute.instances.list' permission", "forbidden", ""),
    "no credentials": (401, "Request had invalid authentication credentials.", "authError", ""),
    "no project": (404, "The resource 'projects/test-project' was not found", "notFound", ""),
    "anything else": (400, "Invalid value for field 'filter'", "invalid", ""),
}
INSERTS: dict[str, Answer] = {
    "policy": (412, f"Constraint {SHIELDED} violated for p.", "conditionNotMet", ""),
    "policy with a cure": (412, f"Constraint {ADDRESS} violated for p.", "conditionNotMet", ""),
    "two policies": (403, f"Constraint {ADDRESS} violated. Constraint {SHIELDED} violated.", "conditionNotMet", ""),
    "custom network": (
        *(400, "Network interface must specify a subnet if the network resource is in custom subnet mode."),
        *("conditionNotMet", ""),
    ),
}


def test_refusals_are_told_with_a_cure(fake: FakeCompute, compute: Compute, golden: Callable[[str, str], None]) -> None:
    def ask(answer: Answer, question: Callable[[], object]) -> None:
        status, message, reason, info = answer
        fake.refuse(status, message, reason=reason, info=info)
        question()

    def insert() -> object:
        return compute.insert(A, gpu_body(), ID)

    cases = {name: {"answer": answer, "question": compute.instances} for name, answer in LISTS.items()}
    cases |= {f"insert: {name}": {"answer": answer, "question": insert} for name, answer in INSERTS.items()}
    golden("refusals.txt", errors_of(ask, cases))
    assert fake.count("POST") == len(INSERTS), "none of them is tried again"


@pytest.mark.parametrize(
    ("status", "message", "reason", "code"),
    [
        (503, "The zone does not have enough resources available", "backendError", "ZONE_RESOURCE_POOL_EXHAUSTED"),
        (503, "no capacity", "insufficientCapacity", "ZONE_RESOURCE_POOL_EXHAUSTED"),
        (403, "Quota 'NVIDIA_T4_GPUS' exceeded. Limit: 0.0 in region us-central1.", "quotaExceeded", "QUOTA_EXCEEDED"),
        (400, "Machine type with name 'g2-standard-4' does not exist in zone 'z'.", "invalid", "NOT_IN_ZONE"),
        (400, 'Accelerator type "nvidia-tesla-t4" does not exist in zone us-west4-c.', "invalid", "NOT_IN_ZONE"),
        (404, "The resource 'projects/p/zones/z/acceleratorTypes/t' was not found", "notFound", "NOT_IN_ZONE"),
        (404, "The resource 'projects/p/regions/r/subnetworks/s' was not found", "notFound", "RESOURCE_NOT_FOUND"),
    ],
)
def test_insert_that_is_refused_for_its_place(
    status: int, message: str, reason: str, code: str, fake: FakeCompute, compute: Compute
) -> None:
    fake.refuse(status, message, reason=reason)
    with pytest.raises(RefusedError) as caught:
        compute.insert(A, gpu_body(), ID)
    assert caught.value.faults == (OperationFault(code=code, message=message),)
    assert fake.count("POST") == 1


def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    def none(**_: Any) -> None:
        raise DefaultCredentialsError("Your default credentials were not found.\nTo set up …")

    monkeypatch.setattr(google.auth, "default", none)
    with pytest.raises(DeniedError) as caught:
        border.connect("test-project")
    assert caught.value.report() == (
        "error: no usable credentials for Google Cloud: Your default credentials were not found.\n"
        "hint: gcloud auth application-default login"
    )
    assert caught.value.exit_code is ExitCode.TOOL
    assert border.default_project() is None


def test_the_project_of_the_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    import google.auth

    monkeypatch.setattr(google.auth, "default", lambda **_: (object(), "their-project"))
    assert border.default_project() == "their-project"
    monkeypatch.setenv(answers.ENDPOINT_VARIABLE, "http://127.0.0.1:1")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "of-the-test")
    assert border.default_project() == "of-the-test"


def test_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.compute_v1", None)
    monkeypatch.delattr("google.cloud.compute_v1", raising=False)
    with pytest.raises(ToolError) as caught:
        border.connect("test-project")
    assert caught.value.report() == (
        "error: the package google-cloud-compute is missing\nhint: pip install 'rooflaunch[gcp]'"
    )
