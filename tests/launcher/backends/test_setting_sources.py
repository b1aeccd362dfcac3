"""Settings of the clouds: precedence of their sources, hostile values, and what no table may hold."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from launcher.backends.aws import options as aws
from launcher.backends.gcp import options as gcp
from workload.contract.errors import UsageError
from workload.contract.spec import OTHER_VARIABLES, resolve

Found = tuple[Any, Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """How a cloud finds its settings. `values`: another value than the example for each setting."""

    name: str
    rules: Mapping[str, Any]
    prefix: str
    resolve: Callable[[Mapping[str, Any], Mapping[str, str], Path | None], Found]
    settings: type
    values: Mapping[str, str]
    given: Mapping[str, str]


CLOUDS = {
    "gcp": Cloud(
        name="gcp",
        rules=gcp.RULES,
        prefix="ROOFLAUNCH_",
        resolve=lambda *sources: gcp.resolve_settings(*sources, default_project=lambda: pytest.fail("nobody is asked")),
        settings=gcp.Settings,
        given={"project": "my-project"},
        values={
            "project": "other-project",
            "bucket": "my.bucket_1",
            "repository": "europe-docker.pkg.dev/other-project/images/trainer",
            "service_account": "runner@other-project.iam.gserviceaccount.com",
            "network": "projects/other-project/global/networks/vpc",
            "subnetwork": "regions/us-central1/subnetworks/gpu",
        },
    ),
    "aws": Cloud(
        name="aws",
        rules=aws.RULES,
        prefix="ROOFLAUNCH_AWS_",
        resolve=lambda *sources: aws.resolve_settings(*sources, account=lambda _: "111122223333"),
        settings=aws.Settings,
        given={},
        values={
            "region": "eu-west-1",
            "bucket": "other-bucket",
            "repository": "registry:5000/trainer",
            "instance_profile": "other-vm",
            "schedule_role": "other-role",
            "security_group": "sg-0123456789abcdef0",
            "subnet": "subnet-0aaaaaaaaaaaaaaaa",
            "ami_parameter": "/my/ami",
        },
    ),
}
each_setting = pytest.mark.parametrize(
    ("cloud", "name"),
    [pytest.param(cloud, name, id=f"{cloud.name}-{name}") for cloud in CLOUDS.values() for name in cloud.rules],
)


def config(folder: Path, text: str) -> Path:
    (folder / "rooflaunch.toml").write_text(text)
    return folder


@each_setting
def test_option_over_environment_over_config(tmp_path: Path, cloud: Cloud, name: str) -> None:
    example, value, variable = cloud.rules[name][2], cloud.values[name], f"{cloud.prefix}{name.upper()}"
    named = {**cloud.given, name: example}
    folder = config(tmp_path, "\n".join([f"[{cloud.name}]", *(f'{key} = "{text}"' for key, text in named.items())]))

    def found(given: dict[str, str | None], environment: dict[str, str]) -> tuple[str | None, str]:
        settings, origins = cloud.resolve(given, environment, folder)
        return getattr(settings, name), origins[name]

    assert found({}, {}) == (example, "rooflaunch.toml")
    assert found({}, {variable: value}) == (value, "environment")
    assert found({name: example}, {variable: value}) == (example, "option")
    assert found({name: None}, {variable: value}) == (value, "environment")
    assert variable in OTHER_VARIABLES
    # Run options and settings share a file and an environment, and neither complains about the other's words.
    assert resolve({}, {variable: value, "ROOFLAUNCH_SEED": "3"}, folder).spec.seed == 3


HOSTILE = ["", "my-project\n", "a'b", "$(reboot)", "a; reboot", "-v/:/host", "a" * 4096, "a\0b", "a b"]


@each_setting
def test_hostile_values_get_nowhere(cloud: Cloud, name: str) -> None:
    for value in HOSTILE:
        with pytest.raises(UsageError) as caught:
            cloud.resolve({**cloud.given, name: value}, {}, None)
        shown = value.encode("unicode_escape").decode() if len(value) < 80 else "a" * 77 + "..."
        assert str(caught.value) == f"{name.replace('_', ' ')} must be {cloud.rules[name][1]}; got '{shown}'"
        assert caught.value.hint == f"--{name.replace('_', '-')} {cloud.rules[name][2]}"


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
        CLOUDS["gcp"].resolve({}, {}, config(tmp_path, text))
    assert f"rooflaunch.toml{message}" in str(caught.value)


def test_every_setting_has_a_rule() -> None:
    for cloud in CLOUDS.values():
        assert set(cloud.rules) == {item.name for item in fields(cloud.settings)} - {"account"}
