"""Client for services of Google Cloud, over plain REST; used by `launch doctor gcp`.

The client libraries for Service Usage, IAM and Resource Manager are not used, because no other part of this program
would need them. google.auth and requests are imported inside functions only. No request changes anything.
"""

import urllib.parse
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from launcher.backends.gcp.compute import credentials_for
from launcher.backends.gcp.refusals import message_of, no_credentials
from workload.contract.errors import ToolError
from workload.storage.buckets import foreign_answer
from workload.storage.gcs import LOG_IN

ANSWER_S = 15.0
ATTEMPTS = 2
# Only this version has bindings with a condition: https://cloud.google.com/iam/docs/policies#versions
POLICY_VERSION = 3


class ForbiddenError(ToolError):
    """The user's account lacks the permission for the request."""


class DisabledError(ToolError):
    """The service that was asked is not enabled in the project."""


class Response(Protocol):
    """The part of a `requests` response that this module uses."""

    status_code: int
    text: str

    def json(self) -> Any: ...


class HttpSession(Protocol):
    """The part of google-auth's AuthorizedSession that this module uses."""

    def request(self, method: str, url: str, *, json: Any = None, timeout: float) -> Response: ...


class Services:
    """Client for one project's services, with the permissions of the user's account."""

    def __init__(self, project: str, session: HttpSession) -> None:
        self.project = project
        self._session = session
        self._roles: dict[str, frozenset[str]] = {}

    def enabled(self) -> frozenset[str]:
        """Enabled services of the project, as `compute.googleapis.com`."""
        url = f"https://serviceusage.googleapis.com/v1/projects/{self.project}/services"
        return frozenset(
            str(service["config"]["name"]) for service in self._pages(url, "services", filter="state:ENABLED")
        )

    def roles_in_project(self, email: str) -> frozenset[str]:
        """Roles that the project grants to a service account; they hold for everything in the project."""
        url = f"https://cloudresourcemanager.googleapis.com/v1/projects/{self.project}:getIamPolicy"
        options = {"options": {"requestedPolicyVersion": POLICY_VERSION}}
        return _roles_of(self._ask("POST", url, options), email)

    def permissions(self, roles: Collection[str]) -> frozenset[str]:
        """Permissions that these roles grant together."""
        return frozenset(permission for role in roles for permission in self._permissions_of(role))

    def _permissions_of(self, role: str) -> frozenset[str]:
        if role not in self._roles:
            answer = self._ask("GET", f"https://iam.googleapis.com/v1/{role}") or {}
            self._roles[role] = frozenset(answer.get("includedPermissions", ()))
        return self._roles[role]

    def _pages(self, url: str, items: str, **query: str) -> Iterator[Mapping[str, Any]]:
        while True:
            answer = self._ask("GET", f"{url}?{urllib.parse.urlencode(query)}") or {}
            yield from answer.get(items, ())
            if not answer.get("nextPageToken"):
                return
            query["pageToken"] = answer["nextPageToken"]

    def _ask(self, method: str, url: str, content: Any = None) -> Mapping[str, Any] | None:
        """Document at `url`; None for a 404. Raises `ForbiddenError`, `DisabledError`, other `ToolError`s."""
        host = urllib.parse.urlsplit(url).hostname or url
        for attempt in range(1, ATTEMPTS + 1):
            response = self._request(method, url, host, content)
            # 429 (too many requests) and server errors are temporary, so the request is repeated.
            if attempt == ATTEMPTS or not (response.status_code == 429 or response.status_code >= 500):  # noqa: PLR2004
                break
        match response.status_code:
            case 200:
                return _document(response, host)
            case 404:
                return None
            case _:
                raise _refused(response, host, self.project)

    def _request(self, method: str, url: str, host: str, content: Any) -> Response:
        import requests  # noqa: PLC0415 - loaded only when it is needed
        from google.auth import exceptions as auth  # noqa: PLC0415

        try:
            return self._session.request(method, url, json=content, timeout=ANSWER_S)
        except (auth.TransportError, requests.RequestException) as error:
            raise ToolError(
                f"{host} cannot be reached: {message_of(error)}",
                hint=f"check the network and its proxy (curl -I https://{host}), then run again",
            ) from error
        except auth.GoogleAuthError as error:
            raise no_credentials(error) from error


def connect(project: str) -> Services:
    """Client for the services of `project`; no request is sent yet.

    Raises `ToolError` without package or credentials.
    """
    try:
        from google.auth.transport.requests import AuthorizedSession  # noqa: PLC0415 - loaded only when it is needed
    except ModuleNotFoundError as error:
        raise ToolError("the package google-auth is missing", hint="pip install 'rooflaunch[gcp]'") from error
    make_session: Any = AuthorizedSession
    return Services(project, make_session(credentials_for(None)))


def _roles_of(policy: Mapping[str, Any] | None, email: str) -> frozenset[str]:
    """Roles bound to the account itself. Roles that it has as a member of a group do not show in `policy`."""
    bindings: Sequence[Mapping[str, Any]] = (policy or {}).get("bindings", ())
    member = f"serviceAccount:{email}"
    return frozenset(str(binding["role"]) for binding in bindings if member in binding.get("members", ()))


def _refused(response: Response, host: str, project: str) -> ToolError:
    message, reasons = _message_of(response)
    if "SERVICE_DISABLED" in reasons:
        return DisabledError(
            f"{host} is not enabled in project '{project}'", hint=f"gcloud services enable {host} --project {project}"
        )
    if response.status_code == 403:  # noqa: PLR2004
        # With a user's own credentials some services require a project whose quota the request counts against.
        if "quota project" in message:
            hint = f"gcloud auth application-default set-quota-project {project}"
        else:
            hint = f"ask the owner of project '{project}', or use another account: {LOG_IN}"
        return ForbiddenError(f"{host}: {message}", hint=hint)
    if response.status_code == 401:  # noqa: PLR2004
        return ToolError(f"no usable credentials for Google Cloud: {message}", hint=LOG_IN)
    return ToolError(f"{host}: {message}", hint="run again; if the error stays, report it as a bug")


def _document(response: Response, host: str) -> Mapping[str, Any]:
    try:
        document = response.json()
    except ValueError as error:
        raise foreign_answer(host, f"https://{host}") from error
    assert isinstance(document, dict)
    return document


def _message_of(response: Response) -> tuple[str, frozenset[str]]:
    """Message and reasons of an error answer: https://google.aip.dev/193."""
    try:
        error = response.json()["error"]
        reasons = frozenset(str(detail.get("reason", "")) for detail in error.get("details", ()))
        return str(error["message"]).splitlines()[0][:300], reasons
    except (ValueError, LookupError, TypeError, AttributeError):
        return f"HTTP {response.status_code}", frozenset()
