"""Where a launch finds its project, bucket and the rest: precedence, defaults, and what no name may hold."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

import pytest

from launcher.backends.gcp.options import RULES, Settings, resolve_settings
from tests.launcher.backends.told import errors_of
from workload.contract.errors import UsageError
from workload.contract.spec import OTHER_VARIABLES, resolve

GIVEN = {"project": "my-project"}
VALUES = {
    "project": "other-project",
    "bucket": "my.bucket_1",
    "repository": "europe-docker.pkg.dev/other-project/images/trainer",
    "service_account": "runner@other-project.iam.gserviceaccount.com",
    "network": "projects/other-project/global/networks/vpc",
    "subnetwork": "regions/us-central1/subnetworks/gpu",
}


def nobody() -> NoReturn:
    pytest.fail("the credentials are asked although a project is named")


def found(
    given: dict[str, Any],
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
    default_project: Callable[[], str | None] = nobody,
) -> tuple[Settings, dict[str, str]]:
    settings, origins = resolve_settings(given, environment or {}, folder, default_project=default_project)
    return settings, dict(origins)


def config(folder: Path, text: str) -> Path:
    (folder / "rooflaunch.toml").write_text(text)
    return folder


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


@pytest.mark.parametrize("name", RULES)
def test_option_over_environment_over_config_over_default(tmp_path: Path, name: str) -> None:
    example, value = RULES[name][2], VALUES[name]
    named = {"project": "my-project", name: example}
    folder = config(tmp_path, "\n".join(["[gcp]", *(f'{key} = "{text}"' for key, text in named.items())]))
    variable = f"ROOFLAUNCH_{name.upper()}"

    def seen(given: dict[str, Any], environment: dict[str, str]) -> tuple[str | None, str]:
        settings, origins = found(given, environment, folder)
        return getattr(settings, name), origins[name]

    assert seen({}, {}) == (example, "rooflaunch.toml")
    assert seen({}, {variable: value}) == (value, "environment")
    assert seen({name: example}, {variable: value}) == (example, "option")
    assert seen({name: None}, {variable: value}) == (value, "environment")


REFUSED: dict[str, dict[str, Any]] = {
    "no project": {"given": {}, "default_project": lambda: None},
    "project by its number": {"given": {"project": "12345"}},
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


HOSTILE = ["", "my-project\n", "my'project", "$(reboot)", "my-project; reboot", "-v/:/host", "pr\u043eject-one"]
HOSTILE += ["My-Project", "a" * 4096, "my\0project", "../../etc"]


@pytest.mark.parametrize("name", RULES)
def test_hostile_values_get_nowhere(name: str) -> None:
    for value in HOSTILE:
        with pytest.raises(UsageError) as caught:
            found({**GIVEN, name: value})
        shown = value.encode("unicode_escape").decode() if len(value) < 80 else "a" * 77 + "..."
        assert str(caught.value) == f"{name.replace('_', ' ')} must be {RULES[name][1]}; got '{shown}'"
        assert caught.value.hint == f"--{name.replace('_', '-')} {RULES[name][2]}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[gcp]\nproject = 3", ", [gcp]: project must be a project id"),
        ('[gce]\nproject = "my-project"', ": unknown table [gce]"),
        ('[gcp]\nbuckets = "b"', ": unknown key 'buckets' in [gcp]"),
        ("gcp = 3", ": gcp must be a table; got '3'"),
        ("[gcp", ": not a readable TOML file: "),
    ],
)
def test_table_that_nobody_can_mean_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        found({}, {}, config(tmp_path, text))
    assert f"rooflaunch.toml{message}" in str(caught.value)


def test_run_options_and_settings_share_a_file_and_an_environment(tmp_path: Path) -> None:
    """Neither complains about the other's words."""
    folder = config(tmp_path, 'model = "vgg16"\n[gcp]\nproject = "my-project"')
    environment = {"ROOFLAUNCH_BUCKET": "my-bucket", "ROOFLAUNCH_SEED": "3"}
    resolved = resolve({}, environment, folder)
    assert (resolved.spec.model, resolved.spec.seed) == ("vgg16", 3)
    settings, _ = found({}, environment, folder)
    assert (settings.project, settings.bucket) == ("my-project", "my-bucket")


def test_every_setting_is_a_variable_that_the_run_options_leave_alone() -> None:
    assert {f"ROOFLAUNCH_{item.name.upper()}" for item in fields(Settings)} < OTHER_VARIABLES
    assert set(RULES) == {item.name for item in fields(Settings)}
