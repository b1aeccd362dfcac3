"""Names in figures and tables: text from users' files, made safe to show and to use in file names."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from analysis.loading.cases import as_typed
from workload.contract.text import counted, printable

# Longer names hide the figure; both ends are kept, because names that follow a pattern often differ at the end.
SHOWN_CHARACTERS = 48
# Most characters of a file name; file systems allow 255 bytes.
FILE_CHARACTERS = 100


def shown(name: Any) -> str:
    """A name as one short line without characters that move, hide or reorder text."""
    text = printable(str(name)).strip()
    if len(text) <= SHOWN_CHARACTERS:
        return text
    kept = (SHOWN_CHARACTERS - 1) // 2
    return f"{text[:kept]}…{text[-kept:]}"


def file_stem(name: str) -> str:
    """`name` with only the characters that every file system allows: letters, digits, `.`, `_` and `-`."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-.")[:FILE_CHARACTERS].strip("-.") or "unnamed"


def distinct(names: Iterable[str]) -> dict[str, str]:
    """A unique file stem for each name; a number is appended if two names give the same stem."""
    stem_of: dict[str, str] = {}
    taken: set[str] = set()
    for name in dict.fromkeys(names):
        stem, number = file_stem(name), 1
        # Some file systems ignore case.
        while (candidate := stem if number == 1 else f"{stem}-{number}").lower() in taken:
            number += 1
        taken.add(candidate.lower())
        stem_of[name] = candidate
    return stem_of


def environments(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name per run: its place, and the device or threads if they differ between runs at this place.

    `facts`: `place`, `device_name` and `threads` of each run.
    """
    return _named(facts, "place", ("device_name", "threads"), {"threads": lambda value: counted(int(value), "thread")})


def tasks(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name per run: its model, and the image size or data set if they differ between runs of this model.

    `facts`: `model`, `image_size` and `dataset` of each run.
    """
    return _named(facts, "model", ("image_size", "dataset"), {"image_size": "{:g} px".format})


def arguments(facts: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, Any], str]:
    """Text on the arguments of each script, by model and command, for models that ran with several commands.

    `facts`: `model`, `script` and `batch_size` of each run. An option that sets the batch size is left out, because
    figures and tables have the batch size beside this text. The text is empty if no other argument differs.
    """
    batches: dict[Any, dict[str, Any]] = defaultdict(dict)
    for run in facts:
        if run["script"] is not None:
            batches[run["model"]][run["script"]] = run["batch_size"]
    texts: dict[tuple[Any, Any], str] = {}
    for model, batch_of in batches.items():
        typed = {command: as_typed(command) for command in batch_of}
        kept = {
            name for command, pairs in typed.items() for name, value in pairs if value != f"{batch_of[command] or 0:g}"
        }
        names = {
            command: " ".join(word for pair in pairs if pair[0] in kept for word in pair if word)
            or "no other arguments"
            for command, pairs in typed.items()
        }
        if len({(name, batch_of[command]) for command, name in names.items()}) < len(names):
            names = {command: f"script {command}" for command in names}
        if len(names) > 1:
            differ = len(set(names.values())) > 1
            texts |= {(model, command): name if differ else "" for command, name in names.items()}
    return texts


def known_values(
    facts: Sequence[Mapping[str, Any]], first: str, more: Sequence[str]
) -> Mapping[Any, dict[str, set[Any]]]:
    """Known values of each column in `more`, by value of the column `first`; unknown values are left out.

    None is a known value of `change`: no change.
    """
    values: dict[Any, dict[str, set[Any]]] = defaultdict(lambda: defaultdict(set))
    for run in facts:
        for column in more:
            if run[column] is not None or column == "change":
                values[run[first]][column].add(run[column])
    return values


def _named(
    facts: Sequence[Mapping[str, Any]], first: str, more: Sequence[str], forms: Mapping[str, Callable[[Any], str]]
) -> list[str]:
    values = known_values(facts, first, more)
    short = unlike(run[first] if run[first] is not None else f"unknown {first.removesuffix('_name')}" for run in facts)
    names = []
    for run in facts:
        varying = [column for column in more if len(values[run[first]][column]) > 1]
        parts = [
            f"{column.replace('_', ' ')} unknown" if run[column] is None else shown(forms.get(column, str)(run[column]))
            for column in varying
        ]
        name = short[run[first] if run[first] is not None else f"unknown {first.removesuffix('_name')}"]
        names.append(f"{name} ({', '.join(parts)})" if parts else name)
    return names


def unlike(names: Iterable[Any]) -> dict[Any, str]:
    """A unique label for each name; a number is appended if two long names are shortened to the same label."""
    label_of: dict[Any, str] = {}
    for name in dict.fromkeys(names):
        text, number = shown(name), 1
        taken = set(label_of.values())
        while (candidate := text if number == 1 else f"{text} [{number}]") in taken:
            number += 1
        label_of[name] = candidate
    return label_of
