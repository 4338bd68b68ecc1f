"""`fclub reproduce`, `fclub report` and `fclub demo` as a user calls them."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from tests.conftest import Command
from typer.testing import CliRunner

from fclub.cli.reproduce import app
from fclub.experiments.study.figures import Scale, make_figures


def fclub(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fclub", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=folder)


SMALL = ("--rounds", "60", "--seeds", "1", "--jobs", "1")


@pytest.mark.slow
def test_a_figure_then_its_report_again(tmp_path: Path) -> None:
    done = fclub(tmp_path, "reproduce", "bounds", *SMALL, "--seeds", "5", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert set(said) == {"report", "claims", "skipped"}
    assert [claim["verdict"] for claim in said["claims"]] == ["holds, vacuous"] * 2
    page = tmp_path / said["report"]
    before = page.read_bytes()
    page.unlink()
    again = fclub(tmp_path, "report", "out/reproduce")
    assert again.returncode == 0, again.stderr
    assert "vacuous" in again.stdout
    assert page.read_bytes() == before


@pytest.mark.slow
def test_demo_prints_a_table_and_the_path_and_opens_nothing_for_a_pipe(tmp_path: Path) -> None:
    done = fclub(tmp_path, "demo", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "linucb" in done.stdout
    assert "out/demo/report.html" in done.stdout
    assert (tmp_path / "out/demo/report.html").is_file()
    listed = fclub(tmp_path, "demo", *SMALL, "--no-open", "--json")
    assert "linucb" in json.loads(listed.stdout)["policies"]


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FCLUB_DATA_DIR", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("reproduce", "synthetc"), 2, "synthetic"),
        (("reproduce", "parameters", "--only", "k"), 2, "epsilon"),
        (("reproduce", "bounds", "--seeds", "0"), 2, "seeds"),
        (("report", "nowhere"), 1, "nowhere"),
        (("reproduce", "yelp"), 1, "FCLUB_DATA_DIR"),
    ],
)
def test_errors_are_one_line(
    in_folder: None, command: Command, arguments: tuple[str, ...], code: int, word: str
) -> None:
    done = command(*arguments)
    assert done.returncode == code
    lines = [line for line in done.stderr.splitlines() if line.startswith("fclub: ")]
    assert len(lines) == 1
    assert word in lines[0]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("asked", "code"), [((), 0), (("yelp: no data",), 1)])
def test_only_what_is_missing_of_the_figures_asked_for_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...], code: int
) -> None:
    """The folder may hold others that were made in part."""
    (figure,) = make_figures("bounds", Scale(60, (0,), None), None)
    figure = replace(figure, skipped=asked)
    other = SimpleNamespace(figure=SimpleNamespace(skipped=("movielens: no data",)), claims=[])
    built = SimpleNamespace(sections=[other], page="report.html")
    found = {
        "make_figures": [figure],
        "run_study": SimpleNamespace(figures=[figure], left_out=[]),
        "build_report": built,
    }
    for name, value in found.items():
        monkeypatch.setattr(f"fclub.cli.reproduce.{name}", lambda *_, value=value: value)
    done = CliRunner().invoke(app, ["bounds", *SMALL, "--json"])
    assert done.exit_code == code
    assert json.loads(done.stdout)["skipped"] == [*asked]


@pytest.mark.parametrize("name", ["reproduce", "report", "demo"])
def test_help_has_an_example(command: Command, name: str) -> None:
    done = command(name, "--help")
    assert done.returncode == 0
    assert f"Example: fclub {name}" in " ".join(done.stdout.split())
