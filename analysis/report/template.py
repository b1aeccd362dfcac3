"""Render the report as a course report in Markdown: sections filled with data, and marked gaps for its author.

`template.md` beside this module has the sections and the gaps; `{{name}}` stands for content from here.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from statistics import fmean, stdev
from typing import Any, assert_never
from urllib.parse import quote

from analysis.audit.rule import Severity, by_rule, heading
from analysis.figures import registry
from analysis.figures.labels import distinct
from analysis.loading.tables import rows as rows_of
from analysis.report import answer, content, context
from analysis.report.content import (
    Block,
    Bullets,
    Commands,
    Heading,
    Paragraph,
    Picture,
    Report,
    Section,
    Table,
    readable,
)
from analysis.report.evidence import ReportEvidence
from workload.contract.spec import Precision
from workload.contract.spent import TOKENS
from workload.contract.tables import Column, facts
from workload.contract.text import counted, printable

# Escaped content of a bundle is no gap.
GAP = re.compile(r"(?<!\\)_TO WRITE: ([^_\\]+)_")
PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
# Attributes of a picture for pandoc.
PICTURE_ATTRIBUTES = "{ width=70% }"
# Maximum number of the audit's rules in the limitations.
MOST_RULES = 12
MEGA, GIGA = 1e6, 1e9

RUN_MATRIX = (
    *facts(
        env="Env",
        backend="Backend",
        precision="Precision",
        batch_sizes="Batch sizes",
        iterations="Iters (warmup/measured)",
        repeats="Repeats",
    ),
)
TABLE_1 = (
    *facts(task="Model"),
    Column(name="parameters", heading="Params (M)", digits=4),
    Column(name="mac", heading="Forward MACs / sample (G)", digits=4),
    Column(name="batch_size", heading="Batch", digits=0),
    Column(name="flop", heading="Forward FLOPs / batch (G)", digits=4),
    *facts(notes="Notes"),
)
TABLE_2 = (
    *facts(env="Env", task="Model", variant="Precision"),
    Column(name="batch_size", heading="Batch", digits=0),
    Column(name="rate", heading="{unit}/s"),
    Column(name="flop_per_s", heading="Attained GFLOP/s"),
    Column(name="intensity", heading="AI"),
    *facts(bound="Bound"),
    Column(name="runs", heading="Runs", digits=0),
)
OF_TABLE_2 = (
    "Mean ± standard deviation over runs. Images per second of wall time; FLOP by formula over the median step, "
    "without waits for data; AI: FLOP per byte. The appendix has medians with 95 % intervals"
)
# Columns of the environment table: heading, and the columns of the page's table that it joins.
ENVIRONMENT = (
    ("Env key", ("place",)),
    ("Host", ("host name",)),
    ("OS/Kernel", ("OS, kernel",)),
    ("Device", ("device",)),
    ("Driver/CUDA/cuDNN", ("driver", "CUDA, cuDNN")),
    ("Python/Torch", ("Python", "torch, torchvision")),
    ("Storage", ("storage",)),
    ("Region/Zone", ("machine type, zone",)),
)
# Options in the paragraph on reproducibility: column of `runs`, and the option's name.
OPTIONS = (("deterministic", "--deterministic"), ("channels_last", "--channels-last"), ("compile", "--compile"))


@dataclass(kw_only=True, eq=False)
class Blocks:
    """Blocks of the report by section, each placed once: `rest` has the sections with what was not taken."""

    report: Report
    taken: set[int] = field(default_factory=set)

    def take(self, *names: str, kind: type[Block] | None = None, caption: str = "") -> list[Block]:
        """Blocks of the sections called `names`, all or of one kind; `caption`: only tables whose caption begins so."""
        found = [
            block
            for section in _flat(self.report.sections)
            if section.name in names
            for block in section.blocks
            if (kind is None or isinstance(block, kind))
            and (not caption or (isinstance(block, Table) and block.caption.startswith(caption)))
        ]
        return self._took(found)

    def pictures(self, *names: str) -> list[Block]:
        """Figures whose name begins with one of `names`, in the order of the page."""
        return self._took(
            [
                block
                for section in _flat(self.report.sections)
                for block in section.blocks
                if isinstance(block, Picture) and block.figure.name.startswith(names)
            ]
        )

    def _took(self, found: Iterable[Block]) -> list[Block]:
        new = [block for block in found if id(block) not in self.taken]
        self.taken |= set(map(id, new))
        return new

    def rest(self) -> Iterator[tuple[str, list[Block]]]:
        """Titles of the sections that have blocks left, with these blocks."""
        for section in _flat(self.report.sections):
            left = self._took(section.blocks)
            if left:
                yield section.title, left


def render(report: Report, evidence: ReportEvidence, *, figures: str) -> str:
    """The report as Markdown in the order of the template; `figures`: path of the pictures relative to the file."""
    template = resources.files("analysis.report").joinpath("template.md").read_text(encoding="utf-8")
    parts = _content(Blocks(report=report), evidence, figures)
    # One pass: content is never searched for placeholders.
    filled = PLACEHOLDER.sub(lambda match: parts[match[1]], template)
    return re.sub(r"\n{3,}", "\n\n", filled)


def gaps(text: str) -> list[str]:
    """Gaps that are left to the author in a rendered report: line number and description of each."""
    return [
        f"line {number}: {match[1]}"
        for number, line in enumerate(text.split("\n"), start=1)
        for match in GAP.finditer(line)
    ]


def _content(blocks: Blocks, evidence: ReportEvidence, figures: str) -> Mapping[str, str]:
    """Content of every placeholder. The order matters where a section takes what another one leaves."""

    def shown(found: Iterable[Block], nothing: str = "") -> str:
        """Markdown of the blocks. If there are none: `No data` with the reason `nothing`, or "" without a reason."""
        lines = (line for block in found for line in (*block_lines(block, figures, attributes=PICTURE_ATTRIBUTES), ""))
        return "\n".join(lines).rstrip() or (f"_No data: {nothing}._" if nothing else "")

    def figures_of(*names: str, nothing: str) -> str:
        return shown(blocks.pictures(*names), nothing)

    sentences = Bullets(sentences=answer.sentences(evidence))
    blocks.take("answer", kind=Bullets)
    changes, roofs = answer.changes(evidence), rows_of(evidence.material.roofs)
    peaks = [roof for roof in roofs if roof["kind"] == "peak" and content.is_known(roof["source"])]
    sources = list(dict.fromkeys(f"{peak['device_name']}: {peak['source']}" for peak in peaks))
    parts = {
        **{name: escape(text) for name, text in _words(evidence).items()},
        "abstract": shown([sentences]),
        "run_matrix": shown([_run_matrix(evidence)]),
        "incomplete": shown(blocks.take("method", caption="Runs that did not complete")),
        "timing": shown(blocks.take("method", kind=Bullets)),
        "complexity_command": shown([_complexity_commands(evidence)]),
        "table_1": shown(_table_1(evidence), "no run has a model whose work is known"),
        "complexity_words": shown(blocks.take("complexity", kind=Paragraph)),
        "throughput_figures": figures_of(
            "throughput_", "batch_size_scaling", nothing="no place has three batch sizes with a throughput"
        ),
        "trends": shown([Bullets(sentences=changes)] if changes else [], "no certain difference between settings"),
        "ratios": shown(blocks.take("measurements", caption="Ratio of")),
        "variability": shown(blocks.take("variability"), "no configuration has repeated runs"),
        "peaks": shown(
            blocks.take("roofline", kind=Table, caption="Ceilings"), "no measured ceiling and no known peak"
        ),
        "roofline_figures": figures_of(
            "roofline_", "kernel_roofline_", "ai_vs_batch_", nothing="no run has both FLOP/s and bytes"
        ),
        "shifts": shown(blocks.take("intensity", kind=Table)),
        "table_2": shown(_table_2(evidence), "no run has a throughput or a profile"),
        "cost": shown(blocks.take("measurements", caption="Cheapest")),
        "environment_table": shown(list(_environments(blocks)), "no facts of the places"),
        "limits": shown(blocks.take("limits")),
        "audit": shown(_audit(evidence)),
        "peak_sources": shown([Bullets(sentences=sources or ["no vendor's peak was used"])]),
        "checklist": shown([Bullets(sentences=list(_checklist(evidence, figures)))]),
        "commands": shown(blocks.take("reproduce")),
        "metrics": shown(blocks.take("metrics"), "no profile by Nsight Compute of this program"),
    }
    # The audit has its own summary above; here are the figures, causes and cures of every rule.
    rest = ((f"**{escape(title)}**", "", shown(left), "") for title, left in blocks.rest())
    return parts | {"rest": "\n".join(line for lines in rest for line in lines).rstrip()}


def _flat(sections: Iterable[Section]) -> Iterator[Section]:
    for section in sections:
        yield section
        yield from _flat(section.parts)


# --- words in sentences


def _words(evidence: ReportEvidence) -> Mapping[str, str]:
    """Texts for the placeholders of template.md that stand inside a sentence, before Markdown's signs are escaped."""
    runs, folders = evidence.material.every, []
    # Data set and folder of the first run of each place; synthetic data have no folder.
    for row in rows_of(runs.drop_duplicates(["env", "dataset"])):
        record = evidence.record(row["run_id"])
        if row["dataset"] == "synthetic":
            folders.append("none (synthetic data)")
        elif record and record.spec.data_dir and content.is_known(row["dataset"]):
            folders.append(f"{row['dataset']} in {record.spec.data_dir} on {row['env']}")
    has_amp = runs["precision"].isin([Precision.AMP, Precision.BF16]).any()
    keywords = ["roofline", "throughput", "arithmetic intensity"]
    keywords += ["GPU profiling"] if runs["kernels_file"].notna().any() else []
    keywords += ["mixed precision"] if has_amp else []
    return {
        "commits": f"rooflaunch {content.listed(runs['rooflaunch'])}, commit {content.listed(runs['commit'])}",
        "data": content.listed(context.data(row) for row in rows_of(runs[["dataset", "image_size"]])),
        "keywords": ", ".join(keywords),
        "models": content.listed(evidence.material.tasks),
        "environments": content.listed(evidence.material.environments),
        "settings": f"batch {content.listed(sorted(set(runs['batch_size'].dropna())))}; "
        f"{content.listed(sorted(set(runs['precision'].dropna())))}",
        "virtualisation": f"zone {content.listed(runs['zone'])}; virtualisation {content.listed(runs['hypervisor'])}",
        "options": _options(evidence),
        "sources": _sources(evidence),
        "data_dir": content.listed(folders),
    }


