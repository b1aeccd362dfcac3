"""EC2's metadata server, version 2: answers only with a token of its own; knows the keys of one instance."""

import json
from collections.abc import Mapping
from typing import Any

from tests.ports import Answering, Fake

ROLE, SECRET = "rooflaunch-vm", "this-key-is-a-secret-of-the-test"
SESSION = "IQoJ//this-session-is-a-secret-of-the-test=="
ACCOUNT, ADDRESS = "123456789012", "172.31.5.6"
INSTANCE_ID = "i-0123456789abcdef0"
# As the documentation shows it (instance-identity-documents.html).
IDENTITY: Mapping[str, Any] = {
    "accountId": ACCOUNT,
    "architecture": "x86_64",
    "availabilityZone": "us-east-1c",
    "billingProducts": None,
    "imageId": "ami-0abcdef1234567890",
    "instanceId": INSTANCE_ID,
    "instanceType": "g4dn.xlarge",
    "pendingTime": "2026-11-21T10:00:00Z",
    "privateIp": ADDRESS,
    "region": "us-east-1",
    "version": "2017-09-30",
}
CREDENTIALS = {
    "Code": "Success",
    "Type": "AWS-HMAC",
    "AccessKeyId": "ASIAEXAMPLE",
    "SecretAccessKey": SECRET,
    "Token": SESSION,
    "Expiration": "2036-11-21T16:00:00Z",
}
KEYS: Mapping[str, str] = {
    "dynamic/instance-identity/document": json.dumps(IDENTITY),
    "meta-data/instance-life-cycle": "spot",
    "meta-data/placement/availability-zone": "us-east-1c",
    "meta-data/placement/availability-zone-id": "use1-az4",
    "meta-data/iam/security-credentials/": ROLE,
    f"meta-data/iam/security-credentials/{ROLE}": json.dumps(CREDENTIALS),
}
# Keys that an instance may lack.
OPTIONAL = ("meta-data/placement/host-id", "meta-data/spot/instance-action", "meta-data/tags/instance/")


class ImdsServer(Fake):
    """A context manager; `.url` is for AWS_EC2_METADATA_SERVICE_ENDPOINT. Raises at its end for an unknown key.

    `silent`: how many of the next questions are answered with 503.
    """

    def __init__(self) -> None:
        self.keys = dict(KEYS)
        self.silent = 0
        self.asked: list[str] = []
        super().__init__(_Handler)

    def tag(self, name: str, value: str) -> None:
        """Set a tag of the instance."""
        self.keys[f"meta-data/tags/instance/{name}"] = value

    def interrupt(self) -> None:
        """Announce the end of a spot instance."""
        self.keys["meta-data/spot/instance-action"] = '{"action": "terminate", "time": "2026-11-21T10:30:00Z"}'


class _Handler(Answering):
    fake: ImdsServer

    def do_PUT(self) -> None:
        seconds = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        is_token = self.path == "/latest/api/token" and seconds.isdigit() and 1 <= int(seconds) <= 21600
        self._answer(200 if is_token else 400, "a-token==" if is_token else "")

    def do_GET(self) -> None:
        fake, key = self.fake, self.path.removeprefix("/latest/")
        if self.headers.get("X-aws-ec2-metadata-token") != "a-token==" or self.headers.get("X-Forwarded-For"):
            self._answer(401)
            return
        fake.asked.append(key)
        if key not in fake.keys and not key.startswith(OPTIONAL):
            fake.unknown.append(key)
        self._answer(200, fake.keys[key]) if key in fake.keys else self._answer(404, "<html>404 - Not Found</html>")

    def _answer(self, status: int, text: str = "") -> None:
        if self.fake.silent:
            self.fake.silent -= 1
            status, text = 503, ""
        self.send(status, text, Content_Type="text/plain")
