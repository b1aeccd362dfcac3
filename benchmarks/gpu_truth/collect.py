"""Collects part after part, each into its own file, until all are done or the time of this call is over.

A file is written when its part is done. If the collector is ended, only the running part is lost, and the same command
continues with the remaining parts.
"""

import io
import json
import os
import shlex
import shutil
import tarfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.gpu_truth.bench import Bench, OutOfTimeError, PartFailedError
from benchmarks.gpu_truth.evidence import FORMAT, SCHEMA
from benchmarks.gpu_truth.parts import PART_LIMIT_S, PARTS, EvidencePart, PartNeed
from workload import __version__
from workload.contract.errors import ExitCode, InterruptedRunError, ToolError, UsageError
from workload.contract.operating_system import replace_text
from workload.environment.machine import installed_ncus
from workload.log import LOGGER
from workload.profile.command import ProfileError

ARCHIVE = "gpu-truth.tar.gz"
PARTS_FOLDER, SCRATCH = "parts", "scratch.tmp"
# With these limits the archive stays below 16 MiB even if nothing can be compressed.
MEMBER_LIMIT_BYTES, ARCHIVE_LIMIT_BYTES = 2 << 20, 15 << 20


class CollectState(StrEnum):
    """End of a part. A part that was `skipped` is tried again by the next call, which may find its requirements."""

    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


def collect(
    folder: Path, bench: Bench, *, only: Sequence[str] = (), again: bool = False, parts: Sequence[EvidencePart] = PARTS
) -> int:
    """Collect the remaining parts, or the parts `only`, into `folder`; return the exit code.

    `bench`: machine and time limit; `again`: also collect parts that are done.
    """
    wanted = [part for part in parts if not only or part.name in only]
    _check_names(only, parts)
    _make(folder)
    _require_same_gpu(folder, bench)
    began_s = bench.now_s()
    is_first = True
    for part in wanted:
        if not again and _is_settled(folder, part.name):
            continue
        if not is_first and not _lacking(part, bench) and bench.now_s() + part.about_s > bench.end_s:
            continue
        document = _attempt(part, bench, is_first=is_first)
        if document is None:
            break
        _write(folder / PARTS_FOLDER / f"{part.name}.json", document)
        # A skipped part took no time.
        is_first = is_first and document["status"] == CollectState.SKIPPED
    return _close(folder, parts, bench.now_s() - began_s)


def _check_names(only: Sequence[str], parts: Sequence[EvidencePart]) -> None:
    names = [part.name for part in parts]
    for name in only:
        if name not in names:
            raise UsageError(f"there is no part '{name}'", hint=f"--part takes {', '.join(names)}")


def _make(folder: Path) -> None:
    try:
        (folder / PARTS_FOLDER).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"'{folder}' cannot be written: {error.strerror}", hint="another folder: -o DIR") from error


def _require_same_gpu(folder: Path, bench: Bench) -> None:
    """Raise `UsageError` if the folder has parts of another GPU: mixed evidence would prove nothing."""
    before = (read_part(folder, "machine") or {}).get("evidence", {}).get("gpu")
    if before and bench.gpu and before.get("name") != bench.gpu["name"]:
        raise UsageError(
            f"'{folder}' has results of {before.get('name')}, but this GPU is {bench.gpu['name']}",
            hint="use another folder for this GPU: -o DIR",
        )


def _is_settled(folder: Path, name: str) -> bool:
    return (read_part(folder, name) or {}).get("status") in (CollectState.DONE, CollectState.FAILED)


def read_part(folder: Path, name: str) -> dict[str, Any] | None:
    """Content of a collected part; None if it is missing or damaged, and must be collected again."""
    try:
        document = json.loads((folder / PARTS_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) and document.get("format") == FORMAT else None


def _attempt(part: EvidencePart, bench: Bench, *, is_first: bool) -> dict[str, Any] | None:
    """Collect a part and return its document; None if the time of this call ended before the part's own."""
    began, began_s = datetime.now(UTC).isoformat(timespec="seconds"), bench.now_s()
    state, reason, trace, evidence = CollectState.DONE, None, None, dict[str, Any]()
    if lacking := _lacking(part, bench):
        state, reason = CollectState.SKIPPED, lacking
    else:
        LOGGER.info("%-12s %s: about %d s", part.name, part.what, part.about_s)
        end_s = min(bench.end_s, began_s + PART_LIMIT_S)
        own = replace(bench, scratch=bench.scratch / part.name, end_s=end_s)
        own.scratch.mkdir(parents=True, exist_ok=True)
        try:
            evidence = part.collect(own)
        except OutOfTimeError:
            if end_s == bench.end_s and not is_first:
                LOGGER.info("%-12s not finished: the time limit of this call was reached", part.name)
                return None
            state, reason = CollectState.FAILED, f"it did not end within {bench.now_s() - began_s:.0f} s"
        except InterruptedRunError:
            raise
        except (PartFailedError, ProfileError, ToolError, OSError) as error:
            state, reason, trace = CollectState.FAILED, str(error), getattr(error, "output", None) or None
        except Exception as error:  # noqa: BLE001 - a rented GPU goes on with the other parts; the trace is kept
            state, reason, trace = CollectState.FAILED, f"{type(error).__name__}: {error}", traceback.format_exc()
        finally:
            shutil.rmtree(bench.scratch, ignore_errors=True)
        if reason:
            LOGGER.warning("%-12s failed: %s", part.name, reason)
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "rooflaunch": __version__,
        "part": part.name,
        "status": state,
        "reason": reason,
        "trace": trace,
        "began": began,
        "elapsed_s": round(bench.now_s() - began_s, 3),
        "evidence": evidence,
    }


