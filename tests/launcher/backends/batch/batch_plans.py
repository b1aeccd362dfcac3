"""Plans of `launch batch` for tests, as the backend makes them, without its questions."""

from datetime import datetime

from launcher.backends.batch.options import Options
from launcher.backends.batch.plan import BatchPlan, make_plan, zones_in
from launcher.backends.gcp import plan as gcp_plan
from launcher.protocol.records import Task
from tests.launcher.backends.gcp.canned_cloud import IMAGE, SETTINGS
from workload.contract.spec import Resolved


def batch_plan(
    resolved: Resolved, options: Options, region: str, *, now: datetime, token: str, task: Task | None = None
) -> BatchPlan:
    as_gcp = options.for_vm(zones_in(region, options))
    vm = gcp_plan.make_plan(resolved, as_gcp, SETTINGS, image=IMAGE, now=now, token=token, task=task)
    return make_plan(vm, options, region)
