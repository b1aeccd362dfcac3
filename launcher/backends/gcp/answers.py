"""Answers of Compute Engine: VMs, disks, operations and quotas as dataclasses, failures as our errors.

The functions take the client's own objects: google.cloud.compute_v1's `Instance` and the like.
"""

import http
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from launcher.backends.zone_by_zone import Fault
from launcher.protocol.backend import ANYWHERE, Condition, Machine
from launcher.protocol.records import epoch_s
from workload.contract.errors import RooflaunchError, ToolError, UsageError
from workload.contract.process import raise_if_interrupted
from workload.storage.buckets import Service
from workload.storage.gcs import LOG_IN, log_in
from workload.storage.store import UnreachableError

LIMIT_LABEL = "rooflaunch-limit"
# Google's default: a host error is noticed within 5.5 min, and the VM is started again within some minutes.
RESTART_S = 15 * 60.0
STARTING = frozenset({"PROVISIONING", "STAGING"})
REPAIRING = "REPAIRING"
# States of a VM that a host error or a person has stopped.
STOPPED = frozenset({"STOPPED", "TERMINATED", "SUSPENDED"})
# Codes of warnings that a list lacks zones. Other warnings, such as NO_RESULTS_ON_PAGE, do not matter.
GAPS = ("UNREACHABLE", "PARTIAL_SUCCESS")
REQUEST_LABEL = "rooflaunch-request"


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation in a zone, such as creating a VM; `Compute.wait` waits for its end."""

    name: str
    zone: str


@dataclass(frozen=True, kw_only=True)
class OperationFault(Fault):
    """An error of an operation. `quota_dimensions`: where the quota applies, such as {"region": "us-central1"}."""

    quota_dimensions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Instance(Machine):
    """A VM. `request_id`: the id of the insert that made it; empty for somebody else's VM."""

    request_id: str = ""


@dataclass(frozen=True, kw_only=True)
class VmDisk:
    """A disk. `users`: names of the VMs that use it.

    `deadline_s`: planned end of the disk's launch, in seconds since 1970; None if unknown.
    """

    name: str
    zone: str
    deadline_s: float | None
    users: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Quota:
    """Limit and current usage of one quota of a project, in a region or overall."""

    limit: float
    usage: float

    @property
    def remaining(self) -> float:
        return self.limit - self.usage


def operation(answer: Any, zone: str) -> Operation:
    return Operation(name=str(answer.name), zone=zone)


def faults(answer: Any) -> tuple[OperationFault, ...]:
    known = tuple(_fault(error) for error in answer.error.errors)
    if known or not answer.http_error_status_code:
        return known
    code, message = answer.http_error_status_code, answer.http_error_message
    return (OperationFault(code=f"HTTP_{code}", message=str(message)),)


def _fault(error: Any) -> OperationFault:
    zones: list[str] = []
    dimensions: dict[str, str] = {}
    for detail in error.error_details:
        named = detail.error_info.metadatas.get("zonesAvailable", "")
        zones += [zone.strip() for zone in named.split(",") if zone.strip()]
        dimensions |= dict(detail.quota_info.dimensions)
    return OperationFault(
        code=str(error.code), message=str(error.message), zones_available=tuple(zones), quota_dimensions=dimensions
    )


def instance(answer: Any) -> Instance:
    status, restarts = str(answer.status), bool(answer.scheduling.automatic_restart)
    deadline_s, stopped_s = _vm_deadline_s(answer), epoch_s(answer.last_stop_timestamp)
    restarts_until_s = None if stopped_s is None else stopped_s + RESTART_S
    condition = Condition.RUNNING
    if status in STOPPED:
        condition = Condition.STOPPED
    elif status in STARTING:
        condition = Condition.STARTING
    elif status == REPAIRING and restarts:
        # The cloud restarts a VM under repair, at the latest when its time limit ends.
        condition, restarts_until_s = Condition.STOPPED, deadline_s
    return Instance(
        name=str(answer.name),
        zone=last_part(answer.zone),
        condition=condition,
        status=status,
        created_s=epoch_s(answer.creation_timestamp),
        deadline_s=deadline_s,
        restarts=restarts,
        restarts_until_s=restarts_until_s,
        request_id=str(answer.labels.get(REQUEST_LABEL, "")),
    )


