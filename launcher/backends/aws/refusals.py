"""Turns failures of AWS into our errors: error answers, and exceptions of boto3 and its libraries."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from launcher.backends.zone_by_zone import Fault, Scope
from workload.contract.errors import RooflaunchError, ToolError, UsageError
from workload.storage.s3_errors import EXPIRED, LOG_IN, THROTTLED, WRONG_CLOCK, WRONG_KEY
from workload.storage.store import UnreachableError

ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL"
MAX_MESSAGE_CHARS = 500
HTTP_BUSY = (429, 500, 502, 503, 504)

# Error codes: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
# No free machine of this type in this zone now, or never: the next zone may have one.
CAPACITY = frozenset(
    {
        *("InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientCapacity"),
        *("UnfulfillableCapacity", "SpotMaxPriceTooLow", "Unsupported", "InsufficientFreeAddressesInSubnet"),
        # Reasons of an instance that ended right after it was made.
        *("Server.InsufficientInstanceCapacity", "Server.InternalError", "Server.SpotInstanceTermination"),
    }
)
# A quota of the region: no zone of it can succeed. Usage lags minutes behind the end of an instance.
QUOTA = frozenset(
    {
        *("VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded"),
        *("VolumeLimitExceeded", "Client.VolumeLimitExceeded"),
    }
)
BUSY_CODES = frozenset({*THROTTLED, "EC2ThrottledException", "RequestThrottled", "TooManyRequestsException"})
# The server failed; whether it did what was asked is not known.
DOUBTFUL = frozenset({"InternalError", "InternalFailure", "InternalServerError", "ServiceUnavailable", "Unavailable"})
WRONG_CREDENTIALS = frozenset(
    {
        *("AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException", "MissingAuthenticationToken"),
        *("IncompleteSignature", "InvalidSignatureException", *WRONG_KEY),
    }
)
# STS and the services with JSON have no code of their own for a wrong clock, only these messages.
WRONG_CLOCK_TEXTS = ("Signature expired", "Signature not yet current")
DENIED = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
ACCOUNT = frozenset({"OptInRequired", "PendingVerification", "Blocked", "SubscriptionRequiredException"})

# Our own codes, in addition to those of EC2.
TOOK_TOO_LONG, LOST, BUSY = "TookTooLong", "Lost", "Busy"


class DeniedError(ToolError):
    """No credentials, no permission, or an account that may not use EC2: repeating the request is useless."""


class DoubtfulError(UnreachableError):
    """No answer, or one from which nobody can tell whether the request was carried out."""


class RefusedError(ToolError):
    """An error answer of AWS, with its code."""

    def __init__(self, message: str, *, code: str, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Service:
    """AWS in one region, for messages."""

    region: str
    name: str = "EC2"

    @property
    def public(self) -> str:
        """Public address of EC2 in the region."""
        return f"https://ec2.{self.region}.amazonaws.com"

    @property
    def address(self) -> str:
        """Address that is asked: the value of AWS's own variable if set, else the public address."""
        return os.environ.get(ENDPOINT_VARIABLE) or self.public


@contextmanager
def translated(service: Service) -> Iterator[None]:
    """Turn exceptions of boto3 and its libraries into our errors, with their cause."""
    import urllib3  # noqa: PLC0415 - loaded only when it is needed
    from botocore import exceptions as boto  # noqa: PLC0415
    from botocore.parsers import ResponseParserError  # noqa: PLC0415

    network = (boto.ConnectionError, boto.HTTPClientError, urllib3.exceptions.HTTPError, ConnectionError, TimeoutError)
    try:
        yield
    except boto.ClientError as error:
        raise _refusal(service, error) from error
    except ResponseParserError as error:
        raise DoubtfulError(
            f"{service.name} at {service.address} gave an answer that is not AWS's: {message_of(error)}",
            hint=f"check the network and its proxy (curl -I {service.public}), or unset {ENDPOINT_VARIABLE}",
        ) from error
    except network as error:
        hint = f"check the region and the network (curl -I {service.public}), then run again"
        if os.environ.get(ENDPOINT_VARIABLE):
            hint = f"start the server at this address, or unset {ENDPOINT_VARIABLE}"
        raise DoubtfulError(
            f"{service.name} cannot be reached at {service.address}: {message_of(error)}", hint=hint
        ) from error
    except (boto.ParamValidationError, boto.EndpointProviderError, boto.InvalidRegionError) as error:
        raise UsageError(
            f"AWS cannot be asked in region '{service.region}': {message_of(error)}", hint="--region us-east-1"
        ) from error
    except ValueError as error:
        if not str(error).startswith("Invalid endpoint"):
            raise
        raise UsageError(
            f"{ENDPOINT_VARIABLE} must be an address as http://HOST:PORT; got '{service.address}'",
            hint=f"correct it, or unset {ENDPOINT_VARIABLE}",
        ) from error
    except boto.BotoCoreError as error:
        raise DeniedError(f"no usable credentials for AWS: {message_of(error)}", hint=LOG_IN) from error


