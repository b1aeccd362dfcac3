"""Commands that print tables: `summary`, `kernels`, `variance`, `gpu-truth`, `compare` and `roofline`."""

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analysis.commands.shared import (
    PeaksOption,
    ResultsArgument,
    VerifyOption,
    first_names,
    load,
    print_problems,
    rendered,
    use_peaks,
)
from workload.contract.errors import ExitCode, NothingToDoError, UsageError
from workload.contract.invocation import Group, as_typed, examples
from workload.contract.operating_system import from_checkout
from workload.contract.program import FormatOption, SamplesOption, WideOption, option
from workload.contract.tables import Column, Role, TableFormat, as_json, facts, render
from workload.contract.text import counted, printable

if TYPE_CHECKING:
    from analysis.loading.tables import Tables
    from analysis.pairing import Pairing

# \b preserves the line breaks.
SUMMARY_EXAMPLES = examples(
    "analyze summary results --samples 1.28M",
    "analyze summary results/tuesday results/wednesday --format csv > summary.csv",
)


def summary(
    *,
    results: ResultsArgument,
    peaks: PeaksOption = None,
    verify: VerifyOption = False,
    output_format: FormatOption = TableFormat.TABLE,
    wide: WideOption = False,
    samples: SamplesOption = None,
) -> int:
    """List throughput, step time, limit and cost of each configuration in each place."""
    from analysis.summary import COLUMNS, summarize

    loaded = load(results, verify=verify, peaks=peaks)
    print(rendered(summarize(loaded.runs, samples), COLUMNS, output_format, wide=wide))
    print_problems(loaded.problems)
    return ExitCode.DONE


KERNELS_EXAMPLES = examples(
    "analyze kernels results --row operator --top 10", "analyze kernels somebody_elses_ncu.csv --row kernel --top 10"
)


class GroupBy(StrEnum):
    """Content of a row: a family of kernels, the kernels of one name, or the work of an operator in a trace."""

    FAMILY = "family"
    KERNEL = "kernel"
    OPERATOR = "operator"


def kernels(
    *,
    paths: Annotated[
        list[Path], typer.Argument(metavar="RESULTS...", help="folders of bundles, or files of Nsight Compute")
    ],
    row: Annotated[
        GroupBy, option("--row", "what one row stands for", Group.OUTPUT, show_default=True)
    ] = GroupBy.FAMILY,
    top: Annotated[int | None, option("--top", "the N longest of each profile", Group.OUTPUT, metavar="N")] = None,
    peaks: PeaksOption = None,
    verify: VerifyOption = False,
    output_format: FormatOption = TableFormat.TABLE,
    wide: WideOption = False,
) -> int:
    """List the kernels of a profiled step, the longest first, with their FLOP/s and FLOP per byte."""
    if top is not None and top < 1:
        raise UsageError(f"--top must be a positive integer; got '{top}'", hint="--top 10")
    use_peaks(peaks)
    from analysis.kernel_profiles import text_of

    keys = ("family",) if row is GroupBy.FAMILY else ("family", "name")
    # An imported trace has one table of kernels, and another of the operators that launched them.
    imported_keys = {GroupBy.FAMILY: ("family",), GroupBy.KERNEL: (), GroupBy.OPERATOR: ("family", "name")}[row]
    text, problems = text_of(paths, keys, output_format, top=top, wide=wide, verify=verify, imported_keys=imported_keys)
    print(text)
    print_problems(problems)
    return ExitCode.DONE


VARIANCE_EXAMPLES = examples(
    "analyze variance results", "analyze variance results --part causes --format csv > causes.csv"
)


class VariancePart(StrEnum):
    """Names of `analysis.variance.TABLES`, repeated because the command line needs them without pandas."""

    BETWEEN = "between"
    WITHIN = "within"
    MACHINES = "machines"
    CAUSES = "causes"


