"""The program table: every record once, labelled, under every transformation.

The expected records are worked out by hand, with numpy, or with other means of JAX; see the files of ``programs``.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import ROOT, records_of
from tests.tapping.programs import PROGRAMS
from tests.tapping.programs.program import DISABLE_JIT, JIT, Fired, Program

if TYPE_CHECKING:
    from tracerec import Record

pytestmark = pytest.mark.filterwarnings(
    # pmap is to go; as long as it is there, it is in the table.
    "ignore:.*pmap.*:DeprecationWarning"
)

CASES = [pytest.param(program, mode, id=f"{program.name}-{mode}") for program in PROGRAMS for mode in program.modes]


def run(program: Program, mode: str) -> list[Record]:
    """Runs a program once."""
    args = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, (np.ndarray, np.generic)) else x, program.args)
    function = jax.jit(program.function) if mode == JIT else program.function
    with jax.enable_checks(program.checks), jax.disable_jit(mode == DISABLE_JIT):
        return records_of(function, *args)


@pytest.mark.parametrize(("program", "mode"), CASES)
def test_records_are_those_of_the_table(program: Program, mode: str) -> None:
    """Every expected record is there, and no other; one jitted call has one call number and tells places apart."""
    records = run(program, mode)
    left = list(records)
    missing: list[Fired] = []
    for fired in program.records():
        for _ in range(fired.times):
            found = next((r for r in left if matches(r, fired, program.rtol)), None)
            if found is None:
                missing.append(fired)
            else:
                left.remove(found)
    if missing or left:
        pytest.fail(report(missing, left))
    if mode == JIT:
        assert len({r.call for r in records}) <= 1
        places = Counter((r.device, int(r.row["position"]), int(r.row["iteration"])) for r in records)
        assert set(places.values()) <= {1}, places


def matches(record: Record, fired: Fired, rtol: float) -> bool:
    """Whether a record is the one expected, in every part that the table states."""
    return (
        record.tap == fired.tap
        and same_transforms(record, fired)
        and plain(record.kwargs) == plain(dict(fired.kwargs))
        and same_value(record.value, fired.value, rtol, fired.live or fired.lanes)
        and plain(record.where) == fired.lanes
        and record.site.lanes_may_be_invalid == fired.uncertain
        and (fired.device is None or record.device == jax.devices()[fired.device].id)
        and (fired.where is None or record.mesh_position == dict(fired.where))
    )


def same_transforms(record: Record, fired: Fired) -> bool:
    """Whether the nests are equal, parameters included."""
    if len(record.transforms) != len(fired.transforms):
        return False
    for got, want in zip(record.transforms, fired.transforms, strict=True):
        labels = (got.name, got.size, got.dims, got.axis_name)
        if labels != (want.name, want.size, want.dims, want.axis_name):
            return False
        if want.kwarg_dims is not None and got.kwarg_dims != want.kwarg_dims:
            return False
    return True


def plain(value: Any) -> Any:
    """Numbers and arrays as Python has them."""
    return jax.tree.map(lambda x: np.asarray(x).tolist() if isinstance(x, (np.ndarray, np.generic)) else x, value)


def same_value(got: Any, want: Any, rtol: float, lanes: Any = None) -> bool:
    """Whether two trees of arrays are equal: structure, dtype, shape and, unless rtol is set, every bit.

    What is in lanes that do not count is JAX's affair.
    """
    if isinstance(want, dict):
        same_keys = isinstance(got, dict) and got.keys() == want.keys()
        return same_keys and all(same_value(got[key], want[key], rtol) for key in want)
    if isinstance(want, tuple):
        same_length = isinstance(got, tuple) and len(got) == len(want)
        return same_length and all(same_value(g, w, rtol) for g, w in zip(got, want, strict=True))
    if want is None or got is None:
        return want is got
    array = np.asarray(want)
    if not isinstance(want, (np.ndarray, np.generic)):
        array = array.astype({"f": np.float32, "i": np.int32}.get(array.dtype.kind, array.dtype))
    if not isinstance(got, np.ndarray) or (got.dtype, got.shape) != (array.dtype, array.shape):
        return False
    live = np.ones((), bool) if lanes is None else np.asarray(lanes)
    if live.shape == got.shape:
        got, array = got[live], array[live]
    return bool(np.allclose(got, array, rtol=rtol, atol=rtol)) if rtol else got.tobytes() == array.tobytes()


def report(missing: list[Fired], left: list[Record]) -> str:
    """What differs, one line a record."""
    lines = [
        f"  missing  {f.tap} {list(map(str, f.transforms))} {dict(f.kwargs)} {f.value!r} device {f.device} {f.where} "
        f"lanes {f.lanes}{' uncertain' * f.uncertain}"
        for f in missing
    ]
    lines += [
        f"  surplus  {r.tap} {[(str(t), t.dims) if t.dims else str(t) for t in r.transforms]} {plain(r.kwargs)} "
        f"{r.value!r} device {r.device} {r.mesh_position} lanes {plain(r.where)}"
        f"{' uncertain' * r.site.lanes_may_be_invalid}"
        for r in left
    ]
    return "\n".join(["records differ:", *lines])


ROW = re.compile(r"^\| (`[^|]*`) \|", re.MULTILINE)
TRANSFORMS = ROOT / "docs" / "transforms.md"


def rows_of_the_page() -> list[str]:
    """The names of programs in the page's tables; an asterisk stands for any text."""
    return [name for row in ROW.findall(TRANSFORMS.read_text()) for name in re.findall(r"`([^`]*)`", row)]


def test_every_row_of_the_page_is_backed_by_a_program() -> None:
    """docs/transforms.md names programs that exist."""
    names = [program.name for program in PROGRAMS]
    rows = rows_of_the_page()
    assert rows
    assert [row for row in rows if not fnmatch.filter(names, literal(row))] == []


def test_every_program_has_a_row_in_the_page() -> None:
    """docs/transforms.md leaves no program out."""
    rows = [literal(row) for row in rows_of_the_page()]
    assert [p.name for p in PROGRAMS if not any(fnmatch.fnmatchcase(p.name, row) for row in rows)] == []


def test_every_limit_is_told_in_the_page() -> None:
    """What JAX leaves no way to do right is in the page's list of limits, in the words of the table."""
    text = " ".join(TRANSFORMS.read_text().split())
    limits = [program.limit for program in PROGRAMS if program.limit]
    assert limits
    assert [limit for limit in limits if limit not in text] == []


def test_programs_have_names_of_their_own() -> None:
    """A row means one program."""
    assert [name for name, count in Counter(p.name for p in PROGRAMS).items() if count > 1] == []


def literal(pattern: str) -> str:
    """A pattern in which only the asterisk is special."""
    return pattern.replace("[", "[[]")
