"""The wire between machines: NATS JetStream. Every node dials out; the broker decides who may say what.

Local server X publishes on `fclub.up.X` and consumes the stream `DOWN_X`; streams and consumers belong
to the global server. The broker only has to remember while a peer is away: both ends keep their frames
until the other's receipt, so that a broker that loses its disk loses nothing.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import shuffle, uniform

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from fclub.errors import InvalidSetting, NotStored
from fclub.service.link.channel import GLOBAL
from fclub.service.link.streams import UP_STREAM, BrokerStreams, down_stream
from fclub.service.link.wire import Connected, Deliver, end
from fclub.service.monitoring import Monitor
from fclub.service.settings import Nats

BATCH = 256
POLL_SECONDS = 1.0
PREPARED_SECONDS = 0.2
REFUSALS_TOLD = 50
REFUSALS_BORNE = 15
"""Refusals in a row after which another broker of a cluster is tried."""

CLOSE_SECONDS = 5.0
LEAVE_AFTER = 2
"""Failures in a row after which a connection is given up.

One of a cluster may be cut off from the others. A client may be deaf: nats-py ends its reading for good
after some errors and still takes itself for connected.
"""

LONGEST_PAUSE = 8.0
"""Seconds between two dials of a single broker, at most; they double as long as nothing arrives."""

REDIAL_SECONDS = 0.5
"""Seconds between the first two dials; with one broker they double to `LONGEST_PAUSE`, with jitter."""

SILENCE_SECONDS = 6.0
LONGEST_SILENCE = 10.0
"""How long a message may stay without any answer until another broker of a cluster is tried.

