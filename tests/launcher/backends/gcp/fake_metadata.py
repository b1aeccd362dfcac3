"""The metadata server of one VM: what Google's answers to the keys that our code asks for, and nothing else."""

import hashlib
import json
import threading
import time
from urllib.parse import parse_qs, unquote, urlsplit

from tests.launcher.backends.gcp.fake_compute import Vm
from tests.ports import Answering, Fake

# What must never be seen outside the answer to a question for it.
TOKEN = "ya29.this-token-is-a-secret-of-the-test"
PROJECT_NUMBER = "123456789012"
VALUE_LIMIT_BYTES = 256 * 1024
LOOK_EVERY_S = 0.02


class FakeMetadata(Fake):
    """A context manager; `.host` is for GCE_METADATA_HOST. Raises at its end for a key that it does not know.

    `silent`: how many of the next questions are answered with 503.
    """

    def __init__(self, vm: Vm, *, token: str = TOKEN) -> None:
        self.vm = vm
        self.token = token
        self.silent = 0
        self.asked: list[str] = []
        self.closed = threading.Event()
        super().__init__(_Handler)
        self.host = self.url.removeprefix("http://")

    def __exit__(self, *error: object) -> None:
        self.closed.set()
        super().__exit__(*error)

    def get(self, key: str, query: dict[str, str]) -> tuple[int, str]:
        """Status and text; a question with `wait_for_change` is answered when the value changes."""
        deadline_s = time.monotonic() + float(query.get("timeout_sec", "60"))
        seen = query.get("last_etag") or tag_of(self._value(key)[1])
        while True:
            status, text = self._value(key)
            over = time.monotonic() > deadline_s or self.closed.is_set() or self.vm.gone.is_set()
            if "wait_for_change" not in query or tag_of(text) != seen or over:
                return status, text
            time.sleep(LOOK_EVERY_S)

    def put(self, key: str, text: str) -> int:
        """Guest attributes are all that a VM may write, where its metadata allow them."""
        parts = key.removeprefix("instance/guest-attributes/").split("/")
        if not key.startswith("instance/guest-attributes/") or len(parts) != 2 or not all(parts):
            return 404
        if self.vm.metadata.get("enable-guest-attributes") != "TRUE" or len(text) > VALUE_LIMIT_BYTES:
            return 403
        self.vm.guest_attributes.setdefault(parts[0], {})[parts[1]] = text
        return 200

    def _value(self, key: str) -> tuple[int, str]:
        vm, (kind, _, name) = self.vm, key.rpartition("/")
        scheduling = vm.body.get("scheduling", {})
        known = {
            "instance/id": str(vm.instance_id),
            "instance/name": vm.name,
            "instance/zone": f"projects/{PROJECT_NUMBER}/zones/{vm.zone}",
            "instance/machine-type": f"projects/{PROJECT_NUMBER}/machineTypes/{vm.machine_type}",
            "instance/image": "projects/ubuntu-os-accelerator-images/global/images/fake-image-v20261101",
            "instance/cpu-platform": vm.cpu_platform,
            "instance/preempted": str(vm.preempted).upper(),
            "instance/maintenance-event": "NONE",
            "instance/scheduling/on-host-maintenance": scheduling.get("onHostMaintenance", "MIGRATE"),
            "instance/scheduling/preemptible": str(vm.spot).upper(),
            "instance/scheduling/automatic-restart": str(scheduling.get("automaticRestart", True)).upper(),
            "instance/service-accounts/default/token": json.dumps(
                {"access_token": self.token, "expires_in": 3599, "token_type": "Bearer"}
            ),
            "project/project-id": vm.project,
            "project/numeric-project-id": PROJECT_NUMBER,
        }
        if kind == "instance/attributes":
            return (200, vm.metadata[name]) if name in vm.metadata else (404, "")
        if key not in known:
            self.unknown.append(key)
            return 501, ""
        return 200, known[key]


def tag_of(text: str) -> str:
    """The ETag of a value."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Handler(Answering):
    fake: FakeMetadata

    def do_GET(self) -> None:
        fake, parts = self.fake, urlsplit(self.path)
        if key := self._key(parts.path):
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            self._answer(*fake.get(key, query))

    def do_PUT(self) -> None:
        content = self.content().decode()
        if key := self._key(urlsplit(self.path).path):
            self._answer(self.fake.put(key, content))

    def _key(self, path: str) -> str | None:
        """None, and answered, where Google's server refuses the question whatever it is for."""
        fake, key = self.fake, unquote(path).removeprefix("/computeMetadata/v1/")
        fake.asked.append(f"{self.command} {key}")
        if self.headers.get("Metadata-Flavor") != "Google" or self.headers.get("X-Forwarded-For"):
            self._answer(403, "Missing required header: Metadata-Flavor: Google")
        elif key == path:
            self._answer(404)
        elif fake.silent:
            fake.silent -= 1
            self._answer(503)
        else:
            return key
        return None

    def _answer(self, status: int, text: str = "") -> None:
        self.send(status, text, Metadata_Flavor="Google", ETag=tag_of(text), Content_Type="application/text")
