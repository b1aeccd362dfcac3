"""Where a launch finds its project, bucket and the rest: precedence, defaults, and what no name may hold."""

from dataclasses import fields
from pathlib import Path
from typing import NoReturn

import pytest

from launcher.backends.gcp.options import RULES, Settings, resolve_settings
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


def config(folder: Path, text: str) -> Path:
    (folder / "rooflaunch.toml").write_text(text)
    return folder


def test_everything_follows_from_the_project() -> None:
    settings, origins = resolve_settings(GIVEN, {}, None, default_project=nobody)
    assert settings == Settings(
        project="my-project",
        bucket="my-project-rooflaunch",
        repository="us-central1-docker.pkg.dev/my-project/rooflaunch/trainer",
        service_account="rooflaunch-vm@my-project.iam.gserviceaccount.com",
    )
    assert (settings.network, settings.subnetwork) == (None, None)
    assert origins == {"project": "option", "bucket": "default", "repository": "default", "service_account": "default"}


@pytest.mark.parametrize("name", RULES)
def test_option_over_environment_over_config_over_default(tmp_path: Path, name: str) -> None:
    example, value = RULES[name][2], VALUES[name]
    folder = config(
        tmp_path,
        f'[gcp]\nproject = "my-project"\n{name} = "{example}"'.replace('project = "my-project"\nproject', "project"),
    )
    variable = f"ROOFLAUNCH_{name.upper()}"

    def found(given: dict[str, str | None], environment: dict[str, str]) -> tuple[str | None, str]:
        settings, origins = resolve_settings(given, environment, folder, default_project=nobody)
        return getattr(settings, name), origins[name]

    assert found({}, {}) == (example, "rooflaunch.toml")
    assert found({}, {variable: value}) == (value, "environment")
    assert found({name: example}, {variable: value}) == (example, "option")
    assert found({name: None}, {variable: value}) == (value, "environment")


def test_the_project_may_come_from_the_credentials() -> None:
    settings, origins = resolve_settings({"project": None}, {}, None, default_project=lambda: "from-gcloud")
    assert (settings.project, settings.bucket) == ("from-gcloud", "from-gcloud-rooflaunch")
    assert origins["project"] == "application-default credentials"
    with pytest.raises(UsageError) as caught:
        resolve_settings({}, {}, None, default_project=lambda: None)
    assert str(caught.value) == "no project is set, and the credentials name none"
    assert caught.value.hint == "--project PROJECT, or gcloud auth application-default login"


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("bucket", "gs://my-bucket/", "my-bucket"),
        ("service_account", "123456789-compute@developer.gserviceaccount.com", None),
        ("project", "12345", ""),
        ("project", "my-project-", ""),
        ("bucket", "gs://my-bucket/folder", ""),
        ("bucket", "ab", ""),
        ("repository", "us-docker.pkg.dev/my-project/trainer:tag", ""),
        ("repository", "trainer", ""),
        ("service_account", "me@example.com", ""),
        ("network", "global/networks/default/", ""),
        ("subnetwork", "regions/us-central1/subnetworks/", ""),
    ],
)
def test_names_that_google_has_and_has_not(name: str, given: str, kept: str | None) -> None:
    """`kept`: None for as it is given, empty for a name that is refused."""
    if kept == "":
        with pytest.raises(UsageError, match=f"^{name.replace('_', ' ')} must be "):
            resolve_settings({**GIVEN, name: given}, {}, None, default_project=nobody)
    else:
        found, _ = resolve_settings({**GIVEN, name: given}, {}, None, default_project=nobody)
        assert getattr(found, name) == (kept or given)


HOSTILE = ["", "my-project\n", "my'project", "$(reboot)", "my-project; reboot", "-v/:/host", "pr\u043eject-one"]
HOSTILE += ["My-Project", "a" * 4096, "my\0project", "../../etc"]


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("name", RULES)
def test_hostile_values_get_nowhere(name: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_settings({**GIVEN, name: value}, {}, None, default_project=nobody)
    shown = value.encode("unicode_escape").decode() if len(value) < 80 else "a" * 77 + "..."
    label = name.replace("_", " ")
    assert str(caught.value) == f"{label} must be {RULES[name][1]}; got '{shown}'"
    assert caught.value.hint == f"--{name.replace('_', '-')} {RULES[name][2]}"


def test_a_message_names_the_source(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_settings(GIVEN, {"ROOFLAUNCH_BUCKET": "a b"}, None, default_project=nobody)
    assert str(caught.value).startswith("ROOFLAUNCH_BUCKET: bucket must be a bucket's name")
    assert caught.value.hint == "export ROOFLAUNCH_BUCKET=my-project-rooflaunch"
    folder = config(tmp_path, "[gcp]\nproject = 3")
    with pytest.raises(UsageError) as caught:
        resolve_settings({}, {}, folder, default_project=nobody)
    assert str(caught.value).startswith("rooflaunch.toml, [gcp]: project must be a project id")
    assert str(caught.value).endswith("; got '3'")
    assert caught.value.hint == 'project = "my-project"'
    with pytest.raises(UsageError) as caught:
        resolve_settings({}, {}, None, default_project=lambda: "X")
    assert str(caught.value).startswith("application-default credentials: project must be")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[gce]\nproject = "my-project"', "unknown table [gce]"),
        ('[gcp]\nbuckets = "b"', "unknown key 'buckets' in [gcp]"),
        ("gcp = 3", "gcp must be a table; got '3'"),
        ("[gcp", "not a readable TOML file: "),
    ],
)
def test_a_table_that_nobody_can_mean(tmp_path: Path, text: str, message: str) -> None:
    folder = config(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        resolve_settings(GIVEN, {}, folder, default_project=nobody)
    assert str(caught.value).startswith(f"{folder}/rooflaunch.toml: {message}")


def test_run_options_and_settings_share_a_file_and_an_environment(tmp_path: Path) -> None:
    """Neither complains about the other's words."""
    folder = config(tmp_path, 'model = "vgg16"\n[gcp]\nproject = "my-project"')
    environment = {"ROOFLAUNCH_BUCKET": "my-bucket", "ROOFLAUNCH_SEED": "3"}
    resolved = resolve({}, environment, folder)
    assert (resolved.spec.model, resolved.spec.seed) == ("vgg16", 3)
    settings, _ = resolve_settings({}, environment, folder, default_project=nobody)
    assert (settings.project, settings.bucket) == ("my-project", "my-bucket")


def test_every_setting_is_a_variable_that_the_run_options_leave_alone() -> None:
    assert {f"ROOFLAUNCH_{item.name.upper()}" for item in fields(Settings)} < OTHER_VARIABLES
    assert set(RULES) == {item.name for item in fields(Settings)}
