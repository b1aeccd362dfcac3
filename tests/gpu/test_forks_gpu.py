"""Runs on a real GPU that a start server forks, which itself never opens the GPU."""

from pathlib import Path

import pytest
import torch

from workload.contract import bundle
from workload.contract.process import Follower, run_child
from workload.contract.trainer import TRAINER, Forks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.world,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
WORDS = ("--cuda", "--model", "resnet18", "--batch-size", "8", "--warmup", "2", "--iterations", "5", "--no-ceilings")


def test_forks_train_on_the_gpu_that_the_server_never_opens(tmp_path: Path) -> None:
    messages: list[str] = []
    folders: list[Path] = []
    quiet = Follower(on_message=messages.append, on_started=lambda _: None)
    with Forks(pytest.fail) as forks:
        for forking in (None, forks.child, forks.child):
            ended = run_child(
                [*TRAINER, "train", *WORDS, "-o", str(tmp_path), "--context", "{}"],
                on_line=lambda line: folders.append(Path(line)),
                follower=quiet,
                forking=forking,
            )
            assert ended.code == 0, messages
        assert forks._server
        files = Path(f"/proc/{forks._server._process.pid}/fd")
        assert not [one for one in files.iterdir() if "nvidia" in str(one.readlink())]
    records = [bundle.read(folder).record for folder in folders]
    assert [record.environment.start for record in records] == ["fresh", "forked", "forked"]
    assert all(record.environment.device == records[0].environment.device for record in records)
    assert all(record.memory and record.memory.peak_allocated_bytes for record in records)
