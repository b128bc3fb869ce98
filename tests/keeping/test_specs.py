"""What can be asked for, what is refused, and JSON there and back."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tracerec import keeping
from tracerec.errors import TapError
from tracerec.keeping import (
    Cast,
    Fingerprint,
    Full,
    Function,
    Histogram,
    Keep,
    Norms,
    Quantiles,
    Sample,
    Slice,
    Summary,
    TopK,
    from_json,
    parse,
)

KINDS = [
    Full(),
    Summary(),
    Fingerprint(),
    Histogram(),
    Histogram(bins=3, range=(-4, 4)),
    Histogram(bins=3, by="linear", range=(0, 1.5)),
    Slice(1, ..., slice(None, 4, 2)),
    Sample(5, seed=7),
    Quantiles((0.5, 1)),
    TopK(3),
    Cast("float8_e5m2"),
    Norms(),
    Norms(axis=[0, -1]),
]


@pytest.mark.parametrize("keep", KINDS, ids=str)
def test_json_there_and_back(keep: Keep) -> None:
    """Through text; equal, with the same hash and the same parts."""
    back = from_json(json.loads(json.dumps(keep.to_json())))
    assert back == keep
    assert hash(back) == hash(keep)
    assert type(back) is type(keep)
    assert back.parts == keep.parts
    assert keep.to_json()["kind"] == keep.name
    changed: Any = keep
    with pytest.raises(AttributeError):
        changed.name = "other"


def test_a_function_is_its_name_on_disk() -> None:
    """What can be read of it is the name."""
    keep = Function(np.mean)
    assert keep.name == "mean"
    assert from_json(keep.to_json()) == Function(None, "mean")
    assert Function(functools.partial(np.mean, axis=0)).name == "mean"
    assert Function(np.mean, "average").to_json() == {"kind": "function", "name": "average"}


def test_what_callers_write() -> None:
    """Words, kinds, functions, and lists of them in their order."""
    assert [parse(word) for word in ("full", "summary", "histogram", "fingerprint")] == [
        (Full(),),
        (Summary(),),
        (Histogram(),),
        (Fingerprint(),),
    ]
    assert parse(TopK(2)) == (TopK(2),)
    assert parse(abs) == (Function(abs),)
    assert parse(["summary", TopK(2), abs, TopK(3)]) == (Summary(), TopK(2), Function(abs), TopK(3))
    assert parse(("full",)) == (Full(),)


@pytest.mark.parametrize(
    ("keep", "text"),
    [
        ("sumary", r"keep='sumary' is not known; choose 'full', 'summary', 'histogram', 'fingerprint'"),
        (3, "keep=3 is not known"),
        (None, "keep=None is not known"),
        ([], r"keep=\[\] keeps nothing"),
        (["summary", Summary()], "more than once"),
        (["summary", "x"], "keep='x' is not known"),
        (Summary, r"write Summary\(\.\.\.\)"),
        pytest.param(Keep(), "is not known", id="the base of all kinds"),
    ],
    ids=str,
)
def test_what_is_not_known(keep: object, text: str) -> None:
    """The message gives what was written and the choices."""
    with pytest.raises(TapError, match=text):
        parse(keep)


anyhow: Any = keeping

SILLY = [
    (lambda: anyhow.Histogram(bins=0), "1 to 65536, not 0"),
    (lambda: anyhow.Histogram(bins=2.5), "an integer, not 2.5"),
    (lambda: anyhow.Histogram(by="log"), "choose 'exponent' or 'linear'"),
    (lambda: anyhow.Histogram(range=(0.5, 2)), "two integers, powers of two"),
    (lambda: anyhow.Histogram(range=(2, 1)), "the lowest first"),
    (lambda: anyhow.Histogram(range=3), "the lowest, the highest"),
    (lambda: anyhow.Histogram(by="linear", range=(1, 1)), "two finite numbers"),
    (lambda: anyhow.Histogram(by="linear", range=(0, np.inf)), "two finite numbers"),
    (lambda: anyhow.Histogram(by="linear", range=(0, np.nan)), "two finite numbers"),
    (anyhow.Slice, "say what of the leaf"),
    (lambda: anyhow.Slice(..., ...), "one Ellipsis"),
    (lambda: anyhow.Slice(1.5), "an integer, not 1.5"),
    (lambda: anyhow.Slice(slice(0, 3, 0)), "step cannot be 0"),
    (lambda: anyhow.Slice(None), "an integer, not None"),
    (lambda: anyhow.Slice(np.array([1, 2])), "an integer, not"),
    (lambda: anyhow.Sample(0), "1 to"),
    (lambda: anyhow.Sample(n=True), "an integer, not True"),
    (lambda: anyhow.Sample(3, seed=-1), "0 to"),
    (lambda: anyhow.Quantiles(()), "from 0 to 1"),
    (lambda: anyhow.Quantiles((0.5, 1.1)), "from 0 to 1"),
    (lambda: anyhow.Quantiles("median"), "from 0 to 1"),
    (lambda: anyhow.Quantiles(float("nan")), "from 0 to 1"),
    (lambda: anyhow.TopK(0), "1 to"),
    (lambda: anyhow.Cast("float7"), "choose a dtype of int8"),
    (lambda: anyhow.Cast("datetime64[ns]"), "choose a dtype of int8"),
    (lambda: anyhow.Cast(object()), "choose a dtype of int8"),
    (lambda: anyhow.Norms(1.5), "an integer"),
    (lambda: anyhow.Norms((0, 0)), "each once"),
    (lambda: anyhow.Norms(()), "one or more"),
    (lambda: anyhow.Function(3), "not a function"),
    (lambda: anyhow.Function(abs, 3), "a name is a string"),
    (lambda: anyhow.Function(None), "a name is a string"),
]


@pytest.mark.parametrize(("make", "text"), SILLY, ids=[str(number) for number in range(len(SILLY))])
def test_silly_parameters(make, text: str) -> None:
    """Refused where they are written, in a line that says what would do."""
    with pytest.raises(TapError, match=text) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"kind": 3},
        {"kind": "other"},
        {"kind": "sample"},
        {"kind": "sample", "n": 0},
        {"kind": "sample", "n": 3, "more": 1},
        {"kind": "slice"},
        {"kind": "slice", "index": [[1, 2, 3, 4]]},
        {"kind": "slice", "index": 3},
        {"kind": "quantiles", "q": {}},
        {"kind": "histogram", "bins": "x"},
        {"kind": "function"},
        {"kind": "function", "name": "f", "func": 3},
    ],
    ids=str,
)
def test_json_that_is_none(data) -> None:
    """Hostile or of a later version: a ValueError in any case."""
    with pytest.raises(ValueError, match=re.compile(".")):
        from_json(data)


def test_slices_are_numpys() -> None:
    """The key is what was given; np.s_ gives the same."""
    array = np.arange(24).reshape(2, 3, 4)
    keep = Slice(np.s_[..., 1:, -1])
    assert keep == Slice(..., slice(1, None), -1)
    np.testing.assert_array_equal(array[keep.key], array[..., 1:, -1])


def test_reading_imports_no_jax() -> None:
    """What a reader needs of records of any kind is here."""
    source = "import sys, tracerec.keeping; print(sorted({'jax', 'ml_dtypes', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_exported_names() -> None:
    """Sorted, and each there."""
    assert sorted(keeping.__all__, key=lambda name: (not name.isupper(), name.islower(), name)) == keeping.__all__
    assert all(hasattr(keeping, name) for name in keeping.__all__)
