"""Boot an EC2 instance: the parts of the boot that only this cloud needs.

plan.py puts this file, joined with launcher/backends/boot.py, into the instance's user data, and startup.sh runs
it with the instance's own Python: 3.8 or newer, standard library only. Its parameters are in parameters.json beside it.
Requests are signed by hand, because an AMI may lack Amazon's command line.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import sys
import threading
import urllib.error
import urllib.parse
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from launcher.backends.boot import STARTED, Boot, fail, persistently, request, succeeds

METADATA = "http://169.254.169.254"
NOT_FOUND = 404
# Registries of the cloud, with their region. The role's token is sent to no other registry.
ECR = re.compile(r"\d{12}\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com")
ECR_TARGET = "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken"
# The launcher makes the schedule that ends the instance and then sets this tag (`ENDS_TAG` of answers.py), seconds
# after the instance was created. If the tag does not come, the launcher is dead.
TAG_TRIES, TAG_AGAIN_S = 120, 5
# A launcher gives a machine up after five minutes without a status, and pulling an image may take longer: the boot
# repeats its status. It stops after `BEATS` times: by then the boot is stuck, and the launcher should give it up.
BEAT_EVERY_S, BEATS = 30, 30
# Name of an error in an answer of S3 (XML) or ECR (JSON). The rest of the answer may contain credentials.
ERROR_CODE = re.compile(rb'<Code>(\w+)</Code>|"__type"\s*:\s*"(?:[\w.]+#)?(\w+)"')


class Ec2Boot(Boot):
    """Boot of an EC2 instance."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.parameters = json.loads((home / "parameters.json").read_text(encoding="utf-8"))
        self.imds = (os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or METADATA).rstrip("/")
        self.endpoint = os.environ.get("AWS_ENDPOINT_URL", "").rstrip("/")
        self.region = self.parameters["region"]
        self.variables = (
            *("AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_ENDPOINT_URL"),  # variables by which a test redirects requests
            *(f"{name}={self.region}" for name in ("AWS_REGION", "AWS_DEFAULT_REGION")),
            *(f"ROOFLAUNCH_{name.upper()}={self.parameters[name]}" for name in ("launch", "store", "limit_s")),
        )
        # After the first agent has begun, only agents write the launch's status.
        self.is_quiet = (home / STARTED).exists()
        self.writing, self.over = threading.Lock(), threading.Event()

    def run(self) -> int:
        """Prepare the instance and run the agent to its end, with a heartbeat until the agent begins."""
        threading.Thread(target=self.beat_regularly, daemon=True).start()
        return super().run()

    def parameter(self, name: str) -> str:
        """Value from the user data."""
        return str(self.parameters[name])

    def is_task(self) -> bool:
        return bool(self.parameters["is_task"])

    def report(self, *_: str) -> None:
        """Write the launch's status, which has all phases so far."""
        self.beat()

    def login(self, registry: str) -> tuple[str, str] | None:
        """User and password for a registry of ECR, from the instance's role."""
        found = ECR.fullmatch(registry)
        if not found:
            return None
        url = f"{self.endpoint or f'https://api.ecr.{found[1]}.amazonaws.com'}/"
        headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": ECR_TARGET}
        answer = persistently(
            lambda: self.call("ecr", found[1], "POST", url, headers, b"{}"), "the registry gives no token"
        )
        token = json.loads(answer)["authorizationData"][0]["authorizationToken"]
        user, _, password = base64.b64decode(token).decode().partition(":")
        return user, password

    def before_agent(self) -> None:
        """Wait for the tag which says that this instance has a schedule; then leave the status to the agent."""
        tag = f"tags/instance/{self.parameters['ends_tag']}"
        if not succeeds(lambda: bool(self.metadata(tag)), TAG_TRIES, TAG_AGAIN_S):
            fail("nobody has scheduled the end of this instance: its launcher was killed")
        with self.writing:
            self.is_quiet = True
        self.over.set()

    def beat_regularly(self) -> None:
        """Write the status regularly until the agent takes over, at most `BEATS` times."""
        for _ in range(BEATS):
            if self.over.wait(BEAT_EVERY_S):
                return
            self.beat()

    def beat(self) -> None:
        """Write the status: a `Heartbeat` of launcher/protocol/records.py. An error is printed and ignored."""
        with self.writing:
            if self.is_quiet:
                return
            try:
                phases: dict[str, str] = {}
                for line in (self.home / "phases").read_text(encoding="utf-8").splitlines():
                    phases.setdefault(*line.split(" ", 1))  # after a restart, the first time of each phase counts
                at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
                zone = self.metadata("placement/availability-zone-id")
                self.put("status.json", json.dumps({"schema_version": 1, "at": at, "zone": zone, "phases": phases}))
            except (OSError, ValueError, SystemExit) as error:
                print(f"the status cannot be written: {error}", flush=True)

    def upload_log(self) -> None:
        """Upload the log of this machine: the output of this boot and of all earlier ones."""
        content = (self.home / "startup.log").read_text(encoding="utf-8", errors="replace")

        def upload() -> bytes:
            self.put("startup.log", content)
            return b""

        persistently(upload, "the log cannot be uploaded")

    def put(self, name: str, content: str) -> None:
        """Write a record of the launch into its store. Raises `OSError`."""
        store = self.parameters["store"].partition("://")[2]
        path = urllib.parse.quote(f"/{store}/launches/{self.parameters['launch']}/{name}", safe="/~-._")
        url = f"{self.endpoint or f'https://s3.{self.region}.amazonaws.com'}{path}"
        self.call("s3", self.region, "PUT", url, {"content-type": "text/plain"}, content.encode())

    def call(
        self, service: str, region: str, method: str, url: str, headers: Mapping[str, str], content: bytes
    ) -> bytes:
        """Send a request that the instance's role signs; return the answer. Raises `OSError`."""
        role = self.metadata("iam/security-credentials/").partition("\n")[0]
        if not role:
            raise OSError("the instance has no role")
        keys = json.loads(self.metadata(f"iam/security-credentials/{role}") or "{}")
        if not {"AccessKeyId", "SecretAccessKey", "Token"} <= set(keys):
            # For example `AssumeRoleUnauthorizedAccess`: EC2 may not use the role.
            raise OSError(f"the instance's role has no credentials: {keys.get('Code')}")
        sent = signed(service, region, method, url, headers, content, keys, datetime.now(timezone.utc))
        try:
            return request(url, method=method, headers=sent, content=content)
        except urllib.error.HTTPError as error:
            code = ERROR_CODE.search(error.read())
            named = (code[1] or code[2]).decode() if code else ""
            raise OSError(f"HTTP {error.code} {named}".strip()) from None

    def metadata(self, key: str) -> str:
        """Value of a key of this instance's metadata; empty if there is none. Ends the boot if the server fails."""

        def ask() -> bytes:
            seconds = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
            token = request(f"{self.imds}/latest/api/token", method="PUT", headers=seconds, content=b"")
            try:
                known = {"X-aws-ec2-metadata-token": token.decode()}
                return request(f"{self.imds}/latest/meta-data/{key}", headers=known)
            except urllib.error.HTTPError as error:
                if error.code == NOT_FOUND:
                    return b""
                raise

        return persistently(ask, f"the metadata server does not answer for {key}").decode().strip()