def _options(evidence: ReportEvidence) -> str:
    runs = evidence.material.every
    used = {option: int(runs[name].eq(True).sum()) for name, option in OPTIONS}
    used["--grad-accumulation"] = int((runs["grad_accumulation"] > 1).sum())
    options = ", ".join(f"{option} {number}" for option, number in used.items())
    # Scripts and other programs may end an epoch with a smaller batch.
    is_ours = runs["imported"].ne(True) & runs["script"].isna()
    full = "Every step of our trainer has a full batch. " if is_ours.any() else ""
    return f"{full}Of {counted(len(runs), 'run')}, this many had the option: {options}."


def _sources(evidence: ReportEvidence) -> str:
    runs = evidence.material.every
    imported, profiled = int(runs["imported"].eq(True).sum()), int(runs["kernels_file"].notna().sum())
    return (
        f"{counted(len(runs), 'bundle')} with run.json (CPU time and largest resident set are under usage), and with "
        f"steps.csv and telemetry.csv as far as recorded; {imported} imported from other programs' files; {profiled} "
        "with kernels of a profile."
    )


# --- tables of the template


def _run_matrix(evidence: ReportEvidence) -> Table:
    runs, rows = evidence.material.every, []
    for env in evidence.material.environments:
        of_env = runs[runs["env"] == env]
        row = context.matrix_row(env, of_env)
        first = evidence.record(of_env["run_id"].iloc[0])
        warmup = content.text(first.spec.warmup if first else None)
        backend = content.listed(of_env["device_type"])
        rows.append({**row, "backend": backend, "iterations": f"{warmup} / {row['steps']}"})
    return content.table("Runs by place", RUN_MATRIX, rows)


