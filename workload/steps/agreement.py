"""Agreement of the ranks of a script: when timed steps begin and end, and what to say if a rank ends too early.

All ranks run the same script, so that the events of their optimizers have the same numbers. Rank 0 decides at which
event timed steps begin and end, and the other ranks ask it. They talk through the key-value store of the script's own
process group. Between the first and the last timed step nothing is sent.
"""

import os
import re
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any

from workload.contract.errors import LostRankError, RooflaunchError, RunFailedError, UsageError
from workload.steps.collective_hooks import CollectiveHooks
from workload.steps.program import STEP_HINT

# Longest wait for another rank: rank 0 may collect facts of the machine, or evaluate the model, while the others wait.
LIMIT_S = 600.0
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.0005, 0.05
# A rank that begins no collective for STUCK_S may wait for a rank that has ended. It looks every LOOK_EVERY_S.
STUCK_S, LOOK_EVERY_S = 3.0, 1.0
OWN_GPU = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) at the beginning of the script'
# Texts of torch's errors: no GPU for the script or for NCCL, and the loss of another rank in gloo and in NCCL.
NO_GPU = re.compile(
    r"NCCL is only supported with GPUs|nccl2? requires at least one CUDA device|doesn't have NCCL built in"
    r"|Found no NVIDIA driver|not compiled with CUDA|No CUDA GPUs are available"
)
LOST = re.compile(r"Connection (closed|reset) by peer|pair closure|Broken pipe|remote process exited", re.IGNORECASE)
EVEN = "give every rank the same number of batches (DistributedSampler does), or run the loop in `with model.join():`"


class Word(StrEnum):
    """Decision of rank 0 at an event: steps are not timed yet, are timed from now on, or so many more are timed."""

    WAIT = "wait"
    BEGIN = "begin"
    MORE = "more"