def signed(
    service: str,
    region: str,
    method: str,
    url: str,
    headers: Mapping[str, str],
    content: bytes,
    keys: Mapping[str, str],
    now: datetime,
) -> dict[str, str]:
    """Headers of a request, signed with version 4 of Amazon's signature. `keys`: the role's, from the metadata server.

    Definition: docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html, read 2026-11.
    """
    parts, at, digest = urllib.parse.urlsplit(url), f"{now:%Y%m%dT%H%M%SZ}", hashlib.sha256(content).hexdigest()
    every = {
        **headers,
        "host": parts.netloc,
        "x-amz-content-sha256": digest,
        "x-amz-date": at,
        "x-amz-security-token": keys["Token"],
    }
    names = ";".join(sorted(every))
    canonical = "\n".join(
        [method, parts.path, "", *(f"{name}:{every[name]}" for name in sorted(every)), "", names, digest]
    )
    scope = f"{at[:8]}/{region}/{service}/aws4_request"
    key = f"AWS4{keys['SecretAccessKey']}".encode()
    text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    for part in (*scope.split("/"), text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    credential = f"Credential={keys['AccessKeyId']}/{scope}"
    return {**every, "authorization": f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={names}, Signature={key.hex()}"}


if __name__ == "__main__":
    machine = Ec2Boot(Path(sys.argv[1]))
    if "upload-log" in sys.argv[2:]:
        machine.upload_log()
    else:
        sys.exit(machine.run())
