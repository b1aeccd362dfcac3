"""Time and cost of the upload at the end of a launch, from the phases that its machine reported."""

from typing import Any

import pytest

from launcher.jobs.launches import upload_of
from launcher.protocol.records import Request
from workload.contract.spent import Spent

ENDED = {"run_started": "2026-11-21T12:00:00Z", "run_ended": "2026-11-21T12:01:00Z"}
UPLOADED = {"uploaded": "2026-11-21T12:01:36Z", "finished": "2026-11-21T12:01:37Z"}


def request(**fields: Any) -> Request:
    plain = {"name": "a", "backend": "gcp", "launched_at": "2026-11-21T11:59:00Z", "store": "gs://b", "place": "gcp-t4"}
    return Request(**{**plain, "runtime": "docker", "limit_s": 600, "spec": {}, **fields})


@pytest.mark.parametrize(
    ("phases", "upload_s"),
    [
        ({**ENDED, **UPLOADED}, 36.0),
        ({**ENDED, **UPLOADED, "profile_ended": "2026-11-21T12:01:30Z"}, 6.0),
        ({**ENDED, "uploaded": "2026-11-21T12:01:36Z"}, 36.0),
        (ENDED, None),
        (UPLOADED, None),
        ({}, None),
        # The machine was taken away after its first end, and another one did the rest.
        ({**ENDED, **UPLOADED, "uploaded": "2026-11-21T13:00:00Z"}, None),
        ({**ENDED, **UPLOADED, "run_ended": "soon"}, None),
    ],
    ids=["a run", "profiled", "not finished", "not uploaded", "no run", "nothing", "resumed", "damaged"],
)
def test_upload(phases: dict[str, str], upload_s: float | None) -> None:
    listed = {"us-central1": {"usd_per_h": 0.9, "source": "a test", "read": "2026-11-20", "disk_usd_per_h": 0.1}}
    priced = upload_of(request(prices=listed), "us-central1-a", phases)
    assert priced == (Spent() if upload_s is None else Spent(seconds={"upload": upload_s}, usd=upload_s / 3600))
    assert upload_of(request(), "us-central1-a", phases).usd is None
