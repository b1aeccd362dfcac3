"""Plans of `launch gcp` for tests; PLANS has the options of those that are committed in golden/."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from launcher.backends.gcp.options import Settings, resolve_settings
from launcher.backends.gcp.plan import Options, VmPlan, make_plan
from launcher.protocol.records import Task
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
    task: Task | None = None,
    **options: Any,
) -> VmPlan:
    chosen = Options(gpu=gpu, **options)
    resolved = resolve(run or {}, {}, None)
    return make_plan(resolved, chosen, settings or settings_of(), image=image, now=now, token="0a1b2c", task=task)


PLANS: dict[str, dict[str, Any]] = {
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
