"""User data of an EC2 instance: one shell script with the programs that prepare the instance and start the agent."""

import gzip
import json
import math
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.backends.shared_plan import program_text
from workload.contract.errors import UsageError

# Tag of the instance: when a schedule ends the instance (`2026-12-01T10:00:00Z`). The launcher makes the schedule, then
# sets the tag; the instance starts no run before.
ENDS_TAG = "rooflaunch-ends"
# EC2's limit before the encoding: docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html, read 2026-11.
MAX_BYTES = 16 * 1024
FOLDER = Path(__file__).parent
# Line that ends a file's text in the script.
END = "END-OF-ROOFLAUNCH-FILE"
SECONDS_PER_MIN = 60
# The timer in the first line holds even if everything after it fails: EC2 has no time limit of its own, but deletes an
# instance that powers off.
SCRIPT = """\
#!/bin/bash
shutdown -P +{minutes}
# User data of `launch aws`. If a step fails, the instance ends at once.
trap poweroff EXIT
set -e
mkdir -p {home}
cd {home}
{files}
echo $(($(date +%s) + {limit_s})) >ends
# Without this, the host's name would contain its private address.
hostnamectl set-hostname {launch} || true
cp rooflaunch.service /etc/systemd/system/
systemctl enable --now --no-block rooflaunch.service
trap - EXIT
"""
# A unit, not cloud-init, runs the boot: it starts again after a restart, and at a shutdown it is stopped before Docker,
# with time for the agent to seal and to upload.
UNIT = """\
[Unit]
Description=Runs of rooflaunch
Wants=network-online.target
After=network-online.target docker.service

[Service]
ExecStart=/bin/bash {home}/startup.sh {home}
StandardOutput=journal+console
KillMode=mixed
TimeoutStopSec=90

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Facts that an instance needs to start; all others are in the launch's request in the store.

    `name`: the launch; `store`: `s3://BUCKET/PREFIX`; `region`: of the instance and the bucket; `image`: reference by
    digest; `is_task`: the launch has a sweep's runs; `limit_s`: seconds from the boot until the instance powers off.
    """

    name: str
    store: str
    region: str
    image: str
    with_gpu: bool
    is_task: bool
    limit_s: int


def text(parameters: Parameters) -> str:
    """User data as a shell script. Raises `ToolError` for a broken installation."""
    home = f"/var/lib/rooflaunch/{parameters.name}"
    known = {
        "launch": parameters.name,
        "driver": "preinstalled" if parameters.with_gpu else "none",
        "ends_tag": ENDS_TAG,
        **{name: value for name, value in asdict(parameters).items() if name not in ("name", "with_gpu")},
    }
    files = {
        **{name: program_text(FOLDER / name) for name in ("boot.py", "guest.py", "startup.sh")},
        "parameters.json": f"{json.dumps(known)}\n",
        "rooflaunch.service": UNIT.format(home=home),
    }
    return SCRIPT.format(
        minutes=math.ceil(parameters.limit_s / SECONDS_PER_MIN),
        limit_s=parameters.limit_s,
        home=shlex.quote(home),
        launch=shlex.quote(parameters.name),
        files="\n".join(f"cat >{name} <<'{END}'\n{content}{END}" for name, content in files.items()),
    )


def document(parameters: Parameters) -> bytes:
    """User data as EC2 gets it: compressed, which cloud-init undoes. Raises `UsageError` if it is too long."""
    content = gzip.compress(text(parameters).encode(), mtime=0)
    if len(content) > MAX_BYTES:
        raise UsageError(
            f"the user data of the instance has {len(content)} bytes; EC2 takes {MAX_BYTES}", hint="a shorter --image"
        )
    return content