def _complexity_commands(evidence: ReportEvidence) -> Commands:
    runs = evidence.material.every
    own = runs[runs["script"].isna() & runs["parameters"].notna() & runs["image_size"].notna()]
    lines = []
    for size, table in own.groupby("image_size", sort=True):
        models = [printable(str(model)) for model in dict.fromkeys(table["model"])]
        batches = [f"{batch:g}" for batch in sorted(set(table["batch_size"].dropna()))]
        line = ["python", "-m", "workload", "complexity", "--model", *models, "--batch-size", *batches]
        lines.append(shlex.join([*line, "--image-size", f"{size:g}"]))
    return Commands(lines=lines or ["# no run has a model of torchvision"])


def _table_1(evidence: ReportEvidence) -> list[Block]:
    runs = evidence.material.every
    known = runs[runs["parameters"].notna()].drop_duplicates(["task", "batch_size"])
    rows = []
    for row in sorted(rows_of(known), key=lambda row: (row["task"], row["batch_size"])):
        flop = row["forward_flop_per_image"]
        batch = row["batch_size"]
        # Batches of tokens are measured in sequences.
        per_token, batches = row["train_flop_per_image"], row["grad_accumulation"]
        if row["unit"] == TOKENS and content.is_known(per_token) and content.is_known(batches):
            batch = row["train_flop_per_step"] / per_token / batches
        per_batch = flop * batch / GIGA if content.is_known(flop) else None
        activations = f"activations {content.si(row['activations_bytes'], 'B')}"
        figures = {
            "parameters": content.quotient(row["parameters"], MEGA),
            "mac": content.quotient(row["forward_mac_per_image"], GIGA),
            "flop": per_batch,
            "notes": activations if content.is_known(row["activations_bytes"]) else None,
        }
        rows.append({**row, **figures})
    return [content.table("Parameters, work and activations; 1 MAC = 2 FLOP", TABLE_1, rows)] if rows else []


