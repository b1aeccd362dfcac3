import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import off_clock


@pytest.mark.world
@pytest.mark.night(part="faults")
@pytest.mark.parametrize("off_s", [-7200, 7200], ids=["two hours slow", "two hours fast"])
def test_the_date_of_a_process_is_shifted_and_its_waits_are_not(off_s: int, tmp_path: Path) -> None:
    code = "import time, datetime; a = time.monotonic(); time.sleep(0.1); b = time.monotonic() - a;"
    code += "print(time.time(), datetime.datetime.now().timestamp(), b)"
    environment = {**os.environ, **off_clock.shift(tmp_path, off_s)}
    before_s = time.time() + off_s
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    date_s, datetime_s, waited_s = map(float, done.stdout.split())
    assert before_s - 1 <= date_s <= datetime_s + 1 <= time.time() + off_s + 2
    assert 0.1 <= waited_s < abs(off_s)
