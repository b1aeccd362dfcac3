"""A matrix for `launch sweep` that plans again what results contain: configurations, repeats and places."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.loading.tables import Tables
from analysis.report.reproduce import LaunchPlace, place_of
from workload.contract import bundle
from workload.contract import script as scripts
from workload.contract.errors import NothingToDoError, UsageError
from workload.contract.fields import encode
from workload.contract.record import Record
from workload.contract.spec import SCRIPT_OPTIONS, RunSpec, options
from workload.contract.text import counted

# A word in braces, which in the command of a matrix is the place of an axis.
BRACES = re.compile(r"\{[A-Za-z_][\w.-]*\}")
# What a bundle keeps private.
BLANKS, REDACTED = ("USER@HOST", "REGION"), scripts.HIDDEN
# Most axes of which every order is tried.
MOST_ORDERED = 5
# Options of a run that the place or the whole matrix has.
NOT_AXES = frozenset({"device", "repeats"})


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """Text of the matrix file, and what it leaves out with the reason."""

    text: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Run:
    """A run as a matrix describes it: values by key (`args.` in the keys of a script's words), and its place."""

    values: tuple[tuple[str, Any], ...]
    backend: str
    place: tuple[tuple[str, str | bool], ...]


def rerun(tables: Tables, *, name: str) -> Rerun:
    """Plan all runs of `tables` again, in a matrix of this name. Raises `NothingToDoError` without any."""
    return planned([bundle.read(Path(path)).record for path in tables.runs["path"]], name=name)


def planned(records: Sequence[Record], *, name: str) -> Rerun:
    """Write the matrix of a sweep that repeats these runs. `name`: name of the sweep in the matrix.

    Raises `NothingToDoError` if no run can be repeated.
    """
    left_out: Counter[str] = Counter()
    own = [record for record in records if _is_planned(record, left_out)]
    scripts = [record for record in own if record.spec.script]
    trained = [record for record in own if not record.spec.script]
    if scripts and trained:
        fewer = min(scripts, trained, key=len)
        left_out["a matrix is for scripts or for our trainer, not both; name their folders one by one"] += len(fewer)
    command, chosen = _command(scripts, left_out) if len(scripts) > len(trained) else ((), trained)
    counts: Counter[_Run] = Counter()
    keys: set[str] = set()
    blocks: set[tuple[_Run, str | None, float]] = set()
    for record in chosen:
        place = place_of(record.environment, record.spec.device if _is_chosen(record, "device") else None)
        if isinstance(place, str):
            left_out[place] += 1
            continue
        keys |= _chosen(record)
        run = _run(record, place, command)
        if record.job and record.job.block:
            # A run that failed and ran again is one repeat.
            block = (run, record.job.name, record.job.block)
            counts[run] += block not in blocks
            blocks.add(block)
        else:
            counts[run] += 1
    if not counts:
        why = "; ".join(left_out) or "no run"
        raise NothingToDoError(f"no run can be planned again: {why}", hint="launch sweep --example first > first.toml")
    repeats = max(counts.values())
    notes = [f"{counted(number, 'run')} left out: {why}" for why, number in left_out.items()]
    if more := sum(repeats - count for count in counts.values()):
        notes.append(f"{counted(more, 'run')} more than before: every configuration has {counted(repeats, 'repeat')}")
    text = _text(list(counts), keys, name=name, repeats=repeats, command=command)
    notes += [f"fill in {blank}" for blank in (*BLANKS, REDACTED) if blank in text]
    return Rerun(text=text, notes=tuple(notes))


def _is_planned(record: Record, left_out: Counter[str]) -> bool:
    """Whether a sweep can repeat the run at all; else its reason is counted in `left_out`."""
    why = None
    if record.imported:
        why = "imported from another program's files"
    elif record.job and record.job.variant:
        why = "of a duel: launch duel repeats it"
    else:
        try:
            _spec(record)
        except UsageError:
            why = "the spec in the bundle cannot be read"
    if why:
        left_out[why] += 1
    return why is None


def _spec(record: Record) -> RunSpec:
    """Options of a run; a script's record also has observed facts, such as its optimizer's class, which are no options.

    Raises `UsageError` for a value that breaks its option's rule.
    """
    values = encode(record.spec)
    return RunSpec.from_json({name: values.get(name) for name in SCRIPT_OPTIONS} if record.spec.script else values)


def _chosen(record: Record) -> set[str]:
    """Options that the user chose; the others follow from defaults again."""
    usable = SCRIPT_OPTIONS if record.spec.script else frozenset(option.name for option in options())
    spec = _spec(record)
    return {
        option.name
        for option in options()
        if option.name in usable - NOT_AXES
        and getattr(spec, option.name) != option.default
        and _is_chosen(record, option.name)
    }


def _is_chosen(record: Record, name: str) -> bool:
    """Whether the user chose an option. Records of scripts name only chosen options; without a job, perhaps none."""
    origin = record.spec_origin or {}
    unnamed = "default" if record.spec.script and (origin or record.job) else "option"
    return origin.get(name, unnamed) != "default"


def _run(record: Record, place: LaunchPlace, command: Sequence[str]) -> _Run:
    spec = _spec(record)
    values = {option.name: getattr(spec, option.name) for option in options()}
    values["repeats"] = 1
    argv = (record.spec.script and record.spec.script.argv) or ()
    words = {f"args.{name}": word for word, part in zip(argv, command, strict=False) if (name := _placeholder(part))}
    return _Run((*values.items(), *words.items()), place.backend, tuple(place.options.items()))


def _command(records: Sequence[Record], left_out: Counter[str]) -> tuple[tuple[str, ...], list[Record]]:
    """Command of the scripts with a placeholder for each word that differs, and the runs that have this form."""
    lengths = Counter(len((record.spec.script and record.spec.script.argv) or ()) for record in records)
    [(length, _)] = lengths.most_common(1)
    chosen = [record for record in records if record.spec.script and len(record.spec.script.argv or ()) == length]
    if len(chosen) < len(records):
        left_out["its command has another number of words; name its folder alone"] += len(records) - len(chosen)
    columns = list(zip(*(record.spec.script.argv or () for record in chosen if record.spec.script), strict=True))
    words: list[str] = []
    for at, column in enumerate(columns):
        name = words[-1].lstrip("-") if words and words[-1].startswith("--") else f"word{at}"
        words.append(BRACES.sub(_literal, column[0]) if len(set(column)) == 1 else f"{{{name}}}")
    return tuple(words), chosen


def _literal(word: re.Match[str]) -> str:
    """`{lr}` of a script's own words as the matrix writes it, `{{lr}}`; `{data}` means the same in both."""
    return word[0] if word[0] == scripts.DATA else f"{{{word[0]}}}"


def _placeholder(word: str) -> str | None:
    """Name of an axis in the command, `lr` of `{lr}`; `{data}` is none."""
    is_whole = BRACES.fullmatch(word) and word != scripts.DATA
    return word[1:-1] if is_whole else None


# --- the file


def _text(runs: Sequence[_Run], keys: Collection[str], *, name: str, repeats: int, command: Sequence[str]) -> str:
    """TOML text; what is equal in all runs stands in [defaults], what differs in [matrix]."""
    values = [dict(run.values) for run in runs]
    wanted = [key for key in values[0] if key in keys or key.startswith("args.")]
    axes = {key: list(dict.fromkeys(each[key] for each in values)) for key in wanted}
    varied = {key: found for key, found in axes.items() if len(found) > 1}
    if not varied:
        # A matrix has an axis at least.
        key = next(iter(axes), "warmup" if command else "model")
        varied = {key: [values[0][key]]}
    fixed = {key: found[0] for key, found in axes.items() if key not in varied}
    places = list(dict.fromkeys((run.backend, run.place) for run in runs))
    names = _names(places)
    lines = [f"name = {_toml(name)}", f"repeats = {repeats}"]
    if command:
        lines += ["", "[script]", f"command = {_toml(list(command))}"]
    if fixed:
        lines += ["", "[defaults]", *(f"{key} = {_toml(value)}" for key, value in fixed.items())]
    lines += ["", "[matrix]", *(f"{_key(key)} = {_toml(found)}" for key, found in varied.items())]
    for place in places:
        there = [each for run, each in zip(runs, values, strict=True) if (run.backend, run.place) == place]
        for excluded in _excluded(varied, there):
            lines += ["", "[[exclude]]", f"on = {_toml(names[place])}"]
            lines += [f"{_key(key)} = {_toml(value)}" for key, value in excluded.items()]
    for place in places:
        backend, place_options = place
        lines += ["", "[[on]]", f"name = {_toml(names[place])}", f"backend = {_toml(backend)}"]
        lines += [f"{key} = {_toml(value)}" for key, value in place_options]
    return "\n".join(lines) + "\n"


def _excluded(axes: Mapping[str, Sequence[Any]], there: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rules that leave out the combinations that no run has: the fewest that an order of the axes gives."""
    keys = list(axes)
    orders = itertools.permutations(keys) if len(keys) <= MOST_ORDERED else [keys]
    return min((list(_missing(order, axes, there, {})) for order in orders), key=len)


def _missing(
    order: Sequence[str], axes: Mapping[str, Sequence[Any]], there: Sequence[Mapping[str, Any]], begun: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The shortest beginnings of combinations, in this order of the axes, that no run has."""
    if not there:
        yield begun
    elif len(begun) < len(order):
        key = order[len(begun)]
        for value in axes[key]:
            yield from _missing(order, axes, [each for each in there if each[key] == value], {**begun, key: value})


def _names(places: Sequence[tuple[str, Any]]) -> dict[Any, str]:
    """A name for each place: backend, device or GPU; with a number if that is not unique."""
    names: dict[Any, str] = {}
    for backend, place_options in places:
        told = dict(place_options)
        base = "-".join(str(word) for word in (backend, told.get("device") or told.get("gpu")) if word)
        number = sum(name == base or name.startswith(f"{base}-") for name in names.values()) + 1
        names[backend, place_options] = base if number == 1 else f"{base}-{number}"
    return names


def _key(key: str) -> str:
    return f"args.{json.dumps(key[len('args.') :])}" if key.startswith("args.") else key


def _toml(value: object) -> str:
    """A value as TOML: JSON has the same texts, numbers, switches and lists."""
    return json.dumps(value, ensure_ascii=False)
