"""Conversion of the errors of boto3 and S3 to ours. botocore is imported only inside functions."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from workload.contract.errors import RooflaunchError, ToolError, UsageError
from workload.storage.buckets import Service, causes, has_wrong_certificate, network_reason, sent_damaged, throttled
from workload.storage.store import Patience, UnreachableError

LOG_IN = "aws sso login, or aws configure"
# boto3 reads AWS_DEFAULT_REGION; AWS_REGION is the variable of other programs.
REGION_VARIABLE = "AWS_DEFAULT_REGION"
SERVICE = Service(
    name="S3",
    public="https://s3.amazonaws.com",
    variables=("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    settings=f", and the region in {REGION_VARIABLE}",
)

# Error codes: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html. Answers to HEAD have no code, only
# the status.
GONE = {"NoSuchKey", "404", "NotFound"}
NOT_AS_EXPECTED = {"PreconditionFailed", "412"}
# Another writer changed the object at the same time. Nothing was stored; the next attempt shows who was first.
CONFLICT = {"ConditionalRequestConflict", "OperationAborted", "409"}
THROTTLED = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests", "429"}
# The content that arrived differs from its checksum.
DAMAGED = {"BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
# Refusals of which another attempt may succeed, and after which the server has done nothing.
NOTHING_DONE = {*CONFLICT, *THROTTLED, *DAMAGED}
TEMPORARY = {*NOTHING_DONE, "RequestTimeout", "InternalError", "ServiceUnavailable"}
TEMPORARY_STATUS = {408, 429, 500, 502, 503, 504}
EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired")
WRONG_KEY = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidSecurity", "NotSignedUp")
# Messages about credentials, by error code.
ABOUT_KEYS = {
    **dict.fromkeys(EXPIRED, "the credentials for AWS have expired"),
    **dict.fromkeys(WRONG_KEY, "no usable credentials for AWS"),
    "400": "S3 refuses a request without a reason, as it does with expired credentials",  # HEAD alone
}
WRONG_CLOCK = {"RequestTimeTooSkewed", "RequestInTheFuture"}
DENIED = {"AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden", "403", "401"}
ELSEWHERE = {
    "PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException",
    "301", "307",
}  # fmt: skip
# The permission that an operation needs: https://docs.aws.amazon.com/AmazonS3/latest/API/API_Operations.html
ACTIONS = {
    "ListObjectsV2": "s3:ListBucket",
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
}
WRITING = "s3:PutObject"


@contextmanager
def translated(bucket: str, patience: Patience) -> Iterator[None]:
    """Convert errors of the client and its libraries to ours, with their cause; an `OSError` of the disk passes."""
    from botocore import exceptions as boto  # noqa: PLC0415 - see the module
    from botocore.parsers import ResponseParserError  # noqa: PLC0415

    try:
        yield
    except boto.ClientError as error:
        raise _refusal(bucket, error) from error
    except ResponseParserError as error:
        raise SERVICE.foreign() from error
    except (boto.ParamValidationError, boto.ValidationError, boto.EndpointProviderError) as error:
        raise UsageError(
            f"bucket '{bucket}' cannot be asked: {first_line(error)}",
            hint=f"correct the bucket's name, or the region in {REGION_VARIABLE}",
        ) from error
    except ValueError as error:
        if not str(error).startswith("Invalid endpoint"):
            raise
        raise wrong_endpoint(SERVICE) from error
    except network_errors() as error:
        raise _unreachable(bucket, error, patience) from error
    except (boto.FlexibleChecksumError, boto.ChecksumError) as error:
        raise sent_damaged(bucket) from error
    except boto.BotoCoreError as error:
        raise ToolError(f"no usable credentials for AWS: {first_line(error)}", hint=LOG_IN) from error


def wrong_endpoint(service: Service) -> UsageError:
    """Error for a variable or a setting of AWS whose value is no address of a server."""
    name = service.variable() or "endpoint_url"
    return UsageError(
        f"{name} must be an address as http://HOST:PORT; got '{service.where}'", hint=f"correct it, or unset {name}"
    )


def _refusal(bucket: str, error: Any) -> RooflaunchError:
    code, why = error_code(error), first_line(error)
    found: RooflaunchError
    if code == "NoSuchBucket":
        found = UsageError(f"bucket '{bucket}' does not exist", hint=f"aws s3 ls{SERVICE.note()}")
    elif code in ABOUT_KEYS:
        found = ToolError(f"{ABOUT_KEYS[code]}: {why}", hint=LOG_IN)
    elif code in WRONG_CLOCK:
        found = ToolError(
            f"the clock of this machine is wrong, so S3 refuses its requests: {why}",
            hint="set the clock, for example with sudo timedatectl set-ntp true; then run again",
        )
    elif code in ELSEWHERE:
        found = _elsewhere(bucket, error)
    elif code in DENIED:
        # The permission that is missing: the server's message names it, or else the operation does.
        named = re.search(r"not authorized to perform: ([a-z0-9-]+:\w+)", str(error))
        action = named[1] if named else ACTIONS.get(error.operation_name, WRITING)
        found = ToolError(
            f"no permission for {action} in bucket '{bucket}': {why}",
            hint=f"ask the bucket's owner for {action}, or use other credentials: {LOG_IN}",
        )
    elif code in THROTTLED:
        found = throttled(bucket, code)
    elif status_of(error) in TEMPORARY_STATUS:
        found = SERVICE.unreachable(f"bucket '{bucket}'", why)
    elif code in DAMAGED:
        found = ToolError(f"bucket '{bucket}' received damaged data: {why}", hint="check the network, then run again")
    else:
        found = ToolError(f"bucket '{bucket}': {why}", hint="run again; if the error stays, report it as a bug")
    return found


def _elsewhere(bucket: str, error: Any) -> RooflaunchError:
    """Error for a bucket in another region, to which botocore could not follow; or for a page that redirects."""
    details = error.response.get("Error", {})
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region = details.get("Region") or headers.get("x-amz-bucket-region") or ""
    if not region and not details.get("Code", "").isalpha():
        return SERVICE.foreign()
    return UsageError(
        f"bucket '{bucket}' is in another region{f', {region}' if region else ''}",
        hint=f"set {REGION_VARIABLE}={region}"
        if region
        else f"set {REGION_VARIABLE} to the region that is shown by aws s3api get-bucket-location --bucket {bucket}",
    )


def _unreachable(bucket: str, error: BaseException, patience: Patience) -> UnreachableError:
    from botocore import exceptions as boto  # noqa: PLC0415 - see the module

    if has_wrong_certificate(error):
        return SERVICE.foreign()
    why = network_reason(error, patience, no_connection=(boto.ConnectTimeoutError,), no_data=(boto.ReadTimeoutError,))
    if not why and any(isinstance(cause, boto.IncompleteReadError) for cause in causes(error)):
        why = "the server's answer was cut off"
    asked = next(
        (cause.kwargs.get("endpoint_url") for cause in causes(error) if isinstance(cause, boto.BotoCoreError)), ""
    )
    where = "" if SERVICE.variable() else "/".join(str(asked or "").split("/")[:3])
    return SERVICE.unreachable(f"bucket '{bucket}'", why or first_line(list(causes(error))[-1]), where=where)


def is_temporary(error: Exception) -> bool:
    if error_code(error):
        return error_code(error) in TEMPORARY or status_of(error) in TEMPORARY_STATUS
    return isinstance(error, network_errors()) and not has_wrong_certificate(error)


@cache
def network_errors() -> tuple[type[BaseException], ...]:
    """Exceptions of boto3 and its libraries for a server that does not answer."""
    import urllib3  # noqa: PLC0415 - see the module
    from botocore import exceptions as boto  # noqa: PLC0415

    ours = (boto.ConnectionError, boto.HTTPClientError, boto.IncompleteReadError)
    return (*ours, urllib3.exceptions.HTTPError, ConnectionError, TimeoutError)


def error_code(error: BaseException | None) -> str:
    """The server's word for an error, such as `NoSuchKey`; empty if `error` is no answer of the server."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code") or status_of(error)) if isinstance(response, dict) else ""


def status_of(error: BaseException | None) -> int:
    """HTTP status of an answer of the server; 0 if `error` is no answer."""
    return int(getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)


def first_line(error: BaseException) -> str:
    """First line of the server's message, or of the exception."""
    response = getattr(error, "response", None)
    text = (
        str(response.get("Error", {}).get("Message") or error_code(error)) if isinstance(response, dict) else str(error)
    )
    return text.strip().splitlines()[0][:300] if text.strip() else type(error).__name__