def _table_2(evidence: ReportEvidence) -> list[Block]:
    points = registry.drawable(evidence.material.points)
    point_of = {_configuration(point): point for point in rows_of(points)} if len(points) else {}
    rows = []
    for line, row in enumerate(rows_of(evidence.material.measured)):
        runs = evidence.material.runs[evidence.material.runs["line"] == line]
        point = point_of.pop(_configuration(row), {})
        rates = runs["train_flop_per_step"] / runs["step_median_s"] / GIGA
        figures = {"rate": _mean_sd(runs["images_per_s"]), "flop_per_s": _mean_sd(rates)}
        rows.append({**row, **figures, "intensity": _intensity(point), "runs": len(runs)})
    for point in point_of.values():
        least = "at least " if point["flop_is_lower_bound"] else ""
        gflop_per_s = f"{least}{_mean_sd([point['flop_per_s'] / GIGA])}"
        rows.append({**point, "flop_per_s": gflop_per_s, "intensity": _intensity(point)})
    unit = evidence.material.unit.capitalize()
    columns = [*TABLE_2[:4], Column(name="rate", heading=f"{unit}/s"), *TABLE_2[5:]]
    return [content.table(OF_TABLE_2, columns, rows)] if rows else []


def _configuration(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in answer.KEYS)


def _intensity(point: Mapping[str, Any]) -> str | None:
    return f"{content.figure(point['intensity_flop_per_byte'])} ({point['source']})" if point else None


def _mean_sd(values: Iterable[float]) -> str | None:
    """`123.4 ± 1.2`; the value alone if there is one, None if there is none."""
    known = [float(value) for value in values if content.is_known(float(value))]
    if not known:
        return None
    spread = f" ± {content.figure(stdev(known), 2)}" if len(known) > 1 else ""
    return f"{content.figure(fmean(known), 4)}{spread}"


def _environments(blocks: Blocks) -> Iterator[Block]:
    """The table of environments with the columns of the template; the appendix has all columns."""
    found = (section.blocks for section in blocks.report.sections if section.name == "places")
    for table in next(found, ())[:1]:
        assert isinstance(table, Table)
        names = [heading.text for heading in table.headings]
        known = [
            {name: cell for name, cell in zip(names, row, strict=True) if cell != content.ABSENT} for row in table.rows
        ]
        rows = [
            [", ".join(row[name] for name in columns if name in row) or "n/a" for _, columns in ENVIRONMENT]
            for row in known
        ]
        yield Table(caption=table.caption, headings=[Heading(text=text) for text, _ in ENVIRONMENT], rows=rows)


# --- limitations, references, checklist


def _audit(evidence: ReportEvidence) -> list[Block]:
    """The first finding of each rule that found an error or a warning, and the number of notes."""
    broken = by_rule(evidence.findings)
    serious = [found for found in broken if found[0].severity is not Severity.NOTE]
    sentences = [f"{heading(found)}: {found[0].figure}. Cure: {found[0].cure}." for found in serious[:MOST_RULES]]
    notes = len(broken) - len(serious)
    more = len(serious) - len(sentences)
    sentences += [f"{counted(more, 'other rule')}, in the appendix"] if more else []
    sentences += [f"{counted(notes, 'note')}, in the appendix"] if notes else []
    return [Bullets(sentences=sentences or ["nothing"])]


