"""Boot a VM of Compute Engine: the parts of the boot that only this cloud needs.

The launcher puts this file, joined with launcher/backends/boot.py, into the VM's metadata, and startup.sh runs it with
the VM's own Python: 3.8 or newer, standard library only. The parameters come from the metadata server.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from launcher.backends.boot import DRIVER_AGAIN_S, Boot, download, persist, persistently, request, works

METADATA_HOST = "metadata.google.internal"
# Exit code for startup.sh: the machine restarts, and the boot starts over.
RESTARTS = 64
RESTART_LIMIT_S = 300
# The installer's version decides the driver's version: v1.9.1 with the branch `lts` installs driver 580.159.04.
INSTALLER_VERSION = "v1.9.1"
RELEASES = "https://github.com/GoogleCloudPlatform/compute-gpu-installation/releases/download"
INSTALLERS = (
    f"https://storage.googleapis.com/compute-gpu-installation-us/installer/{INSTALLER_VERSION}/cuda_installer.pyz",
    f"{RELEASES}/cuda-installer-{INSTALLER_VERSION}/cuda_installer.pyz",
)
# Repository mode would install the open kernel module, which a V100 cannot use.
INSTALL = ("install_driver", "--installation-mode", "binary", "--installation-branch", "lts")
INSTALLER_PATH = Path("/opt/installer.pyz")
# File of the agent (`FILE` of launcher/agent/home.py), which no image contains.
HOST_FACTS_FILE = "guest.py"
# Registries that accept the VM's own token. The token is sent to no other registry.
GOOGLES = (".pkg.dev", ".gcr.io")


class ComputeEngineBoot(Boot):
    """Boot of a VM of Compute Engine."""

    # Variables by which a test redirects requests.
    variables = ("GCE_METADATA_HOST", "STORAGE_EMULATOR_HOST", "ROOFLAUNCH_COMPUTE_ENDPOINT")

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        host = os.environ.get("GCE_METADATA_HOST") or METADATA_HOST
        self.metadata = f"http://{host}/computeMetadata/v1/instance"
        self.installing = False

    def parameter(self, name: str) -> str:
        """Value of the VM's metadata attribute `rooflaunch-NAME`, which the launcher has set."""
        return self.ask(f"attributes/rooflaunch-{name}")

    def before_agent(self) -> None:
        (self.home / HOST_FACTS_FILE).write_text(self.parameter("guest"), encoding="utf-8")

    def is_task(self) -> bool:
        return bool(json.loads(self.parameter("request")).get("task"))

    def report(self, phase: str, at: str) -> None:
        """Set a guest attribute."""
        try:
            self.ask(f"guest-attributes/rooflaunch/{phase}", put=at)
        except SystemExit:
            print("guest attributes cannot be written", flush=True)  # a project can disable guest attributes

    def login(self, registry: str) -> tuple[str, str] | None:
        """User and token of the VM's service account, for Google's registries."""
        if not (registry.endswith(GOOGLES) or registry == "gcr.io"):
            return None
        return "oauth2accesstoken", json.loads(self.ask("service-accounts/default/token"))["access_token"]

    def ask(self, key: str, *, put: str | None = None) -> str:
        """Read a metadata key of this instance; with `put`, write this value instead.

        Ends the boot if the server fails.
        """
        method, content = ("GET", None) if put is None else ("PUT", put.encode())
        url, headers = f"{self.metadata}/{key}", {"Metadata-Flavor": "Google"}
        answer = persistently(
            lambda: request(url, method=method, headers=headers, content=content),
            f"the metadata server does not answer for {key}",
        )
        return answer.decode().strip()

    def install_driver(self) -> None:
        """Install the driver with Google's installer, which restarts the machine; the boot then starts over."""
        self.installing = True
        download(INSTALLER_PATH, *INSTALLERS)
        # The installer continues where an earlier try was interrupted.
        persist("the driver's installer failed", lambda: works("python3", str(INSTALLER_PATH), *INSTALL))
        # The installer has ordered a restart, so wait for it. If the driver needs no restart, nvidia-smi works.
        until_s = time.monotonic() + RESTART_LIMIT_S
        while not works("nvidia-smi") and time.monotonic() < until_s:
            time.sleep(DRIVER_AGAIN_S)
        self.installing = False

    def on_term(self, *arguments: object) -> None:
        """Handle SIGTERM; while the driver is being installed, the boot ends, and starts over after the restart."""
        if self.installing:
            sys.exit(RESTARTS)
        super().on_term(*arguments)


if __name__ == "__main__":
    sys.exit(ComputeEngineBoot(Path(sys.argv[1])).run())
