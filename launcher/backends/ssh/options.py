"""What `launch ssh` is asked for beside the run. Light: the command line shows the defaults."""

from dataclasses import dataclass

from launcher.kinds import Runtime

DEFAULT_LIMIT_S = 3600


@dataclass(frozen=True, kw_only=True)
class Where:
    """Which machine: `host` is `[USER@]HOST`, as ssh takes it, or an alias of ~/.ssh/config."""

    host: str
    port: int | None = None


@dataclass(frozen=True, kw_only=True)
class Options:
    """`python` is the machine's own for `--runtime process`, `image` one that its Docker engine has or can pull."""

    runtime: Runtime = Runtime.AUTO
    python: str | None = None
    image: str | None = None
    max_run_time_s: int = DEFAULT_LIMIT_S
    usd_per_h: float | None = None
