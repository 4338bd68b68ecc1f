"""Machines of their own for organisations: Linux namespaces, joined by a bridge in one more of them.

They have names for nobody and end with the shell that holds them, or with this process: whatever
happens, nothing is left for somebody to clean up.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.docs.pages import ROOT, Block
from tests.docs.reader import Reader

FIRST_USER = 60_001
DIES_TOO = ["setpriv", "--pdeathsig", "KILL", "--"]
UNSHARE = [*DIES_TOO, "unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
ENTER = """
set -eu
base=$1 user=$2 needed=$3 closed=$4; shift 4
mount --bind "$base/hosts" /etc/hosts
IFS=:
for one in $needed; do mkdir -p "$base/kept$one"; mount --bind "$one" "$base/kept$one"; done
for one in $closed; do mount -t tmpfs -o mode=755 none "$one"; done
for one in $needed; do mkdir -p "$one"; mount --move "$base/kept$one" "$one"; done
exec setpriv --reuid $user --regid $user --clear-groups --no-new-privs --bounding-set=-all \
    --pdeathsig KILL "$@"
"""
REACH = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 10).close()"
SCAN = """
import socket, sys
def is_open(port):
    with socket.socket() as one:
        return one.connect_ex((sys.argv[1], port)) == 0
print([port for port in range(1, 65536) if is_open(port)])
"""


def refused() -> str:
    """Why there can be no machines here; empty if there can."""
    programs = ["unshare", "nsenter", "setpriv", "ip", "curl"]
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if os.geteuid():
        return "only root may make namespaces and act as other users"
    trial = "ip link add name v1 type veth peer name v2 && ip link add name b1 type bridge"
    done = subprocess.run([*UNSHARE, "sh", "-c", trial], capture_output=True, text=True, check=False)
    return f"needs CAP_SYS_ADMIN and CAP_NET_ADMIN: {done.stderr}" if done.returncode else ""


@contextmanager
def switch() -> Iterator[int]:
    """A process whose network has a bridge."""
    command, pipe = [*DIES_TOO, "unshare", "--net", "cat"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdout.readline()  # it has its network now
        ip(process.pid, "link", "add", "bridge", "type", "bridge")
        ip(process.pid, "link", "set", "bridge", "up")
        yield process.pid


def ip(process: int, *words: str) -> None:
    """Change the network of a process."""
    subprocess.run(["nsenter", "--target", str(process), "--net", "ip", *words], check=True)


def closed() -> tuple[str, str]:
    """What of this checkout and its Python other users cannot reach, and the folders that close it."""
    found = {}
    for path in {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), ROOT}:
        for parent in (path, *path.parents):
            if not parent.stat().st_mode & stat.S_IXOTH:
                found[str(path)] = str(parent)
    return ":".join(found), ":".join(set(found.values()))


class Machine(Reader):
    """Network, processes, mounts and an unprivileged user of its own, with a home in `base`."""

    def __init__(self, base: Path, name: str, number: int) -> None:
        self.name, self.user, self.address = name, FIRST_USER + number, f"10.88.0.{1 + number}"
        home = base / name
        home.mkdir()
        os.chown(home, self.user, self.user)
        environment = {
            "PATH": f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "HOME": str(home),
        }
        enter = ["bash", "-c", ENTER, "enter", str(base), str(self.user), *closed()]
        super().__init__(home, environment, [*UNSHARE, *enter])

    def connect(self, bridge: int) -> None:
        """Lay a cable to the bridge that is in the network of this process."""
        self.follow(Block("sh", "true"))  # it has its network then
        own = self.program("sh")[0].pid
        other_end = ["peer", "name", "eth0", "netns", str(own)]
        ip(bridge, "link", "add", self.name, "type", "veth", *other_end)
        ip(bridge, "link", "set", self.name, "master", "bridge", "up")
        ip(own, "link", "set", "lo", "up")
        ip(own, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip(own, "link", "set", "eth0", "up")

    @cached_property
    def _inside(self) -> list[str]:
        outer = self.program("sh")[0].pid
        shell = Path(f"/proc/{outer}/task/{outer}/children").read_text().strip()
        user = ["--reuid", str(self.user), "--regid", str(self.user), "--clear-groups"]
        return ["nsenter", "--target", shell, "--all", f"--wdns={self.folder}", "setpriv", *user]

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """A command of its user, beside the shell."""
        pipe, command = subprocess.PIPE, [*self._inside, "--", *words]
        return subprocess.Popen(
            command, env=self.environment, text=True, stdout=pipe, stderr=subprocess.STDOUT
        )

    def ask(self, *words: str) -> tuple[int, str]:
        """Exit code and output of a command."""
        process = self.begin(*words)
        said, _ = process.communicate(timeout=120)
        return process.returncode, said

    def get(self, port: int, page: str, token: str = "") -> Any:
        """JSON of a server that listens here."""
        url, header = f"http://127.0.0.1:{port}{page}", f"Authorization: Bearer {token}"
        code, said = self.ask("curl", "--silent", "--fail", "--header", header, url)
        assert code == 0, said
        return json.loads(said)

    def reaches(self, address: str, port: int) -> bool:
        return self.ask("python", "-c", REACH, address, str(port))[0] == 0

    def open_ports(self, address: str) -> list[int]:
        found: list[int] = json.loads(self.ask("python", "-c", SCAN, address)[1])
        return found

    def open_files(self, base: Path) -> str:
        """What of others its user may read or change, and what of its own others might."""
        others = f"-uid +{FIRST_USER - 1} ! -uid {self.user} '(' -type f -readable -o -writable ')'"
        own = f"-uid {self.user} ! -type l -perm /077 ! -path {self.folder}"
        return self.ask("bash", "-c", f"find {base} {others} -print -o {own} -print 2> /dev/null")[1]

    def give(self, name: str, data: bytes) -> None:
        """A file that its user has from somewhere else."""
        path = self.folder / name
        path.parent.mkdir(0o700, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o600)
        for one in (path.parent, path):
            os.chown(one, self.user, self.user)

    @property
    def jobs(self) -> str:
        """Processes that its shell has left in the background, all of which run."""
        self.follow(Block("sh", "jobs -p > jobs.txt; kill -0 $(jobs -p)"))
        return (self.folder / "jobs.txt").read_text()
