"""Writes docs/errors.md, every error by its message, from the source of the packages: `python -m docs.errors`."""

import ast
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from docs.source_texts import BARE, MOST_TEXTS, Chosen, Module, Scope, Source, Value, arguments, last
from workload.contract.errors import ExitCode

TARGET = Path(__file__).with_name("errors.md")
BASE = "RooflaunchError"
MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.BUG: "a bug in rooflaunch, with its traceback",
    ExitCode.USAGE: "a bad option, configuration or input file",
    ExitCode.NOTHING_TO_DO: "nothing to do: the request selects nothing, or all of it is done",
    ExitCode.TOOL: "a tool, library or service is missing, refuses or failed",
    ExitCode.NO_CAPACITY: "no capacity or quota in any zone, or a machine that is busy with another run of yours",
    ExitCode.RUN_FAILED: "the run failed before its end",
    ExitCode.OUT_OF_MEMORY: "out of device memory, which is recorded as a result",
    ExitCode.BAD_BUNDLE: "a damaged or incomplete bundle, or no bundle",
    ExitCode.NOT_POOLABLE: "runs that cannot be pooled",
    ExitCode.FINDINGS: "`analyze audit --strict` found errors or warnings",
    ExitCode.SLOWER: "`launch duel`: B is slower than A by `--same-within` or more (a smaller difference is 0)",
    ExitCode.FASTER: "`launch duel`: B is faster than A by `--same-within` or more",
    ExitCode.NOT_DECIDABLE: "`launch duel`: not decidable within its limits",
    ExitCode.INTERRUPTED: "interrupted, by Ctrl-C or by a program",
}
# Titles of the groups by the beginning of a module's path; the first that fits counts.
GROUPS = {
    "launcher/backends/gcp": "launch gcp",
    "launcher/backends/aws": "launch aws",
    "launcher/backends/batch": "launch batch",
    "launcher/backends/ssh": "launch ssh",
    "launcher/backends/slurm": "launch slurm",
    "launcher/backends": "Rented machines (launch gcp, aws and batch)",
    "launcher/sweep": "launch sweep",
    "launcher/duel": "launch duel",
    "launcher/images": "launch build",
    "launcher/jobs": "launch status, logs, down and reap",
    "launcher/agent": "On a rented machine",
    "launcher/protocol": "On a rented machine",
    "launcher/script": "Your own script",
    "launcher": "launch local and containers",
    "workload/run": "The run",
    "workload/steps": "The run",
    "workload/measure": "The run",
    "workload/model": "The run",
    "workload/environment": "The device",
    "workload/profile": "The profile",
    "workload/storage": "Buckets and folders of results",
    "workload/contract": "Options and bundles",
    "workload": "Options and bundles",
    "rooflaunch": "Options and bundles",
    "analysis/importing": "analyze import",
    "analysis/readers": "analyze import",
    "analysis": "analyze",
}
NEXT = "[what the words mean](glossary.md)."
INTRODUCTION = """\
# Every error by its message

An error is two lines on stderr: `error:` with the message, and `hint:` with the next step. Search this page for words
of the message; `<…>` stands for what differs each time. What another program or service answers is shown in its own
words, and is not listed. Written from the code by `python -m docs.errors`.

## Exit codes

| code | cause |
|---|---|
"""

# A class and its bases up to the first of all.
Lineage = list[tuple[Module, ast.ClassDef]]


@dataclass(frozen=True, kw_only=True, order=True)
class Entry:
    """An error as the page shows it. `at`: path and line of its constructor."""

    group: str
    code: int
    message: str
    cure: str
    at: str = field(compare=False)


