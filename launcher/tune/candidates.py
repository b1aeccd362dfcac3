"""Changes that are worth a trial for a script on this machine, or the reason why one is not: from one measured run."""

import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.duel.referee import Losses
from launcher.tune.bounds import bound_of
from workload.contract import changes
from workload.contract.changes import Change, Effect, Row
from workload.contract.errors import UsageError
from workload.contract.record import Record
from workload.contract.record_sections import Constructor
from workload.contract.script_words import arguments_of
from workload.contract.spec import TF32_CAPABILITY
from workload.contract.verdict import NATIVE_FLAGS

# Prefix of an argument of the script, as in `--try args.lr=0.1,0.2`.
ARGUMENT = "args."
# Each worker is a process with the data set in memory, so a large machine does not try one for each of its CPUs.
MOST_WORKERS = 16
# With these two, glibc keeps the memory that a step frees: `workload.contract.verdict.FAULTS_CURE`.
KEEPS_MEMORY = ("MALLOC_MMAP_MAX_=0", "MALLOC_TRIM_THRESHOLD_=4294967296")
# Ways to huge pages where the system gives them to programs that ask.
HUGE_PAGES = (("THP_MEM_ALLOC_ENABLE=1",), ("GLIBC_TUNABLES=glibc.malloc.hugetlb=1",))
ALREADY = "the script does it already"
# `zero_grad` with an argument that may be False.
SETS_TO_ZERO = re.compile(r"set_to_none(?!\s*=\s*True)")
COMPILERS = ("c++", "g++", "clang++")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Something to try. `text`: as typed; `changes`: those made from outside.

    `argument`: name and value of an argument of the script, else None. `line`, `callee`: line and name of the
    constructor that changes; the line is None if there is none, or if a library makes it. `why_not`: why it is not
    tried, else empty. `is_asked`: the user named it.
    """

    text: str
    changes: tuple[Change, ...] = ()
    argument: tuple[str, str] | None = None
    line: str | None = None
    callee: str = ""
    why_not: str = ""
    is_asked: bool = False

    @property
    def keys(self) -> frozenset[str]:
        """Settings that it changes: two candidates with a common key exclude each other."""
        return frozenset(change.row.form for change in self.changes) | frozenset(
            [ARGUMENT + self.argument[0]] if self.argument else []
        )

    @property
    def effect(self) -> Effect:
        """Strongest effect on the training of all its changes; the referee judges by it."""
        effects = {change.row.effect for change in self.changes} | ({Effect.TRAINING} if self.argument else set())
        return next((each for each in reversed(Effect) if each in effects), Effect.SAME)

    @property
    def precisions(self) -> frozenset[str]:
        """Precisions below fp32 that its changes introduce."""
        return frozenset(change.row.precision for change in self.changes) - {""}

    def bound(self, run: Record, steps: Sequence[dict[str, str]]) -> float | None:
        """Largest growth of throughput, as `bound_of` has it; None (unknown) for an argument of the script."""
        return None if self.argument else bound_of(self.changes, run, steps)


def joined(candidates: Sequence[Candidate]) -> Candidate:
    """All candidates as one, with what they declare together. It has one argument of the script at most."""
    return Candidate(
        text=changes.SEPARATOR.join(candidate.text for candidate in candidates),
        changes=tuple(change for candidate in candidates for change in candidate.changes),
        argument=next((candidate.argument for candidate in candidates if candidate.argument), None),
    )


def candidate_of(text: str) -> Candidate:
    """The candidate, or several that are joined, of a text."""
    return joined([asked([part])[0] for part in text.split(changes.SEPARATOR)])


def with_candidate(base: Sequence[Candidate], candidate: Candidate) -> tuple[Candidate, ...]:
    """The candidates of `base` and this one, in place of those that set the same."""
    return (*(other for other in base if not other.keys & candidate.keys), candidate)


def change_text(candidates: Sequence[Candidate]) -> str | None:
    """Value of `--change` for these candidates; None without changes from outside."""
    texts = [change.text for candidate in candidates for change in candidate.changes]
    return changes.parse(texts) if texts else None


def words_with(words: Sequence[str], candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """Words of the script with the candidates' arguments in place of its own."""
    # The script's name, or `-m` and the module's, is no argument.
    start = 2 if words[0] == "-m" else 1
    for name, value in (candidate.argument for candidate in candidates if candidate.argument):
        made, is_replaced = list(words[:start]), False
        for option, old, own in arguments_of(words[start:]):
            if _plain(option) == _plain(name) and old is not None:
                made += [f"{option}={value}"] if len(own) == 1 else [option, value]
                is_replaced = True
            else:
                made += own
        words = made if is_replaced else [*made, f"--{name}", value]
    return tuple(words)


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def asked(typed: Sequence[str]) -> list[Candidate]:
    """Candidates from the values of `--try`, each a change as `--change` takes it or `ARGUMENT=VALUE,VALUE`.

    Raises `UsageError` for a text that is neither.
    """
    found: list[Candidate] = []
    for text in typed:
        name, equals, values = text.partition("=")
        is_change = "(" in name or any(name == row.name for row in changes.table())
        if is_change and not name.startswith(ARGUMENT):
            found.append(replace(_from_outside(text), is_asked=True))
            continue
        name = name.removeprefix(ARGUMENT).lstrip("-")
        listed = [value for value in values.split(",") if value]
        if not (name and equals and listed):
            raise UsageError(
                f"--try takes an argument of the script with its values, or a change; got '{text}'",
                hint="--try batch-size=64,128",
            )
        found += [
            Candidate(text=f"{ARGUMENT}{name}={value}", argument=(name, value), is_asked=True) for value in listed
        ]
    return found


