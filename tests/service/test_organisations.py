"""`docs/run.md` as its readers follow it: every organisation on a machine and as a user of its own.

Only the files that the page sends, and the hash that it has compared by telephone, get from one to
another without the network.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen

import pytest
from benchmarks.kits import DIM, count, read_hub
from tests.docs.pages import ROOT, Block, blocks

from fclub.cohorts.members import read_members
from fclub.privacy.plan import make_plan

from .conftest import wait_for
from .machines import Machine, refused, switch

OPERATOR, EVERY, WEST, EVERYBODY = "Operator", "Every organisation", "West", "Everybody"
"""Titles of blocks."""

ADDRESS, BROKER, HUB = "broker.shops.example", 4333, 8110
THREE, STAY = ["north", "south", "east"], ["south", "east", "west"]
PORTS = dict.fromkeys(THREE, 8111) | {"west": 8114}
GAP_SECONDS, SLOTS = 12.0, 60
MOST_SECONDS = 300.0
"""From `fclub federation init` to a sum of three organisations."""

VISIT = """
import sys, time
from pathlib import Path
from benchmarks.kits import visits
name, port, token = sys.argv[1:]
for number, _ in enumerate(visits(f"http://127.0.0.1:{port}", token, name), 1):
    print(number, flush=True)
    if Path("enough").exists():
        break
    time.sleep(0.05)
"""


class Page:
    """Whoever a block is titled with follows it, all at the same time; nobody else does."""

    def __init__(self, base: Path, stack: ExitStack) -> None:
        self.blocks = [block for block in blocks(ROOT / "docs" / "run.md") if block.language]
        names = enumerate(["operator", *PORTS])
        self.machines = {name: Machine(base, name, number) for number, name in names}
        self.hub = self.machines["operator"]
        (base / "hosts").write_text(f"127.0.0.1 localhost\n{self.hub.address} {ADDRESS}\n")
        bridge = stack.enter_context(switch())
        for machine in self.machines.values():
            stack.enter_context(machine).connect(bridge)

    def follow(self, title: str, more: str = "") -> None:
        """The next block, which has this title; its first command with an option may get more."""
        block = self.blocks.pop(0)
        assert block.title == title
        block = block._replace(text=block.text.replace(f"--port {BROKER}", f"--port {BROKER} {more}"))
        loop = re.search("for ORG in (.*); do", block.text)
        if title == EVERY and loop:  # at home it is about one
            own = {name: block.text.replace(loop[1], name) for name in loop[1].split()}
        else:
            names = list(self.machines) if title == EVERYBODY else [title.lower()]
            own = dict.fromkeys(names, block.text)
        with ThreadPoolExecutor() as pool:
            done = [pool.submit(self.machines[name].follow, Block("sh", own[name])) for name in own]
            for one in done:
                one.result()

    def send(self, sender: str, file: str, *receivers: str) -> None:
        for name in receivers:
            self.machines[name].give(file, (self.machines[sender].folder / file).read_bytes())

    def telephone(self, names: list[str]) -> str:
        """Everybody notes the hash that the operator reads out."""
        _, said = self.hub.ask("fclub", "members", "show", "shops/members.json")
        (digest,) = re.findall("[0-9a-f]{64}", said)
        for name in names:
            self.machines[name].follow(Block("sh", f"HASH={digest}"))
        return str(digest)

    def held(self, names: list[str]) -> set[str]:
        """Hashes of the lists that these have accepted."""
        files = [self.machines[name].folder / f"{name}.members.json" for name in names]
        return {read_members(file).hash.hex() for file in files}

    def sums(self, names: list[str]) -> int:
        """Slots in which exactly these have added up their users."""
        slots = self.hub.get(HUB, "/v1/slots", self.token)
        ready = [sorted(slot["ready"]) for slot in slots if slot["stage"] == "summed"]
        return ready.count(sorted(names))

    @property
    def token(self) -> str:
        """What `init` has printed for the operator."""
        return str(re.findall("token of the key operator .*: (.*)", self.hub.output)[0])

    def visit(self, name: str) -> Popen[str]:
        """An application's load, until there is a file `enough`."""
        machine, words = self.machines[name], 'umask 077; exec python -c "$0" "$@" > visits'
        token = (machine.folder / f"{name}.token").read_text().strip()
        return machine.begin("bash", "-c", words, VISIT, name, str(PORTS[name]), token)


