"""Turns failures into our errors: exceptions of Compute Engine's client and its libraries, and error answers."""

import http
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from launcher.backends.gcp.resources import OperationFault
from workload.contract.errors import RooflaunchError, ToolError, UsageError
from workload.contract.process import raise_if_interrupted
from workload.storage.buckets import Service
from workload.storage.gcs import LOG_IN, log_in
from workload.storage.store import UnreachableError

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
    """Reason why a service could not be reached: the operating system's message, or else the error's first line."""
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
