"""The bucket of `launch aws`, which must be in the region of the instances. boto3 is imported inside functions only."""

from typing import TYPE_CHECKING

from launcher.backends.aws.settings import Settings
from launcher.protocol.records import LAUNCHES, READERS
from workload.contract.errors import UsageError

if TYPE_CHECKING:
    from workload.storage.s3 import Bucket


def open_bucket(settings: Settings) -> "Bucket":
    """Open the bucket of these settings. Raises `UsageError` if S3 says that it is in another region.

    An instance asks S3 in its own region before its agent runs, and S3 charges for traffic between regions.
    """
    from workload.storage import s3  # noqa: PLC0415 - loaded when it is used

    bucket = s3.connect(settings.bucket, prefix=LAUNCHES, jobs=READERS)
    if bucket.region not in ("", settings.region):
        raise UsageError(
            f"{bucket} is in region '{bucket.region}', but the instances are in '{settings.region}'",
            hint=f"--region {bucket.region}, or --bucket with a bucket in {settings.region}",
        )
    return bucket
