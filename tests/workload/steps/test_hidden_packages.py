"""A script imports its user's own `workload`, `launcher` and `analysis`; without such, `workload` is ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workload.steps import program

ROOT = Path(__file__).parents[3]
# Without torch a script ends with this code, after it has run.
NOT_MEASURED = 6
MINE = {
    "a module": "{}.py",
    "a package": "{}/__init__.py",
    "a folder without __init__.py": "{}/train.py",
}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.world
@pytest.mark.parametrize("start", [("-m", "rooflaunch"), ("-P", "-m", "rooflaunch")])
@pytest.mark.parametrize("kind", MINE)
def test_a_script_finds_its_own(kind: str, start: tuple[str, ...], tmp_path: Path) -> None:
    for name in program.NAMES:
        write(tmp_path / MINE[kind].format(name), f"WHOSE = 'the user, {name}'\n")
    module = "{0}.train" if kind.startswith("a folder") else "{0}"
    lines = [f"import {module.format(name)} as {name}\nprint({name}.WHOSE)" for name in program.NAMES]
    write(tmp_path / "t.py", "\n".join(lines))
    ran = run(tmp_path, *start, "script", "--", "t.py")
    assert ran.stdout.splitlines() == [f"the user, {name}" for name in program.NAMES], ran.stderr
    assert ran.returncode == NOT_MEASURED
    assert ran.stderr.endswith(
        "error: t.py ended without importing torch in this process: nothing was measured\nhint: name the "
        "script that trains, not a script that starts it\n"
    )


def test_ours_for_a_moment_and_the_users_afterwards() -> None:
    import workload

    with program.hidden():
        assert "workload" not in sys.modules
        sys.modules["workload"] = theirs = type(sys)("workload")
        with program.shown():
            assert sys.modules["workload"] is workload
        assert sys.modules["workload"] is theirs
    assert sys.modules["workload"] is workload
    with program.hidden():
        assert sys.modules.pop("workload") is theirs
    with program.shown():
        assert sys.modules["workload"] is workload


@pytest.mark.night(part="scripts")
@pytest.mark.world
def test_steps_of_a_script_beside_its_own_workload(tmp_path: Path) -> None:
    """Modules that rooflaunch imports while the script runs are its own."""
    write(tmp_path / "workload.py", "def batches():\n    return 40\n")
    write(
        tmp_path / "t.py",
        "import rooflaunch, torch, workload\n"
        "model = torch.nn.Linear(8, 4)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(workload.batches()):\n    optimizer.zero_grad()\n"
        "    model(torch.randn(4, 8)).square().mean().backward()\n    optimizer.step()\n    rooflaunch.step_done()\n",
    )
    line = ("script", "--warmup", "1", "--iterations", "3", "--no-ceilings", "--profile", "torch", "--", "t.py")
    ran = run(tmp_path, "-m", "rooflaunch", *line)
    assert ran.returncode == 0, ran.stderr
    assert "a step = as marked in the script by" in ran.stderr
    [folder] = (tmp_path / "results").iterdir()
    assert '"workload.py": ' in (folder / "run.json").read_text(), "the user's file is one of the script's"
    assert (folder / "torch" / "trace.json.gz").is_file()


# Files of the user; what stands after `script --`; what the script prints.
OTHERS = {
    "a module in a folder of PYTHONPATH, which comes before our installed packages": (
        {"src/workload.py": "WHOSE = 'the user'\n", "t.py": "import workload\nprint(workload.WHOSE)\n"},
        ("t.py",),
        "the user\n",
    ),
    "a package as the script": (
        {
            "workload/__init__.py": "print('once')\n",
            "workload/train.py": "import workload, sys\nprint(__name__, sys.argv[1:])\n",
        },
        ("-m", "workload.train", "--lr", "1"),
        "once\n__main__ ['--lr', '1']\n",
    ),
    "ours where the user has none": (
        {
            "t.py": "import rooflaunch, workload\nimport workload.contract.text as text\n"
            "print(workload.step_done is rooflaunch.step_done, workload.__spec__.name, text.counted(2, 'step'))\n"
            "with rooflaunch.step(): pass\nworkload.step_done()\n"
        },
        ("t.py",),
        "True workload 2 steps\n",
    ),
}


@pytest.mark.world
@pytest.mark.parametrize("name", OTHERS)
def test_which_modules_a_script_imports(name: str, tmp_path: Path) -> None:
    files, words, printed = OTHERS[name]
    for path, text in files.items():
        write(tmp_path / path, text)
    ran = run(tmp_path, "-m", "rooflaunch", "script", "--", *words, PYTHONPATH=f"src{os.pathsep}{ROOT}")
    assert (ran.stdout, ran.returncode) == (printed, NOT_MEASURED), ran.stderr
