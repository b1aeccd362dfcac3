"""Where `launch aws` finds its region, bucket and the rest."""

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.backends.aws.backend import open_bucket
from launcher.backends.aws.options import Settings, resolve_settings
from tests.launcher.backends.aws.aws_world import SETTINGS
from tests.workload.storage import s3_server
from tests.workload.storage.strict_s3 import BUCKET, StrictS3
from workload.contract.errors import UsageError

ACCOUNT = "111122223333"


def resolved(
    given: dict[str, str | None] | None = None, environment: dict[str, str] | None = None, folder: Path | None = None
) -> tuple[Settings, dict[str, str]]:
    settings, origins = resolve_settings(given or {}, environment or {}, folder, account=lambda _: ACCOUNT)
    return settings, dict(origins)


def test_everything_follows_from_account_and_region() -> None:
    settings, origins = resolved()
    assert settings == Settings(
        region="us-east-1",
        account=ACCOUNT,
        bucket=f"rooflaunch-{ACCOUNT}-us-east-1",
        repository=f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/rooflaunch/trainer",
        instance_profile="rooflaunch-vm",
        schedule_role="rooflaunch-schedule",
        security_group="rooflaunch",
    )
    assert settings.schedule_role_arn == f"arn:aws:iam::{ACCOUNT}:role/rooflaunch-schedule"
    assert set(origins.values()) == {"default"}


@pytest.mark.parametrize(
    ("environment", "region"),
    [
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "us-west-2"}, "eu-west-1"),
        ({"AWS_DEFAULT_REGION": "us-west-2"}, "us-west-2"),
        ({"AWS_CONFIG_FILE": "config"}, "eu-north-1"),
        ({"AWS_CONFIG_FILE": "config", "AWS_PROFILE": "work"}, "ap-south-1"),
        ({"AWS_CONFIG_FILE": "config", "AWS_PROFILE": "missing"}, "us-east-1"),
        ({"AWS_CONFIG_FILE": "config", "AWS_DEFAULT_PROFILE": "work", "AWS_PROFILE": "missing"}, "ap-south-1"),
        ({"AWS_CONFIG_FILE": "~/config", "HOME": "."}, "eu-north-1"),
        ({"AWS_CONFIG_FILE": "~/config", "HOME": "absent"}, "us-east-1"),
        ({"AWS_CONFIG_FILE": "absent"}, "us-east-1"),
    ],
)
def test_the_region_of_awss_own_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], region: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config").write_text("[default]\nregion = eu-north-1\n[profile work]\nregion = ap-south-1\n")
    assert resolved({}, environment)[0].region == region


@pytest.mark.parametrize("content", [b"region = eu-north-1\n", b"\xff\xfe"])
def test_an_unreadable_configuration_of_aws(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="not readable"):
        resolved({}, {"AWS_CONFIG_FILE": str(path)})


def test_a_region_that_is_none() -> None:
    with pytest.raises(UsageError) as caught:
        resolved({}, {"AWS_REGION": "moon"})
    assert str(caught.value) == "AWS configuration: region must be a region's name such as us-east-1; got 'moon'"


@pytest.mark.world
@pytest.mark.slow
def test_bucket_must_be_in_the_launchs_region(monkeypatch: pytest.MonkeyPatch) -> None:
    with StrictS3() as s3:
        s3_server.meet(s3.url, s3_server.make_session(), monkeypatch)
        here = replace(SETTINGS, bucket=BUCKET)
        for region in ("", "us-east-1"):
            s3.region = region
            bucket = open_bucket(here)
            assert bucket.write(f"launches/{region or 'x'}", b"1")
            assert bucket.region == region
        s3.region = "eu-west-1"
        assert open_bucket(replace(here, region="eu-west-1")).region == "eu-west-1"
        with pytest.raises(UsageError) as caught:
            open_bucket(here)
    assert caught.value.report() == (
        f"error: bucket '{BUCKET}' is in region 'eu-west-1', but the instances are in 'us-east-1'\n"
        "hint: --region eu-west-1, or --bucket with a bucket in us-east-1"
    )
