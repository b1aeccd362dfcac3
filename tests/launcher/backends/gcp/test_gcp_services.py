from typing import Any

import pytest
import requests
from google.auth import exceptions as auth

from launcher.backends.gcp import backend
from launcher.backends.gcp.answers import DeniedError
from launcher.backends.gcp.backend import Services
from tests.launcher.backends.gcp.fake_rest import (
    ACCOUNT,
    IAM,
    PROJECT,
    PROJECT_POLICY,
    SERVICES,
    VM_ROLE,
    FakeRest,
    disabled,
    policy,
    refused,
)
from workload.contract.errors import ToolError
from workload.storage.store import UnreachableError


@pytest.fixture
def rest() -> FakeRest:
    return FakeRest()


@pytest.fixture
def asked(rest: FakeRest) -> Services:
    return Services(PROJECT, rest)


def test_enabled_services_of_all_pages(rest: FakeRest, asked: Services) -> None:
    rest.answers[SERVICES] = [
        {"services": [{"config": {"name": "a.googleapis.com"}}], "nextPageToken": "t 1"},
        {"services": [{"config": {"name": "b.googleapis.com"}}]},
    ]
    assert asked.enabled() == {"a.googleapis.com", "b.googleapis.com"}
    assert rest.queries == ["filter=state%3AENABLED", "filter=state%3AENABLED&pageToken=t+1"]


def test_roles_and_what_they_allow(rest: FakeRest, asked: Services) -> None:
    assert asked.roles_in_project(ACCOUNT) == {VM_ROLE}
    assert rest.bodies == [{"options": {"requestedPolicyVersion": 3}}], "else bindings with a condition are left out"
    rest.answers[PROJECT_POLICY] = policy("roles/owner", member="user:rooflaunch-vm@example.com")
    assert asked.roles_in_project(ACCOUNT) == frozenset()
    rest.asked.clear()
    assert asked.permissions([VM_ROLE]) == {"compute.instances.get", "compute.instances.delete"}
    assert rest.asked == [f"GET {IAM}{VM_ROLE}"]
    rest.answers[f"GET {IAM}{VM_ROLE}"] = refused("no such role", 404)
    assert asked.permissions([VM_ROLE]) == frozenset()


MANAGER = "cloudresourcemanager.googleapis.com"
LOG_IN = "gcloud auth application-default login"
NETWORK = f"check the network and its proxy (curl -I https://{MANAGER}), then run again"


@pytest.mark.parametrize(
    ("answer", "kind", "message", "hint"),
    [
        (
            disabled(MANAGER),
            ToolError,
            f"{MANAGER} is not enabled in project 'my-project'",
            f"gcloud services enable {MANAGER} --project my-project",
        ),
        (
            refused("Permission denied on it\nmore"),
            ToolError,
            f"{MANAGER}: Permission denied on it",
            f"ask the owner of project 'my-project', or use another account: {LOG_IN}",
        ),
        (
            refused("The API requires a quota project, which is not set by default."),
            ToolError,
            f"{MANAGER}: The API requires a quota project, which is not set by default.",
            "gcloud auth application-default set-quota-project my-project",
        ),
        ((400, b"<html>"), ToolError, f"{MANAGER}: HTTP 400", "run again; if the error stays, report it as a bug"),
        (
            (200, b"<html>"),
            UnreachableError,
            f"another server than {MANAGER} answers at https://{MANAGER}: a log-in page of this network, or a proxy",
            "open a page in a browser and log in to the network, or correct HTTPS_PROXY; then run again",
        ),
        (
            requests.ConnectionError("Connection refused"),
            ToolError,
            f"{MANAGER} cannot be reached: Connection refused",
            NETWORK,
        ),
        (auth.TransportError("no route"), ToolError, f"{MANAGER} cannot be reached: no route", NETWORK),
        (
            auth.RefreshError("Reauthentication is needed."),
            DeniedError,
            "no usable credentials for Google Cloud: Reauthentication is needed.",
            LOG_IN,
        ),
    ],
)
def test_refusals(answer: Any, kind: type[ToolError], message: str, hint: str) -> None:
    with pytest.raises(ToolError) as caught:
        Services(PROJECT, FakeRest({PROJECT_POLICY: answer})).roles_in_project(ACCOUNT)
    assert type(caught.value) is kind
    assert (str(caught.value), caught.value.hint) == (message, hint)


def test_credentials_are_those_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    import google.auth
    from google.auth.credentials import AnonymousCredentials

    monkeypatch.setattr(google.auth, "default", lambda **_: (AnonymousCredentials(), None))
    assert backend.connect_services(PROJECT).project == PROJECT
