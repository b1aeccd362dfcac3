"""Write bundles of imported files: the facts known of a run, and their conversion to a sealed folder."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from workload.contract import bundle, peaks
from workload.contract.errors import UsageError
from workload.contract.record import Record, ScriptFacts, Spec, Status, Timing
from workload.contract.record_sections import (
    DeviceFacts,
    Environment,
    GivenByUser,
    Imported,
    ProfileResult,
    SoftwareFacts,
)
from workload.contract.spec import Precision

# Larger numbers are a mistake: the largest batch sizes ever published have five digits.
MAX_NUMBER = 10**7
MAX_NAME = 200


@dataclass(frozen=True, kw_only=True)
class UserFacts:
    """Facts given by the user; they take precedence over the facts in the file."""

    model: str | None = None
    batch_size: int | None = None
    precision: str | None = None
    gpu: str | None = None
    profile_steps: int | None = None
    driver: str | None = None
    torch: str | None = None
    dataset: str | None = None
    image_size: int | None = None
    device: int | None = None

    def checked(self) -> "UserFacts":
        """Return this object; `UsageError` if the value of a field is impossible."""
        if self.model is not None and not (self.model.strip() and len(self.model) <= MAX_NAME):
            raise UsageError(f"--model must be a name; got '{self.model[:80]}'", hint="--model NAME")
        for name in ("batch_size", "profile_steps", "image_size"):
            number, flag = getattr(self, name), "--" + name.replace("_", "-")
            if number is not None and not 1 <= number <= MAX_NUMBER:
                raise UsageError(f"{flag} must be a positive integer; got '{number}'", hint=f"{flag} 4")
        if self.device is not None and self.device < 0:
            raise UsageError(f"--gpu-index must be the number of a GPU; got '{self.device}'", hint="--gpu-index 0")
        if self.precision is not None:
            parsed_precision(self.precision, "--precision")
        return self


@dataclass(frozen=True, kw_only=True)
class ImportedFacts:
    """Facts about an imported run, from the file and from the user; None if unknown.

    `unit`: what batch size and throughput count, if not images; `devices`: number on each of the `machines`.
    """

    model: str
    batch_size: int
    precision: str | None
    device_name: str | None
    device_type: str | None
    place: str | None
    image_size: int | None = None
    torch: str | None = None
    unit: str | None = None
    machines: int | None = None
    devices: int | None = None


@dataclass(frozen=True, kw_only=True)
class File:
    """The file to import."""

    path: Path
    content: bytes
    sha256: str

    def described(self, kind: str, user: UserFacts) -> Imported:
        """Section `imported` of run.json, as far as known from the file, its `kind` and the user's facts."""
        return Imported(
            file=self.path.name,
            bytes=len(self.content),
            sha256=self.sha256,
            kind=kind,
            given=GivenByUser(**asdict(user)),
            imported_at=datetime.now(UTC).isoformat(),
        )


def require_model_and_batch(path: Path, model: str | None, batch_size: int | None) -> tuple[str, int]:
    """Model and batch size; if either is missing, `UsageError` names the option that gives the missing value."""
    if model is not None and batch_size is not None:
        return model, batch_size
    missing = {"the model": "--model resnet50"} if model is None else {}
    missing |= {"the batch size": "--batch-size 32"} if batch_size is None else {}
    raise UsageError(
        f"'{path}' does not say {' or '.join(missing)}",
        hint=f"analyze import {shlex.quote(str(path))} {' '.join(missing.values())}",
    )


def notes_on_peaks(device_name: str | None) -> list[str]:
    """A note if the file names a device whose peak rates are unknown; else an empty list."""
    if device_name is None or any(device_name in gpu.names for gpu in peaks.gpus()):
        return []
    return [f"the file names the device '{device_name}', whose peaks are not known: it has no roof"]


def parsed_precision(label: str, subject: str) -> str:
    if label.lower() not in set(Precision):
        raise UsageError(
            f"{subject} must be one of {', '.join(Precision)}; got '{label[:80]}'",
            hint="use --precision amp if it was fp16 with loss scaling",
        )
    return label.lower()


def new_record(
    facts: ImportedFacts, user: UserFacts, imported: Imported, *, started_at: datetime | None, measured: int | None
) -> Record:
    """The content of run.json without figures; `measured`: number of measured steps.

    The run id contains the time `started_at`, or the present time if unknown.
    """
    spec = Spec(
        model=facts.model,
        device=facts.device_type,
        batch_size=facts.batch_size,
        precision=facts.precision,
        iterations=measured,
        devices=facts.devices,
        machines=facts.machines,
        dataset=user.dataset,
        image_size=user.image_size or facts.image_size,
        script=ScriptFacts(unit=facts.unit) if facts.unit else None,
    )
    known = [name for name, value in vars(spec).items() if value is not None]
    place, torch = facts.place or facts.device_name or "imported", user.torch or facts.torch
    return Record(
        run_id=bundle.make_run_id(
            now=started_at or datetime.now(UTC),
            place=f"imported-{place}"[:60],
            model=_slug(facts.model),
            batch_size=facts.batch_size,
            precision=facts.precision or "unknown",
        ),
        status=Status.COMPLETED,
        imported=imported,
        spec=spec,
        spec_origin={name: "option" if getattr(user, name, None) is not None else "file" for name in known},
        environment=Environment(
            place=place,
            device=DeviceFacts(type=facts.device_type, name=facts.device_name, driver_version=user.driver),
            software=SoftwareFacts(torch=torch) if torch else None,
        ),
        timing=Timing(started_at=iso(started_at)),
        profile=ProfileResult(status="not requested"),
    )


def iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def _slug(name: str) -> str:
    """A model's name for the run id: hyphens replace all characters except letters, digits, dots and underscores."""
    return re.sub(r"[^a-zA-Z0-9_.]+", "-", name).strip("-.")[:60] or "unnamed"


def seal(output: Path, record: Record, contents: Mapping[str, bytes]) -> Path:
    folder = bundle.create(output, record.run_id)
    with bundle.guarded_writes(folder):
        for name, content in contents.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        bundle.write_record(folder, record)
        bundle.seal(folder)
    return folder
