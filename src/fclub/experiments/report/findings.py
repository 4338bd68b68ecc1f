"""The findings of a study as Markdown, so that a document can hold them without retyping a number."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

from fclub.experiments.report.tables import to_markdown
from fclub.experiments.report.verdicts import sum_up

if TYPE_CHECKING:
    from fclub.experiments.report.page import Section
    from fclub.experiments.study.study import Study

WIDTH = 110
HEAD = """# {title}

{made}

`fclub reproduce all` makes the full report, with ten seeds and 100,000 rounds, in `out/reproduce`.
Point FCLUB_DATA_DIR, or `--data`, at the published arrays; run the command again to go on where it was
interrupted. To record a run here, copy its `findings.md` over this file.

Values are mean ± one standard deviation over seeds at the last round. A difference counts when it
exceeds two standard errors of the paired difference over seeds; one seed settles nothing. Claims that
begin with “ours” are not the paper's. `cdp-fclub-dc` appears as printed, with its noise really applied.

## At a glance

"""


def findings(study: Study, sections: list[Section]) -> str:
    """Claims first, then every table, then the sizes of the experiments."""
    text = HEAD.format(title=study.title, made=_made(study))
    claims = [claim for section in sections for claim in section.claims]
    text += "| claim | verdict | where | example |\n|---|---|---|---|\n"
    for line in sum_up(claims):
        text += f"| {line.claim} | **{line.verdict}** | {line.places} | {line.measured} |\n"
    text += (
        "\n## Every claim in every place\n\n| claim | where | measured | verdict |\n|---|---|---|---|\n"
    )
    for c in claims:
        text += f"| {c.claim} | {c.where} | {c.measured} | {c.verdict} |\n"
    return text + "".join(_figure(section) for section in sections)


def _made(study: Study) -> str:
    commands = " and ".join(f"`{command}`" for command in study.commands)
    text = f"Written by {commands} with fclub {study.version}, not by hand"
    if study.sittings:
        machine = study.machine()
        text += f": started {study.started}, {study.seconds:,.0f} s of simulation"
        text += f" on {machine['processor']}, {machine['cores']} cores"
    return _paragraph(f"{text}.")


def _paragraph(text: str) -> str:
    return fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _figure(section: Section) -> str:
    figure = section.figure
    parts = [f"\n## {figure.title}\n\n{_paragraph(figure.about)}\n"]
    sizes = {(p.experiment.rounds, len(p.experiment.seeds)) for p in figure.panels}
    parts += [f"\n{rounds:,} rounds, {seeds} seeds.\n" for rounds, seeds in sorted(sizes)]
    parts += [f"\n{_paragraph(f'Left out: {line}')}\n" for line in figure.skipped]
    parts += [f"\n{table.title}\n\n{to_markdown(table)}" for table in section.drawn.tables]
    return "".join(parts)
