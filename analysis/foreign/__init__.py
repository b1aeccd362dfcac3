"""Readers of files written by other programs: encodings, tables and text output, each converted to one form.

`text` detects encoding and compression, `tables` delimiter and decimal mark. `training_logs` converts lines of known
trainers to a table. `ncu_text` and `nsys` convert profiles to the CSV that Nsight Compute would have written. `kineto`
reads traces of torch.profiler. `looks_like` recognizes unreadable files.
"""
