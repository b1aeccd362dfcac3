"""A real Nsight Compute, which needs no GPU for them, answers our queries. None of its files are kept here."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.gpu_truth import parts
from workload.contract.ncu_csv import NcuSource
from workload.contract.process import stoppable
from workload.contract.spec import Device, Precision
from workload.environment.machine import installed_ncus
from workload.profile import command, diagnosis, metrics
from workload.profile.command import Replay
from workload.profile.diagnosis import Facts, Ncu
from workload.profile.metrics import base, table

pytestmark = [pytest.mark.world, pytest.mark.slow]

HOST = Facts(device=Device.CUDA, driver=True, ncus=(), admin_only=False, is_admin=False, in_container=False)
FETCH = Path(__file__).parents[4] / "shared" / "tools" / "get-ncu"
FETCH_LIMIT_S = 100
TABLE_VERSION = "2024.1"
CHIPS = [(row.capability, chip) for row in table().rows.values() for chip in row.chips]


@pytest.fixture(scope="session")
def ncu(request: pytest.FixtureRequest) -> Ncu:
    """An installed ncu, else one that is unpacked once (12 s, 1 GB) into pytest's cache."""
    # It answers the same every time.
    ask = functools.cache(diagnosis.ask)
    installed = installed_ncus(os.environ)
    if installed:
        return Ncu(path=installed[0], ask=lambda argv: ask(tuple(argv)))
    if not FETCH.is_file():
        pytest.skip(f"no ncu is installed, and there is no {FETCH.name} to unpack one with")
    folder = request.config.cache.mkdir("ncu")
    try:
        done = subprocess.run([FETCH, folder], capture_output=True, text=True, timeout=FETCH_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{FETCH.name} did not unpack an ncu in {FETCH_LIMIT_S} s")
    if done.returncode:
        pytest.skip(f"{FETCH.name} cannot unpack an ncu here: {done.stderr.strip()[-200:]}")
    return Ncu(path=Path(done.stdout.strip().splitlines()[-1]), ask=lambda argv: ask(tuple(argv)))


def require_table_version(ncu: Ncu) -> None:
    """Skip the test unless this is the version of ncu that the table of metrics and the sample reports belong to."""
    if not (ncu.version() or "").startswith(TABLE_VERSION):
        pytest.skip(f"the table was written from ncu {TABLE_VERSION}, this is {ncu.version()}")


def knows(ncu: Ncu, chip: str) -> frozenset[str]:
    if chip not in ncu.chips():
        pytest.skip(f"ncu {ncu.version()} does not know {chip}")
    return ncu.metrics(chip)


@pytest.mark.parametrize(("capability", "chip"), CHIPS)
def test_every_metric_of_the_table_is_known_for_every_chip(ncu: Ncu, capability: str, chip: str) -> None:
    known = knows(ncu, chip)
    row = table().rows[capability]
    for role, names in (*table().common.items(), *table().throughput.items()):
        expected = role != metrics.HFMA2 or capability in {"8.0", "9.0"}
        assert any(base(name) in known for name in names) is expected, f"{chip}: {role}"
    ours = {base(name) for names in row.tensor.values() for name in names}
    assert ours <= known
    for precision in Precision:
        assert metrics.choose(capability, precision, known).missing == ()
    # What the collector of evidence asks of L2.
    unknown = {name for name in parts.L2_NAMES if base(name) not in known}
    assert unknown == (set() if capability in {"8.0", "9.0"} else {"lts__t_sectors_srcunit_ltcfabric.sum"})
    # The table has every metric of tensor operations on the float types that training uses.
    require_table_version(ncu)
    assert ours == {
        name
        for name in known
        if name.startswith("sm__ops_path_tensor_src_")
        and any(kind in name for kind in ("fp16", "bf16", "tf32"))
        and "sparsity" not in name
    }


@pytest.mark.parametrize("capability", table().rows)
def test_suffixes_exist(ncu: Ncu, capability: str) -> None:
    chip = table().rows[capability].chips[0]
    known = knows(ncu, chip)
    names = {
        *metrics.choose(capability, Precision.AMP, known).names,
        *metrics.choose(capability, Precision.BF16, known).names,
        *metrics.choose_throughput(capability, known).names,
    }
    words = ["--query-metrics", "--query-metrics-mode", "suffix", "--chip", chip]
    answer = diagnosis.ask([str(ncu.path), *words, "--metrics", ",".join(base(name) for name in names)])
    listed = {line.split()[0] for line in (answer or "").splitlines() if "__" in line}
    assert names - listed == set()


def test_own_metrics_are_checked_against_a_chip(ncu: Ncu) -> None:
    require_table_version(ncu)
    known = knows(ncu, "ad104")
    wanted = [
        *("l1tex__t_sector_hit_rate.pct", "launch__registers_per_thread", "dram__bytes.sum"),
        *("dram__bytez.sum", "dram__bytes.sums", "lts__t_sectors"),
    ]
    full = ncu.full_names({base(name) for name in wanted} & known, "ad104")
    assert {"l1tex__t_sector_hit_rate.pct", "dram__bytes.sum.per_second"} <= full
    own = metrics.with_own(metrics.choose("8.9", Precision.FP32, known), wanted, known, full)
    assert own.own == tuple(wanted[:3])
    assert own.own_missing == ("dram__bytez.sum", "dram__bytes.sums", "lts__t_sectors")


@pytest.mark.parametrize("replay", list(Replay))
def test_it_takes_our_command_line(ncu: Ncu, replay: Replay, tmp_path: Path) -> None:
    """Without a driver ncu fails when it looks for one, after it has checked the options."""
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("there is a driver here: tests/gpu profiles for real")
    chip = table().rows["8.9"].chips[0]
    known = knows(ncu, chip)
    chosen = metrics.choose("8.9", Precision.AMP, known) if replay is Replay.KERNEL else metrics.choose_step(known)
    words = command.profile(
        ncu.path,
        tmp_path / "a 100% report.ncu-rep",
        chosen,
        [sys.executable, "-c", "pass"],
        replay=replay,
        plain_suffixes=ncu.has_option("--disable-extra-suffixes"),
    )
    assert end_of(words, tmp_path) == "ncu finds no CUDA driver"
    words[words.index("--replay-mode") + 1] = "frobnicate"
    assert "--replay-mode" in end_of(words, tmp_path)


def end_of(words: list[str], folder: Path) -> str:
    with stoppable():
        end = command.run(words, log=folder / "log", limit_s=60, environment=command.LOCALE)
    return str(diagnosis.explain(end.output, HOST))


def table_of(ncu: Ncu, report: Path) -> NcuSource:
    text = diagnosis.ask(command.import_report(ncu.path, report)) or ""
    return NcuSource(path=Path("kernels.csv"), content=text.encode())


def samples(ncu: Ncu, name: str) -> Path:
    require_table_version(ncu)
    found = [path for root in ncu.path.resolve().parents[2:4] for path in root.glob(f"share/doc/**/{name}.ncu-rep")]
    if not found:
        pytest.skip(f"this ncu came without its sample report {name}")
    return found[0]


def test_its_tables_are_read(ncu: Ncu) -> None:
    roles = {"gpu__time_duration.sum": "time_s", "dram__bytes_read.sum": "dram_read_bytes", "absent.sum": "l1_bytes"}
    (found,) = metrics.read(table_of(ncu, samples(ncu, "sobelFloat")), roles)[0]
    assert found.values == {"time_s": pytest.approx(31.872e-6), "dram_read_bytes": 4195712, "l1_bytes": None}
    assert found.name == "void Sobel<float>(uchar4 *, uchar4 *, int, int)"
    assert found.passes == 42
    assert found.marks is None, "a report without NVTX has no such column"


@pytest.mark.parametrize("damage", [lambda data: data[:1000], lambda _: b""], ids=["cut off", "empty"])
def test_damaged_report_is_said(ncu: Ncu, damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    broken = tmp_path / "broken.ncu-rep"
    broken.write_bytes(damage(samples(ncu, "sobelFloat").read_bytes()))
    with pytest.raises(Exception, match="there is no table; ncu reports: ==ERROR== Failed to load report file"):
        metrics.read(table_of(ncu, broken), {})
