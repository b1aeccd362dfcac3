"""What a launch has sent with its script: the user's files, unpacked into the launch's folder on this machine.

scripts/<sha256>.tar.gz   regular files alone, by their path below the user's folder
"""

import hashlib
import io
import shutil
import tarfile
from pathlib import Path

from launcher.agent.home import Home
from launcher.jobs.records import MAX_PARCEL_BYTES, Request
from launcher.machine.script import Workplace
from workload.contract.errors import BundleError
from workload.storage.names import why_unsafe
from workload.storage.store import Store

MOST_UNPACKED_BYTES = 1_000_000_000


def parcel_object(sha256: str) -> str:
    """The name of an archive in a store."""
    return f"scripts/{sha256}.tar.gz"


def unpack(request: Request, store: Store, home: Home) -> Workplace:
    """Where the script of this launch runs; of a second start as the first has left it. `BundleError` for damage."""
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
    return Workplace(folder=folder, commit=str(request.script.get("commit", "")))


def _extract(content: bytes, folder: Path) -> None:
    """Each file by our own hand: no link, no device and no path can lead out of the folder."""
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
