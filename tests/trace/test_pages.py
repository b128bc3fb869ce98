"""What a notebook shows."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from tests.memory_source import MemorySource, make_stream
from tests.trace.streams import CountingStream, leaf, training
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Leaf, Site, Transform
from tracerec.trace import Trace, open_trace

HOSTILE = '<script>alert("1")</script>&\x1b[31m\u202e'


class Page(HTMLParser):
    """The tags and the cells of a page; fails where tags do not close."""

    def __init__(self, text):
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):  # noqa: ARG002 - the parser passes it
        self.open.append(tag)
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def test_trace():
    """A row a tap."""
    page = Page(Trace(training())._repr_html_())
    assert "tracerec.Trace <memory>: 25 records, 3 taps, ended cleanly" in page.text
    assert page.rows == [
        ["tap", "records", "transforms", "arrays"],
        ["layer", "12", "none; jvp, transpose", "bfloat16[3], float32[2,3]"],
        ["loss", "8", "none", "float32[]"],
        ["ragged", "5", "none", "int32[2], int32[5]"],
    ]
    assert page.tags <= {"div", "b", "table", "thead", "tbody", "tr", "th", "td"}


def test_tap():
    """A row a stream and leaf, with the summary of the file."""
    source = training()
    page = Page(Trace(source)["layer"]._repr_html_())
    assert [row[:4] for row in page.rows[1:]] == [
        ["none", "['b']", "bfloat16[3]", "6"],
        ["none", "['w']", "float32[2,3]", "6"],
        ["jvp, transpose", "['w']", "float32[2,3]", "6"],
    ]
    assert page.rows[2][6] == f"{leaf(source, 0, 1)[-1].max():.4g}"
    assert page.rows[1][7] == str(int(np.isnan(leaf(source, 0).astype(np.float32)).sum()))
    assert re.fullmatch("[▁▂▃▄▅▆▇█]{6}", page.rows[2][9])


def test_selections_have_no_statistics_of_other_records():
    """A part of the records, and a leaf: only what is of them."""
    tap = Trace(training())["layer"]
    assert Page(tap.sel(step=slice(0, 30))._repr_html_()).rows[1][4:] == [""] * 6
    assert len(Page(tap.leaf("['w']")._repr_html_()).rows) == 3
    assert Page(tap.leaf("['w']")._repr_html_()).rows[1][5] != ""


@pytest.mark.parametrize("kind", ["trace", "tap"])
def test_text_is_escaped(kind):
    """No tag, no control character comes through, whatever names hold."""
    site = Site(HOSTILE, (Leaf(f"['{HOSTILE}']", (2,), "float32"),), transforms=(Transform("<b>"),))
    source = MemorySource([make_stream(site, [[[1, 2]]])], path=HOSTILE)
    source.info = dataclasses.replace(source.info, notes=(HOSTILE,), dropped={HOSTILE: 2})
    trace = Trace(source)
    text = trace._repr_html_() if kind == "trace" else trace[HOSTILE]._repr_html_()
    page = Page(text)
    assert page.tags <= {"div", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert '<script>alert("1")</script>&\\x1b[31m\\u202e' in page.text
    assert ("2 records missing" in page.text) == (kind == "trace")


def test_closed(tmp_path):
    """What is known without reading is shown."""
    seal(training(), tmp_path / "run.h5")
    trace = open_trace(tmp_path / "run.h5")
    tap = trace["loss"]
    trace.close()
    assert "closed" in Page(trace._repr_html_()).text
    assert len(Page(tap._repr_html_()).rows) == 3
    assert repr(trace).splitlines()[0].endswith("closed>")
    assert repr(tap).startswith("<tracerec.Tap 'loss': 8 records")


def test_many_are_compact():
    """Twenty rows, and how many there are; no tensor is read."""
    site = Site("t", (Leaf("", (2,), "float32"),))
    streams = [
        CountingStream(make_stream(dataclasses.replace(site, name=f"t{i}"), [[[1, 2]]], first=i)) for i in range(30)
    ]
    page = Page(Trace(MemorySource(streams))._repr_html_())
    assert len(page.rows) == 21
    assert "20 of 30 taps are shown" in page.text
    assert sum(stream.leaf_rows for stream in streams) == 0


def test_nothing_recorded():
    """No table."""
    assert Page(Trace(MemorySource([]))._repr_html_()).tags == {"div", "b"}
