"""The bucket of a launch must be in the region of its instances."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from launcher.backends.aws.backend import open_bucket
from tests.launcher.backends.aws.aws_world import SETTINGS
from tests.workload.storage import s3_server
from tests.workload.storage.strict_s3 import BUCKET, StrictS3
from workload.contract.errors import UsageError

pytestmark = [pytest.mark.world, pytest.mark.slow]

HERE = replace(SETTINGS, bucket=BUCKET)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[StrictS3]:
    with StrictS3() as server:
        s3_server.meet(server.url, s3_server.make_session(), monkeypatch)
        yield server


@pytest.mark.parametrize("region", ["", "us-east-1"])
def test_a_bucket_in_the_launchs_region(s3: StrictS3, region: str) -> None:
    s3.region = region
    bucket = open_bucket(HERE)
    assert bucket.write("launches/x", b"1")
    assert bucket.region == region


def test_a_bucket_in_another_region(s3: StrictS3) -> None:
    s3.region = "eu-west-1"
    assert open_bucket(replace(HERE, region="eu-west-1")).region == "eu-west-1"
    with pytest.raises(UsageError) as caught:
        open_bucket(HERE)
    assert str(caught.value) == f"bucket '{BUCKET}' is in region 'eu-west-1', but the instances are in 'us-east-1'"
    assert caught.value.hint == "--region eu-west-1, or --bucket with a bucket in us-east-1"
