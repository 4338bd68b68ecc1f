"""Settings of the servers: a TOML file, then environment variables, then options; checked at start."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from fclub.core.inputs import RewardRange
from fclub.errors import InvalidSetting, nearest
from fclub.parameters import Parameter, split_assignment
from fclub.protocol.families import FAMILIES
from fclub.protocol.rows.population import plan_of

POLICY = "cdp-fclub-plus"
"""What a federation runs unless it is told otherwise."""

PROMISE: dict[str, Parameter] = {
    "epsilon": 1.0,
    "delta": 1e-5,
    "unit": "user",
    "level": "transcript",
}
"""What a private policy promises live unless it is told otherwise; the paper's δ is for simulations."""

PREFIX = "FCLUB_"
ELSEWHERE = {"FCLUB_CACHE_DIR", "FCLUB_DATA_DIR", "FCLUB_TOKEN"}
"""Variables of the package that are no settings of a server."""

MISSING = {
    "model.dim": "give --dim, or [model] dim in --config",
    "store": "give --store, or store in --config",
    "servers": "name all local servers, as in --set 'servers=[\"north\"]'",
}
"""How to give each key that has no default."""

JSON: dict[type, str] = {
    msgspec.inspect.ListType: """list of texts, as in '["..."]'""",
    msgspec.inspect.TupleType: "list of two numbers, as in '[0, 1]'",
    msgspec.inspect.DictType: """object, as in '{"epsilon": 1}'""",
}
"""How to write what no plain text stands for."""

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]{1,64}$", description="a name on the broker")]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
PublicKey = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Http(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to listen, whom to answer, how much to take."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8100
    """Port to listen on; 0 takes any that is free."""
    socket: str | None = None
    """Unix socket to listen on in place of a port, without TLS: for a proxy on the same machine."""
    tls_certificate: str | None = None
    """File of the certificate; with `tls_key` the server speaks HTTPS."""
    tls_key: str | None = None
    """File of the key of that certificate."""
    keys: Annotated[str, Meta(pattern=r"\.keys$")] | None = None
    """File of the keys that `fclub keys add` makes; unset: beside the store, ending in `.keys`."""
    max_connections: Positive = 1000
    """Open connections; of more, those end that have brought no request for longest."""
    simulated: bool = False
    """Whether visitors are simulated, as by `fclub up`: only then are their results taken and shown."""
    max_body_bytes: Positive = 1 << 20
    """Longest body of a request; a longer one is answered with 413."""
    max_items: Positive = 1000
    """Most items of one recommendation; more are answered with 413."""
    max_batch: Positive = 1000
    """Most entries of one batch, and items put at once; more are answered with 413."""
    max_catalogue: Positive = 1_000_000
    """Most items of the catalogue; more are answered with 413."""
    max_requests_per_second: Positive | None = None
    """Most requests of one key in a second; more are answered with 429."""
    access_log: bool = False
    """Log every request, by route, status and address; refused ones (401, 403, 413, 429) are always."""


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policy; the same on every server of a federation.

    `constant` is the last feature of every item where all items share one; policies that centre
    rewards need less noise then.
    """

    policy: str = POLICY
    """A federated policy of `fclub policies`."""
    dim: Annotated[int, Meta(ge=1, le=1000)]
    """Number of features of an item."""
    constant: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Value of the last feature, if all items share one; items with another value are refused."""
    reward: tuple[float, float] = (0.0, 1.0)
    """Least and largest reward, as applications send them, such as [1, 5] for stars."""
    clip: bool = False
    """Whether a reward outside that range counts as its nearer end; otherwise it is refused."""
    uniform: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Probability of a uniform choice for the first place; above 0, every decision keeps its offer."""
    expected_clusters: Positive = 1000
    """Bound on the local clusters of the whole federation; confidence radii use it."""
    parameters: dict[str, Parameter] = {}
    """As in `fclub policies`; live, `delta` is 1e-5 unless given."""

    def __post_init__(self) -> None:
        low, high = self.reward
        if not (isfinite(high - low) and low < high):
            raise ValueError("reward must be two numbers, the lower one first")

    @property
    def rewards(self) -> RewardRange:
        return RewardRange(*self.reward, self.clip)


class Feedback(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a reward is made of, and rewards that do not come."""

    events: dict[Annotated[str, Meta(min_length=1, max_length=64)], float] = {}
    """Kinds of events, such as a view or a purchase, and their values in the unit of rewards."""
    reward_is: Literal["max", "sum", "last"] = "max"
    """What a reward is of the values of its decision's events; a sum ends at the largest reward."""
    final_after: Annotated[float, Meta(ge=1)] | None = None
    """Seconds after a decision until which its events count; unset: as long as it is kept."""
    none_after: Annotated[float, Meta(ge=1)] | None = None
    """Seconds after which a decision without a reward counts as `none_is`; unset: never."""
    none_is: float | None = None
    """What such a decision counts as, in the unit of rewards; unset: the least reward."""


class Nats(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The broker. Without a url a local server carries its own global server."""

    url: str = ""
    """Address of the broker; several, separated by commas, for a cluster."""
    user: str = ""
    """Name of this server at the broker."""
    password: str = ""
    """Password of this server at the broker."""
    ca: str | None = None
    """File of the authority that signed the broker's certificate; it turns TLS on."""
    certificate: str | None = None
    """File of this server's own certificate."""
    key: str | None = None
    """File of the key of that certificate."""
    replicas: Annotated[int, Meta(ge=1, le=5)] = 1
    """Brokers of a cluster on which the global server keeps every stream; 3 survive the loss of one."""


class _Server(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both servers need; unknown keys are mistakes."""

    model: Model
    store: str
    """SQLite file; it is bound to its server's name and model."""
    http: Http = Http()
    nats: Nats = Nats()
    log_format: Literal["console", "json"] = "console"
    """`console` for people, `json` for machines."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged: `debug`, `info`, `warning` or `error`."""
    resend_seconds: Seconds = 1.0
    """After this time an unconfirmed message is sent again."""


class Secure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who this server is, and with whom it adds up; a plan with `secure` needs both."""

    identity: str = ""
    """The file that `fclub identity` wrote: what a server says in a federation is signed with it. Its
    private key never leaves this server."""
    members: str = ""
    """The member list that `fclub members accept` wrote."""


class SecureHub(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """With whom the global server adds up; a plan with `secure` needs it."""

    members: str = ""
    """The newest member list: with members that have not accepted it there are no sums."""


class LocalSettings(_Server, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`fclub local`."""

    name: Name = "local"
    """Name of this server in the federation."""
    secure: Secure = Secure()
    catalogue: str | None = None
    """CSV file of items (id, features) that are put into the catalogue at the start."""
    feedback: Feedback = Feedback()
    keep_decisions_days: Seconds = 90.0
    """Feedback on an older decision is answered with 404."""
    seen_days: Seconds | None = None
    """Days after which an item that a user has seen may be shown again; unset: never, as far back as
    decisions are kept."""
    refuse_forgotten_days: Annotated[float, Meta(ge=0)] = 0.0
    """How long imports for a user who was forgotten are refused; a keyed hash of the name is kept."""

    def __post_init__(self) -> None:
        low, high = self.model.reward
        if not low <= self.none_is <= high:
            raise ValueError("feedback.none_is must be in the range of rewards")
        for name, value in self.feedback.events.items():
            if not low <= value <= high:
                raise ValueError(f"feedback.events: {name} must be in the range of rewards")

    @property
    def none_is(self) -> float:
        """What a reward that never comes counts as."""
        given = self.feedback.none_is
        return self.model.reward[0] if given is None else given


class GlobalSettings(_Server, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`fclub global`."""

    servers: list[Name]
    """Names of all local servers; names may be added, and go to `retired` when a server has left."""
    suspended: list[Name] = []
    """Those of them that are shut out for a while; what they would be told is kept for them."""
    retired: list[Name] = []
    """Servers that have left for good: nothing is kept for them; what they have released stays."""
    signers: dict[Name, list[PublicKey]] = {}
    """Public keys of all local servers, as `fclub identity` prints them: what is not signed with one of
    its keys was not said by a server. Two while one takes the place of the other."""
    secure: SecureHub = SecureHub()
    phase_seconds: Seconds = 5.0
    """How long a phase waits for reports."""


Settings = TypeVar("Settings", LocalSettings, GlobalSettings)


def load_settings(
    kind: type[Settings],
    file: Path | None,
    options: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """`options` have dotted keys, as in `http.port`; those that are None were not given."""
    tree = _gather(file, options, environment)
    _type_parameters(tree)
    _take_digits_for_text(tree)
    _refuse_unknown(tree, kind)
    _refuse_missing(tree, kind)
    _read_plan(tree)
    try:
        return msgspec.convert(tree, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidSetting(_readable(str(error))) from None


def wanted_log_format(
    file: Path | None, options: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> str:
    """In which form to tell what is wrong with the settings: they may name it though they are wrong."""
    try:
        tree = _gather(file, options, environment)
    except InvalidSetting:
        tree = _gather(None, {}, environment)
    return "json" if tree.get("log_format") == "json" else "console"


def _gather(
    file: Path | None, options: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, Any]:
    """Everything that was said, not yet checked."""
    tree = _read(file) if file else {}
    for key, text in environment.items():
        if key.startswith(PREFIX) and key not in ELSEWHERE:
            _put(tree, key.removeprefix(PREFIX).lower().replace("__", "."), _value(text))
    for key, value in options.items():
        if value is not None:
            _put(tree, key, value)
    return tree


def parse_assignments(assignments: list[str], **options: Any) -> dict[str, Any]:
    """`key=value` options as a dictionary, and those with a name of their own, if they are given."""
    pairs: dict[str, Any] = {}
    for assignment in assignments:
        key, text = split_assignment(assignment)
        pairs[key] = _value(text)
    return pairs | {key: value for key, value in options.items() if value is not None}


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise InvalidSetting(f"{file}: {error.strerror}", file) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"{file}: {error}", file) from None


def _value(text: str) -> Any:
    """JSON lists and objects are read as such; everything else stays text until it has a type."""
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _type_parameters(tree: dict[str, Any]) -> None:
    """Texts among the policy's parameters get their types, as in `fclub run`."""
    model = tree.get("model")
    given = model.get("parameters") if isinstance(model, dict) else None
    if not isinstance(given, dict):
        return
    policy = model.get("policy", POLICY)  # type: ignore[union-attr]
    known = FAMILIES[policy].parameters if policy in FAMILIES else {}
    for key, value in given.items():
        if isinstance(value, str) and key in known:
            given[key] = known[key].parse(value, f"model.parameters.{key}")


def _read_plan(tree: dict[str, Any]) -> None:
    """A plan's file is read once: the settings that a store remembers hold what was in it."""
    model = tree.get("model")
    given = model.get("parameters") if isinstance(model, dict) else None
    if isinstance(given, dict) and isinstance(given.get("plan"), str) and given["plan"]:
        given["plan"] = plan_of(given["plan"]).encode().decode()


def _take_digits_for_text(tree: dict[str, Any]) -> None:
    """A user or password of digits only is a number to TOML."""
    nats = tree.get("nats")
    for key in ("user", "password"):
        if isinstance(nats, dict) and type(nats.get(key)) is int:
            nats[key] = str(nats[key])


def _refuse_unknown(tree: dict[str, Any], kind: Any, prefix: str = "") -> None:
    """Name the first key that there is not, and those that it may have meant."""
    fields = _fields(kind)
    for key, value in tree.items():
        if key not in fields:
            hint = nearest(key, fields, prefix)
            raise InvalidSetting(f"no key is called {prefix}{key}; {hint}", prefix + key)
        table = _table(fields[key])
        if table is not None and isinstance(value, dict):
            _refuse_unknown(value, table, f"{prefix}{key}.")


def _refuse_missing(tree: dict[str, Any], kind: Any, prefix: str = "") -> None:
    """Say how to give a key that is missing, or one that is a text where no plain text will do."""
    for name, field in _fields(kind).items():
        key, value, table = prefix + name, tree.get(name), _table(field)
        if table is not None:
            inside = value if name in tree or not field.required else {}
            if isinstance(inside, dict):
                _refuse_missing(inside, table, f"{key}.")
        elif field.required and name not in tree:
            raise InvalidSetting(f"{key} is missing: {MISSING[key]}")
        elif isinstance(value, str) and type(field.type) in JSON:
            raise InvalidSetting(f"{key} must be a JSON {JSON[type(field.type)]}", value)


def _fields(kind: Any) -> dict[str, Any]:
    info: Any = msgspec.inspect.type_info(kind)
    return {field.name: field for field in info.fields}


def _table(field: Any) -> Any:
    """The class of a field that is a table of keys, else None."""
    return field.type.cls if isinstance(field.type, msgspec.inspect.StructType) else None


def _put(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *path, last = dotted.split(".")
    for step in path:
        tree = tree.setdefault(step, {})
        if not isinstance(tree, dict):
            raise InvalidSetting(f"{dotted}: {step} is not a table", value)
    tree[last] = value


def _readable(message: str) -> str:
    """msgspec's "… - at `$.http.port`" with the key in front."""
    text, _, place = message.partition(" - at `$")
    key = place.rstrip("`").lstrip(".")
    return f"{key}: {text}" if key else text
