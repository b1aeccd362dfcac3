"""Makes this process and its children look like Windows to our own packages, and to nothing else.

With this folder in PYTHONPATH, `import os` in a module of ours gives `os` without the names that Windows lacks; modules
that Windows lacks cannot be imported; `sys.platform` is win32. Processes behave as there: `terminate` kills, and the
only signal for another process is Ctrl-Break, for one in a group of its own. Paths stay those of this machine.
"""

import builtins
import ctypes
import fcntl
import os
import select
import signal
import subprocess
import types
from typing import Any

OURS = {"analysis", "launcher", "rooflaunch", "workload"}
ABSENT = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}
# SIGQUIT stands for SIGBREAK: both end a process that has no handler for it.
BREAK = signal.SIGQUIT
# A shell lets its background commands ignore SIGQUIT, and their children with them.
signal.signal(BREAK, signal.SIG_DFL)
MISSING_FROM_OS = """
O_CLOEXEC O_NOFOLLOW O_NONBLOCK WEXITSTATUS WIFSIGNALED WNOHANG WTERMSIG chown fork forkpty getegid geteuid getgid
getloadavg getpgid getpgrp getsid getuid killpg mkfifo nice openpty pidfd_open posix_spawn pread pwrite
register_at_fork sched_getaffinity setpgid setsid statvfs sysconf tcgetpgrp uname wait waitid
"""
MISSING_FROM_SIGNAL = """
SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGUSR1 SIGUSR2 SIG_BLOCK SIG_SETMASK SIG_UNBLOCK
alarm pidfd_send_signal pthread_kill pthread_sigmask setitimer sigwait
"""
MISSING = {
    "os": MISSING_FROM_OS.split(),
    "signal": MISSING_FROM_SIGNAL.split(),
    "select": ["POLLIN", "epoll", "poll"],
    "socket": ["AF_UNIX", "recv_fds", "send_fds"],
    "time": ["CLOCK_BOOTTIME", "clock_gettime"],
}


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    def __init__(self, *words: Any, creationflags: int = 0, **settings: Any) -> None:
        assert not {"preexec_fn", "pass_fds", "process_group"} & settings.keys()
        settings.pop("start_new_session", None)
        self._is_apart = bool(creationflags)
        super().__init__(*words, process_group=0 if creationflags else None, **settings)

    def send_signal(self, sig: int) -> None:
        if sig == BREAK:
            if self.poll() is not None:
                raise OSError(87, "The parameter is incorrect")
            assert self._is_apart, "Ctrl-Break needs the number of a group"
            os.killpg(self.pid, BREAK)
        elif sig == signal.SIGTERM:
            self.kill()
        else:
            raise ValueError(f"Unsupported signal: {sig}")

    def kill(self) -> None:
        super().send_signal(signal.SIGKILL)

    terminate = kill


def kill(process: int, number: int) -> None:
    assert number not in (0, 1), "0 is Ctrl-C on Windows, and 1 is Ctrl-Break"
    os.kill(process, signal.SIGKILL)


def locking(descriptor: int, _mode: int, count: int) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, count, os.lseek(descriptor, 0, os.SEEK_CUR))
    except OSError as error:
        raise PermissionError(13, "Permission denied") from error


class Kernel:
    """The functions of kernel32 that tell whether a process lives; a process is its own handle."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def OpenProcess(self, _access: int, _inherits: int, process: int) -> int:  # noqa: N802 - Windows' names
        return process if os.path.exists(f"/proc/{process}") else 0  # noqa: PTH110 - no import of pathlib here

    def WaitForSingleObject(self, _handle: int, _wait_ms: int) -> int:  # noqa: N802
        return 0x102

    def PeekNamedPipe(self, pipe: ctypes.c_void_p, *_: Any) -> int:  # noqa: N802
        readable, _, _ = select.select([(pipe.value or 0)], [], [], 0)
        return not readable or bool(os.read(pipe.value or 0, 1))

    def CloseHandle(self, _handle: int) -> None:  # noqa: N802
        pass


ADDED: dict[str, dict[str, Any]] = {
    "sys": {"platform": "win32"},
    "ctypes": {"WinDLL": Kernel, "get_last_error": lambda: 87},
    "os": {"name": "nt", "kill": kill},
    "signal": {"SIGBREAK": BREAK, "CTRL_BREAK_EVENT": BREAK},
    "subprocess": {"Popen": Popen, "CREATE_NEW_PROCESS_GROUP": 0x200},
}


class Like(types.ModuleType):
    """A module of the standard library as Windows has it; it reads and sets the attributes of the module itself."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__(module.__name__)
        vars(self).update(_module=module, **ADDED.get(module.__name__, {}))

    def __getattr__(self, name: str) -> Any:
        module = vars(self)["_module"]
        if name in MISSING.get(module.__name__, ()):
            raise AttributeError(f"module '{module.__name__}' has no attribute '{name}' on Windows")
        return getattr(module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_module"], name, value)


MODULES = {name: Like(__import__(name)) for name in MISSING | ADDED}
MSVCRT = types.ModuleType("msvcrt")
vars(MSVCRT).update(LK_NBLCK=2, locking=locking, get_osfhandle=lambda descriptor: descriptor)
before = builtins.__import__


def imported(name: str, module: Any = None, *words: Any, **more: Any) -> Any:
    if str((module or {}).get("__package__")).partition(".")[0] in OURS:
        if name in ABSENT:
            raise ModuleNotFoundError(f"No module named '{name}' on Windows", name=name)
        if name in MODULES:
            return MODULES[name]
        if name == "msvcrt":
            return MSVCRT
    return before(name, module, *words, **more)


builtins.__import__ = imported
