"""The link between local servers and the global server, and the only counter of communication."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, fields
from typing import Protocol

from fclub.protocol.messages import Message, encode


@dataclass
class Communications:
    """C(T) by kind. `phases` counts statistics reported and sent down at phase starts."""

    uploads: int = 0
    downloads: int = 0
    phases: int = 0
    messages: int = 0
    bytes: int = 0

    @property
    def total(self) -> int:
        return self.uploads + self.downloads + self.phases

    def __add__(self, other: Communications) -> Communications:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Communications(*(a + b for a, b in pairs))

    def count(self, message: Message, size: int) -> None:
        self.messages += 1
        self.bytes += size
        counted = message.count()
        self.uploads += counted.uploads
        self.downloads += counted.downloads
        self.phases += counted.phases

    def count_events(self, uploads: int, downloads: int, sizes: tuple[int, int]) -> None:
        """Uploads and downloads of these sizes that happened inside compiled code."""
        upload_bytes, download_bytes = sizes
        self.uploads += uploads
        self.downloads += downloads
        self.messages += uploads + downloads
        self.bytes += uploads * upload_bytes + downloads * download_bytes

    def as_dict(self) -> dict[str, int]:
        return {field.name: getattr(self, field.name) for field in fields(self)} | {"total": self.total}


class Uplink(Protocol):
    """What a local server sends through."""

    def to_global(self, message: Message) -> None: ...


class Downlink(Protocol):
    """What the global server sends through; `server` is who receives."""

    def to_local(self, server: int, message: Message) -> None: ...


class GlobalEnd(Protocol):
    def receive(self, server: int, message: Message) -> None: ...


class LocalEnd(Protocol):
    def receive(self, message: Message) -> None: ...


class InProcessLink:
    """Delivers at once, in this process, but through bytes: an object can never be shared."""

    def __init__(self, decode: Callable[[bytes], Message]) -> None:
        self.communications = Communications()
        self._decode = decode
        self._global: GlobalEnd | None = None
        self._locals: Mapping[int, LocalEnd] = {}

    def connect(self, global_end: GlobalEnd, local_ends: Mapping[int, LocalEnd]) -> None:
        self._global, self._locals = global_end, local_ends

    def uplink(self, server: int) -> Uplink:
        """The end that a local server sends through."""
        return _Uplink(self, server)

    def from_local(self, server: int, message: Message) -> None:
        assert self._global is not None
        self._global.receive(server, self._carry(message))

    def to_local(self, server: int, message: Message) -> None:
        self._locals[server].receive(self._carry(message))

    def _carry(self, message: Message) -> Message:
        data = encode(message)
        self.communications.count(message, len(data))
        return self._decode(data)


@dataclass(frozen=True)
class _Uplink:
    link: InProcessLink
    server: int

    def to_global(self, message: Message) -> None:
        self.link.from_local(self.server, message)
