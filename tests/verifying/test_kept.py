"""What a site says of kept leaves may be wrong, or of a newer version: nothing crashes, and what is wrong is told."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.cli.inside import inside
from tests.memory_source import MemorySource, make_stream
from tracerec.formats.hdf5.seal import seal
from tracerec.keeping.reading import fault, rows
from tracerec.model import Kept, Leaf, Site
from tracerec.repairing import repair
from tracerec.trace import open_trace
from tracerec.verifying import verify

SUMMARY = {"counts": ("uint32", (6,)), "range": ("float32", (2,)), "moments": ("float32", (5,))}


def site_of(keep, parts, *, lanes=0, shape=(4,), dtype="float32"):
    """Returns a site with one leaf of which arrays were kept."""
    text = json.dumps(keep, sort_keys=True, separators=(",", ":"))
    leaves = [
        Leaf(f".x.{part}", own, kind, number, kept=Kept(text, part, "", shape, dtype, None, lanes))
        for number, (part, (kind, own)) in enumerate(parts.items())
    ]
    slots = [{"slot": number} for number in range(len(leaves))]
    structure = {"object": ["tracerec:Kept", [f".{part}" for part in parts], slots]}
    return Site("x", tuple(leaves), structure=json.dumps(structure, sort_keys=True, separators=(",", ":")))


WRONG = {
    "a part is missing": site_of({"kind": "summary"}, {k: v for k, v in SUMMARY.items() if k != "range"}),
    "a part too many": site_of({"kind": "summary"}, SUMMARY | {"more": ("uint32", (2,))}),
    "another shape": site_of({"kind": "summary"}, SUMMARY | {"counts": ("uint32", (5,))}),
    "another rank": site_of({"kind": "summary"}, SUMMARY | {"counts": ("uint32", ())}),
    "another dtype": site_of({"kind": "summary"}, SUMMARY | {"moments": ("float64", (5,))}),
    "lanes that are not there": site_of({"kind": "summary"}, SUMMARY, lanes=1),
    "more lanes than axes": site_of({"kind": "summary"}, SUMMARY, lanes=7),
    "fewer lanes than none": site_of({"kind": "summary"}, SUMMARY, lanes=-1),
    "lanes of different shapes": site_of(
        {"kind": "fingerprint"}, {"digest": ("uint32", (2, 2)), "counts": ("uint32", (3, 6))}, lanes=1
    ),
    "a leaf that is another": site_of({"kind": "full"}, {"full": ("float32", (5,))}),
}
NEWER = {
    "no kind": site_of({}, SUMMARY),
    "a list": site_of([1], SUMMARY),
    "an unknown kind": site_of({"kind": "wavelets", "levels": 3}, {"a": ("float32", (4,)), "b": ("bool", ())}),
    "unknown parameters": site_of({"kind": "summary", "robust": True}, SUMMARY),
    "parameters that are none": site_of({"kind": "sample", "n": "many"}, {"sample": ("float32", (4,))}),
    "a histogram of anything": site_of({"kind": "histogram", "by": [{}]}, {"bins": ("uint32", (4,))}),
}


def written(site, path):
    """Seals three records."""
    seal(MemorySource([make_stream(site, [np.ones((3, *leaf.shape)) for leaf in site.leaves])]), path)
    return path


@pytest.mark.parametrize("site", [pytest.param(site, id=name) for name, site in (WRONG | NEWER).items()])
def test_arrays_stand_for_themselves(tmp_path, site):
    """Every reader shows the arrays as those of any pytree."""
    path = written(site, tmp_path / "run.h5")
    assert [row.leaf for row in rows(site)] == list(site.leaves)
    with open_trace(path) as trace:
        table = trace.to_pandas()
        assert table["leaf"].tolist() == [leaf.path for leaf in site.leaves] * 3
        assert trace["x"].leaf(site.leaves[0].path).to_numpy().shape == (3, *site.leaves[0].shape)
        assert [leaf["path"] for leaf in trace.overview()["streams"][0]["leaves"]] == list(trace["x"].leaves)
    for command in ("inspect", "tail", "stats"):
        assert inside(command, path).status == 0
    assert inside("show", path, "x", "--leaf", site.leaves[0].path).status == 0


@pytest.mark.parametrize("name", WRONG)
def test_a_contradiction_is_a_fault(tmp_path, name):
    """It is named, once; a repair takes all records."""
    path = written(WRONG[name], tmp_path / "run.h5")
    found = verify(path)
    assert found.counts == {"shape-declared": 1}
    assert "kept" in found.faults[0].message
    assert fault(WRONG[name]) is not None
    assert repair(path, tmp_path / "good.h5").records == 3


@pytest.mark.parametrize("name", NEWER)
def test_what_is_not_known_is_no_fault(tmp_path, name):
    """A newer version may have written it."""
    assert verify(written(NEWER[name], tmp_path / "run.h5")).ok


def test_numbers_that_no_device_makes(tmp_path):
    """Counts beyond the elements, exponents that are NaN: the summary is finite or missing."""
    site = site_of({"kind": "summary"}, SUMMARY)
    counts = np.full((3, 6), 2**32 - 1, np.uint32)
    counts[1:, 1:4] = 0
    moments = np.array([[np.nan] * 5, [1, 2, 3, 4, 3e38], [np.inf, np.nan, -np.inf, 1, -3e38]], np.float32)
    ranges = np.array([[np.nan, np.inf], [np.inf, -np.inf], [np.nan, 1]], np.float32)
    path = tmp_path / "run.h5"
    seal(MemorySource([make_stream(site, [counts, ranges, moments])]), path)
    with open_trace(path) as trace:
        assert len(trace.to_pandas()) == 3
        assert trace.overview()["streams"][0]["leaves"][0]["summary"]["records"] == 3
    assert verify(path).ok
    assert inside("inspect", path).status == 0
