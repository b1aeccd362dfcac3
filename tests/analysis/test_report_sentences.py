"""Every sentence of the report: runs of which it is true, and runs of which it is false, where it must not stand."""

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from by_hand import results, run
from sentence_runs import (
    BUSY,
    CPU,
    NEAR,
    ROOFS,
    SLOW,
    T4,
    UNKNOWN_WORK,
    UNTIMED,
    Make,
    above_the_ceiling,
    batches,
    dear_and_cheap,
    failed,
    own,
    pieces,
    profile_alone,
    two_batches,
    two_environments,
    undrawn,
    with_roofs,
)

from analysis.audit import RULES
from analysis.report.content import Bullets, Commands, Paragraph, Picture, Section, Table
from analysis.report.evidence import ReportEvidence, gather
from analysis.report.sections import (
    answer,
    complexity,
    context,
    design,
    discussion,
    measurements,
    rooflines,
    variability,
)

SECTIONS = Path(answer.__file__).parent


@dataclass(frozen=True, kw_only=True)
class Case:
    """`words` stands in the section of `true` and not in that of `false`, where `instead` stands."""

    section: Callable[[ReportEvidence], Section]
    words: str
    true: Make
    false: Make
    instead: str | None = None
    # Drawing takes seconds; few sentences depend on which figures there are.
    with_figures: bool = False