def _lacking(part: EvidencePart, bench: Bench) -> str | None:
    """Reason why this machine cannot answer; None if it can."""
    if PartNeed.GPU in part.needs and bench.gpu is None:
        return f"it needs an NVIDIA GPU: {bench.facts.get('obstacle')}"
    if PartNeed.NCU in part.needs and not bench.ncus:
        return "it needs Nsight Compute, and no ncu was found"
    return None


def _write(path: Path, document: Mapping[str, Any]) -> None:
    replace_text(path, json.dumps(document, indent=1), durable=False)


def _close(folder: Path, parts: Sequence[EvidencePart], elapsed_s: float) -> int:
    """Pack the collected parts, and print the remaining ones and the next step."""
    shutil.rmtree(folder / SCRATCH, ignore_errors=True)
    print(pack(folder))
    documents = {part.name: read_part(folder, part.name) or {} for part in parts}
    by_state = {
        state: [name for name, each in documents.items() if each.get("status") == state] for state in CollectState
    }
    skipped: dict[str, list[str]] = {}
    for name in by_state[CollectState.SKIPPED]:
        skipped.setdefault(documents[name]["reason"], []).append(name)
    for reason, names in skipped.items():
        LOGGER.info("skipped      %s: %s", ", ".join(names), reason)
    numbers = ", ".join(f"{len(names)} {state}" for state, names in by_state.items())
    left = [name for name, document in documents.items() if not document]
    LOGGER.info("parts        %s, %d left, in %.0f s", numbers, len(left), elapsed_s)
    if left:
        LOGGER.info("left         %s; the same command continues with them", ", ".join(left))
    else:
        LOGGER.info("all parts are complete; next: analyze gpu-truth %s", shlex.quote(str(folder)))
    return ExitCode.DONE if by_state[CollectState.DONE] else ExitCode.NOTHING_TO_DO


def pack(folder: Path) -> Path:
    """Pack all parts into one archive below 16 MiB; a part that is too large is only named in it."""
    archive, total, too_large = folder / ARCHIVE, 0, []
    temporary = archive.with_suffix(".tmp")
    with tarfile.open(temporary, "w:gz") as packed:
        for path in sorted((folder / PARTS_FOLDER).glob("*.json")):
            size = path.stat().st_size
            if size > MEMBER_LIMIT_BYTES or total + size > ARCHIVE_LIMIT_BYTES:
                too_large.append(path.name)
                continue
            total += size
            packed.add(path, arcname=f"{PARTS_FOLDER}/{path.name}", filter=_anonymous)
        if too_large:
            text = json.dumps({"too large": too_large}).encode()
            member = tarfile.TarInfo("left-out.json")
            member.size = len(text)
            packed.addfile(member, io.BytesIO(text))
    temporary.replace(archive)
    return archive


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Remove the user's name from an archive member."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def run(folder: Path, *, max_seconds: float, only: Sequence[str], again: bool, quick: bool) -> int:
    """Command `gpu-truth`: collect with this machine, its GPU as torch sees it, its ncu, and the time from now on."""
    if not max_seconds > 0:  # a NaN too
        raise UsageError(f"--max-seconds must be positive; got '{max_seconds:g}'", hint="--max-seconds 540")
    _check_names(only, PARTS)
    _make(folder)
    end_s = time.monotonic() + max_seconds
    bench = Bench(scratch=folder / SCRATCH, ncus=tuple(installed_ncus(os.environ)), end_s=end_s, quick=quick)
    return collect(folder, looked_at(bench), only=only, again=again)


def looked_at(bench: Bench) -> Bench:
    """Bench with torch's facts of the GPU."""
    bench.scratch.mkdir(parents=True, exist_ok=True)
    try:
        facts = bench.probe("device", limit_s=120)
    except OutOfTimeError as error:
        raise UsageError("--max-seconds ended before torch was loaded", hint="--max-seconds 540") from error
    except PartFailedError as error:
        raise ToolError(f"torch does not answer: {error}", hint="pip install 'rooflaunch[trainer]'") from error
    return replace(bench, facts=facts)
