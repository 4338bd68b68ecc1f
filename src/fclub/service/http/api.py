"""Bodies of the local server's routes, and their OpenAPI description."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fclub import __version__

MAX_USER_BYTES = 128

User = Annotated[str, Meta(min_length=1, max_length=MAX_USER_BYTES)]
Reward = Annotated[float, Meta(ge=0.0, le=1.0)]


class Item(msgspec.Struct, frozen=True):
    """Something that may be shown: an id of the application's and d numbers of norm at most 1."""

    id: Annotated[str, Meta(max_length=256)]
    features: list[float]


class RecommendRequest(msgspec.Struct, frozen=True):
    user: User
    items: Annotated[list[Item], Meta(min_length=1)]


class Recommended(msgspec.Struct, frozen=True):
    decision: str
    item: str
    index: int


class FeedbackRequest(msgspec.Struct, frozen=True):
    decision: Annotated[str, Meta(max_length=64)]
    reward: Reward


class Learned(msgspec.Struct, frozen=True):
    """`counted` is false when the same reward was known already."""

    counted: bool


class RecommendBatch(msgspec.Struct, frozen=True):
    requests: list[RecommendRequest]


class FeedbackBatch(msgspec.Struct, frozen=True):
    requests: list[FeedbackRequest]


class Refused(msgspec.Struct, frozen=True):
    error: str


class RecommendResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry of a batch: status 200 with a result, or another one with an error."""

    status: int
    result: Recommended | None = None
    error: str | None = None


class FeedbackResult(msgspec.Struct, frozen=True, omit_defaults=True):
    status: int
    result: Learned | None = None
    error: str | None = None


class RecommendResults(msgspec.Struct, frozen=True):
    results: list[RecommendResult]


class FeedbackResults(msgspec.Struct, frozen=True):
    results: list[FeedbackResult]


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
    """Σxxᵀ and Σ(reward − centre)x over a user's observations."""

    observations: int
    gram: list[list[float]]
    moment: list[float]
    centre: float


class Shown(msgspec.Struct, frozen=True):
    """What a user was shown; `made` in seconds since 1970."""

    decision: str
    item: str
    features: list[float]
    made: float
    reward: float | None


class UserData(msgspec.Struct, frozen=True):
    """All that is stored about one person, whose name is nowhere else."""

    user: str
    statistics: Statistics
    decisions: list[Shown]


class Promise(msgspec.Struct, frozen=True):
    epsilon: float
    delta: float
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

    `spent` is for the most exposed observation, at the claimed δ and at 10⁻⁵. `unaccounted` are facts
    that leave without noise. `exhausted`: a stream was refused because of the budget, and the server
    goes on learning for itself. `messages` have left so far, by kind.
    """

    messages: dict[str, int]
    claimed: Budget | None = None
    spent: list[Budget] = []
    level: str | None = None
    unaccounted: list[str] = []
    exhausted: bool = False
    streams: list[StreamView] = []


class LinkView(msgspec.Struct, frozen=True):
    """Messages to and from the global server; `unanswered`: a report without its plan."""

    name: str
    connected: bool
    unanswered: bool
    sent: int
    confirmed: int
    received: int


POSTS: dict[str, tuple[Any, Any, str]] = {
    "/v1/recommend": (RecommendRequest, Recommended, "Choose an item for a user."),
    "/v1/feedback": (FeedbackRequest, Learned, "Tell the reward of a decision."),
    "/v1/recommend/batch": (RecommendBatch, RecommendResults, "Many choices at once."),
    "/v1/feedback/batch": (FeedbackBatch, FeedbackResults, "Many rewards at once."),
}
GETS: dict[str, tuple[Any, str]] = {
    "/v1/clusters": (list[ClusterView], "The local clusters."),
    "/v1/users/{user}": (UserView, "One user."),
    "/v1/users/{user}/data": (UserData, "All that is stored about one user."),
    "/v1/link": (LinkView, "The connection to the federation."),
    "/v1/privacy": (PrivacyView, "What has left this server."),
}
DELETES: dict[str, tuple[Any, str]] = {
    "/v1/users/{user}": (Forgotten, "Forget a user; a name that returns is a new account."),
}


def openapi(dim: int) -> dict[str, Any]:
    """The description of the API of a server with `dim` features, generated from the types above."""
    types = [t for body, answer, _ in POSTS.values() for t in (body, answer)]
    types += [answer for answer, _ in [*GETS.values(), *DELETES.values()]] + [Refused]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    number = {"type": "number", "minimum": -1, "maximum": 1}
    features = {"type": "array", "items": number, "minItems": dim, "maxItems": dim}
    components["Item"]["properties"]["features"] = features
    of = dict(zip(map(repr, types), schemas, strict=True))
    error = _answer("Refused.", of[repr(Refused)])
    paths: dict[str, Any] = {}
    for path, (body, answer, text) in POSTS.items():
        content = {"application/json": {"schema": of[repr(body)]}}
        responses = {"200": _answer("Done.", of[repr(answer)])}
        responses |= {str(code): error for code in (400, 401, 404, 409, 413, 422, 429, 503)}
        paths[path] = {
            "post": {"summary": text, "requestBody": {"required": True, "content": content}}
            | {"responses": responses}
        }
    bare = [("get", GETS, (401, 404, 429)), ("delete", DELETES, (401, 404, 409, 429, 503))]
    for method, routes, codes in bare:
        for path, (answer, text) in routes.items():
            responses = {"200": _answer("Done.", of[repr(answer)])}
            responses |= {str(code): error for code in codes}
            operation = {"summary": text, "responses": responses} | _parameters(path)
            paths.setdefault(path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "fclub local server", "version": __version__},
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
        "paths": paths,
    }


def _answer(text: str, schema: Any) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _parameters(path: str) -> dict[str, Any]:
    """The names in braces, which are never empty."""
    schema = {"type": "string", "minLength": 1}
    names = re.findall(r"{(\w+)}", path)
    found = [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]
    return {"parameters": found} if found else {}
