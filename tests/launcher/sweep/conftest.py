from functools import partial
from pathlib import Path

import pytest

from launcher.jobs import liveness
from tests.launcher.backends.gcp.canned_cloud import Clouds, clouds_on
from tests.launcher.backends.gcp.conftest import gcs
from tests.launcher.backends.slurm.conftest import cluster
from tests.launcher.backends.ssh.conftest import machine
from tests.workload.storage.gcs_server import GcsServer

__all__ = ["cluster", "gcs", "machine"]


@pytest.fixture
def clouds(gcs: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clouds:
    """Worlds to launch in, where a guest that this machine is too busy for is not taken for a silent one."""
    monkeypatch.setattr(liveness, "SILENCE_LIMIT_S", 3000)
    return partial(clouds_on(gcs, tmp_path, monkeypatch), scale=50)
