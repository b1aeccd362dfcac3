"""Reads files of Nsight Compute into a table with one row per kernel launch.

A file may be CSV in any layout and of any version of ncu, or an .ncu-rep report.
"""

from analysis.readers.ncu.metrics import Family
from analysis.readers.ncu.reader import NcuFile, read
from analysis.readers.ncu.table import NcuFileError

__all__ = ["Family", "NcuFile", "NcuFileError", "read"]
