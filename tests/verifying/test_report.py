"""Faults and what they are made into, and summaries that differ by rounding alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifying.breaking import intact
from tracerec.errors import TraceFormatError, TraceNotFound
from tracerec.salvaging.forms import find
from tracerec.statistics import summarize
from tracerec.verifying import Fault, verify
from tracerec.verifying.report import MAX_FAULTS, Findings
from tracerec.verifying.stored import same_summary


def test_all_faults_are_counted_and_some_are_kept():
    """One bad disk can make millions."""
    findings = Findings()
    for n in range(MAX_FAULTS + 5):
        findings.add("chunk-whole", "run.h5", "missing", records=(n, n + 1))
    findings.add("readable", "run.h5", "it is gone")
    other = Findings()
    other.add("readable", "x", "y")
    other.note("once")
    other.note("once")
    findings.absorb(other)
    found = findings.verification("run.h5", "hdf5", None, ())
    assert found.counts == {"readable": 2, "chunk-whole": MAX_FAULTS + 5}
    assert found.fault_count == MAX_FAULTS + 7
    assert len(found.faults) == MAX_FAULTS
    assert found.notes == ("once",)
    assert not found.ok


def test_a_fault_has_a_name_of_the_list():
    """A name that is none is a mistake of ours."""
    with pytest.raises(KeyError, match="no invariant 'nonsense'"):
        Findings().add("nonsense", "run.h5", "x")


@given(
    st.builds(
        Fault,
        st.sampled_from(["readable", "chunk-whole"]),
        st.text(),
        st.text(),
        st.none() | st.text(),
        st.none() | st.text(),
        st.none() | st.tuples(st.integers(0), st.integers(0)),
        st.none() | st.integers(0),
        st.none() | st.integers(0),
    )
)
def test_a_fault_survives_json(fault):
    """As the process that repairs sends it."""
    assert Fault.from_json(fault.to_json()) == fault


def test_places():
    """As much as is known, for people."""
    fault = Fault("frame-checksum", "segment-000000.frames", "checksum", offset=77)
    assert str(fault) == "segment-000000.frames: byte 77: checksum: frame-checksum"
    fault = Fault("dtype-valid", "run.h5", "odd", tap="a", leaf="leaf ['w']", records=(3, 4))
    assert fault.place == "tap 'a', leaf ['w'], record 3"


def test_a_summary_may_differ_by_rounding():
    """Means that were summed in another order are the same; counts, extremes and other means are not."""
    values = np.random.default_rng(0).normal(size=(20, 7)) * 1e6
    summary = summarize([values], 20)
    largest = float(np.abs(values).max())

    def alike(**changes):
        return same_summary(dataclasses.replace(summary, **changes), summary, lambda: largest)

    assert alike()
    assert alike(spark=tuple(mean + 1e-5 for mean in summary.spark if mean is not None))
    assert not alike(spark=tuple(mean + 1 for mean in summary.spark if mean is not None))
    assert not alike(spark=(None, *summary.spark[1:]))
    assert not alike(spark=summary.spark[1:])
    assert not alike(nan=1)
    last = summary.last
    assert last.max is not None
    assert last.std is not None
    assert last.mean is not None
    assert not alike(last=dataclasses.replace(last, max=last.max + 1e-9))
    assert alike(last=dataclasses.replace(last, std=last.std + 1e-5))
    assert not alike(last=dataclasses.replace(last, mean=last.mean + 1))


@pytest.mark.parametrize(
    ("form", "expected"),
    [("h5-lz4", "hdf5"), ("arrow", "arrow"), ("journal", "live"), ("parts", "parts"), ("parts-arrow", "parts")],
)
def test_forms(tmp_path, form, expected):
    """By what is there; a live folder also by the name of the recording."""
    path = intact(form, tmp_path)
    assert (find(path).path, find(path).form) == (path, expected)
    if expected == "live":
        assert find(tmp_path / "run.h5").path == path
    link = tmp_path / "link"
    link.symlink_to(path)
    assert verify(link).ok


@pytest.mark.parametrize(
    ("path", "error"),
    [("", TraceNotFound), ("a\0b", TraceNotFound), ("/dev/null", TraceFormatError), ("x" * 5000, TraceFormatError)],
)
def test_odd_paths(path, error):
    """One clear error."""
    with pytest.raises(error, match=r"no trace|cannot be read|not a regular file"):
        verify(path)


def test_a_folder_of_other_things(tmp_path):
    """It is no recording, and says so."""
    (tmp_path / "x").touch()
    with pytest.raises(TraceNotFound, match="is a folder and no recording: it has no manifest"):
        verify(tmp_path)
