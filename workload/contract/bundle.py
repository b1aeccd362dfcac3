"""The bundle: the folder that a run leaves. Standard library only: the launcher and the analysis import it.

Schema history
3  run.json, steps.csv, allocations.csv, telemetry.csv, log.txt, ncu/, torch/, MANIFEST.json (2026-11). The first that
   is promised: bundles of earlier schemas are not read.

A bundle is complete if MANIFEST.json exists and every file listed there matches. The manifest is written last,
atomically. `python -m workload.bundle DIR...` verifies bundles.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from workload.contract import ranks, record
from workload.contract.errors import BundleError, RunFailedError, UsageError
from workload.contract.fields import encode
from workload.contract.operating_system import crc32c, crc32c_text, replace_text, require_possible
from workload.contract.record import SCHEMA_VERSION, JobPlace, Record, Status

MANIFEST = "MANIFEST.json"
RECORD = "run.json"
STEPS = "steps.csv"
TELEMETRY = "telemetry.csv"
LOG = "log.txt"
# Key of a run's labels in the manifest and in the metadata of the manifest's object in a store. Lists of runs read the
# labels instead of each run.json.
LABELS = "labels"
# Subfolder of results for damaged bundles whose runs were repeated. Hidden folders are not read as results.
DAMAGED = ".damaged"
# Files up to this size are read at once: for them, the buffer of `hashlib.file_digest` takes longer than the hash.
SHORT_BYTES = 1 << 20

STEP_COLUMNS = (
    "step", "phase", "ended_at_s", "step_s", "data_s", "forward_s", "backward_s", "optimizer_s", "images", "loss",
)  # fmt: skip
TELEMETRY_COLUMNS = (
    "t_s", "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w", "clock_event_reasons",
    "gpu_utilization_percent", "gpu_memory_used_bytes", "cpu_percent", "cpu_steal_percent", "cpu_mhz", "rss_bytes",
    "cgroup_throttled_s", "cpu_pressure_percent", "memory_available_bytes",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class File:
    """A file in the manifest. `crc32c` is base64 of the big-endian checksum, as Cloud Storage reports it."""

    name: str
    bytes: int
    sha256: str
    crc32c: str


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A complete bundle: its folder, the content of run.json as it was written, and the manifest.

    `contents`: files that were kept as they were verified, see `read`.
    """

    path: Path
    document: Mapping[str, Any]
    files: tuple[File, ...]
    contents: Mapping[str, bytes]

    @cached_property
    def record(self) -> Record:
        """Content of run.json. Raises `BundleError` if it does not describe a run."""
        return _record_of(self.path, self.document)

    def steps(self) -> list[dict[str, str]]:
        """Rows of steps.csv as text, warm-up first."""
        return read_steps(self.path)


def make_run_id(*, now: datetime, place: str, model: str, batch_size: int, precision: str) -> str:
    """New run_id, safe as folder and object name: `20261121T142530Z-<place>-<model>-b<batch>-<precision>-<6 hex>`."""
    stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    where = re.sub(r"[^a-z0-9.]+", "-", place.lower()).strip("-.") or "unnamed"
    return f"{stamp}-{where}-{model}-b{batch_size}-{precision}-{secrets.token_hex(3)}"


def create(output: Path, run_id: str) -> Path:
    """Create the folder of a new bundle. Raises `UsageError` if `output` cannot be written."""
    folder = output / run_id
    make_output(folder, shown=output, exist_ok=False)
    return folder


def make_output(folder: Path, *, shown: Path | None = None, exist_ok: bool = True) -> None:
    """Create a folder for bundles. Raises `UsageError` on failure. `shown`: folder to name in the message."""
    require_possible(folder)
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except OSError as error:
        raise UsageError(
            f"output folder '{shown or folder}' cannot be written: {error.strerror or error}",
            hint="-o FOLDER, with a folder that you may write; in a container: docker run --user $(id -u):$(id -g)",
        ) from error


def write_record(folder: Path, run: Record) -> None:
    """Write run.json atomically."""
    write_document(folder, record.to_json(run))


def write_document(folder: Path, document: Mapping[str, Any]) -> None:
    """Write `document` as run.json atomically. Nothing is checked, so that tests can write invalid content."""
    _write_json(folder / RECORD, {"schema_version": SCHEMA_VERSION, **document})


def seal(folder: Path) -> None:
    """Write MANIFEST.json, which lists every file in the folder: from here on the bundle is complete."""
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    rows = [_describe(folder, name) for name in names if name.name != MANIFEST]
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "run_id": folder.name,
        LABELS: _labels(folder),
        "files": [asdict(row) for row in rows],
    }
    _write_json(folder / MANIFEST, manifest)


