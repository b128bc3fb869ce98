"""docs/tour.md and docs/long-runs.md do what they say: their blocks are run, and what they print is compared."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.inside import inside

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Returns kind, source and output of each block of a page."""
    return [(kind, source, output or "") for kind, source, output in BLOCK.findall(page)]


def run_cell(source: str, names: dict[str, Any]) -> str:
    """Runs a cell as a notebook does; returns what it prints, and the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "page", "exec"), names)  # noqa: S102 - the page is ours
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "page", "eval"), names)  # noqa: S307
            if value is not None:
                print(repr(value))  # noqa: T201
    return printed.getvalue()


def run_command(source: str) -> str:
    """Runs the commands of a console block; returns what they print."""
    outputs: list[str] = []
    for line in source.splitlines():
        prompt, program, *args = shlex.split(line)
        assert (prompt, program) == ("$", "tracerec")
        done = inside(*args, columns=80)
        assert (done.status, done.err) == (0, "")
        outputs.append(done.out)
    return "".join(outputs)


def same(found: str, written: str) -> bool:
    """Returns whether lines agree; a line of the page that is ``...`` stands for any number of lines."""
    parts = [re.escape(part) for part in f"\n{written}".rstrip("\n").split("\n...\n")]
    lines = "".join(f"\n{line.rstrip()}" for line in found.rstrip("\n").split("\n"))
    return re.fullmatch(r"\n(?:.*\n)*?".join(parts), lines.rstrip("\n")) is not None


@pytest.mark.parametrize("page", ["tour.md", "long-runs.md"])
def test_blocks_print_what_the_page_says(page, tmp_path, monkeypatch) -> None:
    """One after the other, in one namespace, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tour"])
    names: dict[str, Any] = {}
    wrong: list[str] = []
    found = blocks((DOCS / page).read_text())
    for kind, source, written in found:
        output = run_cell(source, names) if kind == "python" else run_command(source)
        if not same(output, written):
            wrong.append(f"{source}\nprints\n{output}\nand not\n{written}")
    assert not wrong, "\n\n".join(wrong)
    assert len(found) > 4


def test_page_covers_what_it_promises() -> None:
    """The words of the tour."""
    page = (DOCS / "tour.md").read_text()
    for word in (
        "tracerec.record(",
        "tracerec.open(",
        ".sel(",
        ".to_numpy(",
        ".to_pandas(",
        ".replay(",
        "tracerec inspect",
    ):
        assert word in page


@pytest.mark.parametrize(
    ("found", "written", "expected"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb\n", "a\n", False),
        ("a\nx\ny\nb", "a\n...\nb\n", True),
        ("a\n", "a\n...\nb", False),
    ],
)
def test_comparison(found, written, expected) -> None:
    """Dots stand for lines, and nothing else does."""
    assert same(found, written) == expected