def _checklist(evidence: ReportEvidence, figures: str) -> Iterator[str]:
    """The template's figures, each with its file, or with the reason why it was not drawn."""
    drawn = {figure.name for figure in evidence.drawn}
    names = distinct(evidence.material.environments)
    for letter, kind, beginning, stems, reason in (
        ("A", "Throughput vs batch", "throughput_env-", names, "fewer than three points, or one batch size"),
        ("B", "Variability", "variance_fixed_config", {"": ""}, "no configuration has repeated runs"),
        ("C", "Roofline", "roofline_", names, "fewer than two points; roofline_combined shows a single one"),
        ("D (optional)", "AI vs batch", "ai_vs_batch_", distinct(evidence.material.tasks), "fewer than three points"),
    ):
        for number, (name, stem) in enumerate(stems.items(), start=1):
            file = f"{beginning}{stem}"
            where = f": {name}" if name else ""
            count = str(number) if len(stems) > 1 else ""
            shown = f"{figures}/{file}.png" if file in drawn else f"not drawn: {reason}"
            yield f"{letter}{count}: {kind}{where}: {shown}"


# Every character that starts inline markup in CommonMark, GFM or their common extensions; pandoc makes a dash of `--`.
SPECIAL = re.compile(r"-(?=-)|(?<=-)-|[\\`*\[\]<>|~$&{}]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|://|@|\bwww\.")
# Marks that start a list, heading, rule or block at the beginning of a line.
LEADING = re.compile(r"^([#+=:-]+(?=\s|$)|:::|\d+[.)](?=\s|$))")


def as_markdown(report: Report, *, figures: str | None) -> str:
    """The report as Markdown; `figures`: path of the pictures relative to the file, None for texts without pictures."""
    lines = [f"# {escape(report.title)}", "", escape(" · ".join(report.facts)), ""]
    for section in report.sections:
        lines += _section_lines(section, 2, figures)
    return "\n".join(lines).rstrip() + "\n"


def escape(text: str) -> str:
    """`text` on one line, with every character that could be markup escaped by a backslash or an entity."""
    line = readable(" ".join(text.split()))
    # A number of a list keeps its digits: the backslash stands before the point.
    return LEADING.sub(lambda match: re.sub(r"(?=\D)", r"\\", match[1], count=1), SPECIAL.sub(_inline, line))


def _inline(match: re.Match[str]) -> str:
    character = match[0]
    if character in ENTITIES:
        return ENTITIES[character]
    # GFM turns bare addresses into links; a backslash before the punctuation prevents that.
    return (
        character.replace(":", "\\:") if character == "://" else ("www\\." if character == "www." else f"\\{character}")
    )


ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def _section_lines(section: Section, level: int, figures: str | None) -> Iterator[str]:
    yield f"{'#' * level} {escape(section.title)}"
    yield ""
    for block in section.blocks:
        yield from block_lines(block, figures)
        yield ""
    for part in section.parts:
        yield from _section_lines(part, level + 1, figures)


def block_lines(block: Block, figures: str | None, *, attributes: str = "") -> Iterator[str]:
    """Lines of a block; `figures`: path of the pictures, None for texts alone; `attributes`: of each picture."""
    match block:
        case Paragraph():
            yield escape(block.text)
        case Bullets():
            yield from (f"{'1.' if block.ranked else '-'} {escape(item)}" for item in block.sentences)
        case Table():
            yield from _table_lines(block)
        case Picture():
            figure = block.figure
            if figures is not None:
                yield f"![{escape(figure.title)}]({quote(f'{figures}/{figure.name}.png')}){attributes}"
                yield ""
            yield f"**{escape(figure.title)}.** {escape(figure.caption)}"
            yield ""
            yield f"In words: {escape(figure.text)}"
        case Commands():
            longest = max((len(run) for line in block.lines for run in re.findall(r"`+", line)), default=0)
            fence = "`" * max(3, longest + 1)
            yield f"{fence}sh"
            yield from map(readable, block.lines)
            yield fence
        case _:
            assert_never(block)


def _table_lines(table: Table) -> Iterator[str]:
    yield f"*{escape(table.caption)}*"
    yield ""
    if not table.rows:
        yield "(no rows)"
        return
    yield _row([heading.text for heading in table.headings])
    yield "|" + "|".join(" ---: " if heading.numeric else " --- " for heading in table.headings) + "|"
    for row in table.rows:
        yield _row(row)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(escape(cell) for cell in cells)} |"
