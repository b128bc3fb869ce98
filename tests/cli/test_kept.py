"""The commands on recordings of summaries, fingerprints, histograms and other things that were kept."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jsonschema
import numpy as np
import pytest

import tracerec
from tests.cli.inside import inside
from tracerec.keeping import Histogram, Sample, fingerprint

SCHEMAS = Path(__file__).parents[2] / "schemas"
COUNT = 5


def value(number):
    """The vector of a step: one step has a NaN."""
    x = np.arange(8, dtype=np.float32) * (number + 1)
    if number == 2:
        x[3] = np.nan
    return x


KEEPS = {
    "s": "summary",
    "f": "fingerprint",
    "h": "histogram",
    "l": Histogram(by="linear"),
    "m": ["full", "fingerprint", Sample(3)],
    "o": Sample(3),
}


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """Five steps of all kinds, and a vmapped one."""
    path = tmp_path_factory.mktemp("kept") / "run.h5"
    with tracerec.record(path):
        for number in range(COUNT):
            for name, keep in KEEPS.items():
                tracerec.tap({"w": value(number)}, name, step=number, keep=keep)
        tap = jax.vmap(lambda x: tracerec.tap(x, "v", step=9, where=x[1] < 2, keep=["summary", "fingerprint"]))
        tap(np.stack([value(0), value(1)]))
    return path


def objects(command, path, *args):
    """Returns the JSON objects that a command prints, held to its schema."""
    done = inside(command, path, *args, "--json")
    assert (done.status, done.err) == (0, "")
    found = [json.loads(line) for line in done.out.splitlines()] if command == "tail" else [json.loads(done.out)]
    schema = json.loads((SCHEMAS / f"{command}.schema.json").read_text())
    for each in found:
        jsonschema.validate(each, schema)
    return found


def digest(array):
    """Returns the digest as it is shown."""
    low, high = fingerprint(array).tolist()
    return f"{high:08x}{low:08x}"


class TestInspect:
    def test_rows(self, recording):
        """The tapped leaf, what was kept of it, its health; other arrays on their own."""
        done = inside("inspect", recording)
        lines = [line.split() for line in done.out.splitlines() if "['w']" in line]
        by_tap = {line[0]: line for line in lines if line[1] == "['w']"}
        assert by_tap["s"][1:5] == ["['w']", "(8,)", "float32", "summary"]
        assert by_tap["f"][4] == "fingerprint"
        assert by_tap["l"][4] == "histogram(by=linear)"
        assert by_tap["m"][4:6] == ["full,", "fingerprint"]
        assert [line[1:5] for line in lines if line[0] == "o"] == [["['w'].sample", "(3,)", "float32", "sample(n=3)"]]
        # Records, steps, size; of the last record min, mean, max; NaN, Inf.
        assert by_tap["s"][9:14] == ["0", "17.5", "35", "1", "0"]
        assert by_tap["m"][10:15] == ["0", "17.5", "35", "1", "0"]
        assert by_tap["f"][9:] == ["1", "0"]

    def test_json(self, recording):
        """NaN is counted from what was kept; a histogram by value does not know zeros."""
        (found,) = objects("inspect", recording)
        leaves = {(s["tap"], leaf["path"]): leaf for s in found["streams"] for leaf in s["leaves"]}
        for name in ("s", "f", "h", "l", "m"):
            assert leaves[name, "['w']"]["summary"]["nan"] == 1, name
            assert leaves[name, "['w']"]["summary"]["last"]["count"] == 8
        assert leaves["h", "['w']"]["summary"]["last"]["zeros"] == 1
        assert leaves["l", "['w']"]["summary"]["last"]["zeros"] is None
        means = [np.nanmean(value(number).astype(np.float64)) for number in range(COUNT)]
        np.testing.assert_allclose(leaves["s", "['w']"]["summary"]["spark"], means, rtol=1e-6)
        assert leaves["m", "['w']"]["summary"]["spark"] == means
        assert leaves["m", "['w']"]["kept"] == ["full", "fingerprint"]

    def test_narrow(self, recording):
        """It fits."""
        for columns in (60, 90):
            lines = inside("inspect", recording, columns=columns).out.splitlines()
            assert all(len(line) <= columns for line in lines)


class TestShow:
    def test_summary(self, recording):
        """Statistics of the leaf, with its shape and dtype."""
        done = inside("show", recording, "s", "--step", 4)
        assert done.out.startswith("s ['w']  float32[8]  record 0, the last of 1")
        assert "8 values · mean 17.5 · std 11.46 · min 0 · max 35" in done.out

    def test_lanes(self, recording):
        """Each lane is shown, one that does not count as missing."""
        done = inside("show", recording, "v")
        assert "mean of each lane" in done.out
        assert digest(value(0)) in done.out
        assert digest(value(1)) not in done.out

    def test_histograms(self, recording):
        """Bins that have something, and what is outside."""
        done = inside("show", recording, "h", "--step", 0)
        assert "of magnitudes" in done.out
        bars = [line.split() for line in done.out.splitlines() if "█" in line]
        assert [(line[0], line[-1]) for line in bars] == [("1", "1"), ("2", "2"), ("4", "4")]
        assert "1 zero" in done.out
        (found,) = objects("show", recording, "l", "--step", "0")
        assert sum(found["histogram"]["counts"]) == 8
        assert found["statistics"]["zeros"] is None

    def test_whole_leaf(self, recording):
        """The values as ever, with what else was kept."""
        done = inside("show", recording, "m", "--step", 1)
        assert done.out.startswith("m ['w']  float32[8]")
        assert digest(value(1)) in done.out
        assert "[ 0.  2.  4.  6.  8. 10. 12. 14.]" in done.out
        (found,) = objects("show", recording, "m", "--step", "1")
        assert found["values"] == value(1).tolist()
        assert set(found["kept"]) == {"fingerprint.digest", "fingerprint.counts", "sample"}

    def test_json(self, recording):
        """No values; statistics of what was kept."""
        (found,) = objects("show", recording, "s", "--step", "4")
        assert found["values"] is None
        assert (found["leaf"]["path"], found["shape"]) == ("['w']", [8])
        assert found["statistics"]["max"] == 35
        assert found["kept"]["summary.range"] == [0, 35]

    def test_one_array(self, recording):
        """Each array can be shown; a part of what is no array cannot."""
        (found,) = objects("show", recording, "s", "--leaf", "['w'].summary.range")
        assert found["values"] == [0, 35]
        done = inside("show", recording, "s", "--slice", "0")
        assert done.status == 2
        assert "of tap 's' was kept: summary" in done.err


class TestPlot:
    @pytest.mark.parametrize(("tap", "kind"), [("s", "line"), ("h", "histogram"), ("l", "histogram"), ("m", "heatmap")])
    def test_usual_kind(self, recording, tap, kind):
        """What was kept decides what is drawn."""
        (found,) = objects("plot", recording, tap)
        assert (found["kind"], found["name"]) == (kind, f"{tap} ['w']")
        assert inside("plot", recording, tap, columns=80).status == 0

    def test_file(self, recording, tmp_path):
        """With matplotlib, magnitudes on a logarithmic axis."""
        pytest.importorskip("matplotlib")
        assert inside("plot", recording, "h", "-o", tmp_path / "h.svg").status == 0
        assert "magnitude" in (tmp_path / "h.svg").read_text()

    def test_nothing_to_draw(self, recording):
        """It is said what was kept."""
        done = inside("plot", recording, "f")
        assert done.status == 2
        assert "fingerprint is what was kept" in done.err


class TestTail:
    def test_lines(self, recording):
        """Compact: statistics, digests."""
        out = inside("tail", recording, "-n", 100).out
        lines = {line.split("step ")[1].split()[1]: line for line in out.splitlines() if "step 2 " in line}
        assert "['w'] float32[8] mean 10.71, std 7.323, min 0, max 21, 1 NaN" in lines["s"]
        assert lines["f"].endswith(f"fingerprint, 1 NaN, {digest(value(2))}")
        assert lines["h"].endswith("histogram, 1 NaN")

    def test_json(self, recording):
        """The tapped leaf, what was kept, the digest."""
        found = {
            each["tap"]: each["leaves"][0] for each in objects("tail", recording, "-n", "100") if each["step"] == 2
        }
        assert (found["s"]["path"], found["s"]["kept"], found["s"]["statistics"]["nan"]) == ("['w']", ["summary"], 1)
        assert found["f"]["digest"] == digest(value(2))


def test_stats(recording):
    """The table has what was kept, and digests."""
    done = inside("stats", recording, "--tap", "f", "--json")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["digest"] for row in rows] == [digest(value(number)) for number in range(COUNT)]
    assert {row["kept"] for row in rows} == {"fingerprint"}


def test_sites_fit_their_schema(recording):
    """What is written of kept leaves is what the schema says."""
    schema = json.loads((SCHEMAS / "trace.schema.json").read_text())
    schema["$ref"] = "#/$defs/site"
    del schema["anyOf"]
    with tracerec.open(recording) as trace:
        for name in trace:
            for site in trace[name].sites:
                jsonschema.validate(json.loads(json.dumps(site.to_json())), schema)