def _from_outside(typed: str | Sequence[str]) -> Candidate:
    """Candidate of changes that are made from outside together. Raises `UsageError` for a text that is none."""
    text = changes.parse(typed) or ""
    return Candidate(text=text, changes=changes.changes_of(text))


def candidates_of(
    run: Record, rule: Losses, folder: Path, environment: Mapping[str, str] = os.environ
) -> list[Candidate]:
    """Changes for a script that was measured once in `folder`, those that are not tried with their reasons."""
    found = [candidate for row in changes.table() for candidate in _of_row(row, run, folder)]
    found += _of_memory(run, environment)
    if rule is Losses.SAME:
        found = [
            replace(each, why_not=each.why_not or "it rounds differently, and --losses is same")
            if each.effect is not Effect.SAME
            else each
            for each in found
        ]
    return found


def placed(candidate: Candidate, run: Record) -> Candidate:
    """The candidate with the line and the name of the constructor that it changes, if the training step has one."""
    made = next((found for change in candidate.changes if (found := _made(change.row, run))), None)
    return replace(candidate, line=made.line, callee=made.name or "") if made else candidate


def _made(row: Row, run: Record) -> Constructor | None:
    """DataLoader or optimizer of the training step that a change in this row acts on."""
    seen = (run.spec.script and run.spec.script.constructors) or ()
    of_kind = {"DataLoader": True, "optimizer": False}
    # Only a DataLoader has a number of workers.
    fits = (each for each in seen if each.is_in_step and (each.num_workers is not None) is of_kind.get(row.name))
    return next(fits, None)


def _of_memory(run: Record, environment: Mapping[str, str]) -> Iterator[Candidate]:
    """Variables of memory allocation that the environment does not set; they matter on a CPU, with glibc."""
    host = run.environment.host
    if run.spec.device != "cpu" or platform.libc_ver()[0] != "glibc":
        return
    is_possible = host is not None and host.transparent_hugepages == "madvise"
    for texts in (KEEPS_MEMORY, *(HUGE_PAGES if is_possible else ())):
        candidate = _from_outside(texts)
        if not any(change.row.name in environment for change in candidate.changes):
            yield candidate


