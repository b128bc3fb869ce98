"""The worked example of docs/my-runs-differ.md: each change of the program is found at the right tap and step."""

from __future__ import annotations

import contextlib
import io
import re
import shutil

import jax
import pytest

from tests.support import ROOT

PAGE = ROOT / "docs" / "my-runs-differ.md"


def blocks():
    """The page's program, a block at a time, each with the output that the page shows for it."""
    found = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(found) == 5
    assert sum(bool(output) for _, output in found) == 4
    return found


@pytest.mark.slow
def test_the_worked_example(tmp_path, monkeypatch):
    """Every block prints what the page says it prints."""
    shutil.copy(ROOT / "examples" / "digits.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for source, output in blocks():
        printed = io.StringIO()
        # As a reader would run it, without the tests' settings of JAX.
        quick = jax.enable_checks(False)  # noqa: FBT003 - as JAX has it
        with contextlib.redirect_stdout(printed), jax.numpy_dtype_promotion("standard"), quick:
            exec(compile(source, str(PAGE), "exec"), names)  # noqa: S102 - it is our own page
        assert printed.getvalue() == output
