"""From settings to the protocol's own objects: the same that the simulation runs."""

from __future__ import annotations

import json
import secrets
import struct
import time
from collections.abc import Callable
from hashlib import sha256
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.random import SeedSequence

from fclub.cohorts.members import Identity, MemberList, read_identity, read_members
from fclub.cohorts.plan import CohortPlan, plan_from
from fclub.core.compiling import is_ready, set_ready
from fclub.core.items import ItemBook, Residuals
from fclub.core.offers import best_items
from fclub.errors import FclubError, InvalidFile, InvalidSetting, ServiceFailed
from fclub.privacy.ledger import Ledger
from fclub.privacy.noise import DiscreteNoise, NoiseSource, NoNoise, require_exact
from fclub.protocol.families import FAMILIES, make_family
from fclub.protocol.federation import Federation
from fclub.protocol.interfaces.family import Family, Shape, learns_items
from fclub.protocol.rows.population import PopulationFamily
from fclub.service.nodes.binding import SETTINGS, bound_to, remember
from fclub.service.nodes.global_node import GlobalNode, Membership, lead
from fclub.service.nodes.local_node import Forgotten, LocalNode, join
from fclub.service.nodes.node import Clock, RecordedNoise
from fclub.service.settings import POLICY, PROMISE, GlobalSettings, LocalSettings, Model
from fclub.service.store.backup import backup_store, describe
from fclub.service.store.catalogue import Catalogue
from fclub.service.store.items_file import check_items_file, read_items
from fclub.service.store.store import UNREADABLE, Store, read_meta

AnyNode = TypeVar("AnyNode", LocalNode, GlobalNode)
ENTROPY_BITS = 128
REFUSE_DAYS = "refuse_forgotten_days"
PLAN = "plan"
REHEARSED = 25
"""Visits of a rehearsal: the second phase, from which on types are learned, starts before."""
DAMAGE = (UNREADABLE, struct.error, msgspec.DecodeError, LookupError, TypeError, ValueError)
"""What reading a damaged store can raise."""


def family_of(model: Model) -> Family:
    """What a federation is made of."""
    if model.policy not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise InvalidSetting(f"model.policy: {model.policy} is not one of {known}", model.policy)
    if not model.parameters.get("share", True):
        raise InvalidSetting("model.parameters: share is off, but this is a federation", model.policy)
    promise = {k: v for k, v in PROMISE.items() if k in FAMILIES[model.policy].defaults}
    shape = Shape(model.dim, model.expected_clusters, model.constant, live=True)
    return make_family(model.policy, shape, promise | model.parameters)


def caution(model: Model) -> str | None:
    """What to expect of the paper's private policy as printed; None for every other policy."""
    privacy = family_of(model).privacy
    if privacy is None or FAMILIES[model.policy].switches["noise"] != "tree":
        return None
    return (
        f"{model.policy} is the paper's private policy as printed: expect about the regret of random "
        "choice, or more, for thousands of visits; raw data without noise decide who shares a "
        f"cluster and when it uploads; δ is {privacy.delta:g}. Consider {POLICY} instead"
    )


def _bind(store: Store, model: Model) -> bytes:
    """Bind a store to its model, and to a plan once it is given one; returns what peers compare."""
    rules = family_of(model).fingerprint()
    found = {"policy": model.policy, "dim": model.dim, "rules": rules}
    if model.reward != (0.0, 1.0):
        found["reward"] = model.reward
    plan = rules.pop(PLAN, None) if isinstance(rules, dict) else None
    store.fix("model", found)
    if plan is not None or store.get(PLAN) is not None:
        store.fix(PLAN, plan)
    return sha256(json.dumps([found, plan], sort_keys=True).encode()).digest()


def rehearse(model: Model) -> None:
    """A few visits that leave no trace, so that no visitor waits for the kernels to be compiled.

    Two users are played, without a plan.
    """
    own = {key: value for key, value in model.parameters.items() if key != PLAN}
    model = msgspec.structs.replace(model, parameters=own)
    rows, first = np.arange(2), np.array([0, 2])
    federation = Federation(family_of(model), rows, first, SeedSequence(), seeded=False)
    server, items = federation.servers[0], np.eye(model.dim)[:2]
    if model.constant is not None:
        items *= sqrt(1.0 - model.constant**2)
        items[:, -1] = model.constant
    for visits in range(1, REHEARSED + 1):
        row = visits % 2
        server.observe(row, items[server.recommend(row, items)], 1.0)
        federation.advance(visits)
    book = ItemBook(2)
    book.add(0, "", Residuals(1, 0, 0))
    best_items(items, np.ones(2, dtype=np.bool_), server.bound(0).scoring, 1, book.first(2))


