"""The `imported` section of run.json: a measurement of another program, as it was read. Standard library only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from workload.contract.fields import Flag, Number, Text, Texts, Time, column


@dataclass(frozen=True, kw_only=True)
class ImportedColumn:
    """How a column of a log was read: its values times `factor` are the quantity `field`, in the unit of our files."""

    name: Text = None
    field: Text = None
    factor: Number = None
    includes_data: Flag = None
    source: Text = None


@dataclass(frozen=True, kw_only=True)
class GivenByUser:
    """Facts of an imported run that the user gave as options."""

    SPARSE: ClassVar[bool] = True
    model: Text = None
    batch_size: Number = None
    precision: Text = None
    gpu: Text = None
    profile_steps: Number = None
    driver: Text = None
    torch: Text = None
    dataset: Text = None
    image_size: Number = None
    device: Number = None


@dataclass(frozen=True, kw_only=True)
class Imported:
    """File of an imported measurement, and how it was read.

    `claimed_images_per_s`: mean of the rates in the file; `claimed_measured_images_per_s`: mean without the first rate,
    which is warm-up. `losses`: sentences on what was dropped, duplicated, missing or unclear. `contradictions`:
    sentences on differences between the file and the import's options.
    """

    SPARSE: ClassVar[bool] = True
    file: Text = column("imported_file")
    bytes: Number = None
    sha256: Text = column("imported_sha256")
    kind: Text = None
    given: GivenByUser | None = None
    imported_at: Time = None
    columns: Mapping[str, ImportedColumn] | None = None
    ignored: Texts = None
    labels: Mapping[str, Text] | None = None
    rows: Number = None
    rows_cut: Number = None
    claimed_images_per_s: Number = column()
    claimed_measured_images_per_s: Number = column()
    losses: Texts = None
    contradictions: Texts = None
