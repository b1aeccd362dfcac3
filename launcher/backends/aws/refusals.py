"""Turns failures of AWS into our errors: error answers, and exceptions of boto3 and its libraries."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from launcher.backends.zone_by_zone import Fault, Scope
from workload.contract.errors import RooflaunchError, ToolError, UsageError
from workload.storage.buckets import Service
from workload.storage.s3_errors import (
    EXPIRED,
    LOG_IN,
    THROTTLED,
    WRONG_CLOCK,
    WRONG_KEY,
    error_code,
    first_line,
    network_errors,
    status_of,
    wrong_endpoint,
)
from workload.storage.store import UnreachableError

ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL"
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


def service_in(region: str) -> Service:
    """EC2 in one region, as messages name it."""
    public = f"https://ec2.{region}.amazonaws.com"
    return Service(name="EC2", public=public, variables=(ENDPOINT_VARIABLE,), settings=", and the region")


@contextmanager
def translated(service: Service, region: str) -> Iterator[None]:
    """Turn exceptions of boto3 and its libraries into our errors, with their cause."""
    from botocore import exceptions as boto  # noqa: PLC0415 - loaded only when it is needed
    from botocore.parsers import ResponseParserError  # noqa: PLC0415

    try:
        yield
    except boto.ClientError as error:
        raise _refusal(service, region, error) from error
    except network_errors() as error:
        known = service.unreachable(service.name, first_line(error))
        raise DoubtfulError(str(known), hint=known.hint) from error
    except (boto.ParamValidationError, boto.EndpointProviderError, boto.InvalidRegionError) as error:
        raise UsageError(
            f"AWS cannot be asked in region '{region}': {first_line(error)}", hint="--region us-east-1"
        ) from error
    except (ResponseParserError, ValueError, LookupError, TypeError, AttributeError) as error:
        # botocore's parsers raise the last four at an answer that is not well-formed.
        if str(error).startswith("Invalid endpoint"):
            raise wrong_endpoint(service) from error
        raise foreign(service) from error
    except boto.BotoCoreError as error:
        raise DeniedError(f"no usable credentials for AWS: {first_line(error)}", hint=LOG_IN) from error


def foreign(service: Service) -> DoubtfulError:
    """Error for an answer that AWS never gives; the request may have been carried out all the same."""
    known = service.foreign()
    return DoubtfulError(str(known), hint=known.hint)


def _refusal(service: Service, region: str, error: Any) -> RooflaunchError:
    """Error for an error answer of AWS."""
    code, message = error_code(error), first_line(error)
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
        meaning = DeniedError(f"no usable credentials for AWS in {region}: {message}", hint=LOG_IN)
    elif code in DENIED:
        meaning = DeniedError(
            f"no permission for {error.operation_name} in {region}: {message}",
            hint="ask the account's owner for the rights in infra/aws/, or use other credentials: " + LOG_IN,
        )
    elif code in ACCOUNT:
        meaning = DeniedError(
            f"this account cannot use {region}: {code}: {message}",
            hint=f"enable the region or the service in the account's console, or use another --region than {region}",
        )
    elif code in CAPACITY or code in QUOTA:
        meaning = RefusedError(f"{code}: {message}", code=code, hint="run again with another --zone or --gpu")
    elif code in BUSY_CODES:
        meaning = UnreachableError(
            f"{service.name} at {service.where} answers that it is busy: {code}: {message}",
            hint="wait a minute, then run again, with fewer commands at the same time",
        )
    elif code in DOUBTFUL or status_of(error) in HTTP_BUSY:
        meaning = DoubtfulError(
            f"{service.name} at {service.where} failed at {action}: {code}: {message}", hint="run again in a minute"
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
        if error_code(error) in CAPACITY | QUOTA:
            return False
        return error_code(error) in BUSY_CODES | DOUBTFUL or status_of(error) in HTTP_BUSY
    return isinstance(error, network_errors())
