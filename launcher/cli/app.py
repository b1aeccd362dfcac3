"""The commands of `launch` with their options. The code of a command is imported when it runs.

Nothing heavy may be imported here: `launch --help` loads neither google nor docker nor engines nor images.
"""

import os
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.backends import BACKENDS
from launcher.cli import launches as jobs
from launcher.cli import sweep, tune
from launcher.jobs import places
from launcher.script.options import HereOptions, LocalOptions, ScriptCommand, Words, refuse_without_script
from launcher.typer_options import DryRunOption, OutputOption, declare, instance_of, parameters_of, run_options
from launcher.values import HERE, Runtime, choice
from workload.contract.errors import ExitCode, UsageError
from workload.contract.invocation import Group, as_typed, examples
from workload.contract.program import FormatOption, VersionOption, grouped, help_unless_called
from workload.contract.spec import RunSpec, resolve
from workload.contract.tables import TableFormat, plain
from workload.contract.text import printable_lines, terminal_width

if TYPE_CHECKING:
    from launcher.protocol.backend import Check
    from workload.contract.trainer import Context

LAUNCH_EXAMPLES = examples("launch local -- train.py --lr 0.1", "launch gcp --gpu t4 --dry-run")
LOCAL_EXAMPLES = examples("launch local -- train.py --lr 0.1", "launch local --cuda --precision amp --profile ncu")
BUILD_EXAMPLES = examples(
    "launch build --flavour cpu",
    "launch build --push --repository us-central1-docker.pkg.dev/PROJECT/rooflaunch/trainer",
)
DOCTOR_EXAMPLES = examples("launch doctor", "launch doctor gcp --project PROJECT")

app = typer.Typer(
    name="launch",
    help="Measure PyTorch training steps on this machine or elsewhere, and collect the results.",
    rich_markup_mode=None,
    epilog=LAUNCH_EXAMPLES,
)


@app.callback(invoke_without_command=True)
def _launch(context: typer.Context, *, version: VersionOption = False) -> None:  # noqa: ARG001 - its callback answers
    help_unless_called(context)


class LocalCommand(ScriptCommand):
    """Command `local`, whose help has all run options."""

    lists_run_options = True


def run_local(
    *,
    words: Words = None,
    typed: dict[str, object],
    output: OutputOption = Path("results"),
    dry_run: DryRunOption = False,
    output_format: FormatOption = TableFormat.TABLE,
    **own: Any,
) -> int:
    """Measure your own unchanged training script or, without one, our trainer with a torchvision model."""
    from launcher import run_table
    from launcher.machine import local, runtime, task
    from launcher.machine.runtime import gpu_capability
    from launcher.script import local_script
    from workload.environment import gpu_index
    from workload.environment.cloud import outside_facts

    options, of_script = instance_of(LocalOptions, own), instance_of(HereOptions, own)
    refuse_without_script(of_script, words)
    resolved = resolve(typed, os.environ, Path.cwd(), script=words or ())
    if options.gpu_index is not None:
        resolved = replace(resolved, spec=gpu_index.required(resolved.spec, options.gpu_index))
        gpu_index.require(options.gpu_index, gpu_index.listed(), os.environ)
    runtime.require_one_machine(resolved.spec, "local")
    runtime.require_model(resolved.spec.model)
    runtime.require_data(resolved.spec, is_here=True)
    runtime.require_profile(resolved.spec, lambda: gpu_capability(options.gpu_index))
    workplace = local_script.workplace_of(words, of_script, Path.cwd(), os.environ) if words else None
    limits = options.limits()
    choice = local_script.choice_of(resolved.spec, options, of_script, Path.cwd(), is_dry=dry_run)
    notes = local_script.notes_of(words, of_script, workplace, choice.runtime) if words and workplace else ()
    outside = outside_facts() if choice.runtime is Runtime.DOCKER else None

    def plan_of(spec: RunSpec, context: "Context | None" = None) -> local.LocalPlan:
        own_run = replace(resolved, spec=spec)
        made = local.make_plan(
            own_run,
            choice,
            output=output,
            limits=limits,
            outside=outside,
            context=context,
            workplace=workplace,
            gpu_index=options.gpu_index,
        )
        return replace(made, notes=notes)

    plan = plan_of(resolved.spec)
    shown = printable_lines(as_typed(plan.text()))
    if dry_run:
        print(shown if output_format is TableFormat.TABLE else plain(plan.to_json(), output_format))
        return ExitCode.DONE
    print(shown, file=sys.stderr)
    # Only a user's script is repeated here; our trainer does its repeats itself.
    outcome = task.repeated(plan.spec, plan_of) if words else local.run(plan)
    if output_format is not TableFormat.TABLE:
        print(plain(outcome.to_json(), output_format, rows_of="runs"))
    elif outcome.bundles:
        print(run_table.render(outcome.bundles, width=terminal_width(sys.stdout)))
    if outcome.error:
        raise outcome.error
    return outcome.exit_code