def variance(
    *,
    results: ResultsArgument,
    part: Annotated[
        VariancePart | None, option("--part", "only this table; CSV needs one (default: between)", Group.OUTPUT)
    ] = None,
    peaks: PeaksOption = None,
    verify: VerifyOption = False,
    output_format: FormatOption = TableFormat.TABLE,
    wide: WideOption = False,
) -> int:
    """How much runs and their steps vary, and why."""
    from analysis.variance import TABLES, table, within

    loaded = load(results, verify=verify, peaks=peaks)
    parts = [part] if part else [VariancePart.BETWEEN] if output_format is TableFormat.CSV else list(VariancePart)
    frames = {name: table(loaded, name) for name in parts}
    of_steps = [frames[name] for name in parts if name in (VariancePart.BETWEEN, VariancePart.WITHIN)]
    first = TABLES[parts[0]]
    if within(loaded).empty or (of_steps and all(frame.empty for frame in of_steps)):
        raise NothingToDoError(
            f"no variance to show: {first.nothing} among {counted(len(loaded.runs), 'run')}",
            hint="analyze summary shows how the runs ended",
        )
    match output_format:
        case TableFormat.TABLE:
            print(
                "\n\n".join(
                    f"{table_of.heading}\n"
                    + (rendered(frame, table_of.columns, output_format, wide=wide) if len(frame) else table_of.nothing)
                    for table_of, frame in ((TABLES[name], frame) for name, frame in frames.items())
                )
            )
        case TableFormat.JSON:
            rows = {
                name: json.loads(render(frame, TABLES[name].columns, output_format)) for name, frame in frames.items()
            }
            print(as_json(rows[part] if part else rows, indent=1))
        case TableFormat.CSV:
            print(render(frames[parts[0]], first.columns, output_format))
    print_problems(loaded.problems)
    return ExitCode.DONE


GPU_TRUTH_EXAMPLES = examples(
    "analyze gpu-truth gpu-truth", "analyze gpu-truth gpu-truth.tar.gz --format csv > claims.csv"
)


def gpu_truth(
    *,
    evidence: Annotated[
        Path, typer.Argument(metavar="EVIDENCE", help="folder or archive of python -m workload gpu-truth")
    ],
    output_format: FormatOption = TableFormat.TABLE,
    wide: WideOption = False,
) -> int:
    """Check this project's claims on GPUs against the evidence of one GPU: claim, expected, found, verdict."""
    claims = from_checkout("benchmarks.gpu_truth.claims", "gpu-truth")
    print(claims.table(evidence, output_format, wide=wide))
    # Disproved claims are a result, not an error.
    return ExitCode.DONE


COMPARE_EXAMPLES = examples("analyze compare results", "analyze compare results --by place --baseline local-cpu")
# Largest number of run ids that are shown; others are replaced by their count.
SHOWN_RUNS = 2


