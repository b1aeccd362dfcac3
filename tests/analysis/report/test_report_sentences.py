"""Every sentence of the report: runs of which it is true, and runs of which it is false, where it must not stand."""

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from analysis.report import answer, context, measurements
from analysis.report.content import Bullets, Commands, Paragraph, Picture, Section, Table
from analysis.report.evidence import ReportEvidence
from tests.analysis.by_hand import results, run
from tests.analysis.sentence_runs import (
    CPU,
    NEAR,
    ROOFS,
    SLOW,
    T4,
    Make,
    above_the_ceiling,
    batches,
    dear_and_cheap,
    failed,
    gains,
    own,
    pieces,
    profile_alone,
    two_batches,
    two_clouds,
    two_environments,
    undrawn,
    with_roofs,
)

SECTIONS = [Path(module.__file__) for module in (answer, context, measurements)]


@dataclass(frozen=True, kw_only=True)
class Case:
    """`words` stands in the section of `true` and not in that of `false`, where `instead` stands."""

    section: Callable[[ReportEvidence], Section]
    words: str
    true: Make
    false: Make
    instead: str | None = None


CASES = {
    # --- the answer
    "a place": Case(
        section=answer.section,
        words=r"^Run resnet18 \(batch 32, fp32\) on local-cuda: local-cuda \(NVIDIA L4\) is 2 x as fast as t4 ",
        true=two_environments,
        false=lambda: [*own(), *own(NEAR, "b", **T4)],
        instead=r"^No difference by place is certain in 1 comparison; a ratio of .* would typically have been seen\.$",
    ),
    "a setting": Case(
        section=answer.section,
        words=r"^Run resnet18 \(batch 32\) with precision amp: amp is 2 x as fast as fp32 .*; accuracy was not mea",
        true=lambda: [*own(SLOW), *own(name="b", precision="amp")],
        false=lambda: [*own(), *own(SLOW, "b", precision="amp")],
        instead="^Run resnet18 \\(batch 32\\) with precision fp32: fp32 is 2 x as fast as amp [^;]*$",
    ),
    "a setting of the fastest configuration, though slower ones gain more": Case(
        section=answer.section,
        words=r"^Run resnet18 \(batch 64\) with precision amp: amp is 1\.5 x as fast as fp32 ",
        true=lambda: [*gains(5, batch_size=8), *gains(1.5, 100, batch_size=64)],
        false=lambda: gains(5, batch_size=8),
        instead=r"^Run resnet18 \(batch 8\) with precision amp: amp is 5 x as fast as fp32 ",
    ),
    "an argument of a script": Case(
        section=answer.section,
        words=r"^Run t\.py -b 8 with args\.workers 0: args\.workers 0 is 2 x as fast as args\.workers 2 ",
        true=lambda: [
            *own(SLOW, "a", model="t.py", script="t.py -b 8 --workers 2", workers=2),
            *own(name="b", model="t.py", script="t.py -b 8 --workers 0", workers=0),
        ],
        false=lambda: [
            *own(SLOW, "a", model="t.py", script="t.py"),
            *own(name="b", model="t.py", script="t.py -b 8 --workers 0", workers=0),
        ],
        instead=r"^Run t\.py as t\.py -b 8 --workers 0: ",
    ),
    "a GPU in two clouds": Case(
        section=answer.section,
        words=r"^Is a T4 a T4\? resnet18 \(batch 32, fp32\): aws is 2 x as fast as gcp \(95 %: [^;]*\); "
        r"0\.526 USD/h on aws, "
        r"0\.540 USD/h on gcp; also different: driver 595\.71\.05 and 580\.95\.05, CPU CPU of aws and CPU of gcp\.$",
        true=two_clouds,
        false=lambda: two_clouds(blocks=2),
    ),
    "a GPU in two clouds, in two precisions": Case(
        section=answer.section,
        words=r"^Is an L4 an L4\? .*; the largest effect of 2 configurations, 2 certain; "
        r"an unknown price \(spot\) on aws, "
        r".*; driver, CPU and image are the same\.$",
        true=lambda: [
            one | {"run_id": f"{one['run_id']}{precision}"}
            for precision in ("fp32", "amp")
            for one in two_clouds(
                device_name="NVIDIA L4",
                compute_capability="8.9",
                precision=precision,
                usd_per_h=None,
                spot=True,
                driver_version="580",
                cpu_model="x",
            )
        ],
        false=lambda: two_clouds(backend="ssh"),
    ),
    "the last step pays": Case(
        section=answer.section,
        words="; the step from 32 to 64 still gives .* x; no larger batch was measured",
        true=lambda: batches(100.0, 120.0, 150.0),
        false=lambda: batches(100.0, 120.0, 110.0),
        instead="with batch size 32: .*; the step from 32 to 64 makes it slower",
    ),
    "the next step is open": Case(
        section=answer.section,
        words="; no certain gain by the step from 32 to 64",
        true=lambda: batches(100.0, 120.0, 120.1),
        false=lambda: batches(100.0, 120.0, 150.0),
    ),
    "two models": Case(
        section=answer.section,
        words=r"; the same for vgg16 \(fp32\), 1\.2 x",
        true=lambda: [
            *two_batches(),
            *(one | {"model": "vgg16", "run_id": f"v{one['run_id']}"} for one in two_batches()),
        ],
        false=two_batches,
    ),
    "memory": Case(
        section=answer.section,
        words=r"; peak memory 2\.00 GB in place of 1\.00 GB\.$",
        true=lambda: [one | {"peak_memory_bytes": one["batch_size"] / 16 * 1e9} for one in two_batches()],
        false=lambda: [one | {"peak_memory_bytes": 1e9} for one in two_batches()],
    ),
    "one configuration": Case(
        section=answer.section,
        words=r"^resnet18: 100\.0 images/s \(95 % interval .*, 3 runs\) at batch 32, fp32 on local-cuda \(NVIDIA L4\)",
        true=own,
        false=two_batches,
        instead="^resnet18 reached its highest throughput, 120",
    ),
    "several devices": Case(
        section=measurements.scaling,
        words="Runs on several devices",
        true=lambda: own(devices=2.0),
        false=lambda: own(devices=1.0),
    ),
    "no efficiency": Case(
        section=answer.section,
        words="2 devices together: .* images/s, no efficiency, because there is no run on one device",
        true=lambda: own(devices=2.0, all_images_per_s=200.0),
        false=lambda: [*own(devices=1.0), *own(SLOW, "b", devices=2.0, all_images_per_s=100.0)],
        instead=r"2 devices together: 100\.0 images/s, 50\.0 % of 2 times one device \(95 % interval ",
    ),
    "a busy machine": Case(
        section=answer.section,
        words=r"^resnet18: .* on local-cpu \(Xeon\), 3 of 3 runs on a busy machine: the run got 0\.3",
        true=lambda: own(**CPU, busy="the run got 0.3"),
        false=lambda: own(**CPU),
        instead=r"^resnet18: .* on local-cpu \(Xeon\)\.",
    ),
    "an error of the audit": Case(
        section=answer.section,
        words=r"^The audit found 1 error, so figures of these runs are wrong or mean something else: ",
        true=above_the_ceiling,
        false=own,
    ),
    "a limit": Case(
        section=answer.section,
        words=r"; limited by compute: 60 %\.$",
        true=with_roofs,
        false=lambda: own(**ROOFS | {"bound": "neither", "bound_why": "below half"}),
        instead=r"; neither compute nor memory limits the step: below half\.$",
    ),
    "why no limit is known": Case(
        section=answer.section,
        words="; the limit of the step is unknown: the run reached 150 %",
        true=lambda: own(bound_why="the run reached 150 % of the ceiling"),
        false=own,
    ),
    "runs that do not agree": Case(
        section=answer.section,
        words=r"; the runs disagree about what limits the step: compute 2, memory 1\.",
        true=lambda: [
            one | {"bound": bound, "bound_why": "w"}
            for one, bound in zip(own(), ("compute", "compute", "memory"), strict=True)
        ],
        false=with_roofs,
        instead="; limited by compute",
    ),
    "out of memory": Case(
        section=answer.section,
        words="; batch 128 runs out of memory",
        true=lambda: [*own(), *[one | {"status": "out_of_memory"} for one in failed(batch_size=128)]],
        false=lambda: [*own(), *failed(batch_size=128)],
    ),
    "no throughput": Case(
        section=answer.section,
        words=r"No run has a throughput \(1 failed\), so nothing is known about speed\.",
        true=failed,
        false=lambda: [*failed(), *own()],
    ),
    "profiles alone": Case(
        section=answer.section,
        words="^resnet18, batch 32, fp32 on .*, profiled: most kernel time goes to ",
        true=profile_alone,
        false=lambda: [*profile_alone(), *own()],
    ),
    "cost": Case(
        section=answer.section,
        words=r"^A million images cost least for resnet18 on t4 at batch 32, fp32, 2\.22 USD .*, most on local-cuda, 5",
        true=dear_and_cheap,
        false=lambda: [*own(), *failed(usd_per_h=0.5)],
    ),
    "too few runs": Case(
        section=answer.section,
        words="^1 of 2 configurations have fewer than 3 runs and so no interval: repeat with --repeats 3",
        true=lambda: [*own(), *own((50.0,), "b", batch_size=64)],
        false=two_batches,
    ),
    "too few runs of the only one": Case(
        section=answer.section,
        words="^The only configuration has fewer than 3 runs",
        true=lambda: own((100.0,)),
        false=lambda: own((100.0,), imported=True),
    ),
    # --- method
    "how ours are timed": Case(
        section=context.method,
        words="inside the region, CUDA steps are timed with events",
        true=own,
        false=lambda: own(imported=True),
        instead="came from other people's files",
    ),
    "events on a CPU": Case(
        section=context.method,
        words="at both ends of the measured region; inside the region",
        true=own,
        false=lambda: own(**CPU),
        instead=r"at both ends of the measured region\. ",
    ),
    "ours beside foreign runs": Case(
        section=context.method,
        words="^For the 3 runs that this program measured: Warm-up steps are recorded",
        true=lambda: [*own(), *own(SLOW, "b", imported=True, model="vgg16")],
        false=own,
        instead="^Warm-up steps are recorded",
    ),
    "profiles are a second pass": Case(
        section=context.method,
        words="Profiles are separate runs: times always come from the run without a profiler",
        true=lambda: own(profile_status="completed"),
        false=own,
    ),
    "counters": Case(
        section=context.method,
        words="Bytes are read from the GPU's counters if there is a profile, otherwise modelled as an interval",
        true=lambda: own(kernels_file="ncu/kernels.csv"),
        false=own,
        instead="Bytes are modelled as an interval",
    ),
    "runs that broke off": Case(
        section=context.method,
        words="^Runs that did not complete$",
        true=lambda: [*own(), *failed()],
        false=own,
    ),
    # --- complexity
    "least and most work per byte": Case(
        section=measurements.complexity,
        words=r"resnet18 at batch 16, fp32 does the least work per byte: .* resnet18 at batch 32, fp32, the most: ",
        true=lambda: [
            one | {"parameters": 1e7, "bytes_upper_per_step": size, "train_flop_per_step": 1e11}
            for one, size in zip([*own(batch_size=16)[:1], *own(name="b")[:1]], (2e9, 1e9), strict=True)
        ],
        false=lambda: own(parameters=1e7, bytes_upper_per_step=1e9),
    ),
    # --- measurements, rooflines
    "shifts": Case(
        section=measurements.roofs,
        words=r"^Effect of batch size and precision \(",
        true=lambda: [one | ROOFS for one in batches(100.0, 120.0)],
        false=own,
    ),
    "variation": Case(
        section=measurements.variability,
        words=r"^Coefficient of variation \(CoV\) of step times",
        true=lambda: [run(f"v{number}") for number in range(3)],
        false=failed,
    ),
    "comparisons": Case(
        section=measurements.throughput,
        words="corrected for the pairs of one fact .*: 1 pair by place$",
        true=two_environments,
        false=own,
        instead="^Every configuration$",
    ),
    "the time of runs": Case(
        section=measurements.throughput,
        words=r"^Where the time .* went, without the launcher's own \(its start, .* each run\)\. Parts of",
        true=lambda: own(steps_s=10.0),
        false=lambda: own(steps_s=10.0, usd=0.01),
        instead="^Where the time of the completed runs went. Parts of less than",
    ),
    "imported": Case(
        section=measurements.roofs,
        words="^Imported, measured by others$",
        true=lambda: own(imported=True, imported_file="log.csv"),
        false=own,
    ),
    # --- limits, audit
    "few steps": Case(
        section=context.limits,
        words="At most 20 measured steps per run: a long training also depends on heat",
        true=own,
        false=lambda: [run("long", steps=[0.1, 0.101] * 600, path="/nowhere")],
    ),
    "synthetic data": Case(
        section=context.limits,
        words="Synthetic data need no disk",
        true=own,
        false=lambda: own(dataset="imagenette"),
    ),
    "prices": Case(
        section=context.limits,
        words="Prices were recorded with the runs, or are list prices",
        true=lambda: own(usd_per_h=0.5),
        false=own,
    ),
}


