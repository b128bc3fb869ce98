"""Reports: what they hold, that nothing in them is code, and how the page looks in a browser."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET

import jsonschema
import numpy as np
import pytest

import tracerec
from tests.comparing.runs import chain, compare, site
from tests.memory_source import make_stream
from tests.support import ROOT
from tracerec.errors import ComparisonError

HOSTILE = "</script><script>document.title='owned'</script>\x1b[1m|`*\u202e\"'&"
SCHEMA = json.loads((ROOT / "schemas/compare.schema.json").read_text())


@pytest.fixture
def found(written):
    """A comparison with a hostile name, NaN, a tap that only one run has, and one that is equal."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 12, 9, 7)).astype(np.float32)
    y = x.copy()
    y[1, 4:] *= 1.01
    y[2, 7, 3, 3] = np.nan
    alone = make_stream(site(HOSTILE + "2"), [[1.0]], numbers=[[0]], first=900)
    names = ("equal", HOSTILE, "third")
    return compare(written(*chain(x, names), alone), written(*chain(y, names)))


class Page(html.parser.HTMLParser):
    """What a parser sees: elements, attributes, texts by the element that has them."""

    VOID = frozenset({"meta", "input", "img", "br", "link"})

    def __init__(self):
        super().__init__()
        self.elements, self.open, self.texts = [], [], []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))


def test_the_page(found, tmp_path):
    """One file, well formed, that fetches nothing; a row a tap, a picture a question, three maps a tensor."""
    found.report(tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.open == []
    tags = [tag for tag, _ in page.elements]
    assert (tags.count("script"), tags.count("svg"), tags.count("table")) == (1, 2, 1)
    assert tags.count("img") == 3 * len(found.pictures) == 6
    assert tags.count("tr") == 1 + len(found.rows()) == 4
    assert all(a["src"].startswith("data:image/png;base64,") for tag, a in page.elements if tag == "img")
    assert not [a for _, a in page.elements for name in a if name.startswith("on") or name in {"href", "style"}]
    assert "default-src 'none'" in text
    assert "://" not in text
    assert any(tag == "h1" and data == "Different" for tag, data in page.texts)
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
    assert sum("</script><script>" in data for tag, data in page.texts if tag not in {"script", "style"}) >= 3


def browser():
    """The path of a Chromium, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(browser() is None, reason="needs chromium on PATH (Debian: apt-get install chromium)")
def test_the_page_in_a_browser(found, tmp_path):
    """The script runs, the filter counts, a hostile name is text; on failure the screenshot is kept."""
    path = tmp_path / "page.html"
    found.report(path)
    command = [str(browser()), "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1250,1900", "--virtual-time-budget=2000"]
    shown = subprocess.run(
        [*command, "--dump-dom", path.as_uri()], capture_output=True, encoding="utf-8", timeout=100, check=True
    ).stdout
    # pytest keeps the folder of a test that failed.
    picture = tmp_path / "failure.png"
    try:
        assert '<span id="count" class="dim">3 of 3</span>' in shown
        assert "<title>different:" in shown
        assert "owned'</script>" not in shown
        assert shown.count("<rect ") == 3
        assert shown.count("<polyline ") == 2
    except AssertionError:
        subprocess.run([*command, f"--screenshot={picture}", path.as_uri()], timeout=100, check=False)
        print(f"the page as it looked: {picture}")  # noqa: T201 - pytest shows it
        raise


def test_markdown(found, tmp_path):
    """A table whose rows are one line each, whatever a name holds."""
    found.report(tmp_path / "x.md")
    lines = (tmp_path / "x.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert len(rows) == 2 + 3
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {10}
    assert any("12 of 12" in row or "8 of 12" in row for row in rows)
    assert any(line.startswith("- only in a") for line in lines)


def test_json_lines(found, tmp_path):
    """The verdict, then taps, then what was not compared; every line is JSON by the strictest reading."""
    found.report(tmp_path / "x.jsonl")
    lines = (tmp_path / "x.jsonl").read_text(encoding="utf-8").splitlines()
    objects = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [each["is"] for each in objects] == ["comparison", "first divergence", *["tap"] * 3, "unmatched"]
    assert objects[0]["different"] == found.different == 9
    assert objects[2]["tap"] == "equal"
    assert objects[-1]["records"] == 1


def test_junit(found, written, tmp_path):
    """A case a tap, failures where it differs; parsed by another XML reader."""
    found.report(tmp_path / "x.xml")
    suite = ET.parse(tmp_path / "x.xml").getroot()  # noqa: S314 - our own file
    assert (suite.get("tests"), suite.get("failures")) == ("4", "2")
    cases = list(suite)
    assert [case.find("failure") is not None for case in cases] == [False, True, True, False]
    assert str(cases[1].get("classname")).startswith("</script>")
    only = compare(written(make_stream(site("x"), [[1]], numbers=[[0]])), written())
    only.report(tmp_path / "y.xml")
    assert ET.parse(tmp_path / "y.xml").getroot().get("failures") == "1"  # noqa: S314 - our own file


def test_an_unknown_kind_of_report(found):
    """It is refused with the kinds there are."""
    with pytest.raises(ComparisonError, match=r"ends in \.html, \.md, \.jsonl, \.xml, not 'x\.pdf'"):
        found.report("x.pdf")


def test_the_object_is_by_its_schema(found, written):
    """Also where nothing was compared, and where dtypes differ."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    others = [make_stream(site("x", (2,), dtype), [[[1, 2]]], numbers=[[0]]) for dtype in ("int8", "complex64")]
    for each in (
        found,
        compare(written(), written()),
        compare(written(others[0]), written(others[1])),
        compare(written(others[0]), written()),
    ):
        jsonschema.validate(json.loads(json.dumps(each.to_json(), allow_nan=False)), SCHEMA)


def test_the_table(found):
    """A row a pair, in order of execution; measures are those of numpy, and missing where there are none."""
    table = found.to_pandas()
    assert len(table) == found.compared == 36
    assert table["tap"].tolist() == ["equal", HOSTILE, "third"] * 12
    assert table["step"].tolist() == [step for step in range(12) for _ in range(3)]
    rows = table[(table.tap == HOSTILE) & (table.step == 6)]
    assert rows["kind"].item() == "beyond tolerance"
    assert rows["size"].item() == 63
    assert abs(rows["max_rel"].item() - 0.01 / 1.01) < 1e-6
    assert rows["cosine"].item() == pytest.approx(1)
    assert (table[table.tap == "equal"]["max_abs"] == 0).all()
    assert np.isinf(table["max_abs"]).sum() == 1
    lone = table[np.isinf(table["max_abs"])]
    assert (lone["tap"].item(), lone["step"].item(), lone["nan"].item()) == ("third", 7, 1)
    assert np.isnan(lone["max_abs_b"].item())


def test_growth(found):
    """Along the steps of a tap and along the taps of a step: norms that numpy finds."""
    steps, errors = found.growth.along_steps(HOSTILE)
    assert steps.tolist() == list(range(12))
    assert errors[:4].tolist() == [0, 0, 0, 0]
    np.testing.assert_allclose(errors[4:], 0.01, rtol=1e-4)
    taps = found.growth.along_taps(7)
    assert [name for name, _ in taps] == ["equal", HOSTILE, "third"]
    assert taps[2][1] == np.inf
    with pytest.raises(tracerec.errors.SelectionError, match="nothing was compared of tap 'none'"):
        found.growth.along_steps("none")
