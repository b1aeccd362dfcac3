"""Script in place of ncu: takes the options that we use, and answers as FAKE_NCU in the environment says."""

import sys
from pathlib import Path

from workload.profile.metrics import base, table

# Base names of all metrics in our table.
EVERY_METRIC = frozenset(
    base(name)
    for names in (
        *table().common.values(),
        *table().throughput.values(),
        *(names for row in table().rows.values() for names in row.tensor.values()),
    )
    for name in names
)
# The second line runs Python, whose path may have a space, which a first line cannot have.
NCU = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import json, os, signal, subprocess, sys, time
from pathlib import Path

HOW, KNOWN = os.environ.get("FAKE_NCU", "good"), {known!r}
words = sys.argv[1:]
FLAGS = {{"--nvtx", "--disable-extra-suffixes", "-f", "--csv"}}
VALUED = {{"--profile-from-start", "--target-processes", "--replay-mode", "--clock-control", "--cache-control",
          "--metrics", "-o", "--import", "--page", "--print-units"}}
assert os.environ["LC_ALL"] == "C"
if words == ["--version"]:
    print("NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2024.1.1.0 (build 1) (public-release)"); sys.exit()
if words == ["--list-chips"]:
    print("ad102, ad104, gv100"); sys.exit()
if words == ["--help"]:
    print("  --disable-extra-suffixes    Disables the collection"); sys.exit()
if words == ["--query-metrics"]:
    print("==ERROR== Driver could not be loaded."); sys.exit()
if words[:2] == ["--query-metrics", "--chip"]:
    assert words[2] in ("ad102", "gv100")
    print("".join(f"{{name}}   Counter   inst   # of\\n" for name in KNOWN)); sys.exit()
if words[:3] == ["--query-metrics", "--query-metrics-mode", "suffix"]:
    bases = words[words.index("--metrics") + 1].split(",")
    print("".join(f"{{name}}.{{end}}   Counter   inst   # of\\n" for name in bases if name in KNOWN
                  for end in ("avg", "max", "min", "sum", "sum.per_second", "avg.pct_of_peak_sustained_elapsed")))
    sys.exit()
options = {{}}
while words and words[0].startswith("-"):
    word = words.pop(0)
    assert word in FLAGS | VALUED, f"unknown option {{word}}"
    options[word] = words.pop(0) if word in VALUED else True


def lines(report):
    marks = "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
    head = ["ID", "Process ID", "Kernel Name", *([] if HOW == "no ranges" else [marks]), "profiler__replayer_passes"]
    yield head + report["metrics"]
    units = ["nsecond" if "time_duration" in m else "byte" if "bytes" in m else "%" if "pct" in m else "inst"
             for m in report["metrics"]]
    yield [""] * (len(head) - 1) + ["pass"] + units
    for index, (mark, name, values) in enumerate(report["kernels"]):
        cells = [values.get(metric, 0) for metric in report["metrics"]]
        text = f'1  "<default domain>:{{mark}}:none:none:none:none:none:none" ' if mark else ""
        yield [index, 9, name, *([] if HOW == "no ranges" else [text]), 4, *cells]


if "--import" in options:
    assert options == {{"--import": options["--import"], "--csv": True, "--page": "raw", "--print-units": "base"}}
    if HOW == "unreadable":
        print(f"==ERROR== Failed to load report file '{{options['--import']}}'."); sys.exit(1)
    import csv
    rows = lines(json.loads(Path(options["--import"]).read_text()))
    csv.writer(sys.stdout, quoting=csv.QUOTE_ALL, lineterminator="\\n").writerows(rows); sys.exit()

metrics = options["--metrics"].split(",")
assert all(metric.partition(".")[0] in KNOWN or metric.startswith("launch__") for metric in metrics)
ADD, FMA = (f"smsp__sass_thread_inst_executed_op_{{op}}_pred_on.sum" for op in ("fadd", "ffma"))
TIME, DRAM, SM = "gpu__time_duration.sum", "dram__bytes.sum", "sm__throughput.avg.pct_of_peak_sustained_elapsed"


def kernels(steps):
    if options["--replay-mode"] == "app-range":
        assert "--profile-from-start" not in options and options["--cache-control"] == "none"
        return [["", "range", {{TIME: 8_000_000, DRAM: 600 * steps}}]]
    assert options["--profile-from-start"] == "off" and options["--cache-control"] == "all"
    found = [] if SM in metrics else [["calibration fp32", "sgemm", {{FMA: 1000, TIME: 5}}]]
    for step in range(steps):
        found += [
            [f"step {{step}} data", "copy", {{TIME: 1000, DRAM: 100, SM: 10}}],
            [f"step {{step}} forward", "conv", {{TIME: 2000, DRAM: 100, FMA: 500, SM: 90}}],
            [f"step {{step}} backward", "dgrad", {{TIME: 3000, DRAM: 100, FMA: 1000, SM: 90}}],
            [f"step {{step}} optimizer", "sgd", {{TIME: 1000, DRAM: 700, ADD: 100, SM: 10}}],
        ]
    return found


def save(found):
    Path(options["-o"]).write_text(json.dumps({{"metrics": metrics, "kernels": found}}))


print("==PROF== Connected to process 9 (/usr/bin/python3.12)", flush=True)
fails = HOW == "throughput fails" and SM in metrics
if HOW == "permission":
    print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on "
          "the target device 0. For instructions on enabling permissions and to get more information see "
          "https://developer.nvidia.com/ERR_NVGPUCTRPERM")
elif HOW == "dcgm" or fails:
    print("==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool (like DCGM) "
          "is concurrently collecting profiling data.")
elif HOW in ("hang", "deaf"):
    def stop(*_):
        if HOW == "hang":
            print("==PROF== Received signal - ending profile session."); save(kernels(2)[:7]); sys.exit(1)
    signal.signal(signal.SIGINT, stop)
    for number in range(7):
        print(f'==PROF== Profiling "k" - {{number}}: 0%....50%....100% - 4 passes', flush=True)
    while True:
        time.sleep(60)
done = subprocess.run(words)
if HOW in ("permission", "dcgm", "nothing") or fails or done.returncode:
    print(f"==ERROR== The application returned an error code ({{done.returncode}})." if done.returncode else "")
    print("==WARNING== No kernels were profiled."); sys.exit(1)
found = kernels(int(words[-1]))
for number, _ in enumerate(found):
    print(f'==PROF== Profiling "k" - {{number}}: 0%....50%....100% - 4 passes')
save(found)
if HOW == "error":
    print("==ERROR== LaunchFailed"); sys.exit(1)
print(f"==PROF== Disconnected from process 9\\n==PROF== Report: {{options['-o']}}")
"""


def write_ncu(folder: Path, text: str = NCU) -> Path:
    """Write the script to the new folder; return its path. It knows every metric but `l1tex__t_bytes`."""
    folder.mkdir()
    path = folder / "ncu"
    path.write_text(text.format(python=sys.executable, known=sorted(EVERY_METRIC - {"l1tex__t_bytes"})))
    path.chmod(0o755)
    return path