def _labels(folder: Path) -> dict[str, str]:
    """Labels from run.json in this folder; empty if run.json cannot be read, an error that readers report."""
    try:
        return record.labels_of(_read_document(folder))
    except BundleError:
        return {}


def reseal(folder: Path, run: Record) -> None:
    """Replace run.json of a complete bundle and seal all files again. In between, the bundle is incomplete."""
    _reseal(folder, record.to_json(run))


def _reseal(folder: Path, document: Mapping[str, Any]) -> None:
    (folder / MANIFEST).unlink(missing_ok=True)
    write_document(folder, document)
    seal(folder)


def rename(folder: Path) -> Path:
    """Give a complete bundle a run_id that differs in the last six digits; return its new folder."""
    document = read(folder).document
    renamed = folder.with_name(f"{re.sub('-[0-9a-f]{6}$', '', folder.name)}-{secrets.token_hex(3)}")
    (folder / MANIFEST).unlink()
    folder.rename(renamed)
    _reseal(renamed, {**document, "run_id": renamed.name})
    return renamed


def place_in_job(folder: Path, place: JobPlace) -> None:
    """Add the run's place in a job to the run.json of a complete bundle, and change nothing else there.

    Needed for trainers of other commits and images, which do not accept the place as an option.
    """
    _reseal(folder, {**read(folder).document, "job": encode(place)})


def seal_unfinished(folder: Path, status: Status, error: str, hint: str = "") -> None:
    """Seal the bundle of a killed trainer with the steps that were flushed; leave a complete bundle unchanged.

    Raises `BundleError` if the trainer was killed before it wrote run.json.
    """
    if (folder / MANIFEST).is_file():
        return
    run = read_record(folder, missing=_why_no_manifest(folder))
    for unfinished in folder.glob("*.tmp"):
        if unfinished.is_file():
            unfinished.unlink()
    known = run.ranks or ranks.summary(folder, device=run.spec.device, measured_s=run.timing.measured_s)
    write_record(folder, replace(run, status=status, error=error, hint=hint or None, ranks=known))
    seal(folder)


