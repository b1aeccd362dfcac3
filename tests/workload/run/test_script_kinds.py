"""Scripts with sharded models, pipelines, tensor parallelism and collectives of their own, in two ranks on a CPU."""

import os
from pathlib import Path

import pytest

from tests.workload.run.test_script_ranks import bundle_in, ended, started

pytestmark = [
    pytest.mark.world,
    pytest.mark.slow,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="each rank needs a CPU"),
]

# Each script fills in its model, and how it trains on two batches of 4 samples.
FRAME = """
import time, torch
from torch import distributed as dist, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.randn(800, 16), torch.randn(800, 4))
loader = iter(DataLoader(data, 4, sampler=DistributedSampler(data)))
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
{model}
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for x, y in loader:
{step}
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
FSDP2 = """
from torch.distributed.fsdp import fully_shard
for module in (model[0], model[2], model):
    fully_shard(module)
"""
ACCUMULATED = """
    for batch in ((x, y), next(loader)):
        model.set_requires_gradient_sync(batch[0] is not x)
        nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
"""
FSDP1 = """
from torch.distributed.fsdp import FullyShardedDataParallel
model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
"""
NO_SYNC = """
    with model.no_sync():
        nn.functional.mse_loss(model(x), y).backward()
    x, y = next(loader)
    nn.functional.mse_loss(model(x), y).backward()
"""
TENSOR_PARALLEL = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
"""
PLAIN = """
    nn.functional.mse_loss(model(x), y).backward()
"""
PIPELINE = """
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
model = model[:2] if rank == 0 else model[2:]
stage = PipelineStage(model, rank, 2, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
"""
SCHEDULE = """
    schedule.step(x) if rank == 0 else schedule.step(target=y)
"""
# The sleep stands for computation, which hides the first collective.
OWN = """
    nn.functional.mse_loss(model(x), y).backward()
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    time.sleep(0.05)
    work.wait()
    dist.all_to_all_single(torch.empty(8), torch.ones(8))
    time.sleep(0.02 * rank)
    dist.broadcast(torch.ones(5), src=0)
    dist.barrier()
    message = torch.ones(3)
    (dist.send if rank else dist.recv)(message, 1 - rank)
"""
# Weights and biases of the two layers, in bytes.
FIRST, SECOND = 4 * (16 * 32 + 32), 4 * (32 * 4 + 4)
# Model and step of a script; number and bytes of each kind of collective in a step.
SCRIPTS = {
    # Both layers are gathered in forward and backward pass of each batch.
    "fully_shard": (
        FSDP2,
        ACCUMULATED,
        {"all_gather": (8, 4 * (FIRST + SECOND)), "reduce_scatter": (2, FIRST + SECOND)},
    ),
    "FSDP1": (FSDP1, NO_SYNC, {"all_gather": (2, 2 * (FIRST + SECOND)), "reduce_scatter": (1, FIRST + SECOND)}),
    # The output of the second layer is a sum over the ranks.
    "tensor parallel": (TENSOR_PARALLEL, PLAIN, {"all_reduce": (1, 4 * 4 * 4)}),
    # Two microbatches of 2 samples with 32 activations, and their gradients.
    "pipeline": (PIPELINE, SCHEDULE, {"point_to_point": (4, 4 * 4 * 2 * 32)}),
    "own": (
        "",
        OWN,
        {
            "all_reduce": (1, 4000),
            "all_to_all": (1, 32),
            "broadcast": (1, 20),
            "barrier": (1, 0),
            "point_to_point": (1, 12),
        },
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_collectives_of_unmodified_scripts(name: str, tmp_path: Path) -> None:
    model, step, expected = SCRIPTS[name]
    text = FRAME.format(model=model, step=step)
    ended(started(tmp_path, text, options=("--iterations", "6", *(["--ceilings"] if name == "own" else []))))
    record = bundle_in(tmp_path).record
    ranks = record.ranks
    assert ranks is not None
    assert ranks.kinds is not None
    found = {kind: (each.number, each.bytes) for kind, each in ranks.kinds.items()}
    assert found == {kind: ((number,) * 2, (size,) * 2) for kind, (number, size) in expected.items()}
    for each in ranks.kinds.values():
        assert all(0 < exposed <= own for own, exposed in zip(each.own_s or (), each.exposed_s or (), strict=True))
    assert not [note for note in record.notes or () if "collective" in note]
    if name == "own":
        assert min(ranks.hidden_s or ()) < 0.04, "a collective of 4 kB ends long before the sleep"
        assert record.ceilings is not None
        assert record.ceilings.compute("fp32") is not None
        links = record.ceilings.links or ()
        assert {link.kind: link.ranks for link in links} == {"all_reduce": None, "point_to_point": (0, 1)}
        assert all((link.p5 or 0) <= (link.bytes_per_s or 0) <= (link.p95 or 0) for link in links)
        assert (ranks.kinds["broadcast"].exposed_s or (0,))[0] == pytest.approx(0.02, abs=0.01)
