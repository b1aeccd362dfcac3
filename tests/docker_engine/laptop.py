"""A laptop on which `launch` is typed, in tests of launches on a cloud whose machines are this one."""

import json
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from tests.docker_engine.commands import launch_words, run_launch


@dataclass(frozen=True, kw_only=True)
class Laptop:
    """Where `launch` is typed. Nothing but its environment and its folder knows of the cloud.

    `where`: options of `launch status` and its like that name the place.
    """

    environment: dict[str, str]
    folder: Path
    where: tuple[str, ...]

    def launch(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return run_launch(self.folder, *words, variables=self.environment, limit_s=800)

    def fetch(self, address: str) -> None:
        """Bring the bundles of a bucket into the folder `home`."""
        command = [*launch_words()[:2], "analysis", "fetch", address, "-o", "home"]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=self.folder, env=self.environment
        )
        assert done.returncode == 0, done.stderr

    def begin(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            launch_words(*words),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment,
        )

    def await_line(self, process: "subprocess.Popen[str]", text: str) -> None:
        """Until the launcher has said so."""
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if text in line:
                return
        raise AssertionError(said)

    def status(self, *words: str) -> list[dict[str, Any]]:
        done = self.launch("status", *self.where, "--format", "json", *words)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        return list(found["launches"] if isinstance(found, dict) else found)

    def another(self, folder: Path) -> Self:
        """Another machine: the same cloud, and nothing of this one's files."""
        folder.mkdir()
        return replace(self, folder=folder)
