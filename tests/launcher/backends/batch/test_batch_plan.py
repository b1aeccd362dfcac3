"""`launch batch` before anything happens: the job's body against committed files, and what is refused."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from launcher.backends.batch.options import Options
from launcher.backends.batch.plan import BatchPlan
from tests.launcher.backends.batch.batch_plans import batch_plan
from workload.contract.errors import UsageError
from workload.contract.spec import resolve

PLANS = Path(__file__).with_name("plans")
NOW = datetime(2027, 1, 15, 8, tzinfo=UTC)
GOLDEN: dict[str, dict[str, Any]] = {
    "t4": {"gpu": "t4"},
    "l4-spot": {"gpu": "l4", "spot": True, "rerun_preempted": 3, "zones": ("us-central1-a",)},
    "v100-ncu": {"gpu": "v100", "given": {"profile": "ncu"}, "disk_gb": 200, "external_ip": True},
    "t4-cpu": {"gpu": "t4", "given": {"device": "cpu"}, "usd_per_h": 0.5},
    "t4-two": {"gpu": "t4", "given": {"devices": 2}},
}


def planned(*, given: dict[str, object] | None = None, region: str = "us-central1", **changes: Any) -> BatchPlan:
    resolved = resolve(given or {}, {}, None)
    return batch_plan(resolved, Options(**changes), region, now=NOW, token="00ff00")


def golden(plan: BatchPlan) -> str:
    """The text and the request, its programs left short."""
    return f"{plan.text(100)}\n{plan.sent_text()}\n"


@pytest.mark.parametrize("name", GOLDEN)
def test_the_plan_is_the_committed_one(name: str) -> None:
    assert golden(planned(**GOLDEN[name])) == (PLANS / f"{name}.txt").read_text()


def test_a_job_has_a_task_for_each_plan() -> None:
    plans = [planned(gpu="t4"), planned(gpu="t4", given={"model": "resnet50"})]
    [group] = plans[0].body(plans)["taskGroups"]
    assert (group["taskCount"], group["parallelism"], group["taskCountPerNode"]) == ("2", "2", "1")
    assert [one["variables"] for one in group["taskEnvironments"]] == [
        {"ROOFLAUNCH_LAUNCH": plan.request.name} for plan in plans
    ]


def test_a_profile_of_any_task_asks_for_the_capability() -> None:
    plain, profiled = planned(gpu="t4"), planned(gpu="t4", given={"profile": "ncu"})

    def container(plans: list[BatchPlan]) -> dict[str, Any]:
        return dict(plans[0].body(plans)["taskGroups"][0]["taskSpec"]["runnables"][0]["container"])

    assert "--cap-add" not in container([plain])["options"]
    both = container([plain, profiled])
    assert "--cap-drop ALL --cap-add SYS_ADMIN" in both["options"]
    assert both["commands"][-4:-2] == ["python", "-c"]


def test_no_credential_and_no_shell() -> None:
    text = json.dumps(planned(gpu="t4").to_json())
    assert not [word for word in ("ya29", "token", "password", "/bin/sh") if f'"{word}' in text]


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        (
            {"gpu": "t4", "region": "mars-north1"},
            "no T4 16 GB in region 'mars-north1'; the regions with one: ",
            "--region us-central1",
        ),
        (
            {"gpu": "t4", "zones": ("europe-west4-a",)},
            (
                "zone 'europe-west4-a' has no T4 16 GB in us-central1; zones with one: us-central1-a, "
                "us-central1-b, us-central1-c, us-central1-f"
            ),
            "--zone us-central1-a, or --region europe-west4",
        ),
        (
            {"gpu": "t4", "rerun_preempted": 2},
            "--rerun-preempted is only for spot VMs",
            "--spot --rerun-preempted 2",
        ),
        ({"gpu": "t4", "given": {"dataset": "/data"}}, "a VM cannot read the folder '/data'", "--dataset synthetic"),
        ({"gpu": "t4", "given": {"precision": "tf32"}}, "precision tf32 needs compute capability 8.0", "--precision"),
    ],
    ids=["region", "zone", "retries", "folder", "precision"],
)
def test_what_is_refused(changes: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as refused:
        planned(**changes)
    assert str(refused.value).startswith(message)
    assert refused.value.hint.startswith(hint)


if __name__ == "__main__":
    PLANS.mkdir(exist_ok=True)
    for name, options in GOLDEN.items():
        (PLANS / f"{name}.txt").write_text(golden(planned(**options)))
