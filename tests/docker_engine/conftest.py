"""The real engine: the `cpu` image is built from the real Dockerfile on a base image that .ci/base-image has made."""

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.docker_engine.commands import BASE, BUILD, ROOT, Launch, docker, run_launch

REGISTRY = "127.0.0.1:5005"


@pytest.fixture(scope="session")
def base_image() -> str:
    """The base image, or a skip that says how to get it."""
    if shutil.which("docker") is None:
        pytest.skip("no docker command: apt-get install docker.io")
    found = docker("image", "inspect", BASE)
    if "Cannot connect" in found.stderr or "permission denied" in found.stderr:
        pytest.skip("no Docker engine answers: start dockerd (.ci/docker-engine)")
    if found.returncode:
        pytest.skip(f"no base image: .ci/base-image {BASE}")
    return BASE


@pytest.fixture(scope="session")
def image(base_image: str) -> dict[str, Any]:  # noqa: ARG001 - it must be there
    """What `launch build --format json` says of the image for this code; built once, minutes without a cache."""
    done = run_launch(ROOT, "build", *BUILD, "--format", "json", limit_s=None)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="session")
def registry() -> str:
    """A registry's address, or a skip that says how to get one."""
    try:
        urllib.request.urlopen(f"http://{REGISTRY}/v2/", timeout=5).close()
    except urllib.error.URLError:
        pytest.skip("no registry answers: .ci/registry")
    return REGISTRY


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Run `launch` as a user would, in a folder of its own."""
    return partial(run_launch, tmp_path)


@pytest.fixture(autouse=True)
def nothing_left_over() -> Iterator[None]:
    """No test leaves a container of ours behind."""
    yield
    if shutil.which("docker") is None:
        return
    left = docker("ps", "--all", "--quiet", "--filter", "label=rooflaunch.run").stdout.split()
    for each in left:
        docker("rm", "--force", each)
    assert left == []
