"""Options of `launch ssh` in addition to run options. Imports little, because `launch --help` loads this module."""

from dataclasses import dataclass

from launcher.values import Command, Runtime, choice, limit_s
from workload.contract.invocation import examples

DEFAULT_LIMIT_S = 3600
EXAMPLES = examples("launch ssh --host user@box --dry-run", "launch ssh --host lab1 --host lab2 -- train.py --lr 0.1")
COMMAND = Command(
    help="""Train on a machine that you can log in to, and collect the bundles.

    The run continues when this command or the connection ends, until it finishes or reaches its time limit.
    """,
    examples=EXAMPLES,
    first=("host", "max_run_time_s"),
    noun="job",
    sent_to="the machine",
    one_machine=True,
)


@dataclass(frozen=True, kw_only=True)
class Where:
    """Machine: `host` is `[USER@]HOST`, as ssh takes it, or an alias of ~/.ssh/config."""

    host: str = choice(
        "the machine, or an alias of ~/.ssh/config; repeatable for a run on several",
        metavar="USER@HOST",
        is_repeatable=True,
    )
    port: int | None = choice("ssh port of HOST (default: from ~/.ssh/config)", default=None, metavar="N")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a job. `python`: used with `--runtime process`. `image`: an image that the machine has or can pull.

    `beside`: the second and later `--host` of a run on several machines; it is not an option of its own.
    """

    runtime: Runtime = choice("auto: a container if the machine has its image, else a process", default=Runtime.AUTO)
    python: str | None = choice(
        "path of a Python with torch on the machine, for a run without a container", default=None, metavar="PATH"
    )
    image: str | None = choice("run this image instead of the one for this code", default=None, metavar="REF")
    gpu_index: int | None = choice("the GPU with this index in nvidia-smi", default=None, metavar="N", min=0)
    max_run_time_s: int = choice(
        "end the run after this time; --max-time limits a sweep",
        default=DEFAULT_LIMIT_S,
        flag="--max-run-time",
        metavar="TIME",
        parse=limit_s,
        typed_default="60m",
    )
    usd_per_h: float | None = choice("price of an hour of the machine", default=None, metavar="USD")
    beside: tuple[str, ...] = ()
