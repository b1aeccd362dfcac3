"""Reads output of Nsight Compute, CSV of every layout and version, and reports, as one row per kernel launch."""

from analysis.ncu.errors import Failure, NcuFileError
from analysis.ncu.families import Family
from analysis.ncu.layout import Layout
from analysis.ncu.reader import NcuFile, read

__all__ = ["Failure", "Family", "Layout", "NcuFile", "NcuFileError", "read"]
