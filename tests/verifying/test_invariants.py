"""Each invariant is checked: intact recordings of every form have no fault, and one that is broken is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.verifying.breaking import BREAKERS, intact
from tools.fuzzed_recordings import FORMATS
from tracerec.verifying import INVARIANTS, verify
from tracerec.verifying.invariants import of_form

ROOT = Path(__file__).resolve().parents[2]
FORMS = {"H": "hdf5", "A": "arrow", "J": "journal", "P": "folder"}


@pytest.mark.parametrize("form", FORMATS)
def test_intact_recordings_have_no_fault(tmp_path, form):
    """Every form, closed or killed; what there is was all looked at."""
    found = verify(intact(form, tmp_path))
    assert found.faults == ()
    assert found.ok
    assert found.records == 223
    files = [file for file in tmp_path.rglob("*") if file.is_file() and file.suffix not in (".json", ".crc32c")]
    assert found.nbytes == sum(file.stat().st_size for file in files)
    assert found.state == ("killed" if form == "killed" else "clean")
    assert set(found.checked) <= set(INVARIANTS)


@pytest.mark.parametrize("name", INVARIANTS)
def test_a_broken_invariant_is_named(tmp_path, name):
    """A recording in which it does not hold has a fault of that name, with its file, and a sentence."""
    path = BREAKERS[name](tmp_path)
    found = verify(path)
    assert name in found.counts, found.faults
    assert not found.ok
    fault = next(fault for fault in found.faults if fault.invariant == name)
    assert fault.file
    assert len(fault.message) > 10
    assert fault.message.isprintable()


ALONE = sorted(set(INVARIANTS) - {"readable", "segment-sequence", "site-defined", "index-count", "part-manifest"})


@pytest.mark.parametrize("name", ALONE)
def test_nothing_else_is_blamed(tmp_path, name):
    """What breaks one invariant is not reported as another, where it breaks that one alone."""
    assert set(verify(BREAKERS[name](tmp_path)).counts) == {name}


def test_attempts_are_numbered_from_zero(tmp_path):
    """As in the records: the second of two is attempt 1."""
    (fault,) = verify(BREAKERS["attempts-ordered"](tmp_path)).faults
    assert fault.message == "attempt 1 begins at arrival number 0, the one before it at 5"


def test_every_invariant_has_a_test():
    """Whoever adds one shows how it breaks."""
    assert list(BREAKERS) == list(INVARIANTS)


def test_the_documentation_lists_the_same():
    """Names, sentences and forms in docs/format.md are those of the code, in the same order."""
    text = (ROOT / "docs/format.md").read_text().partition("## Invariants")[2]
    rows = re.findall(r"^\| `([a-z-]+)` \| ([HAJP ]+) \| (.+) \|$", text, re.MULTILINE)
    assert [(name, sentence) for name, _, sentence in rows] == list(INVARIANTS.items())
    for name, letters, _ in rows:
        assert letters.split() == [letter for letter, form in FORMS.items() if name in of_form(form)]
