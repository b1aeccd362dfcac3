"""Checks of GPU quotas."""

from collections.abc import Mapping
from typing import Any

import pytest

from launcher.backends.gcp import gpus
from launcher.backends.gcp.resources import Quota
from tests.launcher.backends.gcp.doctor_world import NO_PERMISSION, World
from tests.launcher.backends.gcp.fake_rest import PROJECT

QUOTAS_PAGE = f"ask for more: https://console.cloud.google.com/iam-admin/quotas?project={PROJECT}, filter"


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("quotas", "state", "found", "cure"),
    [
        (
            {"GPUS_ALL_REGIONS": Quota(limit=0, usage=0)},
            "problem",
            "0 GPUs, as in every new project: no VM with a GPU can start",
            f"{QUOTAS_PAGE} GPUS_ALL_REGIONS",
        ),
        (
            {"GPUS_ALL_REGIONS": Quota(limit=2, usage=2)},
            "note",
            "0 of 2 GPUs left",
            f"launch status; or {QUOTAS_PAGE} GPUS_ALL_REGIONS",
        ),
        ({}, "note", "unknown: the project does not report this quota", ""),
    ],
    ids=["zero", "used-up", "untold"],
)
def test_gpus_of_all_regions(quotas: Any, state: str, found: str, cure: str, world: World) -> None:
    world.compute.everywhere = quotas
    assert world.row("GPUS_ALL_REGIONS") == ("GPUS_ALL_REGIONS", state, found, cure)


def test_the_best_regions_come_first(world: World) -> None:
    left = {"us-central1": 1, "us-east1": 4, "us-west1": 1, "europe-west4": 2, "asia-east1": 1, "us-east4": 0}

    def quotas(region: str) -> Mapping[str, Quota]:
        spot = {"PREEMPTIBLE_NVIDIA_T4_GPUS": Quota(limit=1, usage=1)}
        return spot | {"NVIDIA_T4_GPUS": Quota(limit=left.get(region, 0) + 3, usage=3)}

    world.compute.regions = quotas
    assert world.row("quota t4") == (
        "quota t4",
        "ok",
        "GPUs left, standard: us-east1 4, europe-west4 2, us-central1 1 and 2 more; preemptible: none left",
        "",
    )
    # The L4's are not told by any region: that is unknown, not none.
    assert world.row("quota l4") == (
        "quota l4",
        "note",
        (
            "GPUs left, standard: unknown: no region reports this quota; preemptible: unknown: "
            "no region reports this quota"
        ),
        f"{QUOTAS_PAGE} NVIDIA_L4_GPUS",
    )
    assert "quota" not in world.amiss(), "one GPU that can be had is enough"
    world.compute.asked_regions.clear()
    world.checks()
    assert len(world.compute.asked_regions) == len(set(world.compute.asked_regions)), "each region once"


def test_no_quota_of_any_gpu(world: World) -> None:
    metrics = [gpu.quota for gpu in gpus.load().values()]
    world.compute.regions = lambda _: {name: Quota(limit=0, usage=0) for name in metrics}
    assert world.row("quota") == (
        "quota",
        "problem",
        "no region has any GPU quota left",
        f"{QUOTAS_PAGE} GPU",
    )
    assert world.row("quota v100")[1:3] == (
        "note",
        "GPUs left, standard: none left; preemptible: unknown: no region reports this quota",
    )


def test_preemptible_quota_alone_is_enough(world: World) -> None:
    """A VM of ours lives for 7 days at most, and takes either."""
    world.compute.regions = lambda _: {
        "NVIDIA_T4_GPUS": Quota(limit=1, usage=1),
        "PREEMPTIBLE_NVIDIA_T4_GPUS": Quota(limit=0 if _ != "us-east1" else 2, usage=0),
    }
    assert world.row("quota t4")[1:3] == ("ok", "GPUs left, standard: none left; preemptible: us-east1 2")


def test_a_region_that_does_not_answer(world: World) -> None:
    def quotas(region: str) -> Mapping[str, Quota]:
        if region == "me-west1":
            raise NO_PERMISSION
        return {"NVIDIA_T4_GPUS": Quota(limit=1, usage=0)}

    world.compute.regions = quotas
    assert world.row("regions") == ("regions", "note", "not seen: me-west1: no permission", "ask")
    assert world.row("quota t4")[1] == "ok"
