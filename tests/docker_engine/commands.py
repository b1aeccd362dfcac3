"""The commands that these tests give, as a user would."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
BASE = "rooflaunch-test-base:latest"
BUILD = ["--flavour", "cpu", "--base", BASE, "--wheel-index", "pip", "--build-network", "host"]
# Small enough that starting torch is most of it.
TINY = ["--model", "resnet18", "--image-size", "32", "--batch-size", "2", "--warmup", "1", "--no-ceilings"]

Launch = Callable[..., subprocess.CompletedProcess[str]]


def launch_words(*words: str) -> list[str]:
    return [sys.executable, "-m", "launcher", *words]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run_launch(
    folder: Path, *words: str, variables: dict[str, str] | None = None, limit_s: float | None = 100
) -> subprocess.CompletedProcess[str]:
    """`launch` with these words in a folder, with these environment variables, for at most `limit_s` seconds."""
    argv, env = launch_words(*words), variables or environment()
    return subprocess.run(argv, check=False, capture_output=True, text=True, cwd=folder, env=env, timeout=limit_s)


def docker(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *words], capture_output=True, text=True, timeout=100, check=False)
