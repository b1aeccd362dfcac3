"""Backend `ssh` of `launch`: a machine that the user can log in to."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from launcher.backends.ssh.machines import ROOT, SshMachines
from launcher.backends.ssh.options import Options, Where
from launcher.backends.ssh.plan import SshPlan, make_plan
from launcher.backends.ssh.prepare import checks, prepare
from launcher.protocol.backend import Check, Job
from workload.storage.ssh import Connection, Login, SshFolder, parse_login


@dataclass(frozen=True, kw_only=True)
class Ssh:
    """Backend `ssh`; tests replace `connect`."""

    name: str = "ssh"
    connect: Callable[[Login], Connection] = Connection

    def settings(self, where: Where, options: Options | None = None, *, offline: bool = False) -> Login:
        """Login that the options select. Raises `UsageError` for an unsafe host name."""
        del options, offline
        return parse_login(where.host, where.port)

    def plan(self, job: Job, options: Options, settings: Login, *, now: datetime, offline: bool = False) -> SshPlan:
        del offline
        return make_plan(job.resolved, options, settings, now=now, token=job.token, task=job.task)

    def prepare(self, draft: SshPlan, machines: SshMachines) -> SshPlan:
        return prepare(draft, machines)

    def machines(self, settings: Login) -> SshMachines:
        return SshMachines(self.connect(settings))

    def store(self, settings: Login) -> SshFolder:
        return SshFolder(self.connect(settings), ROOT)

    def checks(self, where: Where) -> Iterator[Check]:
        return checks(self.machines(self.settings(where)))


backend = Ssh()
