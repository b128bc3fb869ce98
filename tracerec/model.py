"""The nouns of tracerec: transform, leaf, column, site, record. Free of JAX.

A *site* is static: what is known of a tap when it is traced. A *record* is one firing of one site.
Both sides of a trace use these classes, the recording process and a laptop that only reads.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tracerec import structure

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "FLAG_CALL_GUESSED",
    "FLAG_STEP",
    "INDEX_DTYPE",
    "NO_SHARD",
    "Column",
    "Kept",
    "Leaf",
    "Record",
    "Site",
    "Transform",
]

INDEX_DTYPE = np.dtype(
    [
        ("arrival", "<u8"),  # order in which records reached the outfeed of this process
        ("number", "<u8"),  # the same, counted for each device apart
        ("call", "<u8"),  # records of one execution of one program share it
        ("step", "<i8"),  # meaningful where flags has FLAG_STEP
        ("time", "<i8"),  # nanoseconds since the Unix epoch, UTC
        ("device", "<i4"),  # JAX's id of the device the data lived on
        ("shard", "<i4"),  # logical position in the mesh (row-major), NO_SHARD outside one
        ("position", "<u4"),  # static position of the site in its program
        ("program", "<u4"),  # number of the program in this process; 0: eager
        ("flags", "<u4"),
        ("iteration", "<u4"),  # how often this position had fired before in this call
    ]
)
"""One row of a stream's ``index`` table: 64 bytes a record, little-endian."""

FLAG_STEP = 1
"""The row's step is that of an integer scalar ``step``."""

FLAG_CALL_GUESSED = 2
"""The row's call number is a good guess; without the flag it is sure."""

NO_SHARD = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Transform:
    """One JAX transformation that a record went through.

    Attributes:
        name: ``"jvp"``, ``"transpose"``, ``"batch"`` or ``"mask"``.
        size: batch only: the number of lanes.
        dims: batch only: the batch axis of each leaf recorded, None where it is not batched. Axes refer
            to the array as it was at this level of a nest.
        kwarg_dims: batch only: the same for each column.
        axis_name: batch only: the name given to ``jax.vmap``, if any.
        lanes_may_be_invalid: the tap is in a branch or loop whose predicate is batched, so lanes that did not take it
            are there too, and nothing says which. Of a batch; of a mask where the tap is in a rule of
            ``jax.custom_batching``, whose record may be of such a lane alone.

    Example:
        >>> Transform("batch", size=8, dims=(0,)).dims
        (0,)
        >>> str(Transform("batch", size=8, dims=(0,)))
        'batch(8)'
    """

    name: str
    size: int | None = None
    dims: tuple[int | None, ...] | None = None
    kwarg_dims: tuple[int | None, ...] | None = None
    axis_name: str | None = None
    lanes_may_be_invalid: bool = False

    def __str__(self) -> str:
        return self.name if self.size is None else f"{self.name}({self.size})"

    def to_json(self) -> dict[str, Any]:
        """Returns the fields that are set, as JSON values."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {key: value for key, value in fields.items() if value is not None and value is not False}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Transform:
        """Returns the transform that `to_json` gave; raises KeyError or TypeError on other input."""
        dims, kwarg_dims = data.get("dims"), data.get("kwarg_dims")
        return cls(
            name=str(data["name"]),
            size=None if data.get("size") is None else int(data["size"]),
            dims=None if dims is None else tuple(dims),
            kwarg_dims=None if kwarg_dims is None else tuple(kwarg_dims),
            axis_name=data.get("axis_name"),
            lanes_may_be_invalid=bool(data.get("lanes_may_be_invalid", False)),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """What an array is of which the device kept something smaller than the tapped leaf.

    Attributes:
        keep: what was kept, as canonical JSON: `tracerec.keeping.from_json` reads it.
        part: which of its arrays this is.
        path: the key path of the tapped leaf.
        shape: the tapped leaf's shape, batch axes included.
        dtype: the tapped leaf's dtype.
        key_impl: as `Leaf.key_impl`, of the tapped leaf.
        lanes: how many leading axes of the array are lanes, each of which was reduced by itself.
    """

    keep: str
    part: str
    path: str
    shape: tuple[int, ...]
    dtype: str
    key_impl: str | None = None
    lanes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        data = dataclasses.asdict(self) | {"keep": json.loads(self.keep), "shape": list(self.shape)}
        return {name: value for name, value in data.items() if value is not None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Kept:
        """Returns what `to_json` gave; raises KeyError, TypeError or ValueError on other input."""
        return cls(
            keep=structure.canonical(data["keep"]),
            part=str(data["part"]),
            path=str(data["path"]),
            shape=_shape(data["shape"]),
            dtype=str(data["dtype"]),
            key_impl=data.get("key_impl"),
            lanes=int(data["lanes"]),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a tapped pytree, as the site records it.

    Attributes:
        path: the key path as ``jax.tree_util.keystr`` prints it: ``"['w'][0]"``, ``""`` for a bare array.
        shape: the shape of one record's array, batch axes included.
        dtype: the logical dtype's name: ``"float32"``, ``"bfloat16"``, ``"int4"``; key data is ``"uint32"``.
        number: the leaf's place in the flattened pytree; a cotangent record may hold only some leaves.
        key_impl: for a PRNG key: the implementation's name, such as ``"threefry2x32"``. The array is then
            the key data, with its trailing axes.
        global_shape: for a shard of an array that XLA sharded by itself: the shape of the whole array.
        kept: what the array is, when it is not the tapped leaf; ``path`` is then a place in what stands for it.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    number: int = 0
    key_impl: str | None = None
    global_shape: tuple[int, ...] | None = None
    kept: Kept | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        data: dict[str, Any] = {
            "path": self.path,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "number": self.number,
        }
        if self.key_impl is not None:
            data["key_impl"] = self.key_impl
        if self.global_shape is not None:
            data["global_shape"] = list(self.global_shape)
        if self.kept is not None:
            data["kept"] = self.kept.to_json()
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Leaf:
        """Returns the leaf that `to_json` gave; raises KeyError, TypeError or ValueError on other input."""
        return cls(
            path=str(data["path"]),
            shape=_shape(data["shape"]),
            dtype=str(data["dtype"]),
            number=int(data["number"]),
            key_impl=data.get("key_impl"),
            global_shape=None if data.get("global_shape") is None else _shape(data["global_shape"]),
            kept=None if data.get("kept") is None else Kept.from_json(data["kept"]),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """One dynamic number among a tap's kwargs: stored once a record.

    Attributes:
        name: the kwarg's name; a number inside a container has its key path behind it: ``"lr['body']"``.
        dtype: the logical dtype's name.
        shape: the shape of one record's value; ``()`` unless it was an array or batched. Batch axes come first,
            that of the outermost vmap before the others.
        python: ``"int"``, ``"float"`` or ``"complex"`` when the user passed a Python number, which the reader
            gives back.
        role: None for a kwarg; ``"where"`` for the mask of valid lanes; ``"extent"`` for the logical shape and
            ``"offset"`` for the global start index of the leaf whose key path the name is.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    python: str | None = None
    role: str | None = None

    @property
    def in_index(self) -> bool:
        """True for an integer scalar ``step``: it is stored in the index table alone."""
        return self.name == "step" and self.role is None and self.shape == () and _fits_int64(self.dtype)

    def to_python(self, value: np.ndarray | np.generic | int) -> Any:
        """Returns one record's value as the user passed it: a Python number, or a numpy scalar or array."""
        if self.shape:
            return np.asarray(value)
        if self.python == "int":
            return int(value)
        if self.python == "float":
            return float(value)
        if self.python == "complex":
            return complex(value)
        if isinstance(value, int):
            return np.dtype(self.dtype).type(value)
        return np.asarray(value)[()]

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        data: dict[str, Any] = {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}
        if self.python is not None:
            data["python"] = self.python
        if self.role is not None:
            data["role"] = self.role
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Column:
        """Returns the column that `to_json` gave; raises KeyError, TypeError or ValueError on other input."""
        return cls(
            name=str(data["name"]),
            dtype=str(data["dtype"]),
            shape=_shape(data["shape"]),
            python=data.get("python"),
            role=data.get("role"),
        )