def disk(answer: Any) -> VmDisk:
    text = answer.labels.get(LIMIT_LABEL, "")
    return VmDisk(
        name=str(answer.name),
        zone=last_part(answer.zone),
        deadline_s=_limit_after(answer.creation_timestamp, int(text) if text.isascii() and text.isdigit() else 0),
        users=tuple(last_part(user) for user in answer.users),
    )


def gaps(page: Any) -> list[str]:
    """Zones (or regions) that a page of an aggregated list reports as unreachable."""
    places = [last_part(place) for place in page.unreachables]
    places += [last_part(scope) for scope, part in page.items.items() if part.warning.code in GAPS]
    if page.warning.code in GAPS and not places:
        places += [last_part(item.value) for item in page.warning.data if "zones/" in item.value] or [ANYWHERE]
    return places


def _vm_deadline_s(answer: Any) -> float | None:
    """End time that the cloud reports, in seconds since 1970, else creation time plus limit; None if unknown."""
    deadline_s = epoch_s(answer.resource_status.scheduling.termination_timestamp)
    if deadline_s is not None:
        return deadline_s
    return _limit_after(answer.creation_timestamp, int(answer.scheduling.max_run_duration.seconds))


def _limit_after(created_at: str, limit_s: int) -> float | None:
    created_s = epoch_s(created_at)
    return created_s + limit_s if created_s is not None and limit_s else None


def quotas(answer: Any) -> Mapping[str, Quota]:
    return {str(quota.metric): Quota(limit=float(quota.limit), usage=float(quota.usage)) for quota in answer.quotas}


def last_part(url: str) -> str:
    """Last part of a resource's URL: a zone comes as `https://…/zones/us-central1-a`."""
    return str(url).rpartition("/")[2]


ENDPOINT_VARIABLE = "ROOFLAUNCH_COMPUTE_ENDPOINT"
PUBLIC_ENDPOINT = "https://compute.googleapis.com"

TOO_MANY, UNAVAILABLE = 429, 503
# Maximum length of an answer that a message quotes.
MAX_MESSAGE_CHARS = 1000
BUSY = (TOO_MANY, 500, 502, UNAVAILABLE, 504)
# Codes for a zone without a free machine, quota or this machine type; the patterns find messages of the same meaning.
STOCKOUT = "ZONE_RESOURCE_POOL_EXHAUSTED"
QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
NOT_IN_ZONE = "NOT_IN_ZONE"
_NOT_IN_ZONE_TEXT = re.compile(
    r"(acceleratorTypes/|machineTypes/|(machine|accelerator) type ).*(not found|not exist)", re.IGNORECASE
)
_STOCKOUT_TEXT = re.compile(
    r"ZONE_RESOURCE_POOL_EXHAUSTED|does not have enough resources|resource pool exhausted", re.IGNORECASE
)
# Compute Engine's two messages when a network in custom mode needs `--subnetwork`.
_CUSTOM_MODE_TEXT = re.compile(r"custom subnet ?mode|must specify a subnet", re.IGNORECASE)
_CONSTRAINT = re.compile(r"\bconstraints/[A-Za-z.]+")
# Policies of an organisation that may refuse a VM although options of `launch gcp` help.
_POLICY_CURES = {
    "constraints/compute.vmExternalIpAccess": "--no-external-ip, with create_network in infra/gcp/",
    "constraints/gcp.resourceLocations": "--zone Z --no-fallback, with zones in allowed locations",
}


class AlreadyThereError(ToolError):
    """A VM of the requested name exists in the zone, perhaps made by an earlier try of the same request."""


class DeniedError(ToolError):
    """No credentials, no permission, or the API is disabled: repeating the request is useless."""


