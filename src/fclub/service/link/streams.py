"""The streams of a federation at its broker, which the global server makes and looks after.

A cluster may lose a stream, or be unable to bring it back. As both ends keep their frames until the
other's receipt, it may then be made anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import (
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StreamConfig,
)
from nats.js.client import JetStreamContext
from nats.js.errors import NotFoundError, ServiceUnavailableError

from fclub.service.link.channel import GLOBAL
from fclub.service.monitoring import Monitor

UP_STREAM = "UP"
DUPLICATE_SECONDS = 120.0
KEEP_SECONDS, AGAIN_SECONDS = 3.0, 1.0
"""How long after one look at the streams the next begins; if a cluster has something unusable."""

ANSWER_SECONDS = 3.0
"""How long to wait for the broker to tell of one."""

LOST_AFTER = 3
"""Looks in a row at which a stream or a consumer is not usable until it is given up."""

DELETE_SECONDS = 10.0

MOST_WAITING = 4096
"""Messages of one sender that a stream holds: what comes beyond is refused, and sent again later."""


def down_stream(name: str) -> str:
    return f"DOWN_{name}"


class BrokerStreams:
    """One from all local servers and one back to each, on `replicas` brokers of a cluster."""

    def __init__(self, monitor: Monitor, servers: list[str], replicas: int) -> None:
        self._monitor, self._servers, self._replicas = monitor, list(servers), replicas
        self._gone: list[str] = []
        self._unusable: dict[str, int] = {}

    def follow(self, servers: Sequence[str], gone: Sequence[str]) -> None:
        """From the next look on keep the streams of these, and none of those that are gone."""
        self._servers, self._gone = list(servers), list(gone)

    async def keep(self, client: Client) -> None:
        """Make again what a cluster has lost, one stream or all."""
        while True:
            soon = self._replicas > 1 and self._unusable
            await asyncio.sleep(AGAIN_SECONDS if soon else KEEP_SECONDS)
            try:
                await self.prepare(client)
            except Exception as error:  # it is tried again, whatever it is
                self._monitor.wire_failed(error)

    async def prepare(self, client: Client) -> None:
        """Create what is missing; fail only if nothing can arrive here."""
        up, *down = await asyncio.gather(
            self._ensure(client, UP_STREAM, "fclub.up.*", GLOBAL),
            *(
                self._ensure(client, down_stream(name), f"fclub.down.{name}", name)
                for name in self._servers
            ),
            return_exceptions=True,
        )
        if up is not None:
            raise up
        for error in down:
            if error is not None:
                self._monitor.wire_failed(error)
        while self._gone:
            with suppress(NotFoundError):
                await client.jetstream(timeout=DELETE_SECONDS).delete_stream(
                    down_stream(self._gone[-1])
                )
            self._gone.pop()

    async def reached(self, client: Client) -> bool:
        """Whether this broker is one of those of a cluster that agree."""
        try:
            await client.jetstream(timeout=ANSWER_SECONDS).account_info()
        except (TimeoutError, NatsError, OSError):
            return False
        return True

    async def _ensure(self, client: Client, name: str, subject: str, consumer: str) -> None:
        """What leads the stream answers, and what leads its consumer: either may be missing."""
        stream = client.jetstream(timeout=ANSWER_SECONDS)
        patient = client.jetstream(timeout=DELETE_SECONDS)
        await self._usable(
            client, name, self._stream(stream, name, subject), lambda: patient.delete_stream(name)
        )
        await self._usable(
            client,
            f"{name} > {consumer}",
            self._consumer(stream, name, consumer),
            lambda: patient.delete_consumer(name, consumer),
        )

    async def _usable(
        self,
        client: Client,
        what: str,
        look: Awaitable[None],
        give_up: Callable[[], Awaitable[object]],
    ) -> None:
        """Give up what stays broken, so that it is made anew.

        Where the broker itself is cut off from the others, nothing is known of what they have; a single
        one that is not available is only waited for.
        """
        try:
            await look
            self._unusable.pop(what, None)
        except (TimeoutError, NatsError) as error:
            unavailable = isinstance(error, ServiceUnavailableError)
            if unavailable and (self._replicas == 1 or not await self.reached(client)):
                raise
            self._unusable[what] = self._unusable.get(what, 0) + 1
            if self._unusable[what] >= LOST_AFTER:
                self._unusable[what] = 0
                await give_up()
                self._monitor.event("given up, to be made anew", logging.WARNING, lost=what)
            raise

    async def _stream(self, stream: JetStreamContext, name: str, subject: str) -> None:
        config = StreamConfig(
            name=name,
            subjects=[subject],
            retention=RetentionPolicy.WORK_QUEUE,
            duplicate_window=DUPLICATE_SECONDS,
            num_replicas=self._replicas,
            discard=DiscardPolicy.NEW,
            discard_new_per_subject=True,
            max_msgs_per_subject=MOST_WAITING,
        )
        try:
            found = (await stream.stream_info(name)).config
            wanted = config.num_replicas, config.discard, config.max_msgs_per_subject
            if (found.num_replicas, found.discard, found.max_msgs_per_subject) != wanted:
                await stream.update_stream(config)
        except NotFoundError:
            await stream.add_stream(config)

    async def _consumer(self, stream: JetStreamContext, name: str, consumer: str) -> None:
        config = ConsumerConfig(
            durable_name=consumer, deliver_policy=DeliverPolicy.ALL, ack_wait=30.0, max_ack_pending=4096
        )
        try:
            await stream.consumer_info(name, consumer)
        except NotFoundError:
            await stream.add_consumer(name, config)
