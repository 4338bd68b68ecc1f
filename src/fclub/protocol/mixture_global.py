"""The global server of the mixture policies: merges released clusters, sends everyone the others'."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from fclub.core.clustering import number_by_first
from fclub.core.evidence import agglomerate, noisy_information
from fclub.core.mixture import concentration
from fclub.core.statistics import Statistics
from fclub.core.types import Indices
from fclub.errors import InvalidMessage
from fclub.protocol.link import Link
from fclub.protocol.messages import (
    Digest,
    Message,
    PhaseStart,
    Share,
    Shares,
    read_id,
    read_released,
    write_id,
    write_statistics,
)
from fclub.protocol.mixture_local import MixtureRules

Member = tuple[int, int]
Known = tuple[Statistics, float]
"""Released statistics and the variance of the noise in each entry."""


class MixtureGlobal:
    """Knows local clusters by server, opaque number and released statistics.

    Merges need evidence: the log odds have to exceed `margin`, because weak statistics agree with
    everything and their sum would look stronger than it is.
    """

    def __init__(self, servers: list[int], rules: MixtureRules, margin: float, link: Link) -> None:
        self.servers, self.rules, self.margin, self.link = sorted(servers), rules, margin, link
        self.known: dict[Member, Known] = {}
        self.gamma, self.next_share = 1.0, 0
        self._sent: dict[int, dict[tuple[Any, ...], int]] = {server: {} for server in self.servers}
        self._changed = False

    def begin_phase(self, phase: int) -> None:
        """Let every server detect and report; answer if anybody had news."""
        for server in self.servers:
            self.link.to_local(server, PhaseStart(phase))
        if self._changed:
            self._answer(phase)
            self._changed = False

    def receive(self, server: int, message: Message) -> None:
        if not isinstance(message, Digest) or server not in self._sent:
            kind = type(message).__name__
            raise InvalidMessage(f"the global server does not take a {kind} from server {server}")
        dim = len(self.rules.prior)
        news = {
            (server, read_id(entry.cluster)): read_released(entry.statistics, entry.noise, dim)
            for entry in message.news
        }
        present = {(server, read_id(cluster)) for cluster in message.present}
        kept = {member: known for member, known in self.known.items() if member in present}
        if (kept | news).keys() != present:
            raise InvalidMessage("a digest must bring the statistics of the clusters that it names")
        others = {member: known for member, known in self.known.items() if member[0] != server}
        self.known, self._changed = others | kept | news, True

    def _merge(self, members: list[Member]) -> Indices:
        pairs = [
            noisy_information(s.gram, s.moment, noise, self.rules.variance)
            for s, noise in (self.known[member] for member in members)
        ]
        information, vectors = np.array([Q for Q, _ in pairs]), np.array([q for _, q in pairs])
        labels = agglomerate(self.rules.prior, information, vectors, self.gamma, self.margin)
        if len(members) > 1:
            found = float(len(np.unique(labels)))
            self.gamma = sqrt(self.gamma * concentration(found, len(members)))
        return number_by_first(labels)

    def _answer(self, phase: int) -> None:
        members = sorted(self.known)
        if not members:
            return
        group = self._merge(members)
        for server in self.servers:
            shares = self._shares(server, members, group)
            own = tuple(
                (write_id(cluster), int(k))
                for (owner, cluster), k in zip(members, group, strict=True)
                if owner == server
            )
            sent = self._sent[server]
            fresh = tuple(share for key, share in shares.items() if key not in sent)
            self._sent[server] = {key: share.number for key, share in shares.items()}
            present = tuple(self._sent[server].values())
            self.link.to_local(server, Shares(phase, own, present, fresh, self.gamma))

    def _shares(
        self, server: int, members: list[Member], group: Indices
    ) -> dict[tuple[Any, ...], Share]:
        """Others' part of every global cluster, by what it consists of."""
        shares: dict[tuple[Any, ...], Share] = {}
        for k in range(int(group.max()) + 1):
            others = [m for m, g in zip(members, group, strict=True) if g == k and m[0] != server]
            if not others:
                continue
            key = tuple((m, self.known[m][0].count) for m in others)
            number = self._sent[server].get(key)
            if number is None:
                number, self.next_share = self.next_share, self.next_share + 1
            total = Statistics.zeros(len(self.rules.prior))
            for member in others:
                total = total + self.known[member][0]
            noise = float(sum(self.known[member][1] for member in others))
            shares[key] = Share(number, write_statistics(total), noise, len(others))
        return shares

    def state_of(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arrays and JSON-ready values from which `restore` continues."""
        dim = len(self.rules.prior)
        known = list(self.known.values())
        arrays = {
            "world.gram": np.array([s.gram for s, _ in known]).reshape(-1, dim, dim),
            "world.moment": np.array([s.moment for s, _ in known]).reshape(-1, dim),
        }
        values = {
            "known": [(*m, s.count, noise) for m, (s, noise) in self.known.items()],
            "gamma": self.gamma,
            "next_share": self.next_share,
            "sent": [(server, list(keys.items())) for server, keys in self._sent.items()],
        }
        return arrays, values

    def restore(self, arrays: dict[str, Any], values: dict[str, Any]) -> None:
        self.known = {
            (server, cluster): (Statistics(gram, moment, count), noise)
            for (server, cluster, count, noise), gram, moment in zip(
                values["known"], arrays["world.gram"], arrays["world.moment"], strict=True
            )
        }
        self.gamma, self.next_share = values["gamma"], int(values["next_share"])
        self._sent = {
            server: {_as_key(key): number for key, number in keys} for server, keys in values["sent"]
        }


def _as_key(key: list[Any]) -> tuple[Any, ...]:
    """A share's key as JSON gave it back."""
    return tuple(((server, cluster), count) for (server, cluster), count in key)
