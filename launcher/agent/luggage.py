"""Files that a launch has sent with its script, unpacked into the launch's folder on this machine.

scripts/<sha256>.tar.gz   regular files only, by their path below the user's folder
"""

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

from launcher.agent.home import Home
from launcher.jobs.records import MAX_PARCEL_BYTES, NO_VARIABLES, Request, variables_object
from launcher.machine.script import Workplace
from workload.contract.checksum import crc32c_of
from workload.contract.errors import BundleError, ToolError, UsageError
from workload.contract.script import DATA_EXAMPLE
from workload.storage.address import open_store
from workload.storage.names import why_unsafe
from workload.storage.store import Store, StoredObject

MOST_UNPACKED_BYTES = 1_000_000_000


def parcel_object(sha256: str) -> str:
    """Name of an archive in a store."""
    return f"scripts/{sha256}.tar.gz"


def unpack(request: Request, store: Store, home: Home) -> Workplace:
    """Unpack the script's files and return its workplace; a second start keeps the files as the first left them.

    Raises `BundleError` if the archive is missing or damaged.
    """
    folder, wanted = home.path / "script", str(request.script["sha256"])
    if not folder.exists():
        content = store.read(parcel_object(wanted), most_bytes=MAX_PARCEL_BYTES)
        if content is None or hashlib.sha256(content).hexdigest() != wanted:
            what = "missing" if content is None else "damaged"
            address = store.locate(parcel_object(wanted))
            raise BundleError(f"the script's archive is {what}: {address}", hint="launch again")
        new = folder.with_name("script.new")
        shutil.rmtree(new, ignore_errors=True)
        _extract(content, new)
        new.rename(folder)
    return Workplace(
        folder=folder,
        commit=str(request.script.get("commit", "")),
        variables=_variables(request, store) if request.script.get("env") else {},
    )


def _variables(request: Request, store: Store) -> dict[str, str]:
    """Values of the environment variables that the request names."""
    try:
        values = json.loads(store.read(variables_object(request.name)) or NO_VARIABLES)["values"]
        return {name: str(values[name]) for name in request.script["env"]}
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError("the variables of the script are not in the store", hint="launch again") from error


def fetch_data(address: str, folder: Path, *, is_over: Callable[[], bool]) -> None:
    """Copy the data at an address into a folder, except files that a first start has copied. Ends if `is_over`."""
    store, number = open_store(address, jobs=3), 0
    for listed in store.objects(""):
        if is_over():
            return
        if listed.name.endswith("/"):  # placeholder object for a folder in a bucket
            continue
        number += 1
        if reason := listed.problem or why_unsafe(listed.name):
            raise BundleError(f"{listed.name!r} of {address} cannot be copied: {reason}", hint="give it another name")
        path = folder / listed.name
        if path.exists() and path.stat().st_size == listed.bytes:
            continue
        try:
            _copy(store, listed, path)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ToolError(
                f"{listed.name!r} of {address} cannot be written here: {reason}", hint="less data"
            ) from error
    if not number:
        raise UsageError(f"no data at {address}", hint=f"--data {DATA_EXAMPLE}, of objects that are there")


def _copy(store: Store, listed: StoredObject, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with part.open("w+b") as target:
        store.download(listed, target)
        target.seek(0)
        if listed.crc32c and crc32c_of(target) != listed.crc32c:
            raise BundleError(f"{listed.name!r} came damaged from {store}", hint="launch again")
    part.rename(path)


def _extract(content: bytes, folder: Path) -> None:
    """Unpack regular files one by one. Links, devices and unsafe paths are refused: nothing leaves the folder."""
    folder.mkdir(parents=True)
    left = MOST_UNPACKED_BYTES
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            for entry in archive:
                left -= entry.size
                reason = why_unsafe(entry.name) or ("" if entry.isreg() else "no regular file")
                if reason or left < 0:
                    reason = reason or f"more than {MOST_UNPACKED_BYTES} bytes"
                    raise BundleError(f"{entry.name!r} in the script's archive: {reason}", hint="launch again")
                path = folder / entry.name
                path.parent.mkdir(parents=True, exist_ok=True)
                source = archive.extractfile(entry)
                assert source is not None
                with path.open("xb") as target:
                    shutil.copyfileobj(source, target)
                path.chmod(entry.mode & 0o755)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise BundleError(f"the script's archive cannot be unpacked: {error}", hint="launch again") from error
