"""The leaderboard as a page: ranks, a picture and a table per world, how to cite it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fclub.experiments.leaderboard.ranks import Rank, in_world, ranks
from fclub.experiments.leaderboard.record import Cell, LeaderboardRecord
from fclub.experiments.leaderboard.suite import BASE, POLICIES, ROUNDS, SEEDS, WORLDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD = """\
# Leaderboard

Suite {suite}, hash `{digest}`: {worlds} worlds × {policies} policies × {seeds} seeds, {rounds:,} rounds
each, recorded with fclub {version}.{fewer}
`fclub leaderboard` prints the ranks; `fclub leaderboard --policy mine.py:Mine` plays a policy of your
own in all worlds, with the same seeds, and ranks it among the recorded ones.

Regret is relative to `{base}`, which learns each user alone: the geometric mean over worlds of the
ratio of final regrets. Brackets are 95 % intervals by Student's t over seeds; a seed is one set of
users, visits, items and draws of rewards for all policies, so ratios are paired. “Behind” is the regret
over that of the rank before: an interval that contains 1 leaves the order of the two open. Messages and
bytes are means over worlds. ε is what was spent by the definition that the policy states
([privacy](privacy.md)), empty where nothing is guaranteed. Time is CPU time per round over that of
`{base}`, its world included.

Constants were tuned once, by one rule for all: `benchmarks/tune.py`, on the worlds `few` and `many`,
with the seeds 1000 to 1002, which are not among those played here. `fclub-plus` and `cdp-fclub-plus`
play at their defaults; `random` has nothing to tune.
"""

WORLDS_HEAD = """\
## Worlds

Regret relative to `{base}`, with messages, bytes and ε.
"""

CITE = """\
## How to cite it

“fclub leaderboard, suite {suite} ({digest})”, with `CITATION.cff`. Worlds, policies, constants, rounds
and seeds are in `src/fclub/experiments/leaderboard/suite.py`, whose hash this is; to change any of them
makes a new version. The recorded numbers are in `recorded.json` beside it.
`fclub leaderboard --record FILE` plays the suite again.
"""


def _size(count: float) -> str:
    for unit, scale in (("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count:.0f}"


def _epsilon(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def cells_of(rank: Rank) -> list[str]:
    """A line of the table of ranks, as texts."""
    return [
        str(rank.place),
        rank.policy,
        str(rank.relative),
        "" if rank.behind is None else str(rank.behind),
        f"{rank.messages:,.0f}",
        _size(rank.bytes),
        _epsilon(rank.epsilon),
        f"{rank.time:.1f} ×",
    ]


COLUMNS = ["rank", "policy", "relative regret", "behind", "messages", "bytes", "ε", "time"]


def _table(columns: list[str], lines: list[list[str]]) -> str:
    rows = [columns, ["---"] * 2 + ["---:"] * (len(columns) - 2), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def markdown(record: LeaderboardRecord) -> str:
    """The page; its pictures are `leaderboard-WORLD.svg` in the folder images."""
    known = {
        "suite": record.suite,
        "digest": record.digest,
        "version": record.version,
        "worlds": len(record.cells),
        "policies": len(record.policies),
        "seeds": len(record.seeds),
        "rounds": ROUNDS,
        "base": BASE,
        "fewer": _fewer(record),
    }
    lines = [[c if k != 1 else f"`{c}`" for k, c in enumerate(cells_of(r))] for r in ranks(record)]
    parts = [HEAD.format(**known), _table(COLUMNS, lines), "", WORLDS_HEAD.format(**known)]
    for world in record.cells:
        parts += [f"**{world}**: {WORLDS[world].meaning}.", ""]
        parts += [f"![Regret relative to {BASE} in {world}](images/leaderboard-{world}.svg)", ""]
    return "\n".join([*parts, CITE.format(**known)])


def _fewer(record: LeaderboardRecord) -> str:
    """What the record lacks of the suite, if anything."""
    missing = [name for name in POLICIES if name not in record.policies]
    said = ""
    if len(record.seeds) < len(SEEDS):
        said += f" Recorded so far: {len(record.seeds)} of its {len(SEEDS)} seeds."
    if missing:
        said += f" Not recorded: {', '.join(missing)}."
    return said


def _sent(cell: Cell) -> str:
    """What a policy has sent and what that cost, beside its line of a picture."""
    if not cell.messages:
        return ""
    spent = "" if cell.epsilon is None else f", ε = {_epsilon(cell.epsilon)}"
    return f"{cell.messages:,.0f} messages, {_size(cell.bytes)}{spent}"


def picture(record: LeaderboardRecord, world: str) -> Figure:
    """A dot and an interval per policy, best on top; regret relative to the base on a log axis."""
    from matplotlib.figure import Figure

    found = in_world(record, world)
    figure = Figure(figsize=(9.0, 0.28 * len(found) + 1.0), layout="constrained")
    axes = figure.subplots()
    rows = range(len(found))
    means = [value.mean for value in found.values()]
    limits = [value.low for value in found.values()], [value.high for value in found.values()]
    ours = ["C1" if "fclub" in name else "C0" if name in POLICIES else "C3" for name in found]
    axes.axvline(1.0, color="0.6", linewidth=1.0)
    axes.hlines(rows, *limits, colors=ours, linewidth=2.5)
    axes.scatter(means, rows, c=ours, zorder=3)
    axes.set_yticks(rows, [f"{name}  {value.mean:.2f}" for name, value in found.items()])
    axes.invert_yaxis()
    sent = axes.secondary_yaxis("right")
    sent.set_yticks(rows, [_sent(record.cells[world][name]) for name in found], fontsize="small")
    sent.tick_params(length=0)
    axes.set_xscale("log")
    ticks = [t for t in (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0) if _inside(t, means)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(f"regret relative to {BASE}, 95 % intervals over {len(record.seeds)} seeds")
    axes.set_title(world)
    axes.grid(axis="x", alpha=0.3)
    return figure


def _inside(tick: float, means: list[float]) -> bool:
    return 0.8 * min(means) <= tick <= 1.25 * max(means)


def draw(record: LeaderboardRecord, folder: Path) -> list[Path]:
    """All pictures as SVG; the same record gives the same bytes."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    files = []
    with matplotlib.rc_context({"svg.hashsalt": "fclub", "svg.fonttype": "none"}):
        for world in record.cells:
            files.append(folder / f"leaderboard-{world}.svg")
            picture(record, world).savefig(files[-1], metadata={"Date": None})
    return files


def write_page(record: LeaderboardRecord, folder: Path) -> Path:
    """The page and its pictures, for a folder of one's own or for the documentation."""
    draw(record, folder / "images")
    page = folder / "leaderboard.md"
    page.write_text(markdown(record))
    return page
