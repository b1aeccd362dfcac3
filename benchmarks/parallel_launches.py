"""Cost of many launches at once for the launcher: time, memory, CPU and requests, with the fakes of the tests.

    python benchmarks/parallel_launches.py [LAUNCHES] [SCALE]

The launcher is a process of its own, so that the fake Compute Engine, fake-gcs-server and the canned VMs, which live in
this one, are not counted. SCALE: simulated seconds per real one; each launch lasts about 4.5 simulated minutes.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from launcher.backends.gcp import compute  # noqa: E402
from launcher.backends.gcp.machines import ComputeMachines  # noqa: E402
from launcher.backends.gcp.plan import Options, make_plan  # noqa: E402
from launcher.jobs import launches  # noqa: E402
from launcher.jobs.run import LaunchOutcome, run  # noqa: E402
from launcher.jobs.session import Session  # noqa: E402
from launcher.protocol.records import LAUNCHES  # noqa: E402
from tests.launcher.backends.gcp.canned_cloud import IMAGE, SETTINGS, ZONE  # noqa: E402
from tests.launcher.backends.gcp.canned_vm import CannedVm, FastClock  # noqa: E402
from tests.launcher.backends.gcp.fake_compute import FakeCompute  # noqa: E402
from tests.workload.storage.gcs_server import BUCKET, running  # noqa: E402
from workload.contract.spec import resolve  # noqa: E402
from workload.storage import gcs as storage  # noqa: E402

LIMIT_S = 600


def main(number: int, scale: float) -> None:
    """Start the fakes and the launcher, and print its results."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        clock = FastClock(scale=scale)
        with running(home / "gcs.log") as server:
            (home / "vm").mkdir()
            vm = CannedVm(server=server, api=lambda: fake.url, clock=clock, home=home / "vm")
            with FakeCompute(vm=vm) as fake:
                endpoints = {"ROOFLAUNCH_COMPUTE_ENDPOINT": fake.url, "STORAGE_EMULATOR_HOST": server.url}
                command = [sys.executable, __file__, str(number), str(scale), str(clock.epoch_s), str(clock._began_s)]  # noqa: SLF001
                done = subprocess.run(
                    [*command, str(home / "results")],
                    env={**os.environ, **endpoints},
                    stdout=subprocess.PIPE,
                    check=True,
                    timeout=LIMIT_S,
                )
                told = json.loads(done.stdout)
                told["vms_made"], told["vms_left"] = len(fake.all_vms), len(fake.instances)
                told["requests_at_the_fake"] = len(fake.calls)
        print(json.dumps(told, indent=1))


def launcher(number: int, clock: FastClock, output: Path) -> None:
    """Run `number` launches on one client, each in a thread; print time, memory, CPU and requests."""
    cloud = compute.connect(SETTINGS.project, sleep=clock.sleep, monotonic=clock.now)
    bucket = storage.connect(BUCKET, prefix=LAUNCHES, jobs=32)
    before = resource.getrusage(resource.RUSAGE_SELF)
    outcomes: list[LaunchOutcome] = []
    errors: list[BaseException] = []

    def session() -> Session:
        return Session(machines=ComputeMachines(cloud, sleep=clock.sleep), store=bucket, sleep=clock.sleep)

    def one(index: int) -> None:
        now = datetime.fromtimestamp(clock.now(), UTC)
        options = Options(gpu="t4", zones=(ZONE,))
        plan = make_plan(resolve({}, {}, None), options, SETTINGS, image=IMAGE, now=now, token=f"{index:06x}")
        try:
            outcome = run(session(), plan, output=output)
            outcomes.append(outcome)
        except BaseException as error:  # noqa: BLE001 - told at the end
            errors.append(error)

    began_s, simulated_s = time.monotonic(), clock.now()
    threads = [threading.Thread(target=one, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = resource.getrusage(resource.RUSAGE_SELF)
    calls = sum((Counter(each.calls) for each in outcomes), Counter())
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seen = launches.list_launches(session(), limit=None)
    told = {
        "launches": number,
        "completed": sum(each.error is None for each in outcomes),
        "errors": [str(each) for each in errors] + [str(each.error) for each in outcomes if each.error],
        "bundles": len(list(output.iterdir())),
        "states": Counter(each.state for each in seen),
        "real_s": round(time.monotonic() - began_s, 1),
        "simulated_s": round(clock.now() - simulated_s),
        "cpu_s": round(cpu_s, 1),
        "cpu_ms_per_request": round(1000 * cpu_s / sum(calls.values()), 2),
        "memory_before_mb": round(before.ru_maxrss / 1024),
        "memory_peak_mb": round(after.ru_maxrss / 1024),
        "calls_per_launch": {name: round(count / number, 1) for name, count in sorted(calls.items())},
    }
    print(json.dumps(told))


if __name__ == "__main__":
    words = sys.argv[1:]
    count, scale = int(words[0]) if words else 100, float(words[1]) if words[1:] else 3.0
    if words[2:]:
        clock = FastClock(scale=scale, epoch_s=float(words[2]), _began_s=float(words[3]))
        launcher(count, clock, Path(words[4]))
    else:
        main(count, scale)