@dataclasses.dataclass(frozen=True)
class Site:
    """A tap as traced. Static, hashable, with an id that is the same in every process.

    Attributes:
        name: the tap's full name, scopes included.
        leaves: the leaves recorded, in order.
        columns: the dynamic kwargs, in order.
        kwargs: all kwargs as canonical JSON, columns as slots; see `tracerec.structure`.
        structure: the pytree as canonical JSON, leaves as slots; see `tracerec.structure`.
        transforms: what the record went through, innermost first.
        mesh: names and sizes of the mesh axes, under ``shard_map`` and ``pmap``.
        ordered: whether the tap asked for total order.

    Example:
        >>> site = Site("act", leaves=(Leaf("", (3,), "float32"),))
        >>> Site.from_json(site.to_json()) == site
        True
    """

    name: str
    leaves: tuple[Leaf, ...]
    columns: tuple[Column, ...] = ()
    kwargs: str = "{}"
    structure: str = '{"slot":0}'
    transforms: tuple[Transform, ...] = ()
    mesh: tuple[tuple[str, int], ...] = ()
    ordered: bool = False

    @cached_property
    def id(self) -> int:
        """The site's 64-bit id: a BLAKE2b digest (RFC 7693) of its canonical JSON; never 0 or 1."""
        text = structure.canonical(self.to_json()).encode()
        number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
        # 0 ends a stream of frames and 1 defines sites.
        return number if number > 1 else number + 2

    @property
    def transform_names(self) -> tuple[str, ...]:
        """The names alone, innermost first: ``("jvp", "transpose")``."""
        return tuple(t.name for t in self.transforms)

    @property
    def lanes_may_be_invalid(self) -> bool:
        """Whether lanes that did not take the tap's branch or loop are in its records, unmarked."""
        return any(t.lanes_may_be_invalid for t in self.transforms)

    def column(self, role: str, name: str | None = None) -> int | None:
        """Returns the number of the column with a role (and, for one of a leaf, its key path), or None."""
        for number, column in enumerate(self.columns):
            if column.role == role and name in (None, column.name):
                return number
        return None

    @property
    def record_nbytes(self) -> int:
        """Bytes of one record's arrays and stored columns, index row excluded, one byte for sub-byte types."""
        from tracerec.protocol import dtypes

        stored = [*self.leaves, *(c for c in self.columns if not c.in_index)]
        return sum(_count(x.shape) * dtypes.itemsize(x.dtype) for x in stored)

    def to_json(self) -> dict[str, Any]:
        """Returns the site as JSON values: what a site definition frame and a sealed file hold."""
        return {
            "name": self.name,
            "leaves": [leaf.to_json() for leaf in self.leaves],
            "columns": [column.to_json() for column in self.columns],
            "kwargs": json.loads(self.kwargs),
            "structure": json.loads(self.structure),
            "transforms": [t.to_json() for t in self.transforms],
            "mesh": [list(axis) for axis in self.mesh],
            "ordered": self.ordered,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Site:
        """Returns the site that `to_json` gave; raises KeyError, TypeError or ValueError on other input."""
        return cls(
            name=str(data["name"]),
            leaves=tuple(Leaf.from_json(x) for x in data["leaves"]),
            columns=tuple(Column.from_json(x) for x in data["columns"]),
            kwargs=structure.canonical(data["kwargs"]),
            structure=structure.canonical(data["structure"]),
            transforms=tuple(Transform.from_json(x) for x in data["transforms"]),
            mesh=tuple((str(name), int(size)) for name, size in data["mesh"]),
            ordered=bool(data["ordered"]),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Record:
    """One firing of one site, with numpy arrays.

    Attributes:
        site: the site that fired.
        row: the record's row of the index table, a scalar of `INDEX_DTYPE`.
        arrays: one array a leaf of ``site.leaves``, read-only when they come live from a computation.
        numbers: one value a column of ``site.columns``.
        attempt: which process's turn at the recording it is of, from 0.
        process: which process's file it is of, in a trace of several (`tracerec.open`); else 0.
    """

    site: Site
    row: Any
    arrays: tuple[np.ndarray, ...]
    numbers: tuple[Any, ...]
    attempt: int = 0
    process: int = 0

    @property
    def tap(self) -> str:
        """The tap's full name."""
        return self.site.name

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The transformations the record went through, innermost first."""
        return self.site.transforms

    @cached_property
    def value(self) -> Any:
        """The tapped pytree of numpy arrays; a leaf that this record does not hold is None."""
        by_number = {leaf.number: array for leaf, array in zip(self.site.leaves, self.arrays, strict=True)}
        return structure.build(json.loads(self.site.structure), by_number.get)

    @cached_property
    def kwargs(self) -> dict[str, Any]:
        """The kwargs as the user passed them, static and dynamic."""
        return structure.build_kwargs(json.loads(self.site.kwargs), self.numbers.__getitem__)

    @property
    def where(self) -> np.ndarray | None:
        """Which lanes count: bools with one axis for each batch transform that has any, the outermost first.

        None when every lane counts (or nothing says which: `Site.lanes_may_be_invalid`).
        """
        number = self.site.column("where")
        return None if number is None else np.asarray(self.numbers[number])

    def logical_shape(self, leaf: int) -> np.ndarray | None:
        """Returns the valid extent of a leaf of ``site.leaves``, ``(*batch axes, rank)``; None when all is valid."""
        number = self.site.column("extent", self.site.leaves[leaf].path)
        return None if number is None else np.asarray(self.numbers[number])

    @property
    def step(self) -> Any:
        """The kwarg ``step``: an int as a rule, None when the tap had none."""
        return int(self.row["step"]) if self.row["flags"] & FLAG_STEP else self.kwargs.get("step")

    @property
    def time(self) -> np.datetime64:
        """When the record reached the host, UTC, in nanoseconds."""
        return np.datetime64(int(self.row["time"]), "ns")

    @property
    def device(self) -> int:
        """JAX's id of the device that the data lived on."""
        return int(self.row["device"])

    @property
    def mesh_position(self) -> dict[str, int] | None:
        """The mesh coordinates by axis name, under ``shard_map`` and ``pmap``; else None."""
        shard = int(self.row["shard"])
        if shard == NO_SHARD or not self.site.mesh:
            return None
        names, sizes = zip(*self.site.mesh, strict=True)
        return dict(zip(names, map(int, np.unravel_index(shard, sizes)), strict=True))

    @property
    def call(self) -> int:
        """The number of the program execution the record belongs to."""
        return int(self.row["call"])

    @property
    def arrival(self) -> int:
        """The record's place in the order in which records reached the outfeed."""
        return int(self.row["arrival"])


def _shape(value: Any) -> tuple[int, ...]:
    shape = tuple(int(n) for n in value)
    if any(n < 0 for n in shape):
        message = f"negative size in shape {shape}"
        raise ValueError(message)
    return shape


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count


def _fits_int64(dtype: str) -> bool:
    return dtype.startswith(("int", "uint")) and dtype != "uint64"
