"""Bodies of the local server's routes, and their OpenAPI description."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fclub.core.inputs import MAX_ID, MAX_USER_BYTES, RewardRange
from fclub.service.http.openapi import Operation, Operations, as_json, describe, reference
from fclub.service.store.attributes import MOST_WORDS, Attributes, Filter, Word, Words

ANY_REWARD = RewardRange()

User = Annotated[str, Meta(min_length=1, max_length=MAX_USER_BYTES)]
ItemId = Annotated[str, Meta(max_length=MAX_ID)]
KnownId = Annotated[str, Meta(min_length=1, max_length=MAX_ID)]


class Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is sent to a server; a field that it does not know is a mistake, and is named."""


class Item(Told, frozen=True):
    """Something that may be shown: an id of the application's and d numbers of norm at most 1."""

    id: ItemId
    features: list[float]


Factor = Annotated[float, Meta(gt=0, le=100)]


class Boosts(Told, frozen=True):
    """Factors by which scores are multiplied, by id of an item and by category."""

    items: Annotated[dict[ItemId, Factor], Meta(max_length=MOST_WORDS)] = {}
    categories: Annotated[dict[Word, Factor], Meta(max_length=MOST_WORDS)] = {}


class RecommendRequest(Told, frozen=True):
    """`items` with their features, or ids of the catalogue, or nothing: then all of the catalogue.

    With `count` the answer is a list of the best, best first. `exclude` leaves items out by id, and
    `exclude_seen` those that this user has seen: was shown, as far as decisions are kept, or has in its
    reported observations. Unless it says otherwise, that holds for items of the catalogue and not for
    those that come with their features.

    Only items of the catalogue that `filter` holds for are on offer. `boosts` multiply the scores by
    which items are ranked. With `most_per_category` no more of several items share a category.
    """

    user: User
    items: Annotated[list[Item | ItemId], Meta(min_length=1)] | None = None
    count: Annotated[int, Meta(ge=1)] | None = None
    exclude: list[ItemId] = []
    exclude_seen: bool | None = None
    filter: Filter | None = None
    boosts: Boosts | None = None
    most_per_category: Annotated[int, Meta(ge=1)] | None = None

    @property
    def unseen(self) -> bool:
        """Whether what the user has seen is left out."""
        return self.catalogued if self.exclude_seen is None else self.exclude_seen

    @property
    def catalogued(self) -> bool:
        """Whether items of the catalogue are on offer."""
        return self.items is None or isinstance(self.items[0], str)


class Somebody(msgspec.Struct, frozen=True):
    """What a visit needs of a request, whatever else is wrong with it."""

    user: str


class Some(msgspec.Struct, frozen=True):
    """The same of a batch, or of an import."""

    requests: list[Somebody] = []
    observations: list[Somebody] = []


_somebody, _some = msgspec.json.Decoder(Somebody), msgspec.json.Decoder(Some)


def names_in(data: bytes | bytearray | memoryview) -> list[str]:
    """The users of a body that was refused, as far as they can be read."""
    try:
        return [_somebody.decode(data).user]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        found = _some.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return [one.user for one in (*found.requests, *found.observations)]


class Recommended(msgspec.Struct, frozen=True):
    """`index` is the item's place in the request, or in the catalogue as it is now."""

    decision: str
    item: str
    index: int


class Ranked(msgspec.Struct, frozen=True):
    """One of several; `score` is an optimistic estimate of the reward: `mean` + `deviation`.

    `mean` is the estimate itself, and `deviation` how far above it the policy looks since it is not
    sure. None of them is limited to the range of rewards.
    """

    decision: str
    item: str
    index: int
    score: float
    mean: float
    deviation: float


class Several(msgspec.Struct, frozen=True):
    """Best first; each has a decision of its own for its feedback.

    Items are ranked by score, times their boosts, where no score counts for more than the largest
    reward; of items that reach it the one of the greatest mean comes first.

    `reward_range` is the unit of scores and rewards: the least and the largest reward.
    """

    shown: list[Ranked]
    reward_range: tuple[float, float]


class FeedbackRequest(Told, frozen=True):
    """Either a reward, in the range that `model.reward` declares, or an event of a declared kind.

    Without a `value` the event has that of `feedback.events`. A decision has one event of each kind.
    """

    decision: Annotated[str, Meta(max_length=64)]
    reward: float | None = None
    event: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    value: float | None = None


