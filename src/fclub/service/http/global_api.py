"""Answers of the global server's routes, and their OpenAPI description."""

from __future__ import annotations

from typing import Any

import msgspec

from fclub.service.http.openapi import Operation, Operations, describe


class Member(msgspec.Struct, frozen=True):
    """A local cluster; its id is the server's own."""

    server: str
    cluster: int


class GroupView(msgspec.Struct, frozen=True):
    """A global cluster, by the servers and opaque ids of its members.

    `kind` is cluster or type; a type is the same on every server.
    """

    group: int
    kind: str
    observations: int
    members: list[Member]


class ServerView(msgspec.Struct, frozen=True):
    """Messages to and from a local server since both agreed, and how far it is trusted.

    `state` is active, suspended or retired; what a retired server has released stays.
    `rejected` counts frames that were not taken, by reason. `trouble` tells why it is not clear where
    both sides stand.
    """

    state: str
    sent: int
    confirmed: int
    received: int
    session: int
    offences: int
    quarantined: bool
    rejected: dict[str, int]
    trouble: str | None


class SlotProgress(msgspec.Struct, frozen=True):
    """How far a secure sum has come, by the names of its members; nothing of what they send.

    `times` are seconds since 1970 by stage (called, roster sent, go, summed or not summed); `reason`
    tells why a slot was not summed.
    """

    period: int
    slot: int
    stage: str
    times: dict[str, float]
    called: list[str]
    joined: list[str]
    ready: list[str]
    missing: list[str]
    reason: str


class Released(msgspec.Struct, frozen=True):
    server: str
    quarantined: bool


OPERATIONS: Operations = {
    ("get", "/v1/clusters"): Operation(
        list[GroupView], "Global clusters, each with its observations and local clusters."
    ),
    ("get", "/v1/slots"): Operation(
        list[SlotProgress], "Secure sums, the last hundred: who took part, and why one was not summed."
    ),
    ("get", "/v1/servers"): Operation(
        dict[str, ServerView],
        "Local servers: messages sent, confirmed and received, refusals, quarantine.",
    ),
    ("post", "/v1/servers/{server}/release"): Operation(Released, "End a quarantine."),
}
REFUSALS = {"get": (401, 403, 429), "post": (401, 403, 404, 429, 503)}


def openapi() -> dict[str, Any]:
    """The description of the API, generated from the types above."""
    return describe("fclub global server", OPERATIONS, REFUSALS)