def _of_row(row: Row, run: Record, folder: Path) -> Iterator[Candidate]:
    made, why = _made(row, run), ""
    if row.name == "DataLoader":
        values, why = _of_loader(row, made, run) if made else ([], "")
    elif row.name == "optimizer":
        # torch's fused kernels do more than foreach.
        is_done = made and (made.fused or (row.argument == "foreach" and made.foreach))
        values, why = ["True"] if made else [], ALREADY if is_done else ""
        if made and row.argument in (made.lacks or ()):
            why = f"{made.name} has no argument {row.argument}"
    else:
        values = _of_step(row, run, folder)
    for value in values:
        yield placed(replace(_from_outside(row.form.format(value)), why_not=why), run)


def _of_loader(row: Row, loader: Constructor, run: Record) -> tuple[list[str], str]:
    """Values to try for a DataLoader, and the reason if they are not tried."""
    host, workers, prefetched = run.environment.host, loader.num_workers or 0, loader.prefetch_factor or 0
    cpus = min(MOST_WORKERS, int((host and host.cpus_allowed) or 1))
    numbers = [str(number) for number in dict.fromkeys((cpus, max(1, cpus // 2))) if number != workers]
    is_alone = "" if run.spec.device == "cuda" else "no GPU"
    values, why = {
        "num_workers": (numbers, ""),
        "prefetch_factor": ([row.example] if workers and prefetched < int(row.example or 0) else [], ""),
        "persistent_workers": (["True"] if workers else [], ALREADY if loader.persistent_workers else ""),
        "pin_memory": (["True"], ALREADY if loader.pin_memory else is_alone),
    }[row.argument]
    if row.argument == "num_workers" and loader.is_iterable:
        why = "its data set is iterable, and each worker would repeat the data"
    return values, why


def _of_step(row: Row, run: Record, folder: Path) -> list[str]:
    """Values to try of a change that is made to no constructor; none if it has no use here."""
    device, is_cuda = run.environment.device, run.spec.device == "cuda"
    script, work, host = run.spec.script, run.complexity, run.environment.host
    precisions = {*((work and work.flop_by_precision) or ())}
    has_convolution = any("conv" in name for name in (work and work.flop_by_op) or ())
    has_tf32 = is_cuda and tuple(map(int, (device.compute_capability or "0.0").split("."))) >= TF32_CAPABILITY
    has_bf16 = has_tf32 or bool({*((host and host.cpu_flags) or ())} & NATIVE_FLAGS["bf16"])
    sources = (folder / name for name in (script and script.files) or ())
    settings = (script and script.settings) or {}
    possible = {
        "zero_grad(set_to_none={})": any(SETS_TO_ZERO.search(_text(path)) for path in sources),
        "channels_last": has_convolution,
        "autocast(bfloat16)": has_bf16 and bool(precisions) and precisions <= {"fp32", "tf32"},
        "torch.compile": not run.spec.compile and any(map(shutil.which, COMPILERS)),
        "torch.backends.cudnn.benchmark={}": is_cuda and has_convolution and settings.get(row.form) == "False",
        "torch.set_float32_matmul_precision({})": (
            has_tf32 and "fp32" in precisions and settings.get(row.form) == "highest"
        ),
        "torch.set_flush_denormal({})": not is_cuda,
    }
    if row.form == "torch.set_num_threads({})":
        return [] if is_cuda else _threads(run)
    return [(row.values or [""])[0]] if possible.get(row.form) else []


def _threads(run: Record) -> list[str]:
    """Numbers of threads to try: that of the CPUs, that of the cores, and one less than the CPUs or than now."""
    host, now = run.environment.host, int(run.environment.device.threads or 0)
    cpus, cores = ((host and host.cpus_allowed) or now), ((host and host.physical_cores) or now)
    values = dict.fromkeys(int(value) for value in (cpus, min(cores, cpus), min(now, cpus) - 1))
    return [str(value) for value in values if value not in (0, now)]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
