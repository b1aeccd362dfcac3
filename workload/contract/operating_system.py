"""Functions that differ between Windows and other systems: signals, child processes, locks, names of files.

Windows sends no signals between processes. A console sends Ctrl-C to all its processes; a process can send Ctrl-Break
to the processes of another group, or kill a process. Standard library only.
"""

import base64
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path, PurePath, PureWindowsPath
from typing import IO, Any, BinaryIO

from workload.contract.errors import UsageError
from workload.contract.invocation import ROOT, document

if sys.platform == "win32":
    import ctypes
    import msvcrt

    fcntl: Any = None
else:
    import fcntl

# Number of SIGKILL, a name that Windows lacks; `os.kill` with this number ends a process there, too.
SIGKILL = 9
# Signals that end a run, and their causes. The third signal comes from a closed terminal; on Windows it is Ctrl-Break.
CAUSES: dict[int, str] = {signal.SIGINT: "interrupted by Ctrl-C", signal.SIGTERM: "interrupted by SIGTERM"}
if sys.platform == "win32":
    CAUSES[signal.SIGBREAK] = "interrupted by Ctrl-C or Ctrl-Break"
else:
    CAUSES[signal.SIGHUP] = "interrupted: the terminal was closed"
SIGNALS = tuple(CAUSES)
# Encoding of text between our processes; None: the locale's. On Windows the locale's encoding lacks most characters.
PIPE_ENCODING = "utf-8" if sys.platform == "win32" else None
# Exit codes of Windows from here on are NTSTATUS errors: the process crashed.
LEAST_CRASH = 0xC0000000
# Position of the byte that is locked on Windows. Other processes cannot read a locked byte, so it is after the content.
LOCKED_BYTE = 1 << 30
# Pauses between attempts to replace a file that another process, such as a virus scanner, has open on Windows.
REPLACE_PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
# Seconds between two checks of stdin on Windows.
LOOK_EVERY_S = 0.5
# https://learn.microsoft.com/windows/win32/fileio/naming-a-file
DEVICE = re.compile(r"(CON|PRN|AUX|NUL|(COM|LPT)[0-9¹²³])(\..*)?", re.IGNORECASE)
NOT_IN_NAMES = re.compile(r'[<>:"|?*\x00-\x1f]')
# https://learn.microsoft.com/windows/win32/procthread/process-security-and-access-rights
SYNCHRONIZE, ACCESS_DENIED, WAIT_TIMEOUT = 0x00100000, 5, 0x102


