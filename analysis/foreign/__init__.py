"""Files that other people's programs wrote: their encodings, tables and text outputs, each read into one form.

`text` finds encoding and compression, `tables` delimiter and decimal mark, for logs and profiles alike. `training_logs`
turns the lines of known trainers into a table, `ncu_text` and `nsys` turn profiles into the CSV that Nsight Compute
would have written, `kineto` reads traces of torch.profiler, and `looks_like` says what an unreadable file seems to be.
"""
