"""The inside of a fake EC2 instance: really runs the user data, in processes of this machine.

What would change this machine is replaced by shims on its PATH, which note how they were called. `systemctl` starts the
unit's command, as systemd does.
"""

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from launcher.backends.aws import plan
from tests.ports import Answering, Fake
from tests.waiting import until
from tests.workload.environment.imds_server import ImdsServer

NAME = "rooflaunch-t4-20261121-100000-0000aa"
REGISTRY = "123456789012.dkr.ecr.us-west-2.amazonaws.com"
IMAGE = f"{REGISTRY}/rooflaunch/trainer@sha256:" + "ab" * 32
BUCKET, PASSWORD = "rooflaunch-test", "this-password-is-a-secret-of-the-test"
ENDS = "2026-11-21T11:00:00Z"
LIMIT_S = 60

NOTE = '#!/bin/bash\necho "${0##*/} $*" >>"$FAKE_VM/calls"\n'
# The agent runs as long as a file says, and ends at SIGTERM, which `docker kill` sends to it.
DOCKER = (
    NOTE
    + """
case $1 in
login) cat >"$FAKE_VM/password"; cp -r "$DOCKER_CONFIG" "$FAKE_VM/config" ;;
info) echo nvidia ;;
kill) touch "$FAKE_VM/killed" ;;
pull) while [ -e "$FAKE_VM/slow-pull" ]; do read -rt 0.02 <> <(:); done ;;
run) while [ -e "$FAKE_VM/endless" ] && [ ! -e "$FAKE_VM/killed" ]; do read -rt 0.02 <> <(:); done
  echo "the agent ran" ;;
esac
"""
)
SYSTEMCTL = (
    NOTE
    + """
case $1 in
enable) read -ra command < <(sed -n 's/^ExecStart=//p' "/etc/systemd/system/$4")
  "${command[@]}" >>"$FAKE_VM/console" 2>&1 & echo $! >"$FAKE_VM/unit" ;;
is-system-running) echo running ;;
esac
"""
)
SHIMS: Mapping[str, str] = {
    "docker": DOCKER,
    "systemctl": SYSTEMCTL,
    # The clock stands.
    "date": '#!/bin/bash\ncat "$FAKE_VM/now"\n',
    "python3": '#!/bin/bash\nexec "$REAL_PYTHON" "$@"\n',
    "nvidia-smi": NOTE + "echo 'fake GPU'\n",
    "poweroff": NOTE + 'touch "$FAKE_VM/off"\n',
    **dict.fromkeys(("shutdown", "hostnamectl", "sleep"), NOTE),
    **dict.fromkeys(("apt-get", "curl", "reboot"), NOTE + "exit 9\n"),
}
# Folders that the programs write to are the test's own: a mount name space of its own takes care.
PRIVATE = ("/var/lib/rooflaunch", "/etc/systemd/system")


