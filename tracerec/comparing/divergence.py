"""One pair of records that differ, for people: what it is, by how much, and the values around the worst element."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec.comparing import kept_divergence
from tracerec.comparing.cells import BEYOND, DTYPE, KINDS, SHAPE, UNKNOWN
from tracerec.comparing.measures import cosine, snr_db, value_of
from tracerec.comparing.reading import NotComparable
from tracerec.model import NO_SHARD
from tracerec.protocol import dtypes

if TYPE_CHECKING:
    from tracerec.comparing.cells import Cell

__all__ = ["Divergence", "divergence", "key_values", "measured", "plain", "record_text", "shown"]

_AROUND = 3
"""Elements shown on either side of the worst."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Divergence:
    """A record of which both runs have a version, compared.

    Attributes:
        tap: the tap's name in the second run.
        leaf: the leaf's key path; ``kwargs.NAME`` for a float kwarg.
        transforms: the transforms as text; ``""``: the primal value.
        key: the kwargs it was matched by, static ones included.
        device: JAX's id of the device, in the first run.
        shard: the position in the mesh; None outside of one.
        process: the number of the process, in the first run.
        call: the number of the program's execution, in the first run.
        occurrence: how many records with these kwargs came before.
        kind: in what it differs, one of `tracerec.comparing.cells.KINDS`.
        dtypes: both dtypes.
        shapes: both shapes.
        tolerance: what was allowed.
        measures: size, differing, beyond, max_abs, max_rel, max_ulp, mean_abs, cosine, snr_db, nan, posinf, neginf,
            lanes, need_rtol, need_atol; empty where nothing could be measured.
        index: where the largest difference is, an index of both arrays; None where nothing could be measured. Of a
            leaf that is compared by what was kept: the first lane that differs.
        a: the value there in the first run.
        b: the value there in the second run.
        around: indices and values near the largest difference, of both runs.
        place: its place in the first run's order of execution.
        by: how a leaf is compared that was not kept whole: ``"fingerprint"``, ``"summary (of the full leaf in a)"``;
            ``""``: element by element.
        differing: in which statistics it then differs, such as ``("mean", "std")``, or ``("digest",)``.
        statistics: the statistics of the first lane that differs: a name, and what both runs have.
        lanes: how many lanes differ, and how many there are; (0, 0) where the leaf has none.
    """

    tap: str
    leaf: str
    transforms: str
    key: dict[str, Any]
    device: int
    shard: int | None
    process: int
    call: int
    occurrence: int
    kind: str
    dtypes: tuple[str, str]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    tolerance: str
    measures: dict[str, float]
    index: tuple[int, ...] | None
    a: Any
    b: Any
    around: tuple[tuple[tuple[int, ...], Any, Any], ...]
    place: int
    by: str = ""
    differing: tuple[str, ...] = ()
    statistics: tuple[tuple[str, Any, Any], ...] = ()
    lanes: tuple[int, int] = (0, 0)

    @property
    def step(self) -> Any:
        """The kwarg ``step``, or None."""
        return self.key.get("step")

    @property
    def record(self) -> str:
        """The record as text: ``encoder/act step=3 layer=1``."""
        return record_text(self.tap, self.leaf, self.transforms, self.key, self.occurrence)

    @property
    def reason(self) -> str:
        """In what it differs, in a few words."""
        if self.kind == KINDS[DTYPE]:
            return f"dtype {self.dtypes[0]} against {self.dtypes[1]}"
        if self.kind == KINDS[SHAPE]:
            return f"shape {self.shapes[0]} against {self.shapes[1]}"
        if self.by:
            return kept_divergence.reason(self)
        found = self.measures
        if self.kind == KINDS[BEYOND] and not math.isnan(found["max_abs"]):
            count = int(found["beyond"] or found["differing"] or found["bits"])
            lone = [f"{int(found[n]):,} {text}" for n, text in _LONE.items() if found[n]]
            on_one = f" ({', '.join(lone)} on one side only)" if lone else ""
            of_all = f"{count:,} of {int(found['size']):,} elements beyond {self.tolerance}{on_one}"
            return f"{of_all}; largest difference {measured(found['max_abs'])}"
        if found:
            return f"{self.kind}: {found_share(found)}"
        return self.kind

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values; numbers that JSON lacks as text, complex ones as pairs."""
        out = {field.name: plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return {**out, "record": self.record, "reason": self.reason}

    def lines(self) -> list[str]:
        """Returns the description, a line an item: record, reason, measures, values around the worst element."""
        out = [self.record, f"  {self.reason}"]
        if self.by:
            return [*out, *kept_divergence.lines(self)]
        if self.measures and not math.isnan(self.measures["max_abs"]):
            found = self.measures
            ulp = "" if math.isnan(found["max_ulp"]) else f", ulp {measured(found['max_ulp'])}"
            out.append(f"  largest: absolute {measured(found['max_abs'])}, relative {measured(found['max_rel'])}{ulp}")
            out.append(
                f"  overall: cosine {found['cosine']:.9g}, SNR {measured(found['snr_db'])} dB, {found_share(found)}"
            )
            least = f"rtol {measured(found['need_rtol'])}, or atol {measured(found['need_atol'])}{_or(ulp)}"
            cast = "" if self.dtypes[0] == self.dtypes[1] else " once the dtypes are accepted (cast)"
            out.append(f"  would pass{cast} with {least}")
        if self.around:
            out.append(f"  {'index':<16} {'a':>24} {'b':>24}")
            for index, a, b in self.around:
                mark = "<" if index == self.index else ""
                out.append(f"  {_index(index):<16} {shown(a):>24} {shown(b):>24} {mark}".rstrip())
        return out


_LONE = {"nan": "NaN", "posinf": "+Inf", "neginf": "-Inf"}


def found_share(found: dict[str, float]) -> str:
    """Returns how many elements differ, as text."""
    share = found["differing"] / max(found["size"], 1)
    return f"{int(found['differing']):,} of {int(found['size']):,} elements differ ({share:.1%})"


def record_text(tap: str, leaf: str, transforms: str, key: dict[str, Any], occurrence: int) -> str:
    """Returns how a record is called: ``encoder/act['w'] (jvp, transpose) step=3 layer=1``."""
    words = [tap + (f" {leaf}" if leaf else "")]
    words += [f"({transforms})"] * bool(transforms)
    words += [f"{name}={value}" for name, value in sorted(key.items(), key=lambda item: item[0] != "step")]
    words += [f"#{occurrence}"] * bool(occurrence)
    return " ".join(words)


def shown(value: Any) -> str:
    """Returns a number with the digits that tell it from others.

    Example:
        >>> shown(0.1), shown(3), shown(float(np.float32(0.1))), shown(float("nan"))
        ('0.1', '3', '0.100000001', 'nan')
    """
    if isinstance(value, complex):
        return f"{shown(value.real)}{'' if str(value.imag)[0] == '-' else '+'}{shown(value.imag)}j"
    if not isinstance(value, float):
        return str(value)
    short = f"{value:.9g}"
    # Nine digits tell float32 apart.
    with np.errstate(over="ignore"):
        return short if float(np.float32(value)) == value or not math.isfinite(value) else repr(value)


def measured(value: float) -> str:
    """Returns a measure with four digits.

    Example:
        >>> measured(0.1 + 0.2), measured(math.inf)
        ('0.3', 'inf')
    """
    return f"{value:.4g}"


def divergence(cell: Cell, number: int) -> Divergence:
    """Returns the description of one pair; reads its arrays."""
    pair, rows = cell.pairs[number], cell.measures
    row = None if pair["measured"] < 0 else rows[pair["measured"]]
    a, b = None, None
    kept: dict[str, Any] = kept_divergence.found(cell, pair) if cell.by is not None else {}
    around: tuple[tuple[tuple[int, ...], Any, Any], ...] = ()
    index = kept.pop("index", None)
    if row is not None and row["abs_at"] >= 0:
        index = _unravel(int(row["abs_at"]), cell.shapes[0])
        a, b = (value_of(row[f"abs_{side}"], s.dtype) for side, s in (("a", cell.a), ("b", cell.b)))
    if row is not None and cell.by is None:
        around = _around(cell, pair, max(int(row["abs_at"]), _first(cell, pair)))
    return Divergence(
        tap=cell.tap,
        leaf=cell.leaf,
        transforms=cell.transforms,
        key={**cell.static, **key_values(cell, cell.keys[number])},
        device=int(pair["device"]),
        shard=None if pair["shard"] == NO_SHARD else int(pair["shard"]),
        process=int(pair["process"]),
        call=int(pair["call"]),
        occurrence=int(pair["occurrence"]),
        kind=KINDS[pair["kind"]],
        dtypes=cell.dtypes,
        shapes=cell.shapes,
        tolerance=str(cell.tolerance),
        measures={} if row is None else _measures(row),
        index=index,
        a=a,
        b=b,
        around=around,
        place=int(pair["place"]),
        **kept,
    )


def key_values(cell: Cell, keys: np.ndarray) -> dict[str, Any]:
    """Returns the kwargs of one record from the numbers that it was matched by."""
    out: dict[str, Any] = {}
    at = 0
    for name, kind, width in cell.group.keys:
        part = np.ascontiguousarray(keys[at : at + width])
        values = (part.view(np.float64) if kind == "f" else part).tolist()
        out[name] = values[0] if width == 1 else tuple(values)
        at += width
    return out


def _measures(row: Any) -> dict[str, float]:
    one = np.array([row])
    names = ("size", "differing", "bits", "beyond", "nan", "posinf", "neginf", "lanes")
    out: dict[str, float] = {name: int(row[name]) for name in names}
    out |= {name: float(row[name]) for name in ("max_abs", "max_rel", "max_ulp", "need_rtol", "need_atol")}
    out["mean_abs"] = float(row["sum_abs"]) / max(int(row["count"]), 1)
    out["cosine"], out["snr_db"] = float(cosine(one)[0]), float(snr_db(one)[0])
    return out


def _first(cell: Cell, pair: Any) -> int:
    """Returns where keys, of which no difference is the largest, first differ; -1 for others."""
    if cell.a.key_impl is None and not cell.opaque:
        return -1
    a, b = (side.read(np.array([pair[n]]))[0].reshape(-1) for side, n in ((cell.a, "number_a"), (cell.b, "number_b")))
    differs = np.flatnonzero(a != b)
    return int(differs[0]) if len(differs) else -1


def _around(cell: Cell, pair: Any, at: int) -> tuple[tuple[tuple[int, ...], Any, Any], ...]:
    """Returns values near an element, along the last axis."""
    if at < 0 or pair["kind"] in (SHAPE, UNKNOWN):
        return ()
    try:
        a = cell.a.read(np.array([pair["number_a"]]))[0][0].reshape(-1)
        b = cell.b.read(np.array([pair["number_b"]]))[0][0].reshape(-1)
    except NotComparable:
        return ()
    shape = cell.shapes[0]
    last = shape[-1] if shape else 1
    start = at - at % last
    near = range(max(start, at - _AROUND), min(start + last, at + _AROUND + 1, len(a)))
    return tuple((_unravel(i, shape), _python(a[i]), _python(b[i])) for i in near)


def _python(value: Any) -> Any:
    array = np.asarray(value)
    name = array.dtype.name
    if name in dtypes.CODES and name.startswith(("int", "uint")):
        return int(array)
    return float(array) if name.startswith(("bfloat", "float")) else array.item()


def _unravel(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(at, shape)) if shape else ()


def _index(index: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, index)) + "]" if index else "value"


def _or(ulp: str) -> str:
    return ulp.replace(", ulp ", ", or ulp ")


def plain(value: Any) -> Any:
    """Returns a value as JSON has it: what is not finite as text, complex numbers as pairs."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