def is_warm(model: Model) -> bool:
    """Whether the kernels of its servers are compiled on this machine."""
    return is_ready(_kernels_of(model))


def warm(model: Model) -> None:
    """Compile what servers of this model need, before they start and each does so by itself."""
    if not is_warm(model):
        rehearse(model)
        set_ready(_kernels_of(model))


def _kernels_of(model: Model) -> str:
    """Parameters that are numbers do not decide which kernels there are."""
    words = {k: v for k, v in model.parameters.items() if isinstance(v, str | bool)}
    return f"live {model.policy} {sorted(words.items())}"


def local_node(
    settings: LocalSettings,
    noise: NoiseSource | None = None,
    rng: np.random.Generator | None = None,
    create: bool = True,
    clock: Clock = time.time,
) -> LocalNode:
    """A local node on its store, which has to exist unless `create`.

    The generator of a new store begins with entropy of the operating system; the store keeps that
    beginning, so that a replay draws the same. `noise` and `rng` are for tests; seeded noise is refused
    where privacy is promised.
    """
    family = family_of(settings.model)
    source = noise or (DiscreteNoise() if family.privacy else NoNoise())
    if family.privacy:
        require_exact(source)
    rng = rng or np.random.default_rng(secrets.randbits(ENTROPY_BITS))
    return node_with_noise(settings, source, rng, create, clock)


def node_with_noise(
    settings: LocalSettings,
    source: NoiseSource,
    rng: np.random.Generator,
    create: bool = True,
    clock: Clock = time.time,
) -> LocalNode:
    """The same with any noise: beside the function above only the audit calls it, for its twins."""
    family, recorded = family_of(settings.model), RecordedNoise(source)
    store = _open(settings.store, "local", create)

    def make() -> LocalNode:
        with bound_to(store, settings.model):
            rules = _bind(store, settings.model)
            store.fix("name", settings.name)
            rng.bit_generator.state = store.remember("generator", rng.bit_generator.state)
            uniform = settings.model.uniform
            node = LocalNode(settings.name, family, recorded, rng, store, uniform, clock)
            node.rules = rules
            node.recover()
        if learns_items(getattr(family, "constants", None)):
            node.items.start()
        node.users.refuse_forgotten_days = settings.refuse_forgotten_days
        store.note(REFUSE_DAYS, json.dumps(settings.refuse_forgotten_days))
        remember(store, settings.model)
        return node

    return _recovered(store, make)


def adds_up_in_secret(family: Family) -> bool:
    """Whether the plan has secure sums."""
    return isinstance(family, PopulationFamily) and family.planned and family.plan.secure


def _cohorts(family: Family, members: str) -> tuple[MemberList, CohortPlan] | None:
    """With whom a server adds up in secret, and when; None without a plan that says so."""
    if not (isinstance(family, PopulationFamily) and adds_up_in_secret(family)):
        return None
    if not members:
        raise InvalidSetting("secure.members: the plan has secure sums, which need a member list")
    found = read_members(Path(members))
    return found, plan_from(family.plan, found.federation)


def identity_of(settings: LocalSettings) -> Identity:
    """Who a local server is; without a broker it is nobody."""
    if not settings.secure.identity:
        raise InvalidSetting(
            "secure.identity: what a server says in a federation is signed: "
            f"fclub identity FILE --name {settings.name} --organisation WHO makes the key"
        )
    found = read_identity(Path(settings.secure.identity))
    if found.name != settings.name:
        raise InvalidSetting(
            f"secure.identity: expected the key of {settings.name}, got that of {found.name}",
            found.name,
        )
    return found


def signers_of(settings: GlobalSettings) -> dict[str, list[str]]:
    """Whose signature counts; nobody is heard without one."""
    for name in settings.servers:
        if not settings.signers.get(name):
            raise InvalidSetting(
                f"signers: expected a public key of {name}, as fclub identity prints it", name
            )
    return settings.signers


def join_cohorts(node: LocalNode, settings: LocalSettings) -> None:
    """Take part in secure sums if the plan has them."""
    found = _cohorts(node.family, settings.secure.members)
    if found is None:
        return
    join(node, identity_of(settings), *found)


def lead_cohorts(node: GlobalNode, settings: GlobalSettings) -> None:
    found = _cohorts(node.family, settings.secure.members)
    if found is not None:
        lead(node, *found)


def stock(node: LocalNode, settings: LocalSettings) -> None:
    """Put the items of a file into the catalogue; those that are not in the file stay."""
    catalogue = node.catalogue
    try:
        catalogue.reserve(new_items(settings, catalogue))
        for ids, rows in read_items(Path(str(settings.catalogue)), settings.model.dim):
            new, features = catalogue.news(ids, rows)
            if new:
                node.put_items(new, features)
            node.commit()
    except FclubError:
        node.store.close()
        raise


