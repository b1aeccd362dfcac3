"""Backend `slurm` of `launch`: a cluster with Slurm."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from launcher.backends.slurm.machines import SlurmMachines
from launcher.backends.slurm.options import ROOT, Options, Where
from launcher.backends.slurm.plan import Cluster, SlurmPlan, make_plan
from launcher.backends.slurm.prepare import checks, node_of, prepare
from launcher.protocol.backend import Check, Job
from workload.contract.errors import ToolError, UsageError
from workload.storage.folder import Folder
from workload.storage.ssh import Connection, Login, SshFolder, parse_login


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """Backend `slurm`; tests replace `connect`."""

    name: str = "slurm"
    connect: Callable[[Login], Connection] = Connection

    def settings(self, where: Where, options: Options | None = None, *, offline: bool = False) -> Cluster:
        """Cluster that the options select. Raises `UsageError` for an invalid folder or an unsafe host name."""
        del options, offline
        folder = where.folder or ROOT
        parts = folder.split("/")
        if parts[0] not in ("", "~") or not any(parts[1:]) or ".." in parts or not folder.isprintable():
            hint = "--folder /scratch/me/rooflaunch"
            raise UsageError(f"--folder must be a full path that begins with / or ~/; got {folder!r}", hint=hint)
        folder = folder.rstrip("/")
        if where.host is None:
            if where.port is not None:
                raise UsageError(f"--port needs --host; got only --port {where.port}", hint="--host USER@HOST")
            return Cluster(login=None, root=str(Path(folder).expanduser()))
        return Cluster(login=parse_login(where.host, where.port), root=folder)

    def plan(self, job: Job, options: Options, settings: Cluster, *, now: datetime, offline: bool = False) -> SlurmPlan:
        del offline
        node = node_of(settings, options)
        return make_plan(job.resolved, options, settings, node, now=now, token=job.token, task=job.task)

    def prepare(self, draft: SlurmPlan, machines: SlurmMachines) -> SlurmPlan:
        return prepare(draft, machines)

    def machines(self, settings: Cluster) -> SlurmMachines:
        return SlurmMachines(settings, connect=self.connect)

    def store(self, settings: Cluster) -> Folder | SshFolder:
        """Store in the shared folder. A missing folder is created: a local one now, a remote one at the first write."""
        if settings.login:
            return SshFolder(self.connect(settings.login), settings.root)
        root = Path(settings.root)
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ToolError(
                f"'{root}' cannot be made: {error.strerror}", hint="--folder FOLDER, with a folder that the nodes share"
            ) from error
        return Folder(root)

    def checks(self, where: Where) -> Iterator[Check]:
        return checks(self.machines(self.settings(where)))


backend = Slurm()
