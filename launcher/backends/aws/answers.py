"""Answers of AWS: EC2's instances, images and volumes as dataclasses, failures of AWS and of boto3 as our errors."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from launcher.backends.zone_by_zone import Fault, Scope
from launcher.protocol.backend import Condition, Machine
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

# Tags of everything that a launch makes.
LABEL, LABEL_VALUE = "rooflaunch", "launch"
NAME_TAG, LIMIT_TAG = "rooflaunch-name", "rooflaunch-limit"
# Tag of the instance: when a schedule ends the instance (`2026-12-01T10:00:00Z`). The launcher makes the schedule, then
# sets the tag; the instance starts no run before.
ENDS_TAG = "rooflaunch-ends"
SPOT_ENDED = "Server.SpotInstanceTermination"
CONDITIONS = {
    "pending": Condition.STARTING,
    "running": Condition.RUNNING,
    "shutting-down": Condition.RUNNING,
    "stopping": Condition.STOPPED,
    "stopped": Condition.STOPPED,
    "terminated": Condition.GONE,
}


@dataclass(frozen=True, kw_only=True)
class Instance(Machine):
    """An instance. `id`: EC2's id; `reason`: EC2's code for its end; `has_schedule`: it has a schedule (by its tag)."""

    id: str
    reason: str = ""
    limit_s: float | None = None
    has_schedule: bool = False


@dataclass(frozen=True, kw_only=True)
class Ami:
    """An image that an instance boots. `root`: name of its root device, which the request must repeat exactly."""

    id: str
    name: str
    root: str
    gigabytes: int


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A disk that no instance uses, with the planned end of its launch, if known."""

    id: str
    name: str
    zone: str
    deadline_s: float | None


def instance(answer: Mapping[str, Any], zone_ids: Mapping[str, str]) -> Instance:
    """Instance that an answer describes. `zone_ids`: ids of zones by their names in this account."""
    tags, reason = tags_of(answer), answer.get("StateReason", {})
    state = str(answer["State"]["Name"])
    created_s = _seconds(answer.get("LaunchTime"))
    limit_s = _number(tags.get(LIMIT_TAG))
    code = str(reason.get("Code", ""))
    return Instance(
        name=tags.get(NAME_TAG, ""),
        zone=zone_id(answer.get("Placement", {}), zone_ids),
        condition=CONDITIONS.get(state, Condition.RUNNING),
        status=state,
        created_s=created_s,
        deadline_s=created_s + limit_s if created_s is not None and limit_s else None,
        preempted=code == SPOT_ENDED,
        why=f"{code}: {reason.get('Message', '')}" if code and CONDITIONS.get(state) is Condition.GONE else "",
        id=str(answer["InstanceId"]),
        reason=code,
        limit_s=limit_s,
        has_schedule=ENDS_TAG in tags,
    )


def volume(answer: Mapping[str, Any], zone_ids: Mapping[str, str]) -> Volume:
    """Volume that an answer describes."""
    tags, created_s = tags_of(answer), _seconds(answer.get("CreateTime"))
    limit_s = _number(tags.get(LIMIT_TAG))
    deadline_s = created_s + limit_s if created_s is not None and limit_s else None
    where = zone_id(answer, zone_ids)
    return Volume(id=str(answer["VolumeId"]), name=tags.get(NAME_TAG, ""), zone=where, deadline_s=deadline_s)


def zone_id(answer: Mapping[str, Any], zone_ids: Mapping[str, str]) -> str:
    """Id of the zone that an answer names; its name in this account if the id is not known."""
    name = str(answer.get("AvailabilityZone", ""))
    return str(answer.get("AvailabilityZoneId") or zone_ids.get(name, name))


def tags_of(answer: Mapping[str, Any]) -> dict[str, str]:
    """Tags of a resource."""
    return {str(tag["Key"]): str(tag["Value"]) for tag in answer.get("Tags", ())}


def _number(text: str | None) -> float | None:
    return float(text) if text and text.isascii() and text.isdigit() else None


def _seconds(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None


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
VOLUME_QUOTA = frozenset({"VolumeLimitExceeded", "Client.VolumeLimitExceeded"})
QUOTA = frozenset({"VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded", *VOLUME_QUOTA})
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