class Agreement:
    """This rank's side of the agreement. `event`: number of optimizer steps, and of steps marked in the script, so far.

    `until`: event after which the phase of timed steps ends. `backend`: library of the collectives, once joined.
    `folder`: the bundle, once rank 0 has begun to time steps. `processes`: process id of each rank, from then on.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.event = self.until = 0
        self.backend: str | None = None
        self.folder = ""
        self.processes: list[int] = []
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None
        self.hooks = CollectiveHooks()
        self._store: Any = None
        self._told = -1
        self._others = [other for other in range(size) if other != rank]

    def join(self, name: str) -> UsageError | None:
        """Connect the ranks at the first step of an optimizer. Returns an error if the script did not join its ranks.

        `name`: name of the script, for the error.
        """
        if self._store is not None:
            return None
        from torch import distributed  # noqa: PLC0415 - the script imports it first

        joined = distributed.get_world_size() if distributed.is_initialized() else 1
        if joined != self.size:
            return UsageError(
                f"{name} runs in {self.size} ranks, but has joined {joined} of them by init_process_group: each trains"
                " alone",
                hint="call torch.distributed.init_process_group and use DistributedDataParallel, or run one rank only",
            )
        store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - has no public name
        self._store = distributed.PrefixStore("rooflaunch", store)  # type: ignore[attr-defined]
        self.backend = distributed.get_backend()
        self._watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._watcher.start()
        return None

    # --- decisions of rank 0

    def tell(self, word: Word, value: str = "") -> None:
        """Tell the other ranks what rank 0 decides at the present event, unless it has decided already."""
        if self._told != self.event:
            self._told = self.event
            self._store.set(f"event {self.event}", f"{word} {value}")

    def is_begun(self) -> bool:
        """Whether rank 0 begins timed steps at the present event; the bundle is then in `folder`."""
        word, value = self._decision()
        self.folder = value
        return word == Word.BEGIN

    def more_steps(self, wanted: int) -> int:
        """Number of further steps, on which all ranks agree: those `wanted` by rank 0; 0 if it has enough."""
        if self.rank == 0:
            self.tell(Word.MORE, str(wanted))
            return wanted
        word, value = self._decision()
        if word != Word.MORE:
            raise self.differs()
        return int(value)

    def _decision(self) -> tuple[str, str]:
        word, _, value = self._received([f"event {self.event}"])[0].partition(" ")
        return word, value

    def differs(self) -> RunFailedError:
        """Error to raise if this rank takes training steps of another kind than rank 0."""
        return RunFailedError(
            f"rank {self.rank} takes other steps than rank 0, at optimizer step {self.event}",
            hint=f"let all ranks train alike; or {STEP_HINT}",
        )

    def meet_at_start(self, gpus: Sequence[str]) -> None:
        """Wait until every rank is ready to time its steps. `gpus`: identities of the GPUs that this rank trains on."""
        users: dict[str, int] = {}
        met = [value.split() for value in self.meet(" ".join([str(os.getpid()), *gpus]))]
        self.processes = [int(process) for process, *_ in met]
        for rank, (_, *names) in enumerate(met):
            for name in names:
                if name in users:
                    raise UsageError(f"ranks {users[name]} and {rank} train on the same GPU", hint=OWN_GPU)
                users[name] = rank

    def meet(self, value: str = "") -> list[str]:
        """Wait until every rank has come here; return the values of all ranks."""
        self._store.set(f"met {self.event} {self.rank}", value)
        return self._received([f"met {self.event} {rank}" for rank in range(self.size)])

    def _received(self, keys: Sequence[str]) -> list[str]:
        began_s, pause_s = time.monotonic(), SHORTEST_PAUSE_S
        while not self._store.check(list(keys)):
            if gone := [rank for rank in self._others if self._store.check([f"ended {rank}"])]:
                raise self._too_early(gone[0])
            if time.monotonic() - began_s > LIMIT_S:
                raise RunFailedError(
                    f"rank {self.rank} waited {LIMIT_S:g} s for the other ranks at optimizer step {self.event}",
                    hint="run again; if it happens again, the ranks do not take the same steps",
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return [self._store.get(key).decode() for key in keys]

    # --- the end

    def end(self) -> None:
        """Tell the other ranks that this rank's script has ended, and wait for their end.

        Raises `RunFailedError` if another rank waits in a collective that this rank will never join.
        """
        if self._store is None:
            return
        self._store.set(f"ended {self.rank}", f"{self.hooks.begun} {self.event}")
        while not self._store.check([f"ended {rank}" for rank in self._others]):
            if any(self._store.check([f"stuck {rank} {self.rank}"]) for rank in self._others):
                raise self._too_early(self.rank)
            time.sleep(LONGEST_PAUSE_S)

    def close(self) -> None:
        """End the thread of this agreement: Python's exit would abort in a thread that talks to the store."""
        self._over.set()
        if self._watcher is not None:
            self._watcher.join(LOOK_EVERY_S)

    def explain(self, error: BaseException) -> RooflaunchError | None:
        """Error to report in place of the script's own `error`, if its cause is that the script runs in several ranks.

        None for any other error.
        """
        text = str(error)
        if NO_GPU.search(text):
            return UsageError(
                "the script asks for NVIDIA GPUs, or for NCCL, which needs them, and none is visible here",
                hint='on a CPU: init_process_group("gloo"), and device_ids=None for DistributedDataParallel',
            )
        if "invalid device ordinal" in text:
            return UsageError(
                f"rank {self.rank} of {self.size} asks for a GPU that is not there",
                hint="start one rank for each GPU: --devices N",
            )
        if "Duplicate GPU" in text:
            return UsageError(f"rank {self.rank} trains on the same GPU as another rank", hint=OWN_GPU)
        if not LOST.search(text):
            return None
        return self.too_early() or LostRankError(
            f"rank {self.rank} lost another rank", hint="see that rank's own error; run again"
        )

    def too_early(self) -> RunFailedError | None:
        """Error if another rank has ended, but this rank has begun a later collective; else None."""
        ended = self._ended() if self._store is not None else []
        return self._too_early(ended[0]) if ended else None

    def _ended(self) -> list[int]:
        """Ranks that have ended, while this rank has begun a later collective."""
        gone = [rank for rank in self._others if self._store.check([f"ended {rank}"])]
        return [rank for rank in gone if int(self._store.get(f"ended {rank}").split()[0]) < self.hooks.begun]

    def _too_early(self, rank: int) -> RunFailedError:
        steps = self._store.get(f"ended {rank}").split()[1].decode()
        return RunFailedError(
            f"rank {rank} ended after {steps} optimizer steps, and another rank takes more: it waits for rank {rank}",
            hint=EVEN,
        )

    def _watch(self) -> None:
        """In a thread: tell a rank that has ended if this rank's main thread waits for it in a collective, for ever."""
        since_s, known = time.monotonic(), -1
        while not self._over.wait(LOOK_EVERY_S):
            if self.hooks.begun != known:
                since_s, known = time.monotonic(), self.hooks.begun
            elif time.monotonic() - since_s >= STUCK_S:
                # Without the store, the process that started the ranks is gone too.
                with suppress(RuntimeError):
                    for rank in self._ended():
                        self._store.set(f"stuck {self.rank} {rank}", "")