class Aws(Fake):
    """S3, of which a machine only writes objects, and ECR, which gives a login. A context manager.

    `refused`: S3 refuses everything, and repeats the request in its answer, as it does for a wrong signature.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.written: list[str] = []
        self.signed: list[str] = []
        self.refused = False
        super().__init__(_Handler)


class _Handler(Answering):
    fake: Aws

    def do_PUT(self) -> None:
        aws, content = self.fake, self._content()
        if aws.refused:
            self.send(403, f"<Error><Code>AccessDenied</Code><Request>{self.headers}</Request></Error>")
            return
        aws.objects[self.path] = content
        aws.written.append(self.path)
        self.send(200)

    def do_POST(self) -> None:
        assert json.loads(self._content()) == {}
        assert self.headers["X-Amz-Target"] == "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken"
        token = base64.b64encode(f"AWS:{PASSWORD}".encode()).decode()
        self.send(200, json.dumps({"authorizationData": [{"authorizationToken": token}]}))

    def _content(self) -> bytes:
        assert self.headers["X-Amz-Security-Token"]
        scope = re.search(r"Credential=[^/]+/\d{8}/([^,]+),", self.headers["Authorization"])
        assert scope
        self.fake.signed.append(scope[1])
        return self.content()


class Instance:
    """An instance that a test starts, and what the test looks at afterwards.

    `sent`: user data that a launcher sent; None: made of `parameters`, with pauses of a millisecond and `constants`.
    """

    def __init__(self, folder: Path, inside: tuple[str, ...], aws: Aws, imds: ImdsServer) -> None:
        self.folder, self.inside, self.aws, self.imds = folder, inside, aws, imds
        self.shims = dict(SHIMS)
        self.constants: dict[str, str] = {}
        self.sent: str | None = None
        self.parameters: dict[str, Any] = {
            "launch": NAME,
            "store": f"s3://{BUCKET}/a+b",
            "region": "us-east-1",
            "image": IMAGE,
            "driver": "preinstalled",
            "ends_tag": plan.ENDS_TAG,
            "is_task": False,
            "limit_s": 3600,
        }
        imds.tag("rooflaunch-ends", ENDS)
        self.note("now", "1795262400\n")

    @property
    def home(self) -> Path:
        """The launch's folder, as seen from outside."""
        return self.folder / "root/var/lib/rooflaunch" / NAME

    def mount(self, options: str) -> None:
        """Give the machine another disk for the launch's folder, whose content the test cannot see."""
        *words, shell, name = self.inside
        disk = f"mount -t tmpfs -o {options} none /var/lib/rooflaunch"
        self.inside = (*words, shell.replace("exec ", f"{disk} && exec "), name)

    def note(self, name: str, text: str = "") -> Path:
        """Something that the shims look at."""
        path = self.folder / name
        path.write_text(text)
        return path

    def user_data(self) -> str:
        """User data as the instance runs it."""
        if self.sent is not None:
            return self.sent
        text = re.sub(r"(_AGAIN_S = .*?)(\d+)$", r"\g<1>0.001", self.text(), flags=re.MULTILINE)
        for names, values in self.constants.items():
            text, count = re.subn(rf"^{names} = .*$", f"{names} = {values}", text, flags=re.MULTILINE)
            assert count == 1, names
        return text

    def text(self) -> str:
        return plan.user_data_text(self.parameters)

    def start(self, words: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
        """Run the user data, or other words of the machine's shell."""
        programs = self.folder / "bin"
        programs.mkdir(exist_ok=True)
        for name, text in self.shims.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        script = self.note("user-data", self.user_data())
        with (self.folder / "console").open("ab") as console:
            return subprocess.run(
                [*self.inside, "bash", *(words or (str(script),))],
                env=self.environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
                text=True,
                check=False,
            )

    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "FAKE_VM": str(self.folder),
            "REAL_PYTHON": sys.executable,
            "AWS_ENDPOINT_URL": self.aws.url,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.imds.url,
        }

    def run(self, words: tuple[str, ...] = ()) -> None:
        """From the start until the instance powers itself off."""
        self.start(words)
        until((self.folder / "off").exists)

    def stop(self) -> None:
        """Stop the unit, as systemd does when the instance goes down."""
        os.kill(int((self.folder / "unit").read_text()), signal.SIGTERM)

    def processes(self, program: str) -> list[int]:
        """The unit's own child processes that run a program."""
        unit = (self.folder / "unit").read_text().strip()
        children = Path(f"/proc/{unit}/task/{unit}/children").read_text().split()
        return [int(child) for child in children if f"/{program}" in Path(f"/proc/{child}/cmdline").read_text()]

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def console(self) -> str:
        return (self.folder / "console").read_text()

    def record(self, name: str) -> bytes:
        """A record of the launch in the store."""
        return self.aws.objects[f"/{BUCKET}/a%2Bb/launches/{NAME}/{name}"]

    def log(self) -> str:
        return self.record("startup.log").decode()


@contextmanager
def instance(folder: Path, private: tuple[str, ...] = PRIVATE) -> Iterator[Instance]:
    """An instance in a mount name space of its own, in which the folders `private` are below `folder`.

    Its processes have ended when the context ends.
    """
    mounts = []
    for path in private:
        Path(path).mkdir(parents=True, exist_ok=True)
        private = folder / "root" / path.lstrip("/")
        private.mkdir(parents=True)
        mounts.append(f"mount --bind '{private}' '{path}'")
    inside = ("unshare", "--mount", "sh", "-c", f'{" && ".join(mounts)} && exec "$@"', "sh")
    with Aws() as aws, ImdsServer() as imds:
        made = Instance(folder, inside, aws, imds)
        try:
            yield made
        finally:
            with suppress(OSError, ValueError):
                os.kill(int((folder / "unit").read_text()), signal.SIGKILL)
            shutil.rmtree(folder / "bin", ignore_errors=True)
