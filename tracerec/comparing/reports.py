"""A comparison as a file: JSON lines, Markdown, JUnit; `tracerec.comparing.html` has the page."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape, quoteattr

from tracerec._version import __version__
from tracerec.comparing.divergence import plain
from tracerec.comparing.html import as_html
from tracerec.comparing.text import HEADINGS, cells_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracerec.comparing.comparison import Comparison

__all__ = ["SCHEMA", "WRITERS", "as_object"]

SCHEMA = "tracerec/compare/1"


def as_object(comparison: Comparison) -> dict[str, Any]:
    """Returns a comparison as JSON values, by ``schemas/compare.schema.json``."""
    first, culprit = comparison.first_divergence, comparison.culprit
    by_process = comparison.first_by_process.items()
    return {
        "schema": SCHEMA,
        "tracerec": __version__,
        **_head(comparison),
        "first_divergence": None if first is None else first.to_json(),
        "culprit": None if culprit is None else culprit.to_json(),
        "first_by_process": {str(process): found.to_json() for process, found in by_process},
        "taps": [plain(row) for row in comparison.rows()],
        "unmatched": [_unmatched(each) for each in comparison.unmatched],
    }


def as_jsonl(comparison: Comparison) -> str:
    """Returns a JSON object a line: the verdict, taps, what was not compared; ``"is"`` says which."""
    first = comparison.first_divergence
    lines: list[dict[str, Any]] = [
        {"is": "comparison", "schema": SCHEMA, **_head(comparison)},
        *([{"is": "first divergence", **first.to_json()}] if first else []),
        *({"is": "tap", **plain(row)} for row in comparison.rows()),
        *({"is": "unmatched", **_unmatched(each)} for each in comparison.unmatched),
    ]
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)


def as_markdown(comparison: Comparison) -> str:
    """Returns Markdown that reads well as it stands, too."""
    return "\n".join(_markdown(comparison)) + "\n"


def as_junit(comparison: Comparison) -> str:
    """Returns JUnit's XML: a test case a tap and leaf, and one for what was not compared."""
    rows = comparison.rows()
    failed = [row for row in rows if row["different"]]
    lacking = not comparison.ok and not comparison.different
    count = len(rows) + 1
    failures = len(failed) + lacking
    out = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<testsuite name="tracerec compare" tests="{count}" failures="{failures}" errors="0" skipped="0">',
    ]
    for row in rows:
        name = cells_of(row)[0]
        case = f'  <testcase classname={_attribute(row["tap"])} name={_attribute(name)} time="0"'
        if not row["different"]:
            out.append(case + "/>")
            continue
        message = f"{row['different']:,} of {row['compared']:,} records differ; first: {row['first']}"
        out += [
            case + ">",
            f"    <failure message={_attribute(message)}>{_xml(_facts(row))}</failure>",
            "  </testcase>",
        ]
    case = '  <testcase classname="tracerec" name="everything was compared" time="0"'
    text = "\n".join(map(str, comparison.unmatched))
    if lacking:
        out += [
            case + ">",
            f"    <failure message={_attribute(comparison.summary)}>{_xml(text)}</failure>",
            "  </testcase>",
        ]
    elif text:
        out += [case + ">", f"    <system-out>{_xml(text)}</system-out>", "  </testcase>"]
    else:
        out.append(case + "/>")
    return "\n".join([*out, "</testsuite>"]) + "\n"


WRITERS: dict[str, Callable[[Comparison], str]] = {
    ".html": as_html,
    ".md": as_markdown,
    ".jsonl": as_jsonl,
    ".xml": as_junit,
}
"""What writes a report, by the end of its name."""


def _head(comparison: Comparison) -> dict[str, Any]:
    runs = comparison.runs
    return {
        "a": {"path": runs.a, "records": runs.records_a},
        "b": {"path": runs.b, "records": runs.records_b},
        "verdict": comparison.verdict,
        "ok": comparison.ok,
        "status": comparison.status,
        "summary": comparison.summary,
        "compared": comparison.compared,
        "different": comparison.different,
        "kinds": comparison.kinds,
        "stopped": comparison.stopped,
        "tolerances": comparison.tolerances,
        "notes": list(runs.notes),
    }


def _unmatched(each: Any) -> dict[str, Any]:
    names = ("what", "tap", "leaf", "transforms", "records", "detail", "near")
    return {name: getattr(each, name) for name in names}


def _markdown(comparison: Comparison) -> Iterator[str]:
    yield f"# {_escaped(comparison.summary)}"
    first = comparison.first_divergence
    if first is not None:
        yield from ("", f"First divergence: **{_escaped(first.record)}**", "")
        yield from (f"    {line.replace(chr(10), ' ')}" for line in first.lines()[1:])
    rows = comparison.rows()
    if rows:
        yield from ("", f"| {' | '.join(HEADINGS)} |", f"|{' --- |' * len(HEADINGS)}")
        yield from (f"| {' | '.join(map(_escaped, cells_of(row)))} |" for row in rows)
    if comparison.unmatched:
        yield from ("", "Not compared:", "")
        yield from (f"- {_escaped(str(each))}" for each in comparison.unmatched)
    if comparison.tolerances:
        yield from ("", "Tolerances:", "")
        yield from (f"- {dtype}: {text}" for dtype, text in comparison.tolerances.items())


def _escaped(text: str) -> str:
    """Returns text in which nothing is Markdown or HTML."""
    text = " ".join(text.split())
    return re.sub(r"([\\`*_{}\[\]<>|#&!])", r"\\\1", text)


def _facts(row: dict[str, Any]) -> str:
    names = ("max_abs", "max_rel", "max_ulp", "need_rtol", "need_atol")
    lines = [f"{name}: {row[name]}" for name in names if row[name] is not None]
    if row["by"]:
        lines += [f"compared by {row['by']}", *(f"{name} differs: {n}" for name, n in row["statistics"].items())]
    return "\n".join([*lines, f"tolerance: {row['tolerance']}"])


_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _xml(text: str) -> str:
    # Control characters and lone surrogates have no form in XML 1.0, not even an escaped one.
    return escape(_NOT_XML.sub("\ufffd", text))


def _attribute(text: str) -> str:
    return quoteattr(_NOT_XML.sub("\ufffd", text))
