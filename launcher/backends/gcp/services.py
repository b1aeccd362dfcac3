"""The border to those services of Google Cloud that are asked over plain REST, by `launch doctor gcp` and for prices.

Service Usage, Artifact Registry, IAM, Resource Manager and Cloud Billing have client libraries that nothing else here
would need. google.auth and requests are imported by functions alone. Nothing is changed by any of the questions.
"""

import urllib.parse
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from workload.contract.errors import ToolError
from workload.storage.gcs import foreign_answer

ANSWER_S = 15.0
ATTEMPTS = 2
BILLING = "https://cloudbilling.googleapis.com"
# Compute Engine's, the same for everybody: https://cloud.google.com/skus
COMPUTE_SERVICE = "6F81-5844-456A"
LOG_IN = "gcloud auth application-default login"
SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
# Bindings with a condition come with this version alone: https://cloud.google.com/iam/docs/policies#versions
POLICY_VERSION = 3


@dataclass(frozen=True, kw_only=True)
class ServiceAccount:
    """One that exists."""

    email: str
    disabled: bool


class ForbiddenError(ToolError):
    """The account that asks may not know."""


class DisabledError(ToolError):
    """The service that was asked is not enabled in the project."""


class Response(Protocol):
    """What is looked at of an answer of `requests`."""

    status_code: int
    text: str

    def json(self) -> Any: ...


class HttpSession(Protocol):
    """What is used of google-auth's AuthorizedSession."""

    def request(self, method: str, url: str, *, json: Any = None, timeout: float) -> Response: ...


class Services:
    """What one project has, as far as our account may see it."""

    def __init__(self, project: str, session: HttpSession) -> None:
        self.project = project
        self._session = session
        self._roles: dict[str, frozenset[str]] = {}

    def enabled(self) -> frozenset[str]:
        """The services that are enabled, as `compute.googleapis.com`."""
        url = f"https://serviceusage.googleapis.com/v1/projects/{self.project}/services"
        return frozenset(
            str(service["config"]["name"]) for service in self._pages(url, "services", filter="state:ENABLED")
        )

    def compute_skus(self, endpoint: str = BILLING) -> Iterator[Any]:
        """What Compute Engine charges for, as Cloud Billing lists it, page by page."""
        url = f"{endpoint.rstrip('/')}/v1/services/{COMPUTE_SERVICE}/skus"
        wanted = "nextPageToken,skus(skuId,description,category,serviceRegions,pricingInfo)"
        yield from self._pages(url, "skus", currencyCode="USD", pageSize="5000", fields=wanted)

    def has_repository(self, name: str) -> bool:
        """Whether Artifact Registry has `projects/P/locations/L/repositories/R`."""
        return self._ask("GET", f"https://artifactregistry.googleapis.com/v1/{name}") is not None

    def tag_digest(self, repository: str, package: str, tag: str) -> str | None:
        """The digest of the image with this tag; None: there is none."""
        path = f"{repository}/packages/{urllib.parse.quote(package, safe='')}/tags/{tag}"
        answer = self._ask("GET", f"https://artifactregistry.googleapis.com/v1/{path}")
        return str(answer["version"]).rpartition("/")[2] if answer else None

    def service_account(self, email: str) -> ServiceAccount | None:
        """The account of this address; None: there is none."""
        answer = self._ask("GET", f"https://iam.googleapis.com/v1/{_account(email)}")
        return None if answer is None else ServiceAccount(email=email, disabled=bool(answer.get("disabled")))

    def may_act_as(self, email: str) -> bool:
        """Whether we may start a VM that acts as this service account."""
        wanted = {"permissions": ["iam.serviceAccounts.actAs"]}
        answer = self._ask("POST", f"https://iam.googleapis.com/v1/{_account(email)}:testIamPermissions", wanted)
        return bool(answer and answer.get("permissions"))

    def roles_in_bucket(self, bucket: str, email: str) -> frozenset[str]:
        """The roles that are given to a service account by the bucket itself."""
        query = f"optionsRequestedPolicyVersion={POLICY_VERSION}"
        return _roles_of(self._ask("GET", f"https://storage.googleapis.com/storage/v1/b/{bucket}/iam?{query}"), email)

    def roles_in_repository(self, name: str, email: str) -> frozenset[str]:
        """The same, by a repository of Artifact Registry."""
        url = f"https://artifactregistry.googleapis.com/v1/{name}:getIamPolicy"
        return _roles_of(self._ask("GET", f"{url}?options.requestedPolicyVersion={POLICY_VERSION}"), email)

    def roles_in_project(self, email: str) -> frozenset[str]:
        """The same, by the project: they hold for all that is in it."""
        url = f"https://cloudresourcemanager.googleapis.com/v1/projects/{self.project}:getIamPolicy"
        options = {"options": {"requestedPolicyVersion": POLICY_VERSION}}
        return _roles_of(self._ask("POST", url, options), email)

    def effective_policy(self, constraint: str) -> Mapping[str, Any]:
        """What an organisation's policy comes to here: `booleanPolicy` or `listPolicy`; empty if there is none.

        https://cloud.google.com/resource-manager/reference/rest/v1/projects/getEffectiveOrgPolicy (read 2026-11)
        """
        url = f"https://cloudresourcemanager.googleapis.com/v1/projects/{self.project}:getEffectiveOrgPolicy"
        return self._ask("POST", url, {"constraint": constraint}) or {}

    def permissions(self, roles: Collection[str]) -> frozenset[str]:
        """What these roles allow together."""
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
        """The document; None: there is no such thing. Raises `ForbiddenError`, `DisabledError`, other `ToolError`s."""
        host = urllib.parse.urlsplit(url).hostname or url
        for attempt in range(1, ATTEMPTS + 1):
            response = self._request(method, url, host, content)
            # Too busy, or broken: both pass.
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
        import requests  # noqa: PLC0415 - see the module
        from google.auth import exceptions as auth  # noqa: PLC0415

        try:
            return self._session.request(method, url, json=content, timeout=ANSWER_S)
        except (auth.TransportError, requests.RequestException) as error:
            raise ToolError(
                f"{host} cannot be reached: {_first_line(error)}",
                hint=f"check the network and its proxy (curl -I https://{host}), then run again",
            ) from error
        except auth.GoogleAuthError as error:
            raise _no_credentials(error) from error


