"""Settings of all tests, a link that remembers what crossed it, and commands without a process."""

import sys
from collections.abc import Callable
from subprocess import CompletedProcess
from typing import NamedTuple

import pytest
from hypothesis import settings

from fclub.protocol.link import InProcessLink
from fclub.protocol.messages import Message, encode

# The first call of a kernel may compile it, so there is no deadline; the same cases on every run, so
# that a red run is a red change.
settings.register_profile("fclub", deadline=None, derandomize=True)
settings.load_profile("fclub")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests have measured, also where they ran in another process."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid}: {name}: {value}")


class Sent(NamedTuple):
    upwards: bool
    server: int
    message: Message
    data: bytes


class RecordingLink(InProcessLink):
    def __init__(self, decode: Callable[[bytes], Message]) -> None:
        super().__init__(decode)
        self.sent: list[Sent] = []

    def from_local(self, server: int, message: Message) -> None:
        self.sent.append(Sent(True, server, message, encode(message)))
        super().from_local(server, message)

    def to_local(self, server: int, message: Message) -> None:
        self.sent.append(Sent(False, server, message, encode(message)))
        super().to_local(server, message)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Federated policies started in this test have a `RecordingLink`."""
    monkeypatch.setattr("fclub.protocol.federation.InProcessLink", RecordingLink)


Command = Callable[..., CompletedProcess[str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`fclub` with these words, in this process: to start one takes longer than most commands do."""
    from fclub.cli.main import main

    def run(*words: object) -> CompletedProcess[str]:
        line = ["fclub", *map(str, words)]
        monkeypatch.setattr(sys, "argv", line)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return CompletedProcess(line, ended.value.code, told.out, told.err)

    return run
