"""Servers as arrays and plain values, and back: for files of policies and snapshots of live servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fclub.core.packing import flatten, rebuild
from fclub.core.statistics import Packed, pack_statistics, unpack_statistics
from fclub.protocol.phase import PhaseClock
from fclub.protocol.staged import Staged

if TYPE_CHECKING:
    from fclub.protocol.global_server import GlobalServer
    from fclub.protocol.local_server import LocalServer
    from fclub.protocol.mixture_local import MixtureLocal

State = tuple[dict[str, Any], dict[str, Any]]
"""Arrays and JSON-ready values."""


def save_local(server: LocalServer) -> State:
    """Arrays and JSON-ready values from which `load_local` continues."""
    arrays = flatten(server.users, "users.") | flatten(server.clusters, "clusters.")
    arrays |= {f"detector.{name}": array for name, array in server.detector.arrays().items()}
    arrays |= {"cluster_of": server.cluster_of, "served_by": server.served_by}
    arrays |= pack_statistics([statistics for _, statistics in server.held], server.dim, "held.")
    values: dict[str, Any] = {"ids": server.ids, "groups": server.groups, "next_id": server.next_id}
    values |= {"asked": server.asked, "held": [c for c, _ in server.held], "reported": server.reported}
    values |= {"answered": server.answered, "began": server.began}
    if server.staged is not None:
        arrays |= flatten(server.staged, "staged.")
        values["staged"] = {"phase": server.staged.phase, "ids": server.staged.ids}
    return arrays, values


def load_local(server: LocalServer, arrays: dict[str, Any], values: dict[str, Any]) -> None:
    """The opposite: `server` goes on from there."""
    if len(server.users.counts) != len(arrays["users.counts"]):
        server.users = server.room = Packed.zeros(len(arrays["users.counts"]), server.dim)
    for name, array in flatten(server.users, "users.").items():
        array[...] = arrays[name]
    prefix = "detector."
    own = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
    server.detector.restore(own)
    server.clusters = rebuild(server.clusters, arrays, "clusters.")
    server.cluster_of, server.served_by = arrays["cluster_of"], arrays["served_by"]
    server.ids, server.groups = list(values["ids"]), list(values["groups"])
    server.next_id, server.asked = int(values["next_id"]), values["asked"]
    server.reported, server.answered = int(values["reported"]), int(values["answered"])
    server.began = int(values["began"])
    server.held = list(zip(values["held"], unpack_statistics(arrays, "held."), strict=True))
    staged = values.get("staged")
    server.staged = None
    if staged is not None:
        empty = Staged.empty(**staged, dim=server.dim, depth=server.depth)
        server.staged = rebuild(empty, arrays, "staged.")


def save_global(server: GlobalServer) -> State:
    """Arrays and JSON-ready values from which `load_global` continues."""
    arrays = flatten(server.state, "world.") | pack_statistics(server.released, server.dim, "released.")
    values: dict[str, Any] = {"phase": server.phase, "members": server.members, "reports": {}}
    values["waiting"] = None if server.waiting is None else sorted(server.waiting)
    for name, clusters in server.reports.items():
        values["reports"][str(name)] = [cluster for cluster, _ in clusters]
        arrays |= pack_statistics([st for _, st in clusters], server.dim, f"report{name}.")
    return arrays, values


def load_global(server: GlobalServer, arrays: dict[str, Any], values: dict[str, Any]) -> None:
    """The opposite: `server` goes on from there."""
    server.state = rebuild(server.state, arrays, "world.")
    server.members = [(int(owner), int(cluster)) for owner, cluster in values["members"]]
    server.released = unpack_statistics(arrays, "released.")
    server.phase = int(values["phase"])
    server.clock = PhaseClock(server.phase)
    server.waiting = None if values["waiting"] is None else set(values["waiting"])
    server.reports = {
        int(name): list(zip(ids, unpack_statistics(arrays, f"report{name}."), strict=True))
        for name, ids in values["reports"].items()
    }


def save_mixture(server: MixtureLocal) -> State:
    """Arrays and JSON-ready values from which `load_mixture` continues."""
    outside = server.outside.values()
    arrays = flatten(server.state, "round.") | {"labels": server.labels, "joined": server.joined}
    arrays |= {f"releases.{name}": array for name, array in server.releases.arrays().items()}
    arrays |= pack_statistics([statistics for statistics, _, _ in outside], server.dim, "outside.")
    return arrays, {
        "alpha": server.alpha,
        "gamma": server.gamma,
        "ids": server.ids,
        "groups": list(server.groups.items()),
        "told": list(server.told.items()),
        "outside": [(number, noise, k) for number, (_, noise, k) in server.outside.items()],
        "unanswered": server.unanswered,
        "clock": None if server.clock is None else [server.clock.phase, server.clock.next_start],
        "numbering": server.numbering.state_of(),
        "rng": server.rng.bit_generator.state,
    }


def load_mixture(server: MixtureLocal, arrays: dict[str, Any], values: dict[str, Any]) -> None:
    """The opposite: `server` goes on from there."""
    arrays = _with_squares(arrays, server.state.centre)
    if len(arrays["labels"]) == len(server.labels):
        for name, array in flatten(server.state, "round.").items():
            array[...] = arrays[name]
    else:
        server.state = server.room = rebuild(server.state, arrays, "round.")
    prefix = "releases."
    own = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
    server.releases.restore(own, server.users)
    server.labels, server.joined, server.ids = arrays["labels"], arrays["joined"], list(values["ids"])
    server.alpha, server.gamma = values["alpha"], values["gamma"]
    server.groups, server.told = dict(values["groups"]), dict(values["told"])
    server.outside = {
        number: (statistics, noise, clusters)
        for (number, noise, clusters), statistics in zip(
            values["outside"], unpack_statistics(arrays, "outside."), strict=True
        )
    }
    server.unanswered = bool(values["unanswered"])
    if server.clock is not None:
        server.clock.phase, server.clock.next_start = values["clock"]
    server.numbering.restore(values["numbering"])
    server.rng.bit_generator.state = values["rng"]


def _with_squares(arrays: dict[str, Any], centre: float) -> dict[str, Any]:
    """Older files have no squared rewards: then as if all rewards had been 0 or 1."""
    most = max(centre, 1.0 - centre) ** 2
    return {"round.squares": most * arrays["round.users.counts"]} | arrays
