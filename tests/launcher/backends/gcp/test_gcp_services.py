from collections.abc import Callable
from typing import Any

import pytest
import requests
from google.auth import exceptions as auth

from launcher.backends.gcp import backend
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
from tests.launcher.backends.told import errors_of


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


REFUSED: dict[str, Any] = {
    "disabled": disabled("cloudresourcemanager.googleapis.com"),
    "denied": refused("Permission denied on it\nmore"),
    "no quota project": refused("The API requires a quota project, which is not set by default."),
    "no document": (400, b"<html>"),
    "log-in page": (200, b"<html>"),
    "no connection": requests.ConnectionError("Connection refused"),
    "no route": auth.TransportError("no route"),
    "login too old": auth.RefreshError("Reauthentication is needed."),
}


def test_refusals_are_told_with_a_cure(golden: Callable[[str, str], None]) -> None:
    def ask(answer: Any) -> object:
        return Services(PROJECT, FakeRest({PROJECT_POLICY: answer})).roles_in_project(ACCOUNT)

    golden("services-refusals.txt", errors_of(ask, {name: {"answer": answer} for name, answer in REFUSED.items()}))


def test_credentials_are_those_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    import google.auth
    from google.auth.credentials import AnonymousCredentials

    monkeypatch.setattr(google.auth, "default", lambda **_: (AnonymousCredentials(), None))
    assert backend.connect_services(PROJECT).project == PROJECT
