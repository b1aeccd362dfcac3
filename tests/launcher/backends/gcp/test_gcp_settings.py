"""Where a launch finds its project, bucket and the rest: defaults, and names that Google does not have."""

from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from launcher.backends.gcp.options import Settings, resolve_settings
from tests.launcher.backends.told import errors_of

GIVEN = {"project": "my-project"}


def nobody() -> NoReturn:
    pytest.fail("the credentials are asked although a project is named")


def found(
    given: dict[str, Any],
    environment: dict[str, str] | None = None,
    default_project: Callable[[], str | None] = nobody,
) -> tuple[Settings, dict[str, str]]:
    settings, origins = resolve_settings(given, environment or {}, None, default_project=default_project)
    return settings, dict(origins)


def test_everything_follows_from_the_project() -> None:
    settings, origins = found(GIVEN)
    assert settings == Settings(
        project="my-project",
        bucket="my-project-rooflaunch",
        repository="us-central1-docker.pkg.dev/my-project/rooflaunch/trainer",
        service_account="rooflaunch-vm@my-project.iam.gserviceaccount.com",
    )
    assert origins == {"project": "option", "bucket": "default", "repository": "default", "service_account": "default"}
    from_login, origins = found({"project": None}, default_project=lambda: "from-gcloud")
    assert (from_login.bucket, origins["project"]) == ("from-gcloud-rooflaunch", "application-default credentials")


REFUSED: dict[str, dict[str, Any]] = {
    "no project": {"given": {}, "default_project": lambda: None},
    "project by its number": {"given": {"project": "12345"}},
    "project in another script": {"given": {"project": "pr\u043eject-one"}},
    "project that ends with a hyphen": {"given": {"project": "my-project-"}},
    "project of the credentials": {"given": {}, "default_project": lambda: "X"},
    "bucket with a folder": {"given": {**GIVEN, "bucket": "gs://my-bucket/folder"}},
    "bucket of two letters": {"given": {**GIVEN, "bucket": "ab"}},
    "bucket of the environment": {"given": GIVEN, "environment": {"ROOFLAUNCH_BUCKET": "a b"}},
    "repository with a tag": {"given": {**GIVEN, "repository": "us-docker.pkg.dev/my-project/trainer:tag"}},
    "repository without a host": {"given": {**GIVEN, "repository": "trainer"}},
    "account of a person": {"given": {**GIVEN, "service_account": "me@example.com"}},
    "network that ends with a slash": {"given": {**GIVEN, "network": "global/networks/default/"}},
    "subnetwork without a name": {"given": {**GIVEN, "subnetwork": "regions/us-central1/subnetworks/"}},
}


def test_names_that_google_does_not_have_are_refused(golden: Callable[[str, str], None]) -> None:
    golden("settings-refusals.txt", errors_of(found, REFUSED))
    assert found({**GIVEN, "bucket": "gs://my-bucket/"})[0].bucket == "my-bucket"
    account = "123456789-compute@developer.gserviceaccount.com"
    assert found({**GIVEN, "service_account": account})[0].service_account == account
