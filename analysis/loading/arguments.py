"""Arguments of users' scripts as facts by which runs can be compared, such as `args.workers`. Pure."""

import math
import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from analysis.loading.cases import Case
from analysis.loading.configurations import ARGUMENT
from workload.contract.script_words import script_words

# Beginning of the name of the fact that has a command without one of its arguments.
BESIDES = "besides "
# Values of a flag, which has no value of its own.
NOT_GIVEN, GIVEN = "not given", "given"


def besides(fact: str) -> str:
    """Name under which a run has its script's command without one argument; `fact`: that argument, `args.workers`."""
    return BESIDES + fact


def after_program(command: str | None) -> str | None:
    """Words after the script in a command, for example `--lr 0.1` in `train.py --lr 0.1`; None without any."""
    return shlex.join(_split(command)[1]) or None if command else None


def as_typed(command: str) -> list[tuple[str, str]]:
    """Arguments of a command as pairs: `("--lr", "0.1")`, `("--amp", "")` for a flag, `("photos", "")` for a word."""
    return [(name or words[0], value or "") for name, value, words in _parts(_split(command)[1])]


def with_arguments(cases: Sequence[Case]) -> list[Case]:
    """Copies of `cases` whose facts include the arguments of their script, if runs of that script differ in them.

    An argument adds two facts: `args.NAME`, which is its value or `given` or `not given`, and `besides args.NAME`,
    which is the command without it. Both are None in runs of other scripts and of our models.
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
                    program, words = _split(case["script"])
                    kept = (words for other, _, words in _parts(words) if other.lstrip("-") != name)
                    without = shlex.join([*program, *(word for words in kept for word in words)])
                    facts_of[case.run_id] |= {fact: found[case.run_id], besides(fact): without}
    if not facts_of:
        return list(cases)
    names = dict.fromkeys(name for facts in facts_of.values() for name in facts)
    return [replace(case, facts={**case.facts, **dict.fromkeys(names), **facts_of[case.run_id]}) for case in cases]


def arguments_in(cases: Sequence[Case]) -> list[str]:
    """Names of the facts that `with_arguments` has added for arguments, such as `args.workers`."""
    return [name for name in (cases[0].facts if cases else ()) if name.startswith(ARGUMENT)]


def _split(command: str) -> tuple[list[str], list[str]]:
    """Split a command into the words that name the script and those of its arguments.

    A command with an open quote, which no shell could split, is one word.
    """
    words = [command]
    with suppress(ValueError):
        words = shlex.split(command)
    program = list(script_words(words))
    return program, words[len(program) :]


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        with suppress(ValueError):
            value: int | float = kind(text)
            return value if math.isfinite(value) else None
    return None


def _parts(words: Sequence[str]) -> Iterator[tuple[str, str | None, Sequence[str]]]:
    """Split words into arguments: for each its name as typed, its value, and its words.

    The name is empty for a word that belongs to no option, and the value is None for a flag.
    """
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