class Learned(msgspec.Struct, frozen=True):
    """`counted` is false when the same reward, or event, was known already."""

    counted: bool


class RecommendBatch(Told, frozen=True):
    requests: list[RecommendRequest]


class FeedbackBatch(Told, frozen=True):
    requests: list[FeedbackRequest]


class RecommendResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry of a batch: status 200 with a result, or another one with an error."""

    status: int
    result: Any = None
    error: str | None = None


class FeedbackResult(msgspec.Struct, frozen=True, omit_defaults=True):
    status: int
    result: Learned | None = None
    error: str | None = None


class RecommendResults(msgspec.Struct, frozen=True):
    results: list[RecommendResult]


class FeedbackResults(msgspec.Struct, frozen=True):
    results: list[FeedbackResult]


class Catalogued(Told, frozen=True, omit_defaults=True):
    """An item of the catalogue; `available_from` and `available_until` are seconds since 1970."""

    id: KnownId
    features: list[float]
    categories: Words = ()
    tags: Words = ()
    numbers: Annotated[dict[Word, float], Meta(max_length=MOST_WORDS)] = {}
    available_from: float | None = None
    available_until: float | None = None

    @property
    def attributes(self) -> Attributes:
        times = self.available_from, self.available_until
        return Attributes(self.categories, self.tags, self.numbers, *times)

    @classmethod
    def of(cls, key: str, features: list[float], one: Attributes) -> Catalogued:
        return cls(key, features, **msgspec.structs.asdict(one))


class PutItems(Told, frozen=True):
    """Items to insert or to replace."""

    items: Annotated[list[Catalogued], Meta(min_length=1)]


class ItemsPut(msgspec.Struct, frozen=True):
    """How many were new, and how many there are now."""

    inserted: int
    replaced: int
    count: int


class ItemsView(msgspec.Struct, frozen=True):
    """Items in the order of their ids; `next` continues the list, as `?after=…`, unless it is null."""

    count: int
    items: list[Catalogued]
    next: str | None


class SimilarItem(msgspec.Struct, frozen=True):
    """`similarity` is the cosine of the angle between features, without the constant one."""

    item: str
    similarity: float


class SimilarItems(msgspec.Struct, frozen=True):
    """Most similar first."""

    items: list[SimilarItem]


class PopularItem(msgspec.Struct, frozen=True):
    """`rate` is the mean reward, shrunk towards that of all items; `observations` is what it is of."""

    item: str
    rate: float
    observations: int


class PopularItems(msgspec.Struct, frozen=True):
    """Most popular first, in the unit of rewards."""

    items: list[PopularItem]
    reward_range: tuple[float, float]


class Liked(msgspec.Struct, frozen=True):
    """An item or a category: the mean reward of a cluster's users, shrunk towards that `of_all` users.

    `observations` is how many rewards of the cluster's users it is of.
    """

    name: str
    rate: float
    of_all: float
    observations: int


class ClusterLikes(msgspec.Struct, frozen=True):
    """What the users of a local cluster or type like best; `share` is the part of all users it has."""

    cluster: int
    users: int
    share: float
    items: list[Liked]
    categories: list[Liked]


class Likings(msgspec.Struct, frozen=True):
    """The clusters with most users first, in the unit of rewards."""

    clusters: list[ClusterLikes]
    reward_range: tuple[float, float]


class Opinion(msgspec.Struct, frozen=True):
    """What the users of a cluster, or all (null), say of an item."""

    cluster: int | None
    rate: float
    observations: int


class Effect(msgspec.Struct, frozen=True):
    """What an item is worth beyond its features, as far as rewards tell."""

    mean: float
    deviation: float


class ItemOpinions(msgspec.Struct, frozen=True):
    """An item of the catalogue, what is known of it here, and what is similar to it.

    `effect` is null where none are learned.
    """

    item: Catalogued
    effect: Effect | None
    opinions: list[Opinion]
    similar: list[SimilarItem]
    reward_range: tuple[float, float]


class Preview(msgspec.Struct, frozen=True):
    """One of the items that a user would be shown; numbers as in `Ranked`."""

    item: str
    score: float
    mean: float
    deviation: float


class Previewed(msgspec.Struct, frozen=True):
    """What a user would be shown now, best first. Nothing is shown, and no visit counts."""

    user: str
    cluster: int
    group: int | None
    observations: int
    items: list[Preview]
    reward_range: tuple[float, float]


class ItemDeleted(msgspec.Struct, frozen=True):
    count: int


class PastObservation(Told, frozen=True):
    """What came of an item, of the catalogue or with its features, that was shown elsewhere."""

    id: KnownId
    user: User
    reward: float
    item: KnownId | None = None
    features: list[float] | None = None


class PastRequest(Told, frozen=True):
    """The same id again counts once."""

    observations: list[PastObservation]


class ClusterView(msgspec.Struct, frozen=True):
    """A local cluster: own users, observations in its estimate, local clusters it is shared by."""

    cluster: int
    group: int | None
    users: int
    observations: int
    shared_by: int


class UserView(msgspec.Struct, frozen=True):
    user: str
    cluster: int
    group: int | None
    observations: int


class Statistics(msgspec.Struct, frozen=True):
    """Σxxᵀ and Σ(reward − centre)x over a user's observations, with rewards scaled to 0 to 1."""

    observations: int
    gram: list[list[float]]
    moment: list[float]
    centre: float