A broker that is cut off from the others may still say that there is nothing new. As the peer itself
may be away, the second silence is borne longer than the first; but to go round three brokers must not
take more than half a minute.
"""

PULL = json.dumps({"batch": BATCH, "expires": int(POLL_SECONDS * 1e9)}).encode()
NOTHING_NEW = ("404", "408")
"""How the broker ends a pull for want of messages."""

NOBODY_THERE = "503"
"""How it answers one for a stream that it does not have."""


@dataclass(frozen=True)
class Broker:
    """Where the broker is and who we are to it."""

    url: str
    user: str
    password: str
    tls: ssl.SSLContext | None = None


class _NotPrepared(NatsError):
    """The broker does not have the stream yet."""


class _Silence(NatsError):
    """Nothing that we said was answered."""


def _status(message: Msg) -> str:
    """A message of the broker itself has a status; frames have none."""
    return (message.headers or {}).get("Status", "")


class NatsWire:
    """One end; `name` is a local server's, or `global`."""

    def __init__(
        self,
        name: str,
        broker: Broker,
        monitor: Monitor,
        servers: list[str] | None = None,
        replicas: int = 1,
    ) -> None:
        self.name, self.broker, self.monitor = name, broker, monitor
        self._streams = BrokerStreams(monitor, servers or [], replicas)
        self._urls = [url.strip() for url in broker.url.split(",")]
        shuffle(self._urls)
        self._failures = self._dials = 0
        self._asked: float | None = None
        self._silence = SILENCE_SECONDS
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._refusals = 0
        self._tell_connected: Connected = lambda: None

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    async def start(self, deliver: Deliver, connected: Connected) -> None:
        """Connect in the background: a node serves its users whether or not the broker is there."""
        self._tell_connected = connected
        self._task = asyncio.create_task(self._run(deliver))

    async def _run(self, deliver: Deliver) -> None:
        while True:
            try:
                await self._consume(await self._dialled(), deliver)
            except _NotPrepared:
                await self._not_prepared()
                await asyncio.sleep(PREPARED_SECONDS)
            except NotStored:
                raise
            except _Silence as error:
                self.monitor.wire_failed(error)
                await self._leave()
            except Exception as error:
                # Whatever it is, a server goes on for its own users, and the link is tried again.
                self.monitor.wire_failed(error)
                self._failures += 1
                if self._failures % LEAVE_AFTER == 0 and not await self._worth_staying():
                    await self._leave()
                await asyncio.sleep(POLL_SECONDS)

    async def _not_prepared(self) -> None:
        """Usual while a federation starts, a failure if it lasts."""
        if self._refusals == 0:
            self.monitor.event("waiting for the streams of the federation")
        elif self._refusals % REFUSALS_TOLD == 0:
            self.monitor.wire_failed(_NotPrepared("the broker does not have the streams"))
        self._refusals += 1
        if self._refusals % REFUSALS_BORNE == 0 and len(self._urls) > 1:
            await self._leave()

    async def _worth_staying(self) -> bool:
        """Whether our broker is one of those that agree; only the global server may ask."""
        if self.name != GLOBAL or self._client is None:
            return False
        return await self._streams.reached(self._client)

    async def _leave(self) -> None:
        """Give up this connection; the other brokers of a cluster are dialled before this one."""
        client, self._client = self._client, None
        if client is not None:
            here = client.connected_url
            at = next((k for k, url in enumerate(self._urls) if here and here.netloc in url), 0)
            self._urls = self._urls[at + 1 :] + self._urls[: at + 1]
            with suppress(TimeoutError, NatsError, OSError):
                await asyncio.wait_for(client.close(), CLOSE_SECONDS)

    async def _dialled(self) -> Client:
        """The client in use, or a new one: nats-py never opens again one that it has closed."""
        if self._client is not None and self._client.is_closed:
            await self._leave()
        if self._client is None:
            if self._dials and len(self._urls) == 1:
                await asyncio.sleep(min(POLL_SECONDS * 2 ** (self._dials - 1), LONGEST_PAUSE))
            self._dials += 1
            self._client = await self._connect()
        return self._client

    async def _connect(self) -> Client:
        client = Client()

        async def failed(error: Exception) -> None:
            """One broker is not dialled more and more often; of a cluster the next one may do."""
            self.monitor.wire_failed(error)
            if len(self._urls) == 1:
                pause = min(2.0 * client.options["reconnect_time_wait"], LONGEST_PAUSE)
                client.options["reconnect_time_wait"] = pause * uniform(0.8, 1.0)

        async def reconnected() -> None:
            client.options["reconnect_time_wait"] = REDIAL_SECONDS
            self.monitor.wire_works()
            self._tell_connected()

        await client.connect(
            list(self._urls),
            dont_randomize=True,
            user=self.broker.user,
            password=self.broker.password,
            tls=self.broker.tls,
            name=self.name,
            inbox_prefix=f"_INBOX_{self.name}".encode(),
            max_reconnect_attempts=-1,
            reconnect_time_wait=REDIAL_SECONDS,  # type: ignore[arg-type]  # any number will do
            error_cb=failed,
            reconnected_cb=reconnected,
        )
        client.options["reconnect_time_wait"] = REDIAL_SECONDS
        self.monitor.wire_works()
        return client

    async def _consume(self, client: Client, deliver: Deliver) -> None:
        """Take what arrives as soon as it arrives; confirm to the broker what is on disk."""
        keeping = []
        if self.name == GLOBAL:
            await self._streams.prepare(client)
            keeping.append(asyncio.create_task(self._streams.keep(client)))
        source = UP_STREAM if self.name == GLOBAL else down_stream(self.name)
        request = f"$JS.API.CONSUMER.MSG.NEXT.{source}.{self.name}"
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        self._tell_connected()
        asked = 0
        try:
            while True:
                if asked <= 0:
                    await client.publish(request, PULL, reply=inbox)
                    asked = BATCH
                messages = await self._arrived(subscription)
                self._failures = self._dials = 0
                frames = [message for message in messages if not _status(message)]
                asked = asked - len(frames) if len(frames) == len(messages) else 0
                self._listen(bool(frames))
                if frames:
                    self._refusals = 0
                    await deliver([(self._sender(m.subject), m.data) for m in frames])
                    for message in frames:
                        await message.ack()
        finally:
            await end(*keeping)
            if self.connected:
                await subscription.unsubscribe()

    def _listen(self, heard: bool) -> None:
        """Notice a silence that has lasted long enough to look for another broker."""
        now = time.monotonic()
        if heard:
            self._asked, self._silence = None, SILENCE_SECONDS
        elif self._asked is not None and now - self._asked > self._silence and len(self._urls) > 1:
            lasted, self._asked = self._silence, now
            self._silence = min(2 * self._silence, LONGEST_SILENCE)
            raise _Silence(f"nothing was answered for {lasted:g} s")

    async def _arrived(self, subscription: Subscription) -> list[Msg]:
        """At least one message, with all that came with it."""
        messages = [await subscription.next_msg(timeout=2 * POLL_SECONDS)]
        while subscription.pending_msgs:
            messages.append(await subscription.next_msg())
        for message in messages:
            if _status(message) == NOBODY_THERE:
                raise _NotPrepared
            if _status(message) not in ("", *NOTHING_NEW):
                raise NatsError(f"the broker answers with status {_status(message)}")
        return messages

    def _sender(self, subject: str) -> str:
        return subject.rpartition(".")[2] if self.name == GLOBAL else GLOBAL

    async def send(self, peer: str, frame: bytes, message_id: str | None) -> None:
        """Hand a frame to the broker; one that gets lost is sent again for want of a receipt."""
        if self._client is None or not self.connected:
            return
        subject = f"fclub.down.{peer}" if self.name == GLOBAL else f"fclub.up.{self.name}"
        headers = None
        if message_id is not None:
            headers = {"Nats-Msg-Id": message_id}
            self._asked = time.monotonic() if self._asked is None else self._asked
        try:
            await self._client.publish(subject, frame, headers=headers)
        except (NatsError, OSError) as error:
            self.monitor.wire_failed(error)

    def follow(self, servers: Sequence[str], gone: Sequence[str]) -> None:
        """The global server's: these local servers take part, those have left."""
        self._streams.follow(servers, gone)

    def renew(self, settings: Nats) -> None:
        """Use these certificates from the next connection on."""
        if self.broker.tls is not None and settings.ca is not None:
            broker_of(settings)  # a trial: half a pair would break the context in use
            self.broker.tls.load_verify_locations(settings.ca)
            if settings.certificate:
                self.broker.tls.load_cert_chain(settings.certificate, settings.key)

    async def stop(self) -> None:
        if self._task is not None:
            await end(self._task)
        if self._client is not None:
            with suppress(TimeoutError, NatsError, OSError):
                await asyncio.wait_for(self._client.close(), CLOSE_SECONDS)


def broker_of(settings: Nats) -> Broker:
    """Connection data of a broker, with a TLS context where there are certificates."""
    try:
        return Broker(settings.url, settings.user, settings.password, _client_context(settings))
    except (OSError, ssl.SSLError) as error:
        raise InvalidSetting(f"nats: cannot use the certificates: {error}") from None


def _client_context(settings: Nats) -> ssl.SSLContext | None:
    if settings.ca is None:
        return None
    context = ssl.create_default_context(cafile=settings.ca)
    if settings.certificate:
        context.load_cert_chain(settings.certificate, settings.key)
    return context