def is_write_failure(error: OSError) -> bool:
    """Whether `error` means that no more data can be written: the disk is full, gone, read-only or broken."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG, errno.ENOENT)


@contextmanager
def guarded_writes(folder: Path) -> Iterator[None]:
    """Convert an `OSError` of a full disk or a vanished folder to `RunFailedError`: the bundle is incomplete."""
    try:
        yield
    except OSError as error:
        if not is_write_failure(error):
            raise
        raise RunFailedError(
            f"{error.strerror} while writing '{folder}': the bundle is incomplete",
            hint="free some space, or use -o FOLDER on another disk, and run again",
        ) from error


def read(folder: Path, *, keep: Collection[str] = ()) -> Bundle:
    """Read a complete bundle, and compare each file, and the labels, with the manifest.

    `keep`: names of files whose content is kept, if the manifest lists them.
    Raises `BundleError` if the folder is no bundle, or if the bundle is incomplete, damaged or of another schema.
    """
    manifest = _read_json(folder / MANIFEST, missing=_why_no_manifest(folder))
    _require_known_schema(folder, manifest)
    try:
        files = tuple(_file_of_row(row) for row in manifest["files"])
    except (KeyError, TypeError) as error:
        raise _damaged(folder, f"{MANIFEST} does not list its files") from error
    contents = {}
    for row in files:
        content = _verified_file(folder, row, is_kept=row.name in {RECORD, *keep})
        if content is not None:
            contents[row.name] = content
    if RECORD not in contents:
        raise _damaged(folder, f"{MANIFEST} lists no {RECORD}")
    document = _parsed(folder / RECORD, contents[RECORD])
    _require_known_schema(folder, document)
    if why := record.why_other_labels(manifest.get(LABELS), document):
        raise _damaged(folder, why)
    return Bundle(path=folder, document=document, files=files, contents=contents)


def set_aside(folder: Path) -> Path:
    """Move a damaged bundle to `DAMAGED`, where no command lists or reads it; return its new folder."""
    place = folder.parent / DAMAGED / folder.name
    try:
        place.parent.mkdir(exist_ok=True)
        if place.exists():
            place = place.with_name(f"{place.name}-{secrets.token_hex(3)}")
        folder.rename(place)
    except OSError as error:
        raise UsageError(
            f"the damaged bundle '{folder}' cannot be moved to '{place}': {error.strerror}", hint="-o ANOTHER_FOLDER"
        ) from error
    return place


def read_record(folder: Path, *, missing: str = "no run.json") -> Record:
    """Content of run.json, without verifying the bundle. Raises `BundleError` if it cannot be read.

    `missing`: words in the message for a folder without run.json.
    """
    return _record_of(folder, _read_document(folder, missing=missing))


def _record_of(folder: Path, document: Mapping[str, Any]) -> Record:
    try:
        return record.read(document).record
    except BundleError as error:
        raise BundleError(f"'{folder}' cannot be used: {error}", hint=error.hint) from error


def _read_document(folder: Path, *, missing: str = "no run.json") -> dict[str, Any]:
    document = _read_json(folder / RECORD, missing=missing)
    _require_known_schema(folder, document)
    return document


def read_steps(folder: Path) -> list[dict[str, str]]:
    """Complete rows of steps.csv, also of a killed run: a half-written last row is left out."""
    return ranks.complete_rows(folder / STEPS)


def _describe(folder: Path, name: PurePosixPath | Path) -> File:
    digest, crc, size = hashlib.sha256(), 0, 0
    with (folder / name).open("rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
            crc = crc32c(block, crc)
            size += len(block)
    return File(name=name.as_posix(), bytes=size, sha256=digest.hexdigest(), crc32c=crc32c_text(crc))


def _file_of_row(row: Mapping[str, Any]) -> File:
    file = File(**row)
    if not isinstance(file.bytes, int) or not all(isinstance(text, str) for text in (file.name, file.sha256)):
        raise TypeError(row)
    return file


def _verified_file(folder: Path, expected: File, *, is_kept: bool) -> bytes | None:
    """Compare a file with its row in the manifest; return its content if it is kept or short, which is fastest."""
    name = expected.name
    if name.startswith("/") or ".." in name.split("/") or "\\" in name:
        raise _damaged(folder, f"{MANIFEST} names '{name}', which is outside the bundle")
    path = f"{folder}/{name}"
    size = _size(path)
    if size is None:
        raise _damaged(folder, f"{name} is missing")
    if size != expected.bytes:
        raise _damaged(folder, f"{name} has {size} bytes, the manifest says {expected.bytes}")
    with open(path, "rb") as file:  # noqa: PTH123 - 10,000 bundles: a Path costs more than the call
        content = file.read() if is_kept or size <= SHORT_BYTES else None
        digest = hashlib.file_digest(file, "sha256") if content is None else hashlib.sha256(content)
    if digest.hexdigest() != expected.sha256:
        raise _damaged(folder, f"{name} was changed after the run: its sha256 differs")
    return content if is_kept else None


def _size(path: str) -> int | None:
    with suppress(OSError, ValueError):
        status = os.stat(path)  # noqa: PTH116 - as above
        return status.st_size if stat.S_ISREG(status.st_mode) else None
    # Raises the errors that do not mean that the file is missing.
    return Path(path).stat().st_size if Path(path).is_file() else None


def _require_known_schema(folder: Path, document: Mapping[str, Any]) -> None:
    version = document.get("schema_version")
    if type(version) is not int or version < 1:
        raise BundleError(
            f"'{folder}' is not a rooflaunch bundle: schema_version is {version!r}", hint="name a run's folder"
        )
    if version != SCHEMA_VERSION:
        raise other_schema(f"'{folder}'", version)


def other_schema(name: str, version: int) -> BundleError:
    """Error for the document `name` of a schema that is not `SCHEMA_VERSION`."""
    return BundleError(
        f"{name} has bundle schema {version}; this version reads schema {SCHEMA_VERSION}",
        hint="use the version of rooflaunch that wrote the bundle, or run again",
    )


def _why_no_manifest(folder: Path) -> str:
    if (folder / RECORD).is_file():
        return f"incomplete: no {MANIFEST}, because the run did not end by itself; its steps so far are in {STEPS}"
    return f"not a rooflaunch bundle: it has neither {MANIFEST} nor {RECORD}"


def _read_json(path: Path, *, missing: str) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BundleError(f"'{path.parent}' is {missing}", hint="name a run's folder, or run again") from error
    except (OSError, ValueError) as error:
        raise _damaged(path.parent, f"{path.name} is not readable JSON: {error}") from error
    return _parsed(path, content)


def _parsed(path: Path, content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n"))
    except (ValueError, RecursionError) as error:
        raise _damaged(path.parent, f"{path.name} is not readable JSON: {error}") from error
    if not isinstance(document, dict):
        raise _damaged(path.parent, f"{path.name} is not a JSON object")
    return document


def _damaged(folder: Path, why: str) -> BundleError:
    return BundleError(f"'{folder}' is damaged: {why}", hint=record.RUN_AGAIN)


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    replace_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