class Offered(msgspec.Struct, frozen=True):
    """What was on offer: these `items`, or the whole catalogue of that version `without` some."""

    version: int
    items: list[str] | None
    without: list[str]


class EventView(msgspec.Struct, frozen=True):
    event: str
    value: float


class Shown(msgspec.Struct, frozen=True):
    """What a user was shown; `made` in seconds since 1970.

    `probability` is how likely this item was, and `offer` what it was chosen from; both are kept where
    choices are mixed with uniform ones. `assumed`: no reward came, and this one was declared for that.
    """

    decision: str
    item: str
    features: list[float]
    made: float
    reward: float | None
    assumed: bool
    events: list[EventView]
    probability: float | None
    offer: Offered | None


class PastReward(msgspec.Struct, frozen=True):
    """`item` is null where the observation came with features."""

    id: str
    reward: float
    item: str | None


class UserData(msgspec.Struct, frozen=True):
    """All that is stored about one person; `past` was observed elsewhere.

    `reward_range` is the unit of rewards: the least and the largest one.
    """

    user: str
    reward_range: tuple[float, float]
    statistics: Statistics
    decisions: list[Shown]
    past: list[PastReward]


class Promise(msgspec.Struct, frozen=True):
    epsilon: float
    delta: float
    unit: str
    level: str


class Forgotten(msgspec.Struct, frozen=True):
    """`observations` are gone; `released` of them, at most, are in sums that have left already.

    Those cannot be taken back; they left under the `promise`, or exactly where there is none. `erased`
    is false while another process that reads the store keeps old bytes in its files.
    """

    observations: int
    released: int
    promise: Promise | None
    erased: bool


class Budget(msgspec.Struct, frozen=True):
    epsilon: float
    delta: float


class StreamView(msgspec.Struct, frozen=True):
    """Releases with correlated noise; `epsilon` at the claimed δ. Streams of an epoch are disjoint."""

    stream: str
    epoch: int
    mechanism: str
    releases: int
    observations: int
    mu: float
    epsilon: float


class PrivacyView(msgspec.Struct, frozen=True):
    """The claim (none: exact statistics leave), and what has been spent of it.

    `spent` is for the most exposed observation, or user if that is the `unit`, at the claimed δ and at
    10⁻⁵. A user's data are then withdrawn; `spent_if_replaced` is for other data in their place.
    Both include `distance`, the total variation between discrete noise and a Gaussian's.
    `unaccounted` are facts that leave without noise. `exhausted`: the budget lets nothing more
    leave in this period, and the server goes on learning for itself. `messages` have left so far, by
    kind.
    """

    messages: dict[str, int]
    claimed: Budget | None = None
    spent: list[Budget] = []
    spent_if_replaced: list[Budget] = []
    unit: str | None = None
    distance: float = 0.0
    level: str | None = None
    unaccounted: list[str] = []
    exhausted: bool = False
    streams: list[StreamView] = []