class Errors:
    """The errors that the packages make."""

    def __init__(self) -> None:
        self.source = Source()

    def class_of(self, name: str, module: Module) -> tuple[Module, ast.ClassDef] | None:
        """The class that a name means in a module."""
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return module, node
        imported = self.source.origin(name, module)
        return self.class_of(name, imported) if imported else None

    def lineage(self, name: str, module: Module) -> Lineage:
        """The lineage of a class of errors; empty for a class that is no error."""
        found = self.class_of(name, module)
        if found is None or name == BASE:
            return [found] if found else []
        above = next(filter(None, (self.lineage(last(base), found[0]) for base in found[1].bases)), [])
        return [found, *above] if above else []

    def sites(self) -> Iterator[tuple[Value, Lineage]]:
        """Every call that makes an error, with the lineage of its class."""
        for module in self.source.modules.values():
            for name, calls in module.calls.items():
                for call in calls:
                    site = Value(call, Scope(module, module.owners.get(call)))
                    yield from ((site, lineage) for lineage in self._lineages(name, call, site.scope))

    def _lineages(self, name: str, call: ast.Call, scope: Scope) -> Iterator[Lineage]:
        """Lineage of the called class; of each class that it may be, if a variable or a table has the class."""
        if lineage := self.lineage(name, scope.module):
            yield lineage
        elif scope.function and any(keyword.arg == "hint" for keyword in call.keywords):
            for node in scope.variables.get(name, [call.func] if isinstance(call.func, ast.Call) else []):
                yield from filter(None, (self.lineage(last(part), scope.module) for part in ast.walk(node)))

    def entries(self) -> Iterator[Entry]:
        """Every error, in no order; places in the code that make the same one give it several times."""
        for site, lineage in self.sites():
            module, line = site.scope.module.name, site.node.lineno
            group = next(title for path, title in GROUPS.items() if module.startswith(path))
            for message, cure in self.messages(site, lineage):
                yield Entry(group=group, code=_code_of(lineage), message=message, cure=cure, at=f"{module}:{line}")

    def messages(self, site: Value, lineage: Lineage) -> Iterator[tuple[str, str]]:
        """Messages and hints of a call that makes an error; a constructor of the class's own is followed."""
        call, scope = site.node, site.scope
        assert isinstance(call, ast.Call)
        for module, definition in lineage[:-1]:
            for own in definition.body:
                if isinstance(own, ast.FunctionDef) and own.name == "__init__":
                    scope = Scope(module, own, arguments(own, call, scope))
                    calls = (node for node in ast.walk(own) if isinstance(node, ast.Call))
                    call = next(node for node in calls if last(node.func) == "__init__")
        [hint] = [keyword.value for keyword in call.keywords if keyword.arg == "hint"]
        block = site.scope.module.blocks.get(site.node)
        known: Chosen = {(site.scope.function, "block"): block} if block else {}
        texts = self.source.texts(call.args[0], scope, known, whole=True)
        for text, chosen in itertools.islice(texts, MOST_TEXTS):
            for cure, _ in itertools.islice(self.source.texts(hint, scope, chosen, whole=True), MOST_TEXTS):
                yield " ".join(text.split()), " ".join(cure.split())


def _code_of(lineage: Lineage) -> ExitCode:
    """Exit code of the first class that has one."""
    for _, definition in lineage[:-1]:
        for node in definition.body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", node)
            if last(target) == "exit_code":
                return ExitCode[last(node.value)]  # type: ignore[attr-defined] # an assignment
    return ExitCode.BUG


def _cell(text: str) -> str:
    """Code for a cell of a table, whatever the text contains."""
    escaped = text.replace("|", "\\|")
    return f"`` {escaped} ``" if "`" in text else f"`{escaped}`"


def _row(message: str, cures: set[str]) -> str:
    """Row of a message; a cure that is only a placeholder depends on the case, and is left to the hint itself."""
    known = sorted(cure for cure in cures if not BARE.fullmatch(cure))
    return f"| {_cell(message)} | {'<br>or '.join(map(_cell, known)) or 'as its hint says'} |"


def has_words(entry: Entry) -> bool:
    """Whether a message has words of its own, by which it can be found."""
    return bool(re.sub(r"<[^<>]*>|\W", "", entry.message))


def page(entries: Iterable[Entry]) -> str:
    """Text of docs/errors.md."""
    groups: dict[str, dict[int, dict[str, set[str]]]] = {title: {} for title in GROUPS.values()}
    for entry in filter(has_words, entries):
        groups[entry.group].setdefault(entry.code, {}).setdefault(entry.message, set()).add(entry.cure)
    parts = [INTRODUCTION, *(f"| {code.value} | {meaning} |\n" for code, meaning in MEANINGS.items())]
    for title, by_code in groups.items():
        parts.append(f"\n## {title}\n")
        for code, messages in sorted(by_code.items()):
            parts.append(f"\n### {title}: exit code {code}\n\nCause: {MEANINGS[ExitCode(code)]}.\n")
            parts.append("\n| message | cure |\n|---|---|\n")
            rows = sorted(messages.items(), key=lambda item: (_key(item[0]), item[0]))
            parts += (f"{_row(message, cures)}\n" for message, cures in rows)
    return "".join([*parts, f"\nNext: {NEXT}\n"])


def _key(message: str) -> str:
    """What a message is sorted by: its first words that are always the same."""
    return re.sub(r"<[^<>]*>|[^a-z -]", "", message.lower()).strip()


if __name__ == "__main__":
    TARGET.write_text(page(Errors().entries()), encoding="utf-8")