class RefusedError(ToolError):
    """The insert was refused for a reason that may not hold in another zone or region, or at another hour."""

    def __init__(self, faults: tuple[OperationFault, ...], *, hint: str) -> None:
        super().__init__("; ".join(f"{fault.code}: {fault.message}" for fault in faults), hint=hint)
        self.faults = faults


COMPUTE_ENGINE = Service(name="Compute Engine", public=PUBLIC_ENDPOINT, variables=(ENDPOINT_VARIABLE,))


def unreachable(service: Service, error: BaseException) -> UnreachableError:
    """Error that says why `service` cannot be used now: it is busy, or it gave no answer."""
    if (code := getattr(error, "code", None)) in BUSY:
        message = f"{service.name} at {service.where} answers that it is busy ({int(code)}): {_why(error)}"
        return UnreachableError(message, hint="wait a minute, then run again, with fewer commands at the same time")
    return service.unreachable(service.name, _why(error))


@contextmanager
def translated(service: Service, error_of_answer: Callable[[Any], RooflaunchError]) -> Iterator[None]:
    """Turn exceptions of the client and its libraries into our errors, with their cause.

    `error_of_answer`: makes the error for an HTTP answer with a status of 400 or more.
    """
    import requests  # noqa: PLC0415 - loaded only when it is needed
    import urllib3  # noqa: PLC0415
    from google.api_core import exceptions as api  # noqa: PLC0415
    from google.auth import exceptions as auth  # noqa: PLC0415
    from google.protobuf import json_format  # noqa: PLC0415

    try:
        yield
    except json_format.ParseError as error:
        # json_format raises a ParseError for any exception while it reads an answer, even for a Ctrl-C.
        raise_if_interrupted()
        raise service.foreign() from error
    except api.GoogleAPICallError as error:
        raise error_of_answer(error) from error
    except auth.TransportError as error:
        raise unreachable(service, error) from error
    except auth.GoogleAuthError as error:
        raise (unreachable(service, error) if error.retryable else no_credentials(error)) from error
    except (requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError, TimeoutError) as error:
        raise unreachable(service, error) from error


def explained(error: Any, project: str, method: str) -> RooflaunchError:
    """Error for an answer of Compute Engine with a status of 400 or more."""
    code, message = int(error.code), message_of(error)
    meaning: RooflaunchError
    # An insert that breaks several policies gets a message for each of them.
    messages = [str(item.get("message", "")) for item in error.errors if isinstance(item, Mapping)]
    every = "; ".join(dict.fromkeys([message, *filter(None, messages)]))[:MAX_MESSAGE_CHARS]
    if method == "insert" and (refused := refused_for_good(every)):
        meaning = refused
    elif method == "insert" and (fault := _insert_fault(error)):
        meaning = RefusedError((fault,), hint="run again with other zones: --zone Z")
    elif code in BUSY:
        meaning = unreachable(COMPUTE_ENGINE, error)
    elif code == http.HTTPStatus.FORBIDDEN:
        meaning = _forbidden(error, project)
    elif code == http.HTTPStatus.UNAUTHORIZED:
        meaning = no_credentials(error)
    elif code == http.HTTPStatus.NOT_FOUND and f"'projects/{project}'" in message:
        meaning = UsageError(f"project '{project}' does not exist, or is not yours", hint="gcloud projects list")
    elif code == http.HTTPStatus.CONFLICT and method == "insert":
        meaning = AlreadyThereError(f"Compute Engine: {message}", hint="launch status")
    else:
        meaning = ToolError(f"Compute Engine refused {method}: {message}", hint="launch doctor gcp")
    return meaning


