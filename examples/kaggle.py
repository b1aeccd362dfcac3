# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # rooflaunch on Kaggle
#
# How fast does a training step run on this GPU, what limits it, and how sure is that? Choose the GPU first: *Settings >
# Accelerator*; and switch *Settings > Internet* on. Without a GPU the cells use the CPU.
#
# ## Install
# On your own machine, make a wheel in rooflaunch's folder (`pip wheel --no-deps .`). Upload it as a data set (*Add
# Input > Upload*). PyTorch, NumPy and pandas of Kaggle stay as they are: `launch` uses them, and `analyze`, which needs
# a newer pandas, gets a folder of its own.

# %%
SOURCE = ""  # the wheel; or a repository, "git+https://…"

# %%
import shutil
import sys
import tempfile
import venv
from pathlib import Path

FOLDER = Path("/kaggle/input")
wheels = [path.resolve().as_uri() for path in FOLDER.rglob("rooflaunch-*.whl")]
if not (SOURCE or wheels):
    raise FileNotFoundError(f"no rooflaunch-*.whl in {FOLDER.resolve()}: put the wheel there, and run this cell again")
WHEEL, TOOLS = SOURCE or max(wheels), Path(tempfile.mkdtemp())

# %pip install --quiet "rooflaunch @ {WHEEL}"
Path(shutil.which("analyze")).write_text(f'#!/bin/sh\nexec {TOOLS}/bin/python -m analysis "$@"\n')
venv.create(TOOLS)
packages = "\n".join(path for path in sys.path if path.endswith("-packages"))
next(TOOLS.glob("lib/python*/site-packages")).joinpath("notebook.pth").write_text(packages)
# %pip --python {TOOLS}/bin/python install --quiet "rooflaunch[analysis] @ {WHEEL}"

# %% [markdown]
# ## What this machine has
# GPU, driver, and what Kaggle does not permit. Without a GPU this says how to get one.

# %%
# !launch doctor gpu

# %% [markdown]
# ## One run
# Our trainer with ResNet18 and made-up images, on the best device found. All options: `!launch local --help`.
# Of two T4s a run uses the first; `!launch local --gpu-index 1` measures the second.

# %%
# !launch local

# %% [markdown]
# ## A small sweep
# Each combination three times, in an order that favours none. The cell can be run again: it does what is missing.

# %%
MATRIX = """
repeats = 3

[matrix]
batch_size = [16, 32]

[[on]]
backend = "local"
"""
Path("sweep.toml").write_text(MATRIX)
# !launch sweep sweep.toml
# !analyze summary results

# %% [markdown]
# ## The roofline
# And `report.html`: one page with everything, to download and open.

# %%
from IPython.display import Image, display

# !analyze report results -o report.html --figures figures
for figure in sorted(Path("figures").glob("roofline_*.png")):
    display(Image(filename=str(figure), width=640))

# %% [markdown]
# ## Your own script
# Any PyTorch training script, unchanged; this one stands for yours.

# %%
# %%writefile train.py
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.rand(64_000, 784), torch.randint(10, (64_000,)))
for images, labels in DataLoader(data, batch_size=128):
    loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# !launch local -- train.py

# %% [markdown]
# ## Keep the results
# *Save Version* keeps what is in this folder: the page, and one file with all bundles. `kaggle kernels output` copies
# them to your machine.

# %%
shutil.make_archive("results", "zip", ".", "results")
shutil.rmtree("results")
