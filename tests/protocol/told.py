"""What others know of a server's clusters."""

from fclub.core.types import Indices
from fclub.protocol.interfaces.overview import global_clusters
from fclub.protocol.servers import LocalServer


def ids_of(server: LocalServer) -> list[int]:
    """The opaque ids of the clusters that were reported last."""
    return [one.cluster for one in server.overview() if one.cluster is not None]


def groups_of(server: LocalServer) -> Indices:
    """By user: its global cluster."""
    return global_clusters(server.overview())[server.cluster_of_user]
