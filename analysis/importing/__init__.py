"""Makes bundles of files that other programs wrote."""

from analysis.importing.bundle import Given
from analysis.importing.files import import_file

__all__ = ["Given", "import_file"]
