"""Ledgers as files of JSON lines: a header, then one entry per line in the order of release."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from fclub.errors import FclubError, InvalidFile
from fclub.privacy.ledger import Header, Ledger, ReleaseEvent

_encoder = msgspec.json.Encoder()
_header = msgspec.json.Decoder(Header)
_event = msgspec.json.Decoder(ReleaseEvent)


class LedgerFile:
    """A sink that has every entry on disk before it returns."""

    def __init__(self, path: Path, header: Header) -> None:
        self._file = path.open("xb")
        self._write(header)

    def __call__(self, event: ReleaseEvent) -> None:
        self._write(event)

    def _write(self, entry: Header | ReleaseEvent) -> None:
        self._file.write(_encoder.encode(entry) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def write_ledger(ledger: Ledger, path: Path) -> None:
    """A whole ledger at once."""
    entries: list[Header | ReleaseEvent] = [ledger.header, *ledger.events]
    path.write_bytes(b"".join(_encoder.encode(entry) + b"\n" for entry in entries))


def read_ledger(path: Path) -> Ledger:
    """Read and re-account a ledger; every cost is computed again, not believed.

    A last line without its end was cut off by a crash: its release never left, and it is left out.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise InvalidFile(f"cannot read {path}: {error.strerror}") from None
    if not lines:
        raise InvalidFile(f"{path} is no ledger: it has no complete line")
    try:
        ledger = Ledger.of(_header.decode(lines[0]))
    except (msgspec.DecodeError, FclubError) as error:
        raise InvalidFile(f"{path}, line 1: {error}") from None
    for number, line in enumerate(lines[1:], start=2):
        try:
            ledger.replay(_event.decode(line))
        except (msgspec.DecodeError, FclubError) as error:
            raise InvalidFile(f"{path}, line {number}: {error}") from None
    return ledger
