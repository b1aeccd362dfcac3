"""`launch batch` before anything happens: the job's body against committed files, and what is refused."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from launcher.backends.batch.options import Options
from launcher.backends.batch.plan import BatchPlan
from tests.launcher.backends.batch.batch_plans import batch_plan
from tests.launcher.backends.told import errors_of
from workload.contract.spec import resolve

Golden = Callable[[str, str], None]
NOW = datetime(2027, 1, 15, 8, tzinfo=UTC)
PLANS: dict[str, dict[str, Any]] = {
    "t4": {"gpu": "t4"},
    "l4-spot": {"gpu": "l4", "spot": True, "rerun_preempted": 3, "zones": ("us-central1-a",)},
    "v100-ncu": {"gpu": "v100", "given": {"profile": "ncu"}, "disk_gb": 200, "external_ip": True},
    "t4-cpu": {"gpu": "t4", "given": {"device": "cpu"}, "usd_per_h": 0.5},
    "t4-two": {"gpu": "t4", "given": {"devices": 2}},
}


def planned(*, given: dict[str, object] | None = None, region: str = "us-central1", **changes: Any) -> BatchPlan:
    resolved = resolve(given or {}, {}, None)
    return batch_plan(resolved, Options(**changes), region, now=NOW, token="00ff00")


@pytest.mark.parametrize("name", PLANS)
def test_plan_is_the_committed_one(name: str, golden: Golden) -> None:
    plan = planned(**PLANS[name])
    golden(f"{name}.txt", f"{plan.text(100)}\n{plan.sent_text()}\n")


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


REFUSED: dict[str, dict[str, Any]] = {
    "region without the GPU": {"gpu": "t4", "region": "mars-north1"},
    "zone of another region": {"gpu": "t4", "zones": ("europe-west4-a",)},
    "retries on demand": {"gpu": "t4", "rerun_preempted": 2},
    "folder of this machine": {"gpu": "t4", "given": {"dataset": "/data"}},
    "tf32 on a T4": {"gpu": "t4", "given": {"precision": "tf32"}},
}


def test_options_that_do_not_fit_are_refused_with_a_cure(golden: Golden) -> None:
    golden("plan-refusals.txt", errors_of(planned, REFUSED))