def new_items(settings: LocalSettings, catalogue: Catalogue | None = None) -> int:
    """How many items of a file are new to a catalogue; without one, all are. Reads it for faults."""
    path, most = Path(str(settings.catalogue)), settings.http.max_catalogue
    domain, known, fresh = family_of(settings.model).domain, len(catalogue or ()), 0
    for ids, rows in check_items_file(path, settings.model.dim):
        domain.check_items(rows)
        fresh += len(ids) if catalogue is None else int((catalogue.places(ids) < 0).sum())
    if known + fresh > most:
        raise InvalidFile(f"{path}: the catalogue may have {most} items (http.max_catalogue)")
    return fresh


def settings_of(store: Path) -> LocalSettings:
    """The settings that a local server's store was last opened with, as far as its state needs them."""
    meta = read_meta(store)
    try:
        model = msgspec.json.decode(meta[SETTINGS], type=Model)
        return LocalSettings(
            model=model,
            store=str(store),
            name=json.loads(meta["name"]),
            refuse_forgotten_days=json.loads(meta.get(REFUSE_DAYS, "0.0")),
        )
    except KeyError:
        raise InvalidFile(f"{store} is not the store of a local server that has started") from None


def forget_user(store: Path, user: str) -> tuple[Forgotten, Ledger | None, bool]:
    """Forget a user of a server that does not run.

    Returns also under which promise data have left, and whether no byte is left in the store's files.
    """
    node = local_node(settings_of(store), create=False)
    try:
        gone = node.users.forget(user)
        node.commit()
        return gone, node.books.ledger, node.store.erased
    finally:
        node.store.close()


def membership_of(settings: GlobalSettings) -> Membership:
    return Membership(settings.servers, settings.suspended, settings.retired)


def global_node(settings: GlobalSettings, clock: Clock = time.time) -> GlobalNode:
    family = family_of(settings.model)
    store = _open(settings.store, "global")

    def make() -> GlobalNode:
        with bound_to(store, settings.model):
            rules = _bind(store, settings.model)
            node = GlobalNode(membership_of(settings), family, store, clock)
            node.rules = rules
            node.recover()
        remember(store, settings.model)
        return node

    return _recovered(store, make)


def check_store(settings: LocalSettings) -> dict[str, Any]:
    """Replay a store and compare what must agree; raises what is wrong with it."""
    node = local_node(settings, create=False)
    integrity, summary, rewarded = node.store.integrity(), node.summary(), node.decisions.rewarded()
    astray = node.decisions.astray()
    node.store.close()
    if integrity != "ok":
        raise ServiceFailed(f"{settings.store}: {integrity}")
    if astray:
        raise ServiceFailed(f"{settings.store}: {astray} decisions are not known by their users")
    if summary["observations"] != summary["feedbacks"] or rewarded > summary["feedbacks"]:
        raise ServiceFailed(f"{settings.store}: counts disagree: {msgspec.json.encode(summary)!r}")
    return summary | {"store": settings.store, "rewarded": rewarded}


def check_copy(path: Path) -> dict[str, Any]:
    """The same for a copy of any server's store: the server may run, and nothing of it is touched."""
    found = describe(path)
    with TemporaryDirectory(dir=path.parent, prefix=".check-") as folder:
        copy = Path(folder) / path.name
        backup_store(path, copy)
        if found["kind"] == "local":
            found |= check_store(settings_of(copy))
        else:
            node = global_node(_global_settings_of(copy))
            found |= node.summary() | {"servers": ", ".join(node.names)}
            node.store.close()
    return found | {"store": str(path), "whole": True}


def _global_settings_of(store: Path) -> GlobalSettings:
    meta = read_meta(store)
    try:
        model = msgspec.json.decode(meta[SETTINGS], type=Model)
        return GlobalSettings(model=model, store=str(store), servers=json.loads(meta["servers"]))
    except KeyError:
        raise InvalidFile(f"{store} is not the store of a server that has started") from None


def _recovered(store: Store, make: Callable[[], AnyNode]) -> AnyNode:
    """Close a store that turns out to be damaged, and name it in the error."""
    try:
        return make()
    except DAMAGE as error:
        store.close()
        raise InvalidFile(f"{store.path} does not hold a whole state: {error}") from None
    except FclubError:
        store.close()
        raise


def _open(path: str, kind: str, create: bool = True) -> Store:
    folder = Path(path).parent
    if create and not folder.is_dir():
        raise InvalidSetting(f"store: there is no folder {folder}", path)
    return Store(path, kind, create)
