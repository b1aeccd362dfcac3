# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # From results to answers
#
# A notebook on the bundles that come with rooflaunch: 24 runs on two CPU cores, and profiles of others on a V100 and an
# L4. For your own, set `FOLDER = "results"`. After `make setup`, `.venv/bin/pip install jupyterlab` is all it needs.

# %%
import shutil
import tempfile
from importlib.resources import as_file, files
from pathlib import Path

import altair as alt

import analysis

alt.renderers.enable("svg")  # figures need no network, and stay in the saved notebook
with as_file(files("analysis") / "example") as bundles:
    FOLDER = shutil.copytree(bundles, Path(tempfile.mkdtemp()) / "results")
results = analysis.load(FOLDER)
print(len(results), "runs")
results

# %% [markdown]
# ## What ran best
# One row for each configuration and place; `low` and `high` are a 95 % interval over repeated runs.

# %%
results.summary()

# %% [markdown]
# ## Bytes, time and FLOP of a step
# Memory traffic, step time, attained FLOP/s and intensity for each model and device. `source` says where they come
# from: counted by Nsight Compute, or modelled from the sizes of the tensors.

# %%
points = results.roofline(wide=True)
facts, work = ["device_name", "model", "batch_size", "source"], ["flop_per_step", "dram_bytes_per_step"]
points[[*facts, *work, "step_s", "flop_per_s", "dram_bytes_per_s", "intensity_flop_per_byte", "fraction_of_peak"]]

# %% [markdown]
# ## Rooflines
# Each point is a configuration. Left of the ridge memory is the limit, right of it arithmetic.

# %%
results.figures["roofline_combined"]

# %% [markdown]
# ## Kernels
# The launches of a profiled step, by family, with their share of the time and their FLOP per byte of memory traffic.

# %%
kernels = results.kernels.groupby(["device", "family"], observed=True)[["duration_s", "flop", "dram_bytes"]].sum()
kernels["share"] = kernels["duration_s"] / kernels.groupby("device")["duration_s"].transform("sum")
kernels["flop_per_byte"] = kernels["flop"] / kernels["dram_bytes"]
kernels.sort_values(["device", "share"], ascending=[True, False])

# %%
results.figures["kernel_roofline_resnet50"]

# %% [markdown]
# ## Is bf16 faster?
# `verdict` is an answer only if the interval of the ratio allows one.

# %%
results.compare(by="precision")

# %% [markdown]
# ## What to doubt

# %%
results.audit().head()

# %% [markdown]
# ## The page
# All of this in one file, to open in a browser or to send.

# %%
results.report("report.html")
