"""The report: self-contained, complete, the same again from the same results."""

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import plotly.graph_objects as go
import pytest

from fclub.errors import InvalidFile
from fclub.experiments.report.drawing import to_plotly
from fclub.experiments.report.pages import FILES, FINDINGS, PAGE, Built, build_report, open_study
from fclub.experiments.run.experiment import Experiment, Setting
from fclub.experiments.run.results import Results
from fclub.experiments.run.runner import run
from fclub.experiments.study.study import RESULTS


class Reader(HTMLParser):
    """Collects what a page refers to and how it is built."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str | None] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.links += [given[key] or "" for key in ("src", "href") if key in given]
        self.ids += [given["id"] or ""] if "id" in given else []
        if given.get("class") == "chart":
            self.labels.append(given.get("aria-label"))


@pytest.fixture(scope="module")
def page(built: Built) -> Reader:
    return Reader(built.page.read_text(encoding="utf-8"))


def test_nothing_is_fetched_and_every_link_leads_somewhere(built: Built, page: Reader) -> None:
    for link in page.links:
        if link.startswith("#"):
            assert link[1:] in page.ids
        elif not link.startswith("data:"):
            assert (built.page.parent / link).is_file(), link
    assert page.tags.count("script") == 3
    assert built.page.stat().st_size < 8_000_000


def test_structure_for_readers_who_do_not_see(built: Built, page: Reader) -> None:
    charts = [chart for section in built.sections for chart in section.drawn.charts]
    assert page.tags.count("h1") == 1
    assert page.tags.count("h2") == len(built.sections) + 2
    assert page.labels == [chart.alt for chart in charts]
    assert len(set(page.ids)) == len(page.ids)


def test_what_users_write_cannot_become_markup(built: Built, page: Reader) -> None:
    assert "small" not in page.tags
    assert "A &lt;small&gt; study" in built.page.read_text(encoding="utf-8")


def test_every_setting_is_named(built: Built) -> None:
    text = built.page.read_text(encoding="utf-8")
    for word in ("fclub test", "numpy", "processor", "seeds", "upload_ratio=1.01", "placement=blocks"):
        assert word in text


def test_files_hold_the_numbers_of_the_traces(built: Built, study_folder: Path) -> None:
    experiment = built.sections[0].figure.panels[0].experiment
    traces = experiment.traces(Results(study_folder / RESULTS).load)
    with (study_folder / FILES / "synthetic-blocks-regret.csv").open(newline="") as file:
        ends = {line: float(mean) for line, _, mean, _ in list(csv.reader(file))[1:]}
    for label, runs in traces.items():
        assert ends[label] == pytest.approx(sum(run.regret[-1] for run in runs) / len(runs))


def test_every_chart_and_table_is_in_files(built: Built, study_folder: Path) -> None:
    found = {path.name for path in (study_folder / FILES).iterdir()}
    expected = set()
    for section in built.sections:
        expected |= {
            f"{c.name}.{k}" for c in section.drawn.charts for k in ("png", "pdf", "csv", "tex")
        }
        expected |= {f"{t.name}-table.{k}" for t in section.drawn.tables for k in ("csv", "tex")}
    assert found == expected


def test_claims_are_on_the_page_and_in_the_findings(built: Built, study_folder: Path) -> None:
    claims = [claim for section in built.sections for claim in section.claims]
    text = (study_folder / FINDINGS).read_text(encoding="utf-8")
    assert any("vacuous" in claim.verdict for claim in claims)
    assert {claim.figure for claim in claims} > {"synthetic", "communication", "bounds"}
    for claim in claims:
        assert f"| {claim.claim} | {claim.where} | {claim.measured} | {claim.verdict} |" in text


def test_chart_data_is_whole(built: Built) -> None:
    text = built.page.read_text(encoding="utf-8")
    (data,) = re.findall(r'<script type="application/json" id="charts">(.*?)</script>', text)
    charts = [chart for section in built.sections for chart in section.drawn.charts]
    assert list(json.loads(data)) == [chart.name for chart in charts]


def test_plotly_accepts_every_chart_and_every_line_is_in_its_legend(built: Built) -> None:
    charts = [chart for section in built.sections for chart in section.drawn.charts]
    assert charts
    for chart in charts:
        figure = go.Figure(to_plotly(chart))
        shown = [trace.name for trace in figure.data if trace.showlegend is not False]
        assert shown == [line.label for line in chart.lines]
        assert figure.layout.xaxis.title.text == chart.x_label
        assert figure.layout.yaxis.title.text == chart.y_label


def test_building_again_gives_the_same_page(built: Built, study_folder: Path) -> None:
    before = built.page.read_bytes()
    assert build_report(study_folder).page.read_bytes() == before


def test_a_plain_run_has_a_report_too(tmp_path: Path) -> None:
    policies = {name: Setting(name) for name in ("linucb", "club")}
    experiment = Experiment(policies, Setting("synthetic", {"users": 10}), 50, (3,))
    run(experiment, results=Results.create(tmp_path, experiment))
    built = build_report(tmp_path)
    assert built.page == tmp_path / PAGE
    assert [chart.name for chart in built.sections[0].drawn.charts] == ["run-regret", "run-by-visit"]


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="no finished run"):
        open_study(tmp_path)
