"""Client for services of Google Cloud, over plain REST; used by `launch doctor gcp`.

The client libraries for Service Usage, IAM and Resource Manager are not used, because no other part of this program
would need them. google.auth and requests are imported inside functions only. No request changes anything.
"""

import urllib.parse
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from launcher.backends.gcp.compute import credentials_for
from launcher.backends.gcp.refusals import message_of, no_credentials
from workload.contract.errors import ToolError
from workload.storage.buckets import foreign_answer
from workload.storage.gcs import LOG_IN

if TYPE_CHECKING:
    from requests import Response

ANSWER_S = 15.0
ATTEMPTS = 2
# Only this version has bindings with a condition: https://cloud.google.com/iam/docs/policies#versions
POLICY_VERSION = 3


class ForbiddenError(ToolError):
    """The user's account lacks the permission for the request."""


class DisabledError(ToolError):
    """The service that was asked is not enabled in the project."""


class Services:
    """Client for one project's services. `session`: google-auth's AuthorizedSession of the user's account."""

    def __init__(self, project: str, session: Any) -> None:
        self.project = project
        self._session = session

    def enabled(self) -> frozenset[str]:
        """Enabled services of the project, as `compute.googleapis.com`."""
        url = f"https://serviceusage.googleapis.com/v1/projects/{self.project}/services"
        names, query = set[str](), {"filter": "state:ENABLED"}
        while True:
            answer = self._ask("GET", f"{url}?{urllib.parse.urlencode(query)}")
            names |= {str(service["config"]["name"]) for service in answer.get("services", ())}
            if not answer.get("nextPageToken"):
                return frozenset(names)
            query["pageToken"] = answer["nextPageToken"]

    def roles_in_project(self, email: str) -> frozenset[str]:
        """Roles that the project grants to a service account itself, not to a group that it is a member of."""
        url = f"https://cloudresourcemanager.googleapis.com/v1/projects/{self.project}:getIamPolicy"
        policy = self._ask("POST", url, {"options": {"requestedPolicyVersion": POLICY_VERSION}})
        member = f"serviceAccount:{email}"
        bindings = (binding for binding in policy.get("bindings", ()) if member in binding.get("members", ()))
        return frozenset(str(binding["role"]) for binding in bindings)

    def permissions(self, roles: Collection[str]) -> frozenset[str]:
        """Permissions that these roles grant together."""
        answers = (self._ask("GET", f"https://iam.googleapis.com/v1/{role}") for role in roles)
        return frozenset(permission for answer in answers for permission in answer.get("includedPermissions", ()))

    def _ask(self, method: str, url: str, content: Any = None) -> Mapping[str, Any]:
        """Document at `url`; {} for a 404. Raises `ForbiddenError`, `DisabledError`, other `ToolError`s."""
        host = urllib.parse.urlsplit(url).hostname or url
        for attempt in range(1, ATTEMPTS + 1):
            response = self._request(method, url, host, content)
            is_temporary = response.status_code == HTTPStatus.TOO_MANY_REQUESTS or response.status_code >= 500  # noqa: PLR2004
            if attempt == ATTEMPTS or not is_temporary:
                break
        if response.status_code == HTTPStatus.NOT_FOUND:
            return {}
        if response.status_code != HTTPStatus.OK:
            raise _refused(response, host, self.project)
        try:
            document: Mapping[str, Any] = response.json()
        except ValueError as error:
            raise foreign_answer(host, f"https://{host}") from error
        return document

    def _request(self, method: str, url: str, host: str, content: Any) -> "Response":
        import requests  # noqa: PLC0415 - loaded only when it is needed
        from google.auth import exceptions as auth  # noqa: PLC0415

        try:
            response: Response = self._session.request(method, url, json=content, timeout=ANSWER_S)
        except (auth.TransportError, requests.RequestException) as error:
            raise ToolError(
                f"{host} cannot be reached: {message_of(error)}",
                hint=f"check the network and its proxy (curl -I https://{host}), then run again",
            ) from error
        except auth.GoogleAuthError as error:
            raise no_credentials(error) from error
        return response


def connect(project: str) -> Services:
    """Client for the services of `project`; no request is sent yet. Raises `DeniedError` without credentials."""
    from google.auth.transport.requests import AuthorizedSession  # noqa: PLC0415 - loaded only when it is needed

    make_session: Any = AuthorizedSession
    return Services(project, make_session(credentials_for(None)))


def _refused(response: "Response", host: str, project: str) -> ToolError:
    message, reasons = _message_of(response)
    if "SERVICE_DISABLED" in reasons:
        return DisabledError(
            f"{host} is not enabled in project '{project}'", hint=f"gcloud services enable {host} --project {project}"
        )
    if response.status_code == HTTPStatus.FORBIDDEN:
        # With a user's own credentials some services require a project whose quota the request counts against.
        if "quota project" in message:
            hint = f"gcloud auth application-default set-quota-project {project}"
        else:
            hint = f"ask the owner of project '{project}', or use another account: {LOG_IN}"
        return ForbiddenError(f"{host}: {message}", hint=hint)
    return ToolError(f"{host}: {message}", hint="run again; if the error stays, report it as a bug")


def _message_of(response: "Response") -> tuple[str, frozenset[str]]:
    """Message and reasons of an error answer: https://google.aip.dev/193."""
    try:
        error = response.json()["error"]
        reasons = frozenset(str(detail.get("reason", "")) for detail in error.get("details", ()))
        return str(error["message"]).splitlines()[0][:300], reasons
    except (ValueError, LookupError, TypeError, AttributeError):
        return f"HTTP {response.status_code}", frozenset()