@pytest.mark.slow
def test_organisations_follow_the_page(record_property: Callable[[str, object], None]) -> None:
    if reason := refused():
        pytest.skip(f"machines of their own for organisations: {reason}")
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        ExitStack() as stack,
    ):
        base = Path(folder)
        base.chmod(0o755)
        page = Page(base, stack)
        begin = time.monotonic()
        three_join(page)
        seconds = time.monotonic() - begin
        record_property("seconds from federation init to a sum of three", round(seconds))
        assert seconds < MOST_SECONDS
        visitors = {name: page.visit(name) for name in THREE}
        nobody_reaches_what_is_anothers(page, base)
        a_fourth_joins_and_one_leaves(page, visitors)
        rewards = {}
        for name, visitor in visitors.items():
            home = page.machines[name].folder
            (home / "enough").touch()
            said, _ = visitor.communicate(timeout=60)
            assert visitor.returncode == 0, said
            rewards[name] = (home / "visits").read_text().count("\n")
            assert rewards[name] > 0
        page.follow(EVERYBODY)
        assert page.blocks == []
        record_property("rewards", rewards)
        record_property("messages", compared(page, rewards))


def three_join(page: Page) -> None:
    plan = make_plan(
        epsilon=1.0,
        delta=1e-5,
        dim=DIM,
        users=24,
        members=len(THREE),
        visits=tuple(0.1 * slot for slot in range(1, SLOTS + 1)),
        start=time.time() + GAP_SECONDS,
        seconds_per_visit=GAP_SECONDS / 0.1,
        tolerance=0.0,
    )
    page.hub.give("plan.json", plan.encode())
    page.follow(OPERATOR, f"--address {ADDRESS} --set model.parameters.plan=plan.json")
    page.follow(EVERY)
    for name in THREE:
        page.send(name, f"{name}.json", "operator")
    page.follow(OPERATOR)
    for name in THREE:
        page.send("operator", f"shops/{name}.kit", name)
    digest = page.telephone(THREE)
    page.follow(EVERY)
    wait_for(lambda: page.sums(THREE) > 0, MOST_SECONDS)
    assert page.held(THREE) == {digest}
    servers = page.hub.get(HUB, "/v1/servers", page.token)
    for name in THREE:
        assert servers[name]["session"]
        assert servers[name]["trouble"] is None
        assert page.machines[name].get(PORTS[name], "/healthz")["status"] == "ok"


def nobody_reaches_what_is_anothers(page: Page, base: Path) -> None:
    for name, machine in page.machines.items():
        assert machine.open_files(base) == ""
        assert machine.reaches(ADDRESS, BROKER)
        if name in THREE:
            assert machine.reaches("127.0.0.1", PORTS[name])
    north, south = page.machines["north"], page.machines["south"]
    assert north.open_ports(page.hub.address) == [BROKER]
    assert north.open_ports(south.address) == page.hub.open_ports(south.address) == []


def a_fourth_joins_and_one_leaves(page: Page, visitors: dict[str, Popen[str]]) -> None:
    before = {name: page.machines[name].jobs for name in ("operator", *THREE)}
    page.follow(WEST)
    page.send("west", "west.json", "operator")
    page.follow(OPERATOR)
    page.send("operator", "shops/members.json", "south", "east")
    page.send("operator", "shops/west.kit", "west")
    digest = page.telephone(STAY)
    page.follow(WEST)
    visitors["west"] = page.visit("west")
    page.follow(EVERY)
    assert page.held(STAY) == {digest}
    wait_for(lambda: page.sums(STAY) > 0, MOST_SECONDS)
    page.follow(OPERATOR)  # certificates are rotated
    known = page.sums(STAY)
    wait_for(lambda: page.sums(STAY) > known, MOST_SECONDS)
    servers = page.hub.get(HUB, "/v1/servers", page.token)
    states = {name: one["state"] for name, one in servers.items()}
    assert states == dict.fromkeys(STAY, "active") | {"north": "retired"}
    assert before == {name: page.machines[name].jobs for name in before}, "nothing has restarted"


def compared(page: Page, rewards: dict[str, int]) -> int:
    """Messages of all links; every reward is stored, and both ends have heard the same."""
    hub, messages = read_hub(page.hub.folder / "shops"), 0
    for name, rewarded in rewards.items():
        home = page.machines[name].folder
        messages += count(hub, home / "shops" / f"{name}.kit", home / f"{name}.db", rewarded)
    hub.store.close()
    assert messages > 0
    return messages
