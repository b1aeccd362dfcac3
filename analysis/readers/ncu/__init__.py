"""Reads output of Nsight Compute, CSV of every layout and version, and reports, as one row per kernel launch."""

from analysis.readers.ncu.errors import Failure, NcuFileError
from analysis.readers.ncu.families import Family
from analysis.readers.ncu.reader import NcuFile, read
from workload.contract.ncu_csv import Layout

__all__ = ["Failure", "Family", "Layout", "NcuFile", "NcuFileError", "read"]
