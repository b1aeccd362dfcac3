"""Plays `colab ssh --proxy-mode`, a ProxyCommand that refuses a second connection: `one_connection.py FOLDER PORT`.

Bridges standard input and output to a port of this machine. FOLDER/connections gets a line for each connection, FOLDER/
refused one for each refusal.
"""

import fcntl
import os
import selectors
import socket
import sys
from pathlib import Path

# Text of googlecolab/google-colab-cli 1005593, src/colab_cli/commands/ssh.py, with its exit code.
REFUSAL = (
    "[colab] Already-active SSH session (HTTP 429): another `colab ssh` is connected to this runtime. "
    "Disconnect it and retry."
)


def main(folder: Path, port: int) -> int:
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(folder / "refused")
            print(REFUSAL, file=sys.stderr)
            return 1
        note(folder / "connections")
        with socket.create_connection(("127.0.0.1", port)) as server:
            bridge(server)
    return 0


def note(path: Path) -> None:
    with path.open("a") as file:
        file.write(f"{os.getpid()}\n")


def bridge(server: socket.socket) -> None:
    """Copy bytes both ways until either side ends."""
    ways = {0: server.sendall, server.fileno(): lambda data: os.write(1, data)}
    with selectors.DefaultSelector() as selector:
        for source in ways:
            selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                data = os.read(key.fd, 1 << 16)
                if not data:
                    return
                rest = memoryview(data)
                while rest:
                    rest = rest[ways[key.fd](rest) or len(rest) :]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
