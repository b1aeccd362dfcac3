"""What an import says of a file, as text: the runs that it makes, or its refusal, and what an audit finds then."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import analysis
from analysis.audit import RULES, audit
from analysis.importing import UserFacts, import_file
from tests.analysis.readers.ncu.ncu_files import save
from workload.contract import bundle
from workload.contract.errors import RooflaunchError
from workload.contract.record import Record

# Content of a file and what the user says of it, by name of the case.
Files: TypeAlias = Mapping[str, tuple[str | bytes, Mapping[str, Any]]]


def printed(cases: Files, folder: Path, *, name: str = "log.csv", rules: tuple[str, ...] = ()) -> str:
    """The outcome of each file by itself; `rules`: names of rules of the audit whose findings are printed too."""
    lines: list[str] = []
    before: list[str] = []
    for number, (case, (content, given)) in enumerate(cases.items()):
        (place := folder / str(number)).mkdir()
        said = list(outcome(place, content, name, **given))
        if rules and (place / "out").exists():
            chosen = [rule for rule in RULES if rule.name in rules]
            findings = audit(analysis.load(place / "out"), rules=chosen)
            said += [f"{finding.severity}: {finding.rule}: {finding.figure}" for finding in findings]
        lines += [f"## {case}", *(["as above"] if said == before else said)]
        before = said
    return "\n".join([*lines, ""])


def outcome(folder: Path, content: str | bytes, name: str, **given: Any) -> Iterator[str]:
    try:
        made = import_file(save(folder, content, name), UserFacts(**given), output=folder / "out")
    except RooflaunchError as error:
        assert not list((folder / "out").glob("*")), "a refused file leaves nothing behind"
        yield from error.report().replace(f"{folder}/", "").splitlines()
        return
    for path in made:
        yield from _described(bundle.read_record(path))


def _described(record: Record) -> Iterator[str]:
    spec, timing, imported = record.spec, record.timing, record.imported
    device, script = record.environment.device, spec.script
    assert imported is not None
    step = timing.step_s
    facts = {
        "batch": spec.batch_size,
        "precision": spec.precision,
        "image size": spec.image_size,
        "unit": script.unit if script else None,
        "device": device.name or device.type,
        "torch": record.environment.software and record.environment.software.torch,
        "place": record.environment.place,
        "rows": imported.rows,
        "cut": imported.rows_cut or None,
        "ignored": ", ".join(imported.ignored or ()) or None,
    }
    measured = {
        "images": timing.images,
        "measured s": timing.measured_s,
        "images/s": timing.images_per_s,
        "claimed": imported.claimed_images_per_s,
        "steps": step.n if step else None,
        "median s": step.median if step else None,
        "waits": timing.data_wait_fraction,
        "explained": timing.explained_fraction,
        "started": timing.started_at,
    }
    yield f"{spec.model}: {_named(facts)}"
    yield f"    {_named(measured) or 'not timed'}"
    profile, work = record.profile, record.complexity
    profiled = {
        "profile": profile.status if profile.status != "not requested" else None,
        "kernels": profile.kernels_profiled,
        "steps": profile.steps,
        "FLOP/step": profile.flop_per_step,
        "bytes/step": profile.dram_bytes_per_step,
        "kernels s/step": profile.kernel_time_s_per_step,
        "busy s/step": profile.busy_s_per_step,
        "wall s/step": profile.wall_s_per_step,
        "modelled FLOP/step": work.train_flop_per_step if work else None,
        "unattributed": work.unattributed_share if work else None,
    }
    if text := _named(profiled):
        yield f"    {text}"
    losses = tuple(imported.losses or ())
    yield from (f"    loss: {loss}" for loss in losses)
    # A loss is a note too.
    yield from (f"    note: {note}" for note in record.notes or () if not (losses and note.endswith(losses)))


def _named(values: Mapping[str, Any]) -> str:
    known = {name: f"{value:.5g}" if isinstance(value, float) else value for name, value in values.items()}
    return ", ".join(f"{name} {value}" for name, value in known.items() if value is not None)