class LinkView(msgspec.Struct, frozen=True):
    """Messages to and from the global server since both agreed; `unanswered`: a report without a plan.

    `state` tells whether both sides agree where they stand, `reason` why not. `begun` tells why the
    session began.
    """

    name: str
    connected: bool
    unanswered: bool
    sent: int
    confirmed: int
    received: int
    session: int
    state: str
    reason: str | None = None
    begun: str | None = None


OPERATIONS: Operations = {
    ("post", "/v1/recommend"): Operation(
        Recommended, "Choose an item, or several, for a user.", RecommendRequest
    ),
    ("post", "/v1/feedback"): Operation(Learned, "Tell the reward of a decision.", FeedbackRequest),
    ("post", "/v1/recommend/batch"): Operation(
        RecommendResults, "Many choices at once.", RecommendBatch
    ),
    ("post", "/v1/feedback/batch"): Operation(FeedbackResults, "Many rewards at once.", FeedbackBatch),
    ("post", "/v1/observations"): Operation(
        FeedbackResults, "Learn from what was shown elsewhere.", PastRequest
    ),
    ("put", "/v1/items"): Operation(ItemsPut, "Insert or replace items of the catalogue.", PutItems),
    ("get", "/v1/clusters"): Operation(list[ClusterView], "The local clusters."),
    ("get", "/v1/clusters/liked"): Operation(
        Likings, "What the clusters like best; not at level `interactive`.", query=("count",)
    ),
    ("get", "/v1/users/{user}"): Operation(UserView, "One user."),
    ("get", "/v1/users/{user}/preview"): Operation(
        Previewed, "What a user would be shown.", query=("count", "category")
    ),
    ("get", "/v1/users/{user}/data"): Operation(UserData, "All that is stored about one user."),
    ("delete", "/v1/users/{user}"): Operation(
        Forgotten, "Forget a user; a name that returns is a new account."
    ),
    ("get", "/v1/items"): Operation(
        ItemsView, "The catalogue, some items at a time.", query=("after",)
    ),
    ("get", "/v1/items/{item}"): Operation(Catalogued, "An item of the catalogue."),
    ("get", "/v1/items/{item}/similar"): Operation(
        SimilarItems, "Items with similar features.", query=("count", "category")
    ),
    ("get", "/v1/items/{item}/liked"): Operation(
        ItemOpinions, "Who likes an item how much; not at level `interactive`."
    ),
    ("get", "/v1/popular"): Operation(
        PopularItems,
        "The items that this server's users like best; not at level `interactive`.",
        query=("count", "category"),
    ),
    ("delete", "/v1/items/{item}"): Operation(ItemDeleted, "Remove an item from the catalogue."),
    ("get", "/v1/link"): Operation(LinkView, "The connection to the federation."),
    ("get", "/v1/privacy"): Operation(PrivacyView, "What has left this server."),
}
REFUSALS = {
    "post": (400, 401, 403, 404, 409, 413, 422, 429, 503),
    "put": (400, 401, 403, 413, 422, 429, 503),
    "get": (400, 401, 403, 404, 413, 422, 429, 503),
    "delete": (400, 401, 403, 404, 409, 429, 503),
}


def openapi(dim: int, rewards: RewardRange = ANY_REWARD) -> dict[str, Any]:
    """The description of the API of a server with `dim` features, generated from the types above."""
    found = describe("fclub local server", OPERATIONS, REFUSALS, [Several])
    components = found["components"]["schemas"]
    number = {"type": "number", "minimum": -1, "maximum": 1}
    features = {"type": "array", "items": number, "minItems": dim, "maxItems": dim}
    for name in ("Item", "Catalogued"):
        components[name]["properties"]["features"] = features
    limits = {} if rewards.clip else {"minimum": rewards.low, "maximum": rewards.high}
    reward = {"type": "number"} | limits
    components["PastObservation"]["properties"]["reward"] = reward
    for name in ("reward", "value"):
        components["FeedbackRequest"]["properties"][name] = {"anyOf": [reward, {"type": "null"}]}
    components["PastObservation"]["properties"]["features"] = {"anyOf": [features, {"type": "null"}]}
    either = {"anyOf": [reference("Recommended"), reference("Several")]}
    components["RecommendResult"]["properties"]["result"] = either
    answer = found["paths"]["/v1/recommend"]["post"]["responses"]["200"]
    answer["content"] = as_json(either)
    return found
