"""Makes bundles of files that other programs wrote."""

from analysis.importing.bundle import UserFacts
from analysis.importing.files import import_file

__all__ = ["UserFacts", "import_file"]
