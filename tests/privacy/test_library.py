"""Noise comes from a process that is forked for it, or not at all."""

import json
import os
import subprocess
import sys
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from fclub.errors import NoiseFailed, PrivacyError
from fclub.privacy.ledger import Ledger
from fclub.privacy.levels import LEVELS
from fclub.privacy.mechanisms import Increments, Slots, Tree
from fclub.privacy.noise import PROGRAM, DiscreteNoise, Library, command

WIDE = [(1e9, 286)]

COPIES = """
import ctypes, json, os, runpy, signal, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import opendp.prelude as dp

dp.enable_features("contrib")
own = runpy.run_path(sys.argv[1])
request = {"draw": [[1e9, 286]]}


def copied(work):
    # As fork does, but whoever asks for its own number is told the same in both copies, so that no
    # generator notices. This is what a machine looks like that is resumed twice from one snapshot.
    read, write = os.pipe()
    child = ctypes.CDLL(None, use_errno=True).syscall(56, 0x20000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if child < 0:
        sys.exit(77)
    if child == 0:
        os.write(write, json.dumps(work()).encode())
        os._exit(0)
    os.close(write)
    told = os.fdopen(read, "rb").read()
    os.waitpid(child, 0)
    return json.loads(told)


def in_process():
    return own["answer"](dp, request)[0]


def in_child():
    line = json.dumps(request).encode()
    return json.loads(own["in_fresh_child"](dp, line))["answer"][0]


def twice():
    found = {}
    for name, draw in (("child", in_child), ("process", in_process)):
        draw()  # there is a state to copy
        found[name] = [copied(draw) for _ in range(2)]
    return found


print(json.dumps(copied(twice)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="copies a process as Linux can")
def test_two_copies_of_one_memory_share_no_draw() -> None:
    """Drawn inside the copied process all 286 numbers are the same; in a fresh child none is."""
    found = subprocess.run([sys.executable, "-c", COPIES, PROGRAM], capture_output=True, timeout=60)
    if found.returncode == 77:
        pytest.skip("this user may not copy a process under the same number")
    drawn = json.loads(found.stdout)
    same, fresh = drawn["process"], drawn["child"]
    assert same[0] == same[1]
    assert len(set(fresh[0])) == 286
    assert not set(fresh[0]) & set(fresh[1])


def test_a_fork_of_the_server_asks_a_process_of_its_own() -> None:
    script = (
        "import os, numpy as np; from fclub.privacy.noise import DiscreteNoise\n"
        "source, wide = DiscreteNoise(), np.full(50, 1e9)\n"
        "source.integers(wide)\n"
        "child = os.fork()\n"
        "print(source._library._process is None, *source.integers(wide), flush=True)\n"
        "os._exit(0) if child == 0 else os.waitpid(child, 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    parent, child = sorted(line.split() for line in run.stdout.splitlines())
    assert [parent[0], child[0]] == ["False", "True"]
    assert not set(parent[1:]) & set(child[1:])


def program(tmp_path: Path, text: str) -> tuple[str, ...]:
    path = tmp_path / "drawing.py"
    path.write_text(text)
    return sys.executable, "-P", str(path)


def test_a_process_that_ended_is_started_again() -> None:
    library = Library(command())
    first = library.draw(WIDE)
    assert library._process is not None
    library._process.kill()
    library._process.wait()
    assert not set(first[0]) & set(library.draw(WIDE)[0])
    library.close()
    library.close()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "ends at once"),
        ('input(); print(\'{"error": "no entropy"}\')', "no entropy"),
        ("input(); print('{\"answer\": [[1, 2]]}')", "expected draws"),
        ("input(); input()", "within 2 s"),
        ("import sys; sys.stdin.close(); input()", "ends at once|Broken"),
    ],
    ids=["ends", "error", "too few", "silent", "deaf"],
)
def test_what_is_not_drawn_is_refused_by_name(tmp_path: Path, text: str, told: str) -> None:
    library = Library(program(tmp_path, text), seconds=2.0)
    with pytest.raises(NoiseFailed, match=told):
        library.draw(WIDE)
    library.close()


def test_a_child_that_crashes_gives_nothing(tmp_path: Path) -> None:
    """The process that forks goes on."""
    text = PROGRAM.read_text()
    broken = text.replace('request["draw"]]', 'request["draw"] + [os.kill(os.getpid(), 9)]]')
    assert broken != text
    library = Library(program(tmp_path, broken))
    for _ in range(2):
        with pytest.raises(NoiseFailed, match="ended with -9; nothing was released"):
            library.draw(WIDE)
    library.close()


def test_what_opendp_refuses_is_refused() -> None:
    library = Library(command())
    with pytest.raises(NoiseFailed, match="ended with 1"):
        library.draw([(-1.0, 1)])
    library.close()


def test_a_sampler_that_gives_40_deviations_gives_40_deviations(tmp_path: Path) -> None:
    """Nothing between the library and what is added cuts anything off."""
    line = "import json\nwhile True:\n    wanted = json.loads(input())['draw']\n"
    reply = "    print(json.dumps({'answer': [[int(40 * s)] * n for s, n in wanted]}), flush=True)"
    source = DiscreteNoise(program(tmp_path, line + reply))
    deviations = np.array([[2.0**20, 0.0], [3e6, 2.0**52]])
    np.testing.assert_array_equal(source.integers(deviations), 40 * deviations)
    source._library.close()


def test_the_library_is_asked_once_what_a_stream_costs() -> None:
    source = DiscreteNoise()
    assert source.cost(1e6, 5.0) == pytest.approx((5.0 / 1e6) ** 2 / 2.0, rel=1e-12)
    library = source._library
    for number in range(300):
        library._costs[float(number), 0.0] = 0.0
    assert source.cost(1e6, 5.0) == source.cost(1e6, 5.0) > 0.0
    assert source.cost(1e6, 6.0) == pytest.approx((6.0 / 1e6) ** 2 / 2.0, rel=1e-12)
    assert len(library._costs) <= 256


MECHANISMS: list[Slots | Tree | Increments] = [
    Slots(6, 3e6, 10, 1.0),
    Tree(9, 3e6, 10, 1.0),
    Increments(9, 3e6, 10, 1.0),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda one: one.name)
def test_a_ledger_and_the_library_agree_on_what_streams_cost(
    mechanism: Slots | Tree | Increments,
) -> None:
    ledger = Ledger(LEVELS["transcript"], 1.0, 1e-5)
    ledger.library_cost = DiscreteNoise().cost
    ledger.open("one", mechanism, 1e5)
    assert ledger.is_open("one")


@pytest.mark.parametrize("factor", [0.9, 1.0 + 1e-6])
def test_a_ledger_refuses_what_the_library_prices_otherwise(factor: float) -> None:
    ledger = Ledger(LEVELS["transcript"], 1.0, 1e-5)
    ledger.library_cost = lambda scale, distance: (factor * distance / scale) ** 2 / 2.0
    with pytest.raises(PrivacyError, match="until the two agree"):
        ledger.open("one", MECHANISMS[0], 1e5)
    assert not ledger.is_open("one")
    assert ledger.mu == 0.0


def test_a_ledger_refuses_to_charge_less_than_a_stream_costs() -> None:
    class Cheap(Slots):
        def cost(self, sensitivity: float, releases: int) -> float:
            return 0.5 * super().cost(sensitivity, releases)

    from fclub.privacy.ledger import _agree

    with pytest.raises(PrivacyError, match="until the two agree"):
        _agree(Cheap(6, 3e6, 10, 1.0), 1e5, DiscreteNoise().cost)
    assert sqrt(2.0 * DiscreteNoise().cost(3e6, 1e5)) == pytest.approx(1e5 / 3e6)


def test_no_process_is_left_behind() -> None:
    """The process that draws ends with the one that it draws for, however that ends."""
    script = (
        "import os, numpy as np; from fclub.privacy.noise import DiscreteNoise\n"
        "source = DiscreteNoise(); source.integers(np.full(1, 1e9))\n"
        "print(source._library._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    pid = int(run.stdout)
    for _ in range(500):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        state = Path(f"/proc/{pid}/stat").read_text().split()[2]
        if state == "Z":
            return
        os.sched_yield()
        select_nothing()
    raise AssertionError("the process that draws is still there")


def select_nothing() -> None:
    """Wait for a hundredth of a second."""
    import select

    select.select([], [], [], 0.01)
