"""Messages survive their bytes, and bytes that are no message are refused by name."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fclub.core.statistics import Statistics
from fclub.errors import InvalidMessage
from fclub.protocol import messages as m
from fclub.protocol.exchanges import clusters as paper

ids = st.integers(0, 2**64 - 1).map(m.write_id)
numbers = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def statistics(draw: st.DrawFn, dim: int | None = None) -> Statistics:
    d = dim or draw(st.integers(1, 4))
    upper = np.array(draw(st.lists(numbers, min_size=d * d, max_size=d * d))).reshape(d, d)
    gram = np.triu(upper) + np.triu(upper, 1).T
    moment = np.array(draw(st.lists(numbers, min_size=d, max_size=d)))
    return Statistics(gram, moment, draw(st.integers(0, 2**62)))


written = statistics(dim=2).map(m.write_statistics)
clusters = st.lists(st.builds(paper.ClusterStatistics, ids, written), max_size=3).map(tuple)
plans = st.builds(paper.ClusterPlan, ids, written, st.integers(1, 9), st.integers(0, 9))
any_message = st.one_of(
    st.builds(paper.Upload, ids, written),
    st.builds(paper.Download, ids, written),
    st.builds(m.PhaseStart, st.integers(0, 60)),
    st.builds(paper.Report, st.integers(0, 60), clusters),
    st.builds(paper.Plan, st.integers(0, 60), st.booleans(), st.lists(plans, max_size=3).map(tuple)),
)


@given(any_message)
def test_decode_inverts_encode(message: m.Message) -> None:
    assert paper.decode(m.encode(message)) == message


@given(statistics())
def test_statistics_survive_bit_for_bit(value: Statistics) -> None:
    again = m.read_statistics(m.write_statistics(value), value.dim)
    assert again.gram.tobytes() == value.gram.tobytes()
    assert again.moment.tobytes() == value.moment.tobytes()
    assert again.count == value.count


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidMessage):
        paper.decode(data)


@given(any_message, st.data())
def test_truncated_bytes_are_refused(message: m.Message, data: st.DataObject) -> None:
    whole = m.encode(message)
    with pytest.raises(InvalidMessage):
        paper.decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_another_version_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="version 2"):
        paper.decode(msgspec.msgpack.encode([2, ["phase", 1]]))


def test_wrong_lengths_are_refused() -> None:
    good = m.write_statistics(Statistics.zeros(3))
    with pytest.raises(InvalidMessage, match="bytes"):
        m.read_statistics(good, 4)
    with pytest.raises(InvalidMessage, match="bytes"):
        m.read_statistics(good[:-1], 3)
    with pytest.raises(InvalidMessage, match="id"):
        m.read_id(b"123")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    gram = np.eye(3)
    gram[0, 1] = gram[1, 0] = value
    with pytest.raises(InvalidMessage, match="finite"):
        m.read_statistics(m.write_statistics(Statistics(gram, np.zeros(3), 1)), 3)


@given(st.integers(1, 6), st.integers(0, 2**40), st.integers(0, 2**62))
def test_size_tells_nothing(dim: int, number: int, count: int) -> None:
    value = Statistics(np.eye(dim), np.ones(dim), count)
    cluster, data = m.write_id(number), m.write_statistics(value)
    sizes = len(m.encode(paper.Upload(cluster, data))), len(m.encode(paper.Download(cluster, data)))
    assert sizes == paper.event_size(dim)


def test_more_clusters_than_any_server_has_are_refused() -> None:
    m.check_named(range(m.MAX_CLUSTERS), "report")
    with pytest.raises(InvalidMessage, match="report of 100001 clusters"):
        m.check_named(range(m.MAX_CLUSTERS + 1), "report")