def compare(
    *,
    results: ResultsArgument,
    by: Annotated[
        str | None,
        option(
            "--by",
            "place, precision, torch, … or args.NAME, an argument of your script (default: the first one that differs)",
            Group.RESULTS,
            metavar="COLUMN",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        option(
            "--baseline",
            "compare all others only with this value (default: every pair, or, with more than six values, the "
            "value with most runs)",
            Group.RESULTS,
            metavar="VALUE",
        ),
    ] = None,
    allow_mixed: Annotated[
        list[str] | None,
        option(
            "--allow-mixed", "pool runs although they differ in this fact; repeatable", Group.RESULTS, metavar="COLUMN"
        ),
    ] = None,
    peaks: PeaksOption = None,
    verify: VerifyOption = False,
    output_format: FormatOption = TableFormat.TABLE,
    wide: WideOption = False,
) -> int:
    """Compare places or configurations: how much faster, how certain, and the smallest detectable difference."""
    from analysis.compare import COLUMNS, table
    from analysis.pairing import pair_up

    loaded = load(results, verify=verify, peaks=peaks)
    pairing = pair_up(loaded, by, baseline=baseline, allow_mixed=allow_mixed or ())
    print(render(table(pairing), COLUMNS, output_format, wide=wide))
    sys.stdout.flush()
    chosen = by is None and baseline is None
    for note in _notes(pairing, results, chosen=chosen, allow_mixed=allow_mixed or (), baseline=baseline):
        print(f"note       {note}", file=sys.stderr)
    print_problems(loaded.problems)
    return ExitCode.DONE


def _notes(
    pairing: "Pairing", folders: Sequence[Path], *, chosen: bool, allow_mixed: Sequence[str], baseline: str | None
) -> Iterator[str]:
    from analysis.loading.configurations import label

    if chosen:
        others = f"; also possible: {', '.join(f'--by {fact}' for fact in pairing.also)}" if pairing.also else ""
        yield f"compared by {label(pairing.by)}, in which these runs differ{others}"
    if pairing.baselines and baseline is None:
        yield (
            "too many values to compare every pair: compared only with "
            f"{first_names(pairing.baselines, SHOWN_RUNS)}, which the most runs have "
            f"({counted(len(pairing.pairs), 'pair')}); --baseline VALUE chooses another"
        )
    if pairing.mixed:
        mixed = [*allow_mixed, *pairing.mixed]
        command = ["analyze", "compare", *map(str, folders), "--by", pairing.by]
        command += [word for fact in mixed for word in ("--allow-mixed", fact)]
        facts = ", ".join(map(label, pairing.mixed))
        yield f"not pooled: runs that differ in {facts}; to pool them: {as_typed(printable(shlex.join(command)))}"
    if pairing.without_matching_pool:
        number = counted(len(pairing.without_matching_pool), "run")
        yield (
            f"not compared: {number} without a matching run on the other side: "
            f"{first_names(pairing.without_matching_pool, SHOWN_RUNS)}"
        )
    if pairing.without_other_value:
        yield (
            f"not compared: {counted(len(pairing.without_other_value), 'run')} that "
            f"{'no other differs from' if baseline is None else 'do not differ from the baseline'} in "
            f"{label(pairing.by)} alone: {first_names(pairing.without_other_value, SHOWN_RUNS)}"
        )


ROOFLINE_EXAMPLES = examples("analyze roofline results", "analyze roofline results --format csv > points.csv")
POINTS = (
    *facts(
        place="place", device_name="device", model="model", batch_size="batch", precision="precision", source="source"
    ),
    Column(name="flop_per_s", heading="attained without waits", unit="FLOP/s", prefixed=True),
    Column(name="bound", heading="limited by"),
    Column(name="device_busy_share", heading="device busy", unit="%", digits=3, optional=True),
    Column(name="fraction_of_roof", heading="of roof", unit="%", digits=3),
    Column(name="intensity_flop_per_byte", heading="intensity", unit="FLOP/B"),
    *facts(roof="roof"),
    Column(name="fraction_of_peak", heading="of peak", unit="%", digits=3, optional=True),
    Column(name="runs", heading="runs"),
    Column(name="flop_per_s_low", heading="low", unit="FLOP/s", prefixed=True, optional=True),
    Column(name="flop_per_s_high", heading="high", unit="FLOP/s", prefixed=True, optional=True),
    Column(name="intensity_low", heading="low", unit="FLOP/B", optional=True),
    Column(name="intensity_high", heading="high", unit="FLOP/B", optional=True),
    Column(name="note", heading="note", optional=True, role=Role.NOTE),
    Column(name="step_s", heading="step", unit="s", prefixed=True, detail=True, optional=True),
    Column(name="flop_per_step", heading="FLOP per step", unit="FLOP", prefixed=True, detail=True, optional=True),
    Column(
        name="theoretical_flop_per_step", heading="by formula", unit="FLOP", prefixed=True, detail=True, optional=True
    ),
    Column(name="counted_over_model", heading="counted / formula", digits=3, detail=True, optional=True),
    Column(name="dram_bytes_per_step", heading="DRAM per step", unit="B", prefixed=True, detail=True, optional=True),
    Column(name="dram_bytes_per_s", heading="DRAM rate", unit="B/s", prefixed=True, detail=True, optional=True),
    Column(name="sm_percent", heading="SM %", digits=4, detail=True, optional=True),
    Column(name="dram_percent", heading="DRAM %", digits=4, detail=True, optional=True),
    Column(name="place_fraction_of_peak", heading="of peak, mean of the place", unit="%", digits=3, detail=True),
)


def roofline(
    *,
    results: ResultsArgument,
    peaks: PeaksOption = None,
    verify: VerifyOption = False,
    output_format: FormatOption = TableFormat.TABLE,
    wide: WideOption = False,
) -> int:
    """Where each step stands below the roofs of its machine, what limits it, and what batch and precision change."""
    from analysis.loading.configurations import UNNAMED, completed
    from analysis.roofline.points import POINT_COLUMNS, SHIFT_COLUMNS, points, shifts
    from analysis.roofline.roofs import COLUMNS as ROOF_COLUMNS
    from analysis.roofline.roofs import roofs as roofs_of

    loaded = load(results, verify=verify, peaks=peaks)
    table, roofs = points(loaded), roofs_of(loaded)
    # A machine also measures the roofs of other precisions than those of its runs.
    roofs = roofs[roofs["precision"].isin(set(loaded.runs["precision"].dropna()))]
    sources = [str(source).partition(", http")[0] for source in roofs["source"]]
    roofs = roofs.assign(ridge=roofs["flop_per_s"] / roofs["bytes_per_s"], source=sources)
    done = len(completed(loaded.runs))
    if table.empty and (output_format is not TableFormat.TABLE or roofs.empty):
        raise NothingToDoError(
            f"no point for a roofline: {counted(done, 'completed run')} without FLOP and bytes of a step",
            hint="launch local counts FLOP and measures roofs; for a profile: "
            "analyze import FILE --batch-size 32 --precision fp32 --profile-steps 1",
        )
    if output_format is TableFormat.TABLE:
        # Where the limit is unknown and the step's FLOP are only a lower bound.
        is_unknown = table["flop_is_lower_bound"] & table["bound"].isna()
        steps = table.assign(bound=table["bound"].where(~is_unknown, "(lower bound)"))
        tables = {"roofs": (roofs, ROOF_COLUMNS), "steps": (steps, POINTS), "shifts": (shifts(table), SHIFT_COLUMNS)}
        shown = {title: table for title, table in tables.items() if len(table[0])}
        print(
            "\n\n".join(
                f"{title}\n{render(rows, columns, TableFormat.TABLE, wide=wide)}"
                for title, (rows, columns) in shown.items()
            )
        )
    else:
        # JSON and CSV contain every figure of a point.
        names = (*POINT_COLUMNS, *UNNAMED)
        print(render(table, [Column(name=name, heading=name) for name in names], output_format))
    sys.stdout.flush()
    for number, lack in _runs_without_point(loaded):
        if number:
            print(f"note       {counted(number, 'run')} {lack}: no point on a roofline", file=sys.stderr)
    print_problems(loaded.problems)
    return ExitCode.DONE


def _runs_without_point(results: "Tables") -> Iterator[tuple[int, str]]:
    from analysis.loading.configurations import completed
    from analysis.roofline.points import WORK

    done = completed(results.runs)
    columns = sorted({column for columns in WORK.values() for column in columns})
    has_work = done[columns].notna().any(axis=1) | done["kernels_file"].notna()
    # Only imported runs may lack a time.
    times = ["step_median_s", "images_per_s", "kernels_file", "traced_busy_s"]
    has_time = done[times].notna().any(axis=1) | done["imported"].ne(True)
    yield len(results.runs) - len(done), "did not complete"
    yield int((~has_work).sum()), "without FLOP and bytes"
    yield int((has_work & ~has_time).sum()), "without a time"
