"""What the tutorial promises, beside that it runs (test_blocks.py)."""

import ast

from tests.docs.pages import ROOT, blocks

TUTORIAL = blocks(ROOT / "docs" / "tutorial.md")


def test_own_policy_and_environment_are_under_30_lines() -> None:
    lengths = {
        node.name: node.end_lineno - node.lineno + 1
        for block in TUTORIAL
        if block.language == "python"
        for node in ast.parse(block.text).body
        if isinstance(node, ast.ClassDef) and node.end_lineno is not None
    }
    assert set(lengths) == {"Greedy", "Shelf"}
    assert max(lengths.values()) < 30


def test_it_leads_to_a_federation_on_the_ratings_that_it_makes() -> None:
    shell = "\n".join(block.text for block in TUTORIAL if block.language == "sh")
    assert "fclub up --env liked --set env.path=ratings.csv" in shell
    assert "fclub local --check" in shell
