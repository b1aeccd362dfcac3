"""`launch … -- train.py ARGS`: the words after `--`, and the options of a script. Light: `launch --help` loads it."""

import shlex
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from launcher.choice import choice, flag_of
from workload.contract.errors import UsageError
from workload.contract.script import DATA

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- train.py ARGS", help="a training script of your own, or -m MODULE", show_default=False),
]


@dataclass(frozen=True, kw_only=True)
class HereOptions:
    """What a script is given on this machine."""

    data: str | None = choice(
        f"the folder of a script's data, which {DATA} in its arguments stands for", default=None, metavar="PATH"
    )


@dataclass(frozen=True, kw_only=True)
class ThereOptions:
    """What of a script's folder goes to another machine."""

    include: tuple[str, ...] = choice(
        "of a script's folder send these files in place of all that git tracks; never what git ignores; repeatable",
        default=(),
        metavar="GLOB",
    )


class ScriptCommand(TyperCommand):
    """A command whose line may end in `-- train.py ARGS`: what stands there is the script's alone."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Our words as usual, and the script's as the parameter `words`."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        place = args.index("--") if "--" in args else len(args)
        ours, theirs = args[:place], args[place + 1 :]
        if place == len(args):
            _refuse_stray(ctx, ours)
        elif not theirs:
            raise UsageError("no script after --", hint=f"{ctx.command_path} -- train.py --lr 0.1")
        rest = super().parse_args(ctx, ours)
        if stray := ctx.params.get("words"):
            ctx.fail(f"Got unexpected extra argument(s) ({' '.join(stray)})")
        ctx.params["words"] = theirs
        return rest


def _refuse_stray(ctx: Any, typed: list[str]) -> None:
    """`UsageError` for a script without `--` in front of it."""
    at = next((number for number, word in enumerate(typed) if word.endswith(".py")), None)
    if at is not None:
        line = shlex.join([*typed[:at], "--", *typed[at:]])
        raise UsageError(f"'{typed[at]}' must stand after --", hint=f"{ctx.command_path} {line}")


def refuse_without_script(options: Any, words: list[str] | None) -> None:
    """`UsageError` for an option that is a script's alone, where there is no script."""
    for item in fields(options):
        if not words and getattr(options, item.name):
            flag = flag_of(item)
            raise UsageError(f"{flag} is for a script of one's own", hint=f"leave {flag} out, or add -- train.py")
