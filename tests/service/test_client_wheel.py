"""Clients without fclub against a running server: `fclub-client`, and one that is generated."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest
from tests.docs.pages import ROOT

from fclub.service.serve import local_app
from fclub.service.settings import Feedback, Http

from .conftest import TOKEN, local_settings, serving

MOST_BYTES = 15_000_000
TOOLS = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence")
"""What an environment holds before anything is installed."""

SCRIPT = """
import asyncio, sys
import fclub_client
from fclub_client import AsyncClient, Client, RequestFailed

url, token = sys.argv[1:]
with Client(url, token) as shop:
    shop.put_items({"a": [1, 0, 0, 0], "b": [0, 1, 0, 0]}, {"a": {"categories": ["tea"]}})
    shown = shop.recommend("ann", where={"category": "tea"})
    assert shown.item == "a" and shop.feedback(shown.decision, 1.0)
    try:
        shop.item("c")
    except RequestFailed as error:
        assert error.status == 404

async def ask():
    async with AsyncClient(url, token) as shop:
        return await shop.recommend_several("ann", 5)

assert [one.item for one in asyncio.run(ask())] == ["b"]
assert not {"fclub", "numpy", "numba", "scipy"} & sys.modules.keys()
print(fclub_client.__file__)
"""


@pytest.mark.slow
def test_the_client_is_a_distribution_of_its_own(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    alone = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path)]
    subprocess.run([*build, *alone, str(ROOT / "client")], check=True, capture_output=True, text=True)
    (wheel,) = tmp_path.glob("fclub_client-*.whl")
    with ZipFile(wheel) as file:
        file.extractall(tmp_path / "there")
        assert sum(one.file_size for one in file.infolist()) < 200_000
        for name in ("buckets", "client", "errors", "exchanges", "extras"):
            source = (ROOT / "src" / "fclub" / f"{name}.py").read_bytes()
            assert file.read(f"fclub_client/{name}.py") == source
        (about,) = (name for name in file.namelist() if name.endswith("METADATA"))
        needed = [line for line in file.read(about).decode().splitlines() if "Requires-Dist" in line]
    assert needed == ["Requires-Dist: httpx>=0.27"]
    with serving(local_app(local_settings(tmp_path))[0]) as client:
        variables = os.environ | {"PYTHONPATH": str(tmp_path / "there")}
        command = [sys.executable, "-c", SCRIPT, str(client.base_url), TOKEN]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))


def installed(folder: Path, *what: object) -> Path:
    """The programs of a fresh environment with these distributions, from an index if there is one."""
    venv.create(folder, with_pip=True)
    found = folder / "bin"
    install = [found / "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    words = [str(word) for word in (*install, *what)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if "Could not find a version" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    return found


@pytest.mark.slow
def test_the_client_installs_by_its_command_and_is_small(tmp_path: Path) -> None:
    programs = installed(tmp_path / "environment", ROOT / "client")
    (folder,) = (tmp_path / "environment" / "lib").glob("python3*/site-packages")
    files = [path for path in folder.rglob("*") if path.is_file()]
    own = [path for path in files if not path.relative_to(folder).parts[0].startswith(TOOLS)]
    assert 200_000 < sum(path.stat().st_size for path in own) < MOST_BYTES
    with serving(local_app(local_settings(tmp_path))[0]) as client:
        command = [str(programs / "python"), "-c", SCRIPT, str(client.base_url), TOKEN]
        done = subprocess.run(command, env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


GENERATED = """
import sys
from fclub_local_server_client import AuthenticatedClient, models
from fclub_local_server_client.api.default import (
    get_items_item_similar, get_popular, get_users_user, post_feedback, post_recommend,
    post_recommend_batch, put_items,
)

url, token = sys.argv[1:]
with AuthenticatedClient(base_url=url, token=token) as client:
    rows = {"a": [1.0, 0, 0, 0], "b": [0, 1.0, 0, 0], "c": [0.8, 0.6, 0, 0]}
    items = [
        models.Catalogued(key, row, categories=["tea" if key == "a" else "cake"])
        for key, row in rows.items()
    ]
    assert put_items.sync(client=client, body=models.PutItems(items)).inserted == 3
    cakes = models.Filter(and_=[models.Filter(not_=models.Filter(category="tea"))])
    asked = models.RecommendRequest("ann", count=5, filter_=cakes)
    shown = post_recommend.sync(client=client, body=asked).shown
    assert sorted(one.item for one in shown) == ["b", "c"]
    for event, counted in (("view", True), ("buy", True), ("buy", False)):
        told = models.FeedbackRequest(shown[0].decision, event=event)
        assert post_feedback.sync(client=client, body=told).counted == counted
    batch = models.RecommendBatch([asked, models.RecommendRequest("bob", items=["none"])])
    one, two = post_recommend_batch.sync(client=client, body=batch).results
    assert (one.status, one.result.shown, two.status) == (200, [], 422)
    assert get_items_item_similar.sync("a", client=client, count=1).items[0].item == "c"
    assert {one.item for one in get_popular.sync(client=client).items} == {shown[0].item}
    refused = get_users_user.sync_detailed("nobody", client=client)
    assert refused.status_code == 404 and "nobody" in refused.parsed.error
print("done")
"""


@pytest.mark.slow
def test_a_client_that_is_generated_works(tmp_path: Path) -> None:
    programs = installed(tmp_path / "environment", "openapi-python-client>=0.26")
    feedback = Feedback(events={"view": 0.1, "buy": 1.0})
    settings = local_settings(tmp_path, http=Http(), feedback=feedback)
    with serving(local_app(settings)[0]) as client:
        described = tmp_path / "openapi.json"
        described.write_text(client.get("/openapi.json").text)
        words = ["generate", "--path", described, "--output-path", tmp_path / "made"]
        search = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        command = [str(programs / "openapi-python-client"), *map(str, words)]
        made = subprocess.run(command, env=search, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stdout + made.stderr
        assert "WARNING" not in made.stdout + made.stderr
        found = {"PYTHONPATH": str(tmp_path / "made")}
        command = [str(programs / "python"), "-c", GENERATED, str(client.base_url), TOKEN]
        done = subprocess.run(command, env=found, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