def unblock_signals() -> None:
    """Deliver signals that `signals_blocked` of the parent process delayed; Windows delays none."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block signals inside the `with` block, and in a child started there until it calls `unblock_signals`."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def signal_main_thread(number: int) -> None:
    """Send signal `number` to the main thread of this process."""
    if sys.platform == "win32":
        # `os.kill` would kill the process. Python calls every handler in the main thread.
        signal.raise_signal(number)
    else:
        signal.pthread_kill(threading.main_thread().ident or 0, number)


def start_child(words: Any, *, apart: bool, **settings: Any) -> "subprocess.Popen[str]":
    """Start a process; `settings` are those of `subprocess.Popen`, for streams of text.

    `apart`: give the process a group of its own, which Ctrl-C in our terminal does not reach.
    """
    if sys.platform == "win32":
        return WindowsChild(words, apart=apart, **settings)
    return subprocess.Popen(words, process_group=0 if apart else None, **settings)


if sys.platform == "win32":

    class WindowsChild(subprocess.Popen[str]):
        """Child process whose `send_signal` takes the same numbers as on other systems."""

        def __init__(self, words: Any, *, apart: bool, **settings: Any) -> None:
            self._is_apart = apart
            flags = subprocess.CREATE_NEW_PROCESS_GROUP if apart else 0
            super().__init__(words, creationflags=flags, **settings)

        def send_signal(self, sig: int) -> None:
            """Kill the process if `sig` is SIGKILL, else interrupt it. The console has interrupted our own group."""
            if sig == SIGKILL:
                self.kill()
            elif self._is_apart:
                try:
                    super().send_signal(signal.CTRL_BREAK_EVENT)
                # There is no console. Python before 3.13 raises SystemError.
                except (OSError, SystemError):
                    self.kill()


def wait_until_stdin_closes() -> None:
    """Wait until the process at the other end of stdin, a pipe, closes it or ends."""
    if sys.platform == "win32":
        # A thread that waits in `os.read` would block all other calls on stdin: `import numpy` would never return,
        # because the C runtime of each library asks for the type of stdin.
        kernel = ctypes.WinDLL("kernel32")
        pipe = ctypes.c_void_p(msvcrt.get_osfhandle(0))
        while kernel.PeekNamedPipe(pipe, None, 0, None, None, None):
            time.sleep(LOOK_EVERY_S)
        return
    with suppress(OSError):
        while os.read(0, 1):
            pass


def is_alive(process_id: int) -> bool:
    """Whether a process with this number exists."""
    if sys.platform == "win32":
        # `os.kill` with the number 0 would send Ctrl-C.
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        handle = kernel.OpenProcess(SYNCHRONIZE, 0, process_id)
        if not handle:
            return ctypes.get_last_error() == ACCESS_DENIED
        is_running = kernel.WaitForSingleObject(handle, 0) == WAIT_TIMEOUT
        kernel.CloseHandle(handle)
        return bool(is_running)
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def lock(file: IO[Any]) -> bool:
    """Lock a file that was just opened, until it is closed; return False if another process holds the lock."""
    if sys.platform == "win32":
        os.lseek(file.fileno(), LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(file.fileno(), 0, os.SEEK_SET)
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def replace_file(new: Path, path: Path) -> None:
    """Move the file `new` to `path`, atomically; on Windows, wait until no other process has the old file open."""
    for pause_s in REPLACE_PAUSES_S if sys.platform == "win32" else ():
        with suppress(PermissionError):
            new.replace(path)
            return
        time.sleep(pause_s)
    new.replace(path)


def require_possible(path: PurePath) -> None:
    """Raise `UsageError` on Windows for a path that Windows forbids, or would silently change."""
    if sys.platform == "win32" and (why := why_impossible(PureWindowsPath(str(path)))):
        raise UsageError(f"'{path}' is no path for Windows: {why}", hint="give another name, for example results")


def why_impossible(path: PureWindowsPath) -> str:
    """Reason why Windows forbids a file of this path, or would give it another name; empty if the path is possible."""
    for part in path.parts[1:] if path.anchor else path.parts:
        if found := NOT_IN_NAMES.search(part):
            return f"a name cannot have the character {found[0]!r}"
        if DEVICE.fullmatch(part):
            return f"'{part}' is the name of a device"
        if part != ".." and part.endswith((".", " ")):
            return f"'{part}' ends in a dot or a space, which Windows drops"
    return ""


# --- atomic writes: a file is written completely or not at all


@contextmanager
def replacing(path: Path, *, shared: bool = False, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` atomically after the `with` block; after an error `path` is unchanged.

    The temporary file is `NAME.tmp` beside `path`. `shared`: use a unique name, because other processes may write the
    same file at the same time. `durable`: sync to disk before replacing, so that a power failure leaves the old file or
    the new one.
    """
    require_possible(path)
    temporary = path.with_name(f"{path.name}.{os.urandom(6).hex()}.tmp" if shared else f"{path.name}.tmp")
    try:
        with temporary.open("xb" if shared else "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        replace_file(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def replace_text(path: Path, text: str, *, shared: bool = False, durable: bool = True) -> None:
    """Write a UTF-8 text file atomically, see `replacing`."""
    with replacing(path, shared=shared, durable=durable) as file:
        file.write(text.encode("utf-8"))


# --- CRC-32C, the checksum of a bundle's manifest, of Cloud Storage and of S3


BLOCK_BYTES = 1 << 20


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C (Castagnoli, RFC 3720 appendix B.4) of `data`, continuing from `crc`.

    `google-crc32c` computes it if it is installed; pure Python gives the same values at 11 MB/s.
    """
    return _fastest()(crc, data)


def crc32c_of(content: BinaryIO) -> str:
    """Checksum of the rest of `content`, in the form of `crc32c_text`."""
    crc = 0
    while block := content.read(BLOCK_BYTES):
        crc = crc32c(block, crc)
    return crc32c_text(crc)


def crc32c_text(crc: int) -> str:
    """Checksum as text: base64 of its four bytes, big-endian. The checksum 0 is `AAAAAA==`."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


@cache
def _fastest() -> Callable[[int, bytes], int]:
    try:
        # google_crc32c warns if it lacks its compiled part, and is then as slow as the fallback here.
        with warnings.catch_warnings(action="ignore"):
            import google_crc32c  # noqa: PLC0415 - optional, and not for those who only import this module
    except ImportError:
        return _in_python
    return google_crc32c.extend if google_crc32c.implementation == "c" else _in_python


def _in_python(crc: int, data: bytes) -> int:
    table = _crc32c_table()
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


@cache
def _crc32c_table() -> tuple[int, ...]:
    table = list(range(256))
    for _ in range(8):
        table = [(index >> 1) ^ (0x82F63B78 if index & 1 else 0) for index in table]
    return tuple(table)


# --- this installation: a checkout of the repository, or a wheel


# Written into wheels and sdists by hatch_build.py; a checkout has none.
COMMIT_FILE = Path(__file__).parents[1] / "commit.txt"


def packaged_commit() -> str:
    """Commit from which an installed wheel was built, with `-dirty` if files had changed; empty if unknown."""
    try:
        return COMMIT_FILE.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def from_checkout(module: str, command: str) -> Any:
    """Import `module`, which only a checkout of the repository has.

    Raises `UsageError` in an installed package; `command`: name of the command that needs `module`, for the message.
    """
    folder = ROOT.joinpath(*module.split(".")[:-1])
    if not folder.is_dir():
        page = document("docs/gpu-truth.md")
        raise UsageError(
            f"there is no '{folder}': {command} is part of the repository, not of the installed package",
            hint=f"run {command} from a checkout{f': {page}' if page else ''}",
        )
    return import_module(module)
