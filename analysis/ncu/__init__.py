"""Reads output of Nsight Compute, CSV of every layout and version, and reports, as one row per kernel launch."""

from analysis.ncu.errors import Failure, NcuFileError
from analysis.ncu.families import Family
from analysis.ncu.reader import NcuFile, read
from workload.contract.ncu_csv import Layout

__all__ = ["Failure", "Family", "Layout", "NcuFile", "NcuFileError", "read"]
