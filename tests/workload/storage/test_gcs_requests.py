"""Every request that this project sends to Cloud Storage, against the parameters that its documentation has.

What is sent is committed; to write it anew: `python -m tests.workload.storage.test_gcs_requests`.
"""

import io
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workload.storage import gcs_server
from tests.workload.storage.faulty_proxy import FaultyProxy, Sent
from tests.workload.storage.gcs_server import BUCKET
from workload.contract.errors import RooflaunchError
from workload.contract.files import crc32c_of
from workload.storage import gcs
from workload.storage.gcs import Bucket

pytestmark = pytest.mark.world

COMMITTED = Path(__file__).parent / "requests.json"
CHUNK_BYTES = 256 * 1024
# https://docs.cloud.google.com/storage/docs/json_api/v1/objects/{insert,get,list}, buckets/{get,testIamPermissions},
# /storage/docs/performing-resumable-uploads (read 2026-11-21): method, path, what it requires, what else it takes.
# `fields`, `prettyPrint` and `alt` are parameters of every method.
CONDITIONS = {"ifGenerationMatch", "ifGenerationNotMatch", "ifMetagenerationMatch", "ifMetagenerationNotMatch"}
DOCUMENTED: dict[str, tuple[str, str, set[str], set[str]]] = {
    "objects.list": (
        "GET", "/storage/v1/b/[^/]+/o", set(),
        {"prefix", "delimiter", "maxResults", "pageToken", "projection", "startOffset", "endOffset", "versions"},
    ),
    "objects.get": ("GET", "/storage/v1/b/[^/]+/o/.+", set(), {"generation", "projection", *CONDITIONS}),
    "objects.get media": ("GET", "/download/storage/v1/b/[^/]+/o/.+", {"alt"}, {"generation", *CONDITIONS}),
    "objects.insert": ("POST", "/upload/storage/v1/b/[^/]+/o", {"uploadType"}, {"name", *CONDITIONS}),
    "resumable chunk": ("PUT", "/upload/storage/v1/b/[^/]+/o", {"uploadType", "upload_id"}, {"name", *CONDITIONS}),
    "buckets.testIamPermissions": ("GET", "/storage/v1/b/[^/]+/iam/testPermissions", {"permissions"}, set()),
}  # fmt: skip
EVERYWHERE = {"fields", "prettyPrint", "alt"}
# Headers that decide what is stored or sent; others are the client's own business.
HEADERS = ("range", "content-range", "x-upload-content-type", "x-upload-content-length", "content-type")


def method_of(sent: Sent) -> str:
    """The documented method of a request, which takes all of its parameters."""
    for name, (verb, path, required, others) in DOCUMENTED.items():
        if sent.method == verb and re.fullmatch(path, sent.path):
            assert required <= set(sent.query), f"{name} requires {required}"
            assert set(sent.query) <= required | others | EVERYWHERE, f"{name} has no {set(sent.query)}"
            return name
    raise AssertionError(f"no documented method: {sent.method} {sent.path}")


def shown(sent: Sent) -> dict[str, Any]:
    """As committed: without what differs each time."""
    headers = {name.lower(): value for name, value in sent.headers.items() if name.lower() in HEADERS}
    boundary = re.search(r'boundary="?([^";]+)', headers.get("content-type", ""))
    found: dict[str, Any] = {"method": method_of(sent), "path": sent.path, "query": dict(sorted(sent.query.items()))}
    for name, pattern in (("upload_id", ".*"), ("generation", r"\d+"), ("ifGenerationMatch", r"[1-9]\d+")):
        if name in sent.query and re.fullmatch(pattern, sent.query[name]):
            found["query"][name] = "…"
    if boundary:
        headers["content-type"] = headers["content-type"].replace(boundary[1], "…")
        # The first part says what the object is to be.
        found["metadata"] = json.loads(sent.body.split(b"\r\n\r\n")[1].partition(b"\r\n--")[0])
    elif sent.method == "POST":
        found["metadata"] = json.loads(sent.body)
    return found | {"headers": dict(sorted(headers.items()))}


def every_request(patch: pytest.MonkeyPatch, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What each question to a bucket sends, in turn."""
    from google.cloud.storage import blob

    patch.setattr(blob, "_MAX_MULTIPART_SIZE", CHUNK_BYTES)
    patch.setattr(gcs, "CHUNK_BYTES", CHUNK_BYTES)
    large = folder / "large"
    large.write_bytes(b"x" * (CHUNK_BYTES + 1))
    checksum = crc32c_of(io.BytesIO(large.read_bytes()))
    small = folder / "small"
    small.write_bytes(b"{}")
    of_small = crc32c_of(io.BytesIO(b"{}"))
    sent: dict[str, list[dict[str, Any]]] = {}
    with gcs_server.running(folder / "log") as server, FaultyProxy(server) as proxy:
        patch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        bucket: Bucket | None = None

        def ask(name: str, question: Callable[[], Any]) -> Any:
            proxy.served.clear()
            try:
                return question()
            except RooflaunchError:
                return None  # fake-gcs-server does not know it; what is asked is all that counts here
            finally:
                sent[name] = [shown(each) for each in proxy.served]

        bucket = ask("connect", lambda: gcs.connect(BUCKET, prefix="launches/"))
        assert bucket is not None
        opened: Bucket = bucket
        ask("write", lambda: opened.write("launches/a b/status.json", b"{}"))
        ask("write if absent", lambda: opened.write("launches/x/result.json", b"{}", if_absent=True))
        ask("upload", lambda: opened.upload("runs/x/log.txt", large, crc32c=checksum))
        ask("upload what is there", lambda: opened.upload("launches/x/result.json", small, crc32c=of_small))
        ask("read", lambda: opened.read("launches/a b/status.json"))
        ask("objects", lambda: list(opened.objects("runs/")))
        ask("folders", lambda: opened.folders("launches/"))
        (found,) = opened.objects("runs/")
        ask("download", lambda: opened.download(found, io.BytesIO()))
        ask("permitted", lambda: opened.permitted(["storage.objects.create", "storage.objects.get"]))
    return sent


def as_text(sent: dict[str, list[dict[str, Any]]]) -> str:
    return json.dumps(sent, indent=1, ensure_ascii=False) + "\n"


def test_what_is_sent_is_documented_and_committed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sent = every_request(monkeypatch, tmp_path)
    assert as_text(sent) == COMMITTED.read_text()
    assert {request["method"] for requests in sent.values() for request in requests} == set(DOCUMENTED)


@pytest.mark.parametrize(
    ("verb", "path", "query", "why"),
    [
        ("GET", "/storage/v1/b/x/o", {"prefx": "a"}, "has no"),
        ("POST", "/upload/storage/v1/b/x/o", {"name": "a"}, "requires"),
        ("DELETE", "/storage/v1/b/x/o/a", {}, "no documented method"),
        ("GET", "/download/storage/v1/b/x/o/a", {"alt": "media", "ifGenerationmatch": "1"}, "has no"),
    ],
)
def test_what_is_not_documented_is_noticed(verb: str, path: str, query: dict[str, str], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        method_of(Sent(method=verb, path=path, query=query, headers={}, body=b""))


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as made:
        COMMITTED.write_text(as_text(every_request(patched, Path(made))))