def texts(section: Section) -> Iterator[str]:
    """Everything that a reader of the section meets, sentence by sentence."""
    yield section.title
    for block in section.blocks:
        match block:
            case Paragraph():
                yield block.text
            case Bullets():
                yield from block.sentences
            case Table():
                yield block.caption
                yield from (cell for row in block.rows for cell in row)
            case Picture():
                yield from (block.figure.title, block.figure.caption, block.figure.text)
            case Commands():
                yield from block.lines
    for part in section.parts:
        yield from texts(part)


@functools.cache
def said_of(make: Make, section: Callable[[ReportEvidence], Section]) -> list[str]:
    return list(texts(section(undrawn(results(*(one | {"path": "/nowhere"} for one in make()))))))


def stands(words: str, said: list[str]) -> bool:
    return any(re.search(words, text) for text in said)


@pytest.mark.parametrize("name", CASES)
def test_a_sentence_stands_where_it_is_true_and_nowhere_else(name: str) -> None:
    case = CASES[name]
    true, untrue = sides(case)
    assert stands(case.words, true), true[:40]
    assert not stands(case.words, untrue), [text for text in untrue if re.search(case.words, text)]
    assert case.instead is None or stands(case.instead, untrue), untrue[:40]


def sides(case: Case) -> list[list[str]]:
    return [said_of(make, case.section) for make in (case.true, case.false)]


