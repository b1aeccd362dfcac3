"""Times the collectives of a step: how long they ran beside the backward pass, and how long the rank only waited.

DDP averages the gradients of all ranks in buckets. A bucket's all-reduce starts as soon as its gradients are ready,
while the backward pass computes the other buckets. The last bucket is ready when the backward pass has computed
everything; what follows up to the end of `backward()` is exposed: the rank waits. Earlier time is hidden.
"""

import csv
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from workload.contract.ranks import COLLECTIVE_COLUMNS, COLLECTIVES
from workload.measure.clock import Clock


class Collectives:
    """Marks of the all-reduces of the open step, and the file with the times of earlier steps, in `folder`."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._clock = clock
        self._open: list[list[Any]] = []
        self._file = (folder / COLLECTIVES).open("w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(COLLECTIVE_COLUMNS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # The write that failed has reported a full disk.
        with suppress(OSError):
            self._file.close()

    def parallel(self, model: nn.Module) -> DistributedDataParallel:
        """`model` with gradients averaged over all ranks.

        Each rank keeps its own statistics of batch normalization: their broadcast would be a second wait, at the
        beginning of the forward pass.
        """
        with warnings.catch_warnings():
            # torch 2.15 renames the argument; torch 2.9 does not know the new name.
            warnings.filterwarnings("ignore", message="`broadcast_buffers`", category=FutureWarning)
            wrapped = DistributedDataParallel(model, broadcast_buffers=False)
        wrapped.register_comm_hook(None, self._average)
        return wrapped

    def _average(  # the annotation is checked by torch
        self,
        _: object,
        bucket: distributed.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        """DDP's communication hook: average one bucket of gradients, and mark its beginning and end."""
        marks = [self._clock.mark(), None]
        self._open.append(marks)
        shared = bucket.buffer().div_(distributed.get_world_size())
        work = distributed.all_reduce(shared, async_op=True)
        assert work is not None

        def done(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            # On CUDA this runs at once, on a stream that waits for the collective.
            marks[1] = self._clock.mark()
            return future.value()[0]

        return work.get_future().then(done)

    def of_step(self) -> Sequence[tuple[Any, Any]]:
        """Marks of the collectives since the last call: gradients ready, and average done."""
        taken, self._open = [(began, ended) for began, ended in self._open], []
        return taken

    def write(self, number: int, collectives: Sequence[tuple[Any, Any]], *, began: Any, ended: Any) -> None:
        """Write the row of step `number`, whose marks the device has passed.

        `began`: mark of the step's beginning; `ended`: mark of the end of its last backward pass.
        """
        since = self._clock.seconds_between
        spans = [(since(began, ready), since(began, done)) for ready, done in collectives]
        hidden_s, exposed_s = split(spans, backward_end_s=since(began, ended)) if spans else (0.0, 0.0)
        self._writer.writerow([number, f"{hidden_s:.7f}", f"{exposed_s:.7f}"])

    def flush(self) -> None:
        """Write the rows to the disk."""
        self._file.flush()


def split(spans: Sequence[tuple[float, float]], *, backward_end_s: float) -> tuple[float, float]:
    """Seconds of collectives that were hidden behind the backward pass, and seconds that were exposed.

    `spans`: beginning and end of each collective. The backward pass computes until the last one begins.
    """
    computed_s = max(began for began, _ in spans)
    hidden_s = reached_s = 0.0
    for began, ended in sorted(spans):
        hidden_s += max(0.0, min(ended, computed_s) - max(began, reached_s))
        reached_s = max(reached_s, ended)
    return hidden_s, max(0.0, backward_end_s - computed_s)
