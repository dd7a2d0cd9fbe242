"""Every finding of users in tests/findings.py names a test that exists."""

import ast
from pathlib import Path

import pytest

from findings import FINDINGS

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(("finding", "test"), FINDINGS, ids=[test.partition("::")[2] for _, test in FINDINGS])
def test_a_finding_has_a_test(finding: str, test: str) -> None:
    file, _, name = test.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