@pytest.mark.night(part="report")
def test_every_sentence_has_a_case() -> None:
    """A new sentence of a section needs data of which it is true, and data of which it would be false."""
    said = "\n".join(text for case in CASES.values() for side in sides(case) for text in side)
    unsaid = {piece for path in SECTIONS for piece in pieces(path) if piece not in said}
    assert unsaid == NOT_HERE


# Pieces that are true of all data: headings, introductions, and how much of a long list is left out.
NOT_HERE = {
    ", below under Audit",
    "Cheapest configuration of each model and place",
    "evidence, from the run with that share",
    "of each, analyze compare prints all",
    "training FLOP per parameter",
    "bytes per step, least",
    "Training FLOP by operation",
    (
        "The command of each configuration, from the spec in its bundle, with only the options that differ "
        "from the defaults. Repeats of a configuration have one line."
    ),
    "Places; one row for each set of software",
    ", with other figures",
    "more: analyze audit --format csv lists them",
    "Notes of the runs:",
    "Not in the tables (",
    "The words of this page",
    (
        "Operators by torch.profiler, per step: self time on the CPU, without the time of called "
        "operators; the profiler slows down small operators most"
    ),
    "Kernels by torch.profiler, per step: their time on the GPU",
    measurements.OF_TRACES,
    "Kernel families of each profile",
    "longest of each profile, and the total of all",
    "Causes of slow or uneven runs, and the share that each explains",
    "Metrics of the profiles",
    "Metrics that Nsight Compute collected, by profile",
    "Packages that differ between places",
    "metrics that the user added",
    "more lists are not compared",
    "waits for slower ranks",
}