def connect(project: str) -> Services:
    """The services of `project`; nothing is asked of them yet. Raises `ToolError` without package or credentials."""
    try:
        import google.auth  # noqa: PLC0415 - see the module
        from google.auth.transport.requests import AuthorizedSession  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ToolError("the package google-auth is missing", hint="pip install 'rooflaunch[gcp]'") from error
    # It warns about a user's own credentials without a quota project: they are what `gcloud auth` gives.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            credentials = google.auth.default(scopes=SCOPES)[0]
        except google.auth.exceptions.GoogleAuthError as error:
            raise _no_credentials(error) from error
    make_session: Any = AuthorizedSession
    return Services(project, make_session(credentials))


def _account(email: str) -> str:
    """The name of a service account; one of Google's own making does not tell its project."""
    domain = email.partition("@")[2]
    project = domain.removesuffix(".iam.gserviceaccount.com") if domain.endswith(".iam.gserviceaccount.com") else "-"
    return f"projects/{project}/serviceAccounts/{email}"


def _roles_of(policy: Mapping[str, Any] | None, email: str) -> frozenset[str]:
    """Roles bound to the account itself; what it has as one of a group does not show here."""
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
        # With a user's own credentials some services want to know who is counted for the question.
        if "quota project" in message:
            hint = f"gcloud auth application-default set-quota-project {project}"
        else:
            hint = f"ask the owner of project '{project}', or change the account: {LOG_IN}"
        return ForbiddenError(f"{host}: {message}", hint=hint)
    if response.status_code == 401:  # noqa: PLR2004
        return ToolError(f"no usable credentials for Google Cloud: {message}", hint=LOG_IN)
    return ToolError(f"{host}: {message}", hint="run again; then report it")


def _document(response: Response, host: str) -> Mapping[str, Any]:
    try:
        document = response.json()
    except ValueError as error:
        raise foreign_answer(host, f"https://{host}") from error
    assert isinstance(document, dict)
    return document


def _message_of(response: Response) -> tuple[str, frozenset[str]]:
    """What the service said, and its reasons: https://google.aip.dev/193."""
    try:
        error = response.json()["error"]
        reasons = frozenset(str(each.get("reason", "")) for each in error.get("details", ()))
        return str(error["message"]).splitlines()[0][:300], reasons
    except (ValueError, LookupError, TypeError, AttributeError):
        return f"HTTP {response.status_code}", frozenset()


def _no_credentials(error: Exception) -> ToolError:
    return ToolError(f"no usable credentials for Google Cloud: {_first_line(error)}", hint=LOG_IN)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
