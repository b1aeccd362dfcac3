"""Arguments of users' scripts as facts to compare by, such as `args.workers`. Pure."""

import math
import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from analysis.loading.cases import Case

# Beginning of the name of a fact; the rest is the argument's name without dashes, as in the matrix of a sweep.
ARGUMENT = "args."
BESIDES = "besides "
NOT_GIVEN, GIVEN = "not given", "given"
_PROGRAM_WORDS = {"-m": 2}


def besides(fact: str) -> str:
    """Name of the fact that has the command without the argument of `fact`."""
    return BESIDES + fact


def after_program(command: str | None) -> str | None:
    """Arguments of a script's command as one text; None without a script."""
    return None if command is None else shlex.join(_split(command)[1])


def as_typed(command: str) -> list[tuple[str, str]]:
    """Name as typed, and value, of each argument; a positional argument is a name, and a flag has no value."""
    return [(name or words[0], value or "") for name, value, words in _parts(_split(command)[1])]


def with_arguments(cases: Sequence[Case]) -> list[Case]:
    """Copies of `cases` that also have each argument in which scripts of the same name differ.

    Each of these arguments is two facts: `args.NAME`, its value or whether it is given, and the rest of the command.
    Both are None in runs of other models and scripts.
    """
    by_model: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        if case["script"] is not None:
            by_model[case["model"]].append(case)
    facts_of: dict[str, dict[str, str | float]] = defaultdict(dict)
    for runs in by_model.values():
        values = {case.run_id: dict(_arguments(case["script"])) for case in runs}
        for name in dict.fromkeys(name for given in values.values() for name in given):
            found = {run_id: given.get(name, NOT_GIVEN) for run_id, given in values.items()}
            if len(set(found.values())) > 1:
                fact = ARGUMENT + name
                for case in runs:
                    facts_of[case.run_id] |= {fact: found[case.run_id], besides(fact): _without(case["script"], name)}
    names = dict.fromkeys(name for facts in facts_of.values() for name in facts)
    return [replace(case, facts={**case.facts, **dict.fromkeys(names), **facts_of[case.run_id]}) for case in cases]


def arguments_in(cases: Sequence[Case]) -> list[str]:
    """Facts that `with_arguments` has added."""
    return [name for name in (cases[0].facts if cases else ()) if name.startswith(ARGUMENT)]


def _split(command: str) -> tuple[list[str], list[str]]:
    """Words of the program, and words of its arguments; a command that a shell could not split is one word."""
    words = [command]
    with suppress(ValueError):
        words = shlex.split(command)
    number = _PROGRAM_WORDS.get(words[0] if words else "", 1)
    return words[:number], words[number:]


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        with suppress(ValueError):
            value: int | float = kind(text)
            return value if math.isfinite(value) else None
    return None


def _parts(words: Sequence[str]) -> Iterator[tuple[str, str | None, Sequence[str]]]:
    """Name as typed (empty if positional), value (None for a flag) and words of each argument."""
    index = 0
    while index < len(words):
        word, after = words[index], words[index + 1 : index + 2]
        index += 1
        is_option = word.startswith("-") and _number(word) is None
        name, equals, value = word.partition("=")
        if equals and name:
            yield name, value, [word]
        elif is_option and after and (not after[0].startswith("-") or _number(after[0]) is not None):
            index += 1
            yield word, after[0], [word, *after]
        else:
            yield (word if is_option else ""), None, [word]


def _arguments(command: str) -> Iterator[tuple[str, str | float]]:
    for name, value, _ in _parts(_split(command)[1]):
        if name:
            number = None if value is None else _number(value)
            yield name.lstrip("-"), (value or GIVEN) if number is None else number


def _without(command: str, name: str) -> str:
    program, words = _split(command)
    kept = (words for other, _, words in _parts(words) if other.lstrip("-") != name)
    return shlex.join([*program, *(word for words in kept for word in words)])
