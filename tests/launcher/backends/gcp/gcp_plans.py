"""Plans of `launch gcp` for tests; GOLDEN has the options of those that are committed in plans/."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from launcher.backends.gcp.options import Settings, resolve_settings
from launcher.backends.gcp.plan import Options, VmPlan, make_plan
from workload.contract.errors import ExitCode, RooflaunchError, UsageError
from workload.contract.spec import resolve

NOW = datetime(2026, 11, 21, 14, 25, 30, 123000, tzinfo=UTC)
IMAGE = f"us-central1-docker.pkg.dev/my-project/rooflaunch/trainer@sha256:{'0123456789abcdef' * 4}"
BOOT = "# nobody's boot.py\n\nprint('ok')\n"
SCRIPT = "#!/bin/bash\necho 'verbatim: $(date) \"${NAME}\"'\n"
GUEST = "# nobody's guest.py\n"
SHUTDOWN = "#!/bin/bash\n# nobody's shutdown.sh\n\ntrue\n"


def settings_of(**given: str) -> Settings:
    return resolve_settings({"project": "my-project", **given}, {}, None, default_project=lambda: None)[0]


def planned(
    gpu: str = "t4",
    run: Mapping[str, object] | None = None,
    settings: Settings | None = None,
    *,
    image: str = IMAGE,
    now: datetime = NOW,
    **options: Any,
) -> VmPlan:
    return make_plan(
        resolve(run or {}, {}, None),
        Options(gpu=gpu, **options),
        settings or settings_of(),
        image=image,
        now=now,
        token="0a1b2c",
    )


def refused(error: type[RooflaunchError] = UsageError, **options: Any) -> tuple[str, str]:
    with pytest.raises(error) as caught:
        planned(**options)
    assert caught.value.exit_code == (ExitCode.USAGE if error is UsageError else ExitCode.TOOL)
    return str(caught.value), caught.value.hint


def lines_of(plan: VmPlan) -> list[str]:
    return plan.text().partition("\n\n")[0].splitlines()


GOLDEN: dict[str, dict[str, Any]] = {
    "t4": {},
    "v100-spot": {"gpu": "v100", "spot": True},
    "a100-without-price": {"gpu": "a100", "spot": True},
    "t4-everything": {
        "zones": ("us-central1-f", "us-central1-a"),
        "fallback": False,
        "spot": True,
        "machine_type": "n1-standard-8",
        "max_run_time_s": 7200,
        "max_cost_usd": 0.5,
        "external_ip": False,
        "disk_gb": 200,
        "rerun_preempted": 1,
        "settings": Settings(
            project="my-project",
            bucket="my-bucket",
            repository="europe-docker.pkg.dev/my-project/images/trainer",
            service_account="runner@my-project.iam.gserviceaccount.com",
            network="vpc",
            subnetwork="projects/my-project/regions/us-central1/subnetworks/gpu",
        ),
        "run": {
            "model": "resnet50",
            "dataset": "imagenette",
            "data_dir": "/home/me/data",
            "repeats": "3",
            "profile": "ncu",
        },
    },
}
