"""Start a task of Cloud Batch inside the image: make the launch's folder, and run the agent to its end.

The launcher puts this file into the job's command, followed by the text of launcher/backends/gcp/guest.py. The agent's
output is written to the launch's log in its store every 20 s and at the end.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from launcher.agent.home import BOOT_PHASES
from workload.contract.errors import RooflaunchError
from workload.storage.address import open_store
from workload.storage.store import Store

LOG_EVERY_S = 20.0


def main(guest: str) -> int:
    """Run the agent; return its exit code. `guest`: text of guest.py, which the agent imports as guest.py."""
    home = Path(tempfile.mkdtemp(prefix="rooflaunch-"))
    (home / "guest.py").write_text(guest, encoding="utf-8")
    (home / BOOT_PHASES).write_text(_phases(time.time(), Path("/proc/uptime")), encoding="utf-8")
    log, name = home / "startup.log", os.environ["ROOFLAUNCH_LAUNCH"]
    try:
        store = open_store(os.environ["ROOFLAUNCH_STORE"], probe="launches/", jobs=1)
    except RooflaunchError as error:
        print(error.report(), flush=True)
        return error.exit_code
    words = [sys.executable, "-u", "-m", "launcher.agent", str(home)]
    with log.open("wb") as kept, subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as agent:
        # Batch stops a container with SIGTERM: the agent seals and uploads what it has.
        signal.signal(signal.SIGTERM, lambda number, _: agent.send_signal(number))
        over = threading.Event()
        writer = threading.Thread(target=_write_now_and_then, args=(store, name, log, over))
        writer.start()
        assert agent.stdout is not None
        for line in agent.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.flush()
            kept.write(line)
            kept.flush()
        code = agent.wait()
    over.set()
    writer.join()
    return code


def _phases(now_s: float, uptime: Path) -> str:
    """Time stamp lines of the two phases before the agent's start: `booted` (from the uptime) and `image_pulled`."""
    try:
        up_s = float(uptime.read_text(encoding="utf-8").split()[0])
    except (OSError, ValueError, IndexError):
        up_s = 0.0
    times = {"booted": now_s - up_s, "image_pulled": now_s}
    return "".join(f"{phase} {datetime.fromtimestamp(at_s, UTC).isoformat()}\n" for phase, at_s in times.items())


def _write_now_and_then(store: Store, name: str, log: Path, over: threading.Event) -> None:
    is_last = False
    written = -1
    while not is_last:
        is_last = over.wait(LOG_EVERY_S)
        content = log.read_bytes()
        if len(content) != written:
            try:
                store.write(f"launches/{name}/startup.log", content)
                written = len(content)
            except RooflaunchError as error:
                print(error.report(), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
