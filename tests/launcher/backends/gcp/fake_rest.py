"""Those services of Google Cloud that `launch doctor gcp` asks over REST, as a table. An unknown question raises."""

import json
from dataclasses import dataclass, field
from typing import Any

import requests

PROJECT = "my-project"
ACCOUNT = f"rooflaunch-vm@{PROJECT}.iam.gserviceaccount.com"
BUCKET = f"{PROJECT}-rooflaunch"
SERVICES = f"GET serviceusage.googleapis.com/v1/projects/{PROJECT}/services"
IAM = "iam.googleapis.com/v1/"
PROJECT_POLICY = f"POST cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}:getIamPolicy"
VM_ROLE = f"projects/{PROJECT}/roles/rooflaunchVm"


def policy(*roles: str, member: str = f"serviceAccount:{ACCOUNT}") -> dict[str, Any]:
    others = {"role": "roles/viewer", "members": ["user:someone@example.com"]}
    return {"version": 3, "bindings": [others, *({"role": role, "members": [member]} for role in roles)]}


def disabled(service: str) -> tuple[int, dict[str, Any]]:
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "SERVICE_DISABLED", "domain": service}]
    return 403, {"error": {"code": 403, "message": f"{service} has not been used before", "details": details}}


def refused(message: str = "Permission denied", status: int = 403) -> tuple[int, dict[str, Any]]:
    return status, {"error": {"code": status, "message": message}}


def sound() -> dict[str, Any]:
    """The answers of a project as infra/gcp/ makes it."""
    enabled = [f"{name}.googleapis.com" for name in ("compute", "storage", "artifactregistry", "iam")]
    return {
        SERVICES: {"services": [{"config": {"name": name}} for name in enabled]},
        PROJECT_POLICY: policy(VM_ROLE),
        f"GET {IAM}{VM_ROLE}": {"includedPermissions": ["compute.instances.get", "compute.instances.delete"]},
    }


@dataclass
class FakeRest:
    """`answers`: "METHOD host/path" -> a document, (status, document), an exception, or a list of them in turn."""

    answers: dict[str, Any] = field(default_factory=sound)
    asked: list[str] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)

    def request(self, method: str, url: str, *, json: Any = None, timeout: float) -> requests.Response:
        assert timeout == 15.0
        path, _, query = url.removeprefix("https://").partition("?")
        question = f"{method} {path}"
        self.asked.append(question)
        self.queries.append(query)
        self.bodies.append(json)
        found = self.answers[question]
        if isinstance(found, list):
            found = found.pop(0)
        if isinstance(found, Exception):
            raise found
        return _response(*(found if isinstance(found, tuple) else (200, found)))


def _response(status: int, document: Any) -> requests.Response:
    response = requests.Response()
    response.status_code = status
    response._content = document if isinstance(document, bytes) else json.dumps(document).encode()
    return response