def refused_for_good(message: str) -> ToolError | None:
    """Error with a hint, if `message` shows that a policy or a missing subnetwork prevents the VM in all zones."""
    broken = list(dict.fromkeys(_CONSTRAINT.findall(message)))
    if broken:
        cures = [_POLICY_CURES[name] for name in broken if name in _POLICY_CURES]
        policies = "policies forbid" if len(broken) > 1 else "policy forbids"
        return ToolError(
            f"the organisation's {policies} this VM: {', '.join(broken)}: {message}",
            hint="; ".join(cures)
            if len(cures) == len(broken)
            else "ask the organisation's administrator for an exception, or use another --project",
        )
    if _CUSTOM_MODE_TEXT.search(message):
        return ToolError(
            f"the network is in custom mode, and no subnetwork is named: {message}",
            hint="--subnetwork NAME, if every region has a subnetwork of this name; or another --network; or "
            "create_network in infra/gcp/, which makes both",
        )
    return None


def _insert_fault(error: Any) -> OperationFault | None:
    """Fault of a refused insert request, if the request may succeed in another zone or at another hour; else None."""
    message, code = message_of(error), int(error.code)
    if _is_stockout(error):
        return OperationFault(code=STOCKOUT, message=message)
    if code in (TOO_MANY, UNAVAILABLE):
        return OperationFault(code=f"HTTP_{code}", message=message)
    if "quotaExceeded" in reasons_of(error):
        return OperationFault(code=QUOTA_EXCEEDED, message=message)
    if code in (400, 404) and _NOT_IN_ZONE_TEXT.search(message):
        return OperationFault(code=NOT_IN_ZONE, message=message)
    if code in (400, 404) and "/subnetworks/" in message:
        return OperationFault(code="RESOURCE_NOT_FOUND", message=message)
    return None


def _forbidden(error: Any, project: str) -> DeniedError:
    message = message_of(error)
    if reasons_of(error) & {"accessNotConfigured", "SERVICE_DISABLED"}:
        return DeniedError(
            f"the Compute Engine API is disabled in project '{project}'",
            hint=f"gcloud services enable compute.googleapis.com --project {project}",
        )
    return DeniedError(
        f"no permission in project '{project}': {message}",
        hint=f"ask the project's owner to add you to `launchers` in infra/gcp/, or use another account: {LOG_IN}",
    )


def no_credentials(error: Exception) -> DeniedError:
    return DeniedError(f"no usable credentials for Google Cloud: {message_of(error)}", hint=log_in())


def _why(error: BaseException) -> str:
    import requests  # noqa: PLC0415 - loaded only when it is needed

    if isinstance(error, requests.Timeout):
        return "no answer in time"
    text = message_of(error)
    system = re.search(r"\[Errno -?\d+\] ([^'\")]+)", text)
    return system[1] if system else text


def is_temporary(error: Exception) -> bool:
    """Whether the same request may succeed a little later."""
    import requests  # noqa: PLC0415 - loaded only when it is needed
    from google.api_core import exceptions as api  # noqa: PLC0415
    from google.auth import exceptions as auth  # noqa: PLC0415

    if isinstance(error, api.GoogleAPICallError):
        if _is_stockout(error):
            return False
        # Too many requests in a minute used to be a 403, and for some methods still is.
        limited = bool(reasons_of(error) & {"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED"})
        return int(error.code or 0) in BUSY or limited
    if isinstance(error, auth.GoogleAuthError):
        return isinstance(error, auth.TransportError) or error.retryable
    return isinstance(error, (requests.ConnectionError, requests.Timeout, ConnectionError))


def _is_stockout(error: Any) -> bool:
    return "insufficientCapacity" in reasons_of(error) or bool(_STOCKOUT_TEXT.search(message_of(error)))


def reasons_of(error: Any) -> set[str]:
    """Reasons of an error, from both formats that Google's services answer with."""
    old = {str(item.get("reason", "")) for item in error.errors if isinstance(item, Mapping)}
    return old | {str(error.reason or "")}


def message_of(error: BaseException) -> str:
    """First line of the service's message, at most 500 characters, without the request that the client prepends."""
    text = str(getattr(error, "message", "") or error).strip()
    message = re.sub(r"^[A-Z]+ https?://\S+: ", "", text)
    return message.splitlines()[0][:500] if message else type(error).__name__