def _refusal(service: Service, error: Any) -> RooflaunchError:
    """Error for an error answer of AWS."""
    code, message = code_of(error), message_of(error)
    action = f"{error.operation_name[:1].lower()}{error.operation_name[1:]}"
    meaning: RooflaunchError
    if code in EXPIRED:
        meaning = DeniedError(f"the credentials for AWS have expired: {message}", hint=LOG_IN)
    elif code in WRONG_CLOCK or message.startswith(WRONG_CLOCK_TEXTS):
        meaning = DeniedError(
            f"the clock of this machine is wrong, so AWS refuses its requests: {message}",
            hint="set the clock, for example with sudo timedatectl set-ntp true; then run again",
        )
    elif code in WRONG_CREDENTIALS:
        meaning = DeniedError(f"no usable credentials for AWS in {service.region}: {message}", hint=LOG_IN)
    elif code in DENIED:
        meaning = DeniedError(
            f"no permission for {error.operation_name} in {service.region}: {message}",
            hint="ask the account's owner for the rights in infra/aws/, or use other credentials: " + LOG_IN,
        )
    elif code in ACCOUNT:
        meaning = DeniedError(
            f"this account cannot use {service.region}: {code}: {message}",
            hint=f"enable the region or the service in the account's console, or use another --region than "
            f"{service.region}",
        )
    elif code in CAPACITY or code in QUOTA:
        meaning = RefusedError(f"{code}: {message}", code=code, hint="run again with another --zone or --gpu")
    elif code in BUSY_CODES:
        meaning = UnreachableError(
            f"{service.name} at {service.address} answers that it is busy: {code}: {message}",
            hint="wait a minute, then run again, with fewer commands at the same time",
        )
    elif code in DOUBTFUL or _status(error) in HTTP_BUSY:
        meaning = DoubtfulError(
            f"{service.name} at {service.address} failed at {action}: {code}: {message}", hint="run again in a minute"
        )
    else:
        meaning = RefusedError(f"AWS refused {action}: {code}: {message}", code=code, hint="launch doctor aws")
    return meaning


def scope_of(fault: Fault) -> Scope:
    """Scope in which an error rules out further attempts. An unknown code counts as fatal."""
    if fault.code in CAPACITY or fault.code in (TOOK_TOO_LONG, LOST, BUSY):
        return Scope.ZONE
    return Scope.REGION if fault.code in QUOTA else Scope.FATAL


def is_temporary(error: Exception) -> bool:
    """Whether the same request, if it may be repeated, may succeed a little later."""
    from botocore import exceptions as boto  # noqa: PLC0415 - loaded only when it is needed

    if isinstance(error, boto.ClientError):
        if code_of(error) in CAPACITY | QUOTA:
            return False
        return code_of(error) in BUSY_CODES | DOUBTFUL or _status(error) in HTTP_BUSY
    return isinstance(error, (boto.ConnectionError, boto.HTTPClientError, ConnectionError, TimeoutError))


def code_of(error: BaseException | None) -> str:
    """AWS's word for an error; empty if `error` is no answer of AWS."""
    response = getattr(error, "response", None)
    return str((response or {}).get("Error", {}).get("Code") or "")


def message_of(error: BaseException) -> str:
    """First line of the message of AWS in `error`; without one, of the exception's text."""
    response = getattr(error, "response", None) or {}
    text = str(response.get("Error", {}).get("Message") or (code_of(error) if response else error)).strip()
    return text.splitlines()[0][:MAX_MESSAGE_CHARS] if text else type(error).__name__


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
