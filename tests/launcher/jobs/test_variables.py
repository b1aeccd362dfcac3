"""Variables of a script (`--env`) in the store: whose they are, when they are erased, and in which order they come."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from launcher.jobs import watch
from launcher.jobs.run import Launcher
from launcher.jobs.session import Session
from launcher.protocol.backend import Condition, Listing, Machine, Machines, Removed
from launcher.protocol.records import NO_VARIABLES, VARIABLES, Result, request_object, result_object, utc
from launcher.protocol.records import variables_object as object_of
from launcher.script.files import ScriptFiles
from tests.launcher.own_machine import NAME, own_machine_request
from workload.contract.errors import InterruptedRunError, ToolError
from workload.storage.folder import Folder

NOW_S = 1.8e9
SECRET = {"HF_TOKEN": "hf_1"}
REQUEST = own_machine_request(
    launched_at=utc(NOW_S), script={"sha256": "a" * 64, "files": 1, "bytes": 1, "env": ["HF_TOKEN"]}
)
RESULT = Result(exit_code=0, zone="box", runs=[], phases={}, ended_at=utc(NOW_S))


class Place:
    """A place in memory; what it was asked to submit found these records in the store."""

    noun = "job"

    def __init__(self, store: Folder, *there: str, silent: bool = False, fails: BaseException | None = None) -> None:
        machines = (Machine(name=name, zone="box", condition=Condition.RUNNING) for name in there)
        self.listing = Listing(there=tuple(machines), unreachable=("some zone",) if silent else ())
        self.store, self.fails, self.found = store, fails, tuple[str, ...]()

    def now_s(self) -> float:
        return NOW_S

    def look(self, _: object = None) -> Listing[Machine]:
        return self.listing

    def stop(self, machines: Sequence[Machine]) -> list[Removed]:
        assert not machines
        return []

    def submit(self, *_: object) -> NoReturn:
        self.found = tuple(stored.name for stored in self.store.objects("launches/"))
        raise self.fails or AssertionError


@pytest.fixture
def store(tmp_path: Path) -> Folder:
    """A folder that was there before, which everybody may read."""
    (tmp_path / "store").mkdir(mode=0o755)
    return Folder(tmp_path / "store")


def written(store: Folder, *, age_s: float) -> None:
    store.write(request_object(NAME), replace(REQUEST, launched_at=utc(NOW_S - age_s)).to_bytes())
    ScriptFiles(content=b"", files=(), variables=SECRET).send(store, NAME)


MINUTES = 60.0
# Minutes since the launch, machine, zone that does not answer, result, named by `launch down`: erased?
CASES: dict[str, tuple[float, bool, bool, bool, bool, bool]] = {
    "just asked for": (0, False, False, False, False, False),
    "just asked for, and ended": (0, False, False, False, True, True),
    "perhaps still asked for": (19, False, False, False, False, False),
    "asked for too long ago": (21, False, False, False, False, True),
    "it runs": (100, True, False, False, False, False),
    "it does not end": (100, True, False, False, True, False),
    "it may run": (100, False, True, False, False, False),
    "it has a result": (1, True, False, True, False, True),
}


@pytest.mark.world
@pytest.mark.parametrize("case", CASES)
def test_variables_are_erased_once_nobody_needs_them(store: Folder, case: str) -> None:
    age, is_there, is_silent, has_result, is_down, is_erased = CASES[case]
    written(store, age_s=age * MINUTES)
    if has_result:
        store.write(result_object(NAME), RESULT.to_bytes())
    place = Place(store, *([NAME] if is_there else []), silent=is_silent)
    erased = watch.erase_variables(store, cast("Machines", place), down=[NAME] if is_down else ())
    assert erased == ([NAME] if is_erased else [])
    content = store.read(object_of(NAME)) or b""
    assert (content == NO_VARIABLES) is is_erased
    assert (b"hf_1" in content) is not is_erased
    assert watch.erase_variables(store, cast("Machines", place)) == [], "once"


@pytest.mark.world
@pytest.mark.parametrize(("name", "text"), [("", b"a" * 9), ("../x", b"a" * 9), ("rooflaunch-box-1", b'["not ours"]')])
def test_objects_of_others(store: Folder, name: str, text: bytes) -> None:
    """Names of no launch are passed over; a damaged object of an old launch is erased."""
    (Path(store.locate(VARIABLES))).mkdir(parents=True)
    (Path(store.locate(VARIABLES)) / f"{name.replace('/', '-')}.json").write_bytes(text)
    erased = watch.erase_variables(store, cast("Machines", Place(store)))
    assert erased == ([name] if name.startswith("rooflaunch") else [])


@pytest.mark.world
@pytest.mark.parametrize(
    "stopped", [KeyboardInterrupt(), ToolError("no answer", hint="wait")], ids=["Ctrl-C", "refused"]
)
def test_request_variables_machine_in_this_order(store: Folder, tmp_path: Path, stopped: BaseException) -> None:
    """A launcher that is killed leaves no variables without a request; one that fails erases them itself."""
    place = Place(store, fails=stopped)
    session = Session(machines=cast("Machines", place), store=store)
    launcher = Launcher(session, output=tmp_path, script_files=ScriptFiles(content=b"x", files=(), variables=SECRET))

    plan: Any = SimpleNamespace(request=REQUEST)
    launcher.record(plan)
    assert [stored.name for stored in store.objects("")] == [request_object(NAME)]
    assert b"hf_1" not in (store.read(request_object(NAME)) or b"")
    with pytest.raises((InterruptedRunError, ToolError)):
        launcher.submit(plan)
    assert place.found == (request_object(NAME), object_of(NAME))
    assert store.read(object_of(NAME)) == NO_VARIABLES
    assert store.read(result_object(NAME)) is not None
