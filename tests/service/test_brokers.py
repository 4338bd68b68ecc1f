"""A cluster of three brokers under load, with real processes; `benchmarks/brokers.py` by hand."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from benchmarks.brokers import BrokerDrill
from benchmarks.cluster import SIZE, Cluster

from fclub.service.link.channel import GLOBAL
from fclub.service.link.nats_wire import Broker, NatsWire
from fclub.service.link.streams import UP_STREAM
from fclub.service.monitoring import Monitor

from .conftest import wait_for


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("killed", marks=pytest.mark.slow),
        *(
            pytest.param(case, marks=pytest.mark.long)
            for case in ("partitioned", "flipped", "all-deleted")
        ),
    ],
)
def test_a_federation_goes_on_without_one_of_three_brokers(tmp_path: Path, case: str) -> None:
    """The long form has every kind of damage, and every broker as a victim."""
    result = BrokerDrill(tmp_path, kills=0, case=case, victims=1).run()
    assert result["acknowledged"] > 100
    assert result["released"] > 0


async def prepares(cluster: Cluster, replicas: int) -> None:
    """Connect as the global server, through any broker of the list, until its streams are there."""

    async def ignore(arrivals: list[tuple[str, bytes]]) -> None:
        raise AssertionError("nothing was sent")

    login, ready = Broker(cluster.url, GLOBAL, "two"), asyncio.Event()
    wire = NatsWire(GLOBAL, login, Monitor("hub"), ["s0"], replicas)
    await wire.start(ignore, ready.set)
    await asyncio.wait_for(ready.wait(), 120)
    await wire.stop()


def copies(cluster: Cluster) -> int:
    """Brokers that have files of the stream of all local servers."""
    folders = [node.folder / "jetstream" for node in cluster.nodes]
    return sum(bool(list(folder.rglob(f"streams/{UP_STREAM}"))) for folder in folders)


@pytest.mark.slow
def test_streams_are_kept_on_as_many_brokers_as_the_setting_says(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "nats", {"s0": "one", GLOBAL: "two"})
    try:
        cluster.start()
        asyncio.run(prepares(cluster, 1))
        assert copies(cluster) == 1
        asyncio.run(prepares(cluster, SIZE))
        wait_for(lambda: copies(cluster) == SIZE)
    finally:
        cluster.stop()