CASES = {
    # --- the answer
    "the fastest": Case(
        section=answer.section,
        words=r"resnet18 trains fastest on local-cuda \(NVIDIA L4\): .*, ahead of t4 \(Tesla T4\)",
        true=two_environments,
        false=lambda: [*own(), *own(NEAR, "b", **T4)],
        instead=r"had its highest throughput on .*, not distinguishable from ",
    ),
    "one run": Case(
        section=answer.section,
        words=r"had its highest throughput, in one run, on local-cuda .*; t4 \(Tesla T4\) comes next, how far behind "
        r"cannot be said: ",
        true=lambda: [*own((100.0,)), *own((50.0,), "b", **T4)],
        false=two_environments,
        instead="trains fastest on",
    ),
    "nothing to compare with": Case(
        section=answer.section,
        words="; nothing else of this model was measured",
        true=own,
        false=lambda: [*own(), *own(SLOW, "b", batch_size=64)],
        instead="; no other environment has a throughput of it",
    ),
    "a busy machine": Case(
        section=answer.section,
        words=r"^On a busy machine \(the run got 0\.3 of 2 CPUs\): resnet18 on local-cpu \(Xeon\)",
        true=lambda: own(**BUSY),
        false=lambda: own(**CPU, cpus_used=1.95),
        instead=r"^resnet18 on local-cpu \(Xeon\)",
    ),
    "a busy second": Case(
        section=answer.section,
        words=r"^On a busy machine \(local-cpu: the run got 0\.3 of 2 CPUs\): resnet18 trains fastest on t4",
        true=lambda: [*own(**T4), *own((1.0, 1.01, 0.99), "b", **BUSY)],
        false=lambda: [*own(**T4), *own((1.0, 1.01, 0.99), "b", **CPU, cpus_used=1.95)],
        instead="^resnet18 trains fastest on t4",
    ),
    "an error of the audit": Case(
        section=answer.section,
        words=r"figures of these runs are wrong or mean something else\.",
        true=above_the_ceiling,
        false=own,
    ),
    "an error in the headline": Case(
        section=answer.section,
        words=r"^resnet18 on .* The audit found an error in its runs: ",
        true=above_the_ceiling,
        false=own,
    ),
    "an error in those of the second": Case(
        section=answer.section,
        words=r"The audit found an error in those of local-cuda: ",
        true=lambda: [*above_the_ceiling(), *own((1e4, 1.01e4, 0.99e4), "b", train_flop_per_step=None, **T4)],
        false=lambda: [*own(), *own((1e4, 1.01e4, 0.99e4), "b", train_flop_per_step=None, **T4)],
    ),
    "no limit known": Case(
        section=answer.section,
        words=r"What limits it is not known\.",
        true=own,
        false=with_roofs,
        instead=r"Limited by compute: 60 %\.",
    ),
    "why no limit is known": Case(
        section=answer.section,
        words=r"What limits it is not known: the run reached 150 %",
        true=lambda: own(bound_why="the run reached 150 % of the ceiling"),
        false=own,
    ),
    "runs that do not agree": Case(
        section=answer.section,
        words=r"Its runs do not agree on what limits it: compute 2, memory 1\.",
        true=lambda: [
            one | {"bound": bound, "bound_why": "w"}
            for one, bound in zip(own(), ("compute", "compute", "memory"), strict=True)
        ],
        false=with_roofs,
        instead="Limited by compute",
    ),
    "busy runs": Case(
        section=answer.section,
        words=r"^On a busy machine \(3 of 3 runs: it got 4 % of one\): resnet18 on .* Limited by compute",
        true=lambda: own(busy="it got 4 % of one", bound="compute", bound_why="60 %"),
        false=lambda: own(bound="compute", bound_why="60 %"),
    ),
    "no winner from busy runs": Case(
        section=answer.section,
        words="comes next, how far behind cannot be said: 3 of 6 runs on a busy machine, and the others alone show no",
        true=lambda: [*own(**T4), *own((1.0, 1.01, 0.99), "b", busy="it got 4 % of one")],
        false=lambda: [*own(**T4), *own((1.0, 1.01, 0.99), "b")],
        instead="ahead of",
    ),
    "neither": Case(
        section=answer.section,
        words="Neither compute nor memory limits it: below half of both roofs: 11 %",
        true=lambda: own(bound="neither", bound_why="below half of both roofs: 11 %"),
        false=lambda: own(bound="compute", bound_why="60 %"),
    ),
    "no throughput": Case(
        section=answer.section,
        words=r"No run has a throughput \(1 failed\), so nothing is said about speed\.",
        true=failed,
        false=lambda: [*failed(), *own()],
    ),
    "profiles alone": Case(
        section=answer.section,
        words="These are profiles without timed steps: they say where the time of a step goes",
        true=profile_alone,
        false=lambda: [*profile_alone(), *own()],
    ),
    "no price": Case(
        section=answer.section,
        words=r"No measured run has a price per hour, so nothing is said about cost\.",
        true=lambda: [*own(), *failed(usd_per_h=0.5)],
        false=lambda: own(usd_per_h=0.5),
        instead="Cheapest environment per model",
    ),
    "what it rests on": Case(
        section=answer.section,
        words=r"3 measured runs of 4 in 1 configuration\. ",
        true=lambda: [*own(), *failed()],
        false=failed,
        instead="none with a measured step",
    ),
    "configurations with one run": Case(
        section=answer.section,
        words="; 1 of them with one run and so without an interval",
        true=lambda: [*own(), *own((50.0,), "b", batch_size=64)],
        false=own,
    ),
    # --- design
    "how ours are timed": Case(
        section=design.section,
        words="inside it CUDA steps are timed with events",
        true=own,
        false=lambda: own(imported=True),
        instead="came from other people's files",
    ),
    "events on a CPU": Case(
        section=design.section,
        words="at both ends of the measured region; inside it",
        true=own,
        false=lambda: own(**CPU),
        instead=r"at both ends of the measured region\. ",
    ),
    "ours beside foreign runs": Case(
        section=design.section,
        words="^Of the 3 runs that this program measured: Warm-up steps are recorded",
        true=lambda: [*own(), *own(SLOW, "b", imported=True, model="vgg16")],
        false=own,
        instead="^Warm-up steps are recorded",
    ),
    "one measured run": Case(
        section=design.section,
        words=r"1 of 2 configurations has one measured run\. One run has no interval",
        true=lambda: [*own(), *own((50.0,), "b", batch_size=64)],
        false=own,
        instead="Every configuration was measured at least twice, and every throughput has an interval",
    ),
    "copies have no interval": Case(
        section=design.section,
        words="1 of 1 have no interval all the same",
        true=lambda: own((100.0, 100.0)),
        false=own,
        instead="and every throughput has an interval",
    ),
    "nothing timed": Case(
        section=design.section,
        words="No run has timed its steps: nothing in this report says how fast a step is",
        true=failed,
        false=own,
    ),
    "timed by the profiler alone": Case(
        section=design.section,
        words="^Only torch.profiler timed the steps of the only run: rates are under the profiler, and nothing here",
        true=lambda: [run("t", steps=[], imported=True, traced_busy_s=0.1, **UNTIMED)],
        false=lambda: [*own(), run("t", steps=[], imported=True, traced_busy_s=0.1, **UNTIMED)],
    ),
    # --- complexity
    "no complexity": Case(
        section=complexity.section,
        words=r"No run says how complex its model is\.",
        true=lambda: own(parameters=None),
        false=lambda: own(parameters=1e7),
        instead="Work per image",
    ),
    "least and most work per byte": Case(
        section=complexity.section,
        words=r"resnet18 at batch 16, fp32, does the least work per byte: .* resnet18 at batch 32, fp32, the most: ",
        true=lambda: [
            one | {"parameters": 1e7, "bytes_upper_per_step": size, "train_flop_per_step": 1e11}
            for one, size in zip([*own(batch_size=16)[:1], *own(name="b")[:1]], (2e9, 1e9), strict=True)
        ],
        false=lambda: own(parameters=1e7, bytes_upper_per_step=1e9),
        instead=r"resnet18 at batch 32, fp32, does .* FLOP of work per byte",
    ),
    "no modelled bytes": Case(
        section=complexity.section,
        words="No run has modelled bytes",
        true=lambda: own(parameters=1e7),
        false=lambda: own(parameters=1e7, bytes_upper_per_step=1e9),
    ),
    # --- measurements, variability, rooflines
    "no rate": Case(
        section=measurements.section,
        words=r"^No completed run has a throughput\.",
        true=failed,
        false=own,
        instead="Every configuration",
    ),
    "no figure of measurements": Case(
        section=measurements.section,
        words="No model ran at two batch sizes, nor two models in one way",
        true=lambda: own(train_flop_per_image=None, train_flop_per_step=None),
        false=two_batches,
        instead="Throughput against batch size",
        with_figures=True,
    ),
    "no comparison": Case(
        section=measurements.section,
        words="No comparison between environments: nothing to compare",
        true=own,
        false=two_environments,
        instead="corrected for all 1 comparisons",
    ),
    "nothing varies": Case(
        section=variability.section,
        words="No completed run timed its steps: nothing is said about how they vary",
        true=failed,
        false=own,
    ),
    "no telemetry": Case(
        section=variability.section,
        words="No cause of variation was found in the steps, and no run has telemetry to look for more in",
        true=own,
        false=lambda: own(telemetry={"sm_clock_mhz": [1500.0] * 5}),
        instead="No cause of variation was found, in steps or telemetry",
    ),
    "no roofs": Case(
        section=rooflines.section,
        words="No ceiling was measured, and there is no vendor's peak for what is known of device and precision",
        true=lambda: own(device_name="NVIDIA A100-SXM4-80GB", precision=None),
        false=own,
        instead="the vendors' peaks",
    ),
    "no two batch sizes": Case(
        section=rooflines.section,
        words="No model has a point at two batch sizes, or in two precisions",
        true=own,
        false=lambda: [one | ROOFS for one in batches(100.0, 120.0)],
        instead="How batch size and precision move a step",
    ),
    # --- the discussion
    "no prices": Case(
        section=discussion.section,
        words="Fewer than two environments have a measured run with a price per hour",
        true=lambda: [*own(usd_per_h=1.0), *own(SLOW, "b", **T4)],
        false=lambda: [*own(usd_per_h=1.0), *own(SLOW, "b", **T4, usd_per_h=0.4)],
        instead=r"local-cuda costs 2\.50 x as much per hour as t4",
    ),
    "one price for all": Case(
        section=discussion.section,
        words="No model was measured in two environments of different price",
        true=lambda: [*own(usd_per_h=1.0), *own(SLOW, "b", **T4, usd_per_h=1.0)],
        false=lambda: [*own(usd_per_h=1.0), *own(SLOW, "b", **T4, usd_per_h=0.4)],
    ),
    "one environment": Case(
        section=discussion.section,
        words="One environment was measured: whether dearer hardware is faster",
        true=own,
        false=two_environments,
    ),
    "expensive hardware wins twice": Case(
        section=discussion.section,
        words="it is cheaper: .* Expensive hardware wins twice",
        true=lambda: [*own(usd_per_h=0.5), *own(SLOW, "b", **T4, usd_per_h=0.4)],
        false=dear_and_cheap,
        instead="it is dearer: .* Cheap hardware wins on money",
    ),
    "money is open": Case(
        section=discussion.section,
        words="per million images no difference is certain",
        true=lambda: [*own(usd_per_h=0.8), *own(SLOW, "b", **T4, usd_per_h=0.4)],
        false=dear_and_cheap,
    ),
    "money without intervals": Case(
        section=discussion.section,
        words="how much faster it is cannot be said",
        true=lambda: [*own((100.0,), usd_per_h=2.0), *own((50.0,), "b", **T4, usd_per_h=0.4)],
        false=dear_and_cheap,
    ),
    "nothing measured, nowhere": Case(
        section=discussion.section,
        words="No run timed its steps: whether dearer hardware is faster cannot be answered",
        true=failed,
        false=own,
    ),
    "no bound": Case(
        section=discussion.section,
        words="No configuration has a bound: ceilings, FLOP or bytes are missing, or contradict each other",
        true=own,
        false=with_roofs,
        instead="resnet18 is limited by memory in",
    ),
    "a configuration is one, counted and modelled": Case(
        section=discussion.section,
        words=r"resnet18 is limited by memory in \d of 1 configuration[ :]",
        true=lambda: own(**ROOFS, counted_flop_per_step=3e11, counted_dram_bytes_per_step=8e9),
        false=lambda: [one | ROOFS for one in batches(100.0, 120.0)],
        instead=r"in \d of 2 configurations[ :]",
    ),
    "larger batches stop paying": Case(
        section=discussion.section,
        words="gains little .*, so larger batches stop paying at 16",
        true=lambda: batches(100.0, 101.0),
        false=lambda: batches(100.0, 101.0, 150.0),
        instead="batch 32 after 16 gains little .*, but batch 64 after 32 pays again",
    ),
    "a step after it is open": Case(
        section=discussion.section,
        words="; whether a still larger one pays is open",
        true=lambda: [*batches(100.0, 101.0), *own((110.0,), "c", batch_size=64)],
        false=lambda: batches(100.0, 101.0, 101.5),
        instead="so larger batches stop paying at 16",
    ),
    "a larger batch is slower": Case(
        section=discussion.section,
        words="batch 32 after 16 makes it slower",
        true=lambda: batches(100.0, 90.0),
        false=lambda: batches(100.0, 101.0),
        instead="gains little",
    ),
    # +4.5 % paid under a limit of +5 %.
    "every batch pays": Case(
        section=discussion.section,
        words="every batch up to 32 pays",
        true=two_batches,
        false=lambda: batches(100.0, 104.9, share=0.002),
        instead="open, as from batch 16 to 32",
    ),
    "no batch can be said": Case(
        section=discussion.section,
        words="resnet18 · fp32 on local-cuda: cannot be said: ",
        true=lambda: [*own((100.0,), batch_size=16), *own((120.0,), "b")],
        false=two_batches,
    ),
    "no two batches": Case(
        section=discussion.section,
        words="In no environment do runs of one model differ in batch size alone: this cannot be answered",
        true=lambda: [*own(), *own(SLOW, "b", batch_size=64, precision="amp")],
        false=two_batches,
    ),
    "out of memory": Case(
        section=discussion.section,
        words="batch 128 does not fit into memory",
        true=lambda: [*own(), *[one | {"status": "out_of_memory"} for one in failed(batch_size=128)]],
        false=lambda: [*own(), *failed(batch_size=128)],
    ),
    "no precisions": Case(
        section=discussion.section,
        words="This cannot be answered: nothing to compare",
        true=own,
        false=lambda: [*own(), *own(SLOW, "b", precision="amp")],
        instead="fp32 is 2 x as fast as amp",
    ),
    "no certain difference": Case(
        section=discussion.section,
        words="1 comparison of 1 without a certain difference; a ratio of .* would typically have been seen",
        true=lambda: [*own(), *own(NEAR, "b", precision="amp")],
        false=lambda: [*own(), *own(SLOW, "b", precision="amp")],
    ),
    "no two zones": Case(
        section=discussion.section,
        words="No device was measured in two zones, under two hypervisors, on two backends or in two runtimes",
        true=lambda: [*own(zone="a"), *failed(zone="b")],
        false=lambda: [*own(zone="a"), *own(SLOW, "b", zone="b")],
        instead="NVIDIA L4 by zone: ",
    ),
    "how far runs lie apart": Case(
        section=discussion.section,
        words=r"On local-cuda \(NVIDIA L4\) runs of one configuration typically vary by .*, and steps within a run by",
        true=lambda: [run(f"v{number}", path="/nowhere") for number in range(3)],
        false=lambda: own((100.0,)),
    ),
    # --- limits, audit
    "few steps": Case(
        section=context.limits,
        words="At most 20 measured steps per run: long trainings meet heat",
        true=own,
        false=lambda: [run("long", steps=[0.1, 0.101] * 600, path="/nowhere")],
    ),
    "synthetic data": Case(
        section=context.limits,
        words="Synthetic data wait for no disk",
        true=own,
        false=lambda: own(dataset="imagenette"),
    ),
    "prices": Case(
        section=context.limits,
        words="Prices are those recorded with the runs, or list prices",
        true=lambda: own(usd_per_h=0.5),
        false=own,
    ),
    "nothing audited": Case(
        section=context.audit,
        words="No rule of the audit found anything",
        true=lambda: [one | UNKNOWN_WORK for one in own()],
        false=above_the_ceiling,
        instead="^error: ",
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
def said_of(make: Make, section: Callable[[ReportEvidence], Section], *, with_figures: bool) -> list[str]:
    return list(texts(section(evidence_of(make, with_figures=with_figures))))


@functools.cache
def evidence_of(make: Make, *, with_figures: bool) -> ReportEvidence:
    loaded = results(*(one | {"path": "/nowhere"} for one in make()))
    return gather(loaded) if with_figures else undrawn(loaded)


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
    return [said_of(make, case.section, with_figures=case.with_figures) for make in (case.true, case.false)]


@pytest.mark.timeout(600)
@pytest.mark.night(part="report")
def test_every_sentence_has_a_case() -> None:
    """A new sentence of a section needs data of which it is true, and data of which it would be false."""
    said = "\n".join(text for case in CASES.values() for side in sides(case) for text in side)
    unsaid = {piece for path in SECTIONS.glob("*.py") for piece in pieces(path) if piece not in said}
    assert unsaid == NOT_HERE


# What no data makes false: headings, introductions, and how much of a long list is left out.
NOT_HERE = {
    "USD per million images",
    "other rules, below under Audit",
    "more models are in the table.",
    "training FLOP per parameter",
    "bytes per step, least",
    "Training FLOP by operation",
    (
        "The command of each configuration, from the spec in its bundle; only what differs from the defaults is named. "
        "Repeats of one configuration have one line."
    ),
    "Environments; a row for each set of software",
    ", with other figures",
    "more: analyze audit lists them",
    "What the runs say of themselves:",
    "Not in the tables (",
    "more are in the tables.",
    "more comparisons are in the table of speed-ups.",
    "The words of this page",
    ", analyze compare prints all",
    (
        "Operators by torch.profiler, per step: self time on the CPU, without that of the operators which each one "
        "calls; the profiler slows down small operators most"
    ),
    "Kernels by torch.profiler, per step: their time on the GPU",
    rooflines.OF_TRACES,
    "Kernel families of each profile",
    "longest of each profile, and the whole",
    "evidence of that run",
    "Causes found, and how much they explain",
}


def test_the_rules_of_a_busy_machine_are_rules_of_the_audit() -> None:
    assert set(answer.BUSY_RULES) <= {rule.name for rule in RULES}