declare(run_local, [*parameters_of(LocalOptions), *parameters_of(HereOptions, group=Group.SCRIPT)], before="output")
local_command = grouped("model", "repeats", "profile", kind=LocalCommand)
app.command("local", cls=local_command, epilog=LOCAL_EXAMPLES)(run_options(run_local))
sweep.register(app)
tune.register(app)
jobs.register(app)


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Options of `launch build`."""

    flavour: str = choice(
        "cpu: for CPUs; cuda: for NVIDIA GPUs; volta: for P100 and V100", default="cpu", metavar="cpu|cuda|volta"
    )
    base: str | None = choice("base image to use instead of the one in images.toml", default=None, metavar="IMAGE")
    wheel_index: str | None = choice("package index for torch; pip: pip's own default", default=None, metavar="URL|pip")
    build_network: str | None = choice(
        "Docker's network for the steps of the build, for example host", default=None, metavar="NAME"
    )
    rebuild: bool = choice("build every layer again, without the cache", default=False)
    pin: bool = choice("write the base image's current digest into images.toml", default=False)
    push: bool = choice("push the image and print its digest", default=False, rich_help_panel=Group.OUTPUT)
    repository: str | None = choice(
        "repository for --push", default=None, metavar="HOST/NAME", rich_help_panel=Group.OUTPUT
    )
    sif: Path | None = choice(  # noqa: RUF009 - a path is immutable
        "also write the image to a file for Apptainer", default=None, metavar="FILE", rich_help_panel=Group.OUTPUT
    )


def build_image(*, output_format: FormatOption = TableFormat.TABLE, **own: Any) -> int:
    """Build the container image for this code.

    Unchanged parts are not built again.
    """
    from launcher import docker_engine
    from launcher.images import build as building
    from launcher.images import contents

    options = instance_of(BuildOptions, own)
    row = contents.require_flavour(options.flavour)
    if options.repository and not options.push:
        raise UsageError(f"--repository is only for --push; got {options.repository}", hint="add --push")
    target = building.require_repository(options.repository) if options.push else None
    tool = building.require_apptainer(options.sif) if options.sif else None
    docker = docker_engine.connect()
    if options.pin:
        print(f"{row.base} is {building.pin(docker, row)}", file=sys.stderr)
        row = contents.require_flavour(options.flavour)
    held = docker.image(options.base or row.pinned_base)
    recipe = contents.make_recipe(
        row,
        base=options.base,
        base_id=held.id if held else "",
        index=options.wheel_index,
        commit=contents.current_commit(),
        platform=building.platform_of_a_vm(docker) if target else "",
    )
    built = building.build(docker, recipe, network=options.build_network, cached=not options.rebuild)
    if target:
        built = building.push(docker, built, target)
    if options.sif and tool:
        building.write_sif(tool, built.tag, options.sif)
    text = as_typed(built.text())
    print(text if output_format is TableFormat.TABLE else plain(asdict(built), output_format))
    return ExitCode.DONE


declare(build_image, parameters_of(BuildOptions, group=Group.IMAGE), before="output_format")
app.command("build", cls=grouped("flavour", "push", "repository"), epilog=BUILD_EXAMPLES)(build_image)


def _known_parts(parts: list[str] | None) -> list[str] | None:
    for part in parts or ():
        if part not in (*HERE, *BACKENDS):
            known = ", ".join(f"'{name}'" for name in (*HERE, *BACKENDS))
            raise typer.BadParameter(f"'{part}' is not one of {known}.")
    return parts


def run_doctor(
    *,
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PART...",
            help=f"{', '.join(HERE)} (these if none is named), or, on other machines, {', '.join(BACKENDS)}",
            callback=_known_parts,
            autocompletion=lambda: [*HERE, *BACKENDS],
            show_default=False,
        ),
    ] = None,
    output_format: FormatOption = TableFormat.TABLE,
    **where: Any,
) -> int:
    """Check what runs need here, and say what to do.

    With gcp, check what launches need in the cloud.
    """
    from launcher import backends, doctor

    chosen = parts or HERE
    place = places.place_of(where, likely=chosen)
    typed = [name for name, value in where.items() if value is not None]
    if typed and place.backend not in chosen:
        flags = places.flags_of(place.backend)
        raise UsageError(
            f"{' and '.join(flags)} are for launch doctor {place.backend}",
            hint=f"launch doctor {place.backend} {flags[0]} {flags[0].removeprefix('--').upper()}",
        )

    def checks_of(name: str) -> "Iterable[Check]":
        checked = place if name == place.backend else places.place_in(name)
        return backends.load(name).checks(checked.where)

    checks = doctor.examine(chosen, named=bool(parts), checks_of=checks_of)
    text = as_typed(doctor.render(checks))
    print(text if output_format is TableFormat.TABLE else plain([asdict(check) for check in checks], output_format))
    return doctor.exit_code(checks)


app.command("doctor", cls=grouped(), epilog=DOCTOR_EXAMPLES)(jobs.with_where(run_doctor, names_backend=False))
