"""What every form of a recording must give back, whatever the format: bits, order, names, statistics.

A format joins by adding its name and how to write and open it to `FORMATS`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.formats.pieces import split, write_journal
from tests.memory_source import MemorySource, MemoryStream, make_stream
from tracerec.errors import SealingError, TraceError
from tracerec.formats.arrow.reading import ArrowSource
from tracerec.formats.arrow.seal import seal as seal_arrow
from tracerec.formats.hdf5.merge import merge
from tracerec.formats.hdf5.reading import Hdf5Source
from tracerec.formats.hdf5.seal import seal
from tracerec.formats.joined import JoinedSource
from tracerec.formats.live import open_live
from tracerec.journal import layout
from tracerec.journal.reading import JournalSource
from tracerec.model import Column, Leaf, Site, Transform
from tracerec.protocol import dtypes
from tracerec.statistics import moments

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracerec.formats.contract import RunInfo, TraceSource


def _hdf5(compression: str | None) -> Callable[[TraceSource, Path], TraceSource]:
    def write(source: TraceSource, folder: Path) -> TraceSource:
        seal(source, folder / "run.h5", compression=compression)
        return Hdf5Source(folder / "run.h5")

    return write


def _arrow(compression: str | None) -> Callable[[TraceSource, Path], TraceSource]:
    def write(source: TraceSource, folder: Path) -> TraceSource:
        seal_arrow(source, folder / "run.arrow", compression=compression)
        return ArrowSource(folder / "run.arrow")

    return write


def _journal(source: TraceSource, folder: Path) -> TraceSource:
    write_journal(folder, split(source, [0.3, 0.8]), source.info)
    return JournalSource(folder)


def _live(source: TraceSource, folder: Path) -> TraceSource:
    write_journal(folder, split(source, [0.2, 0.4, 0.9]), source.info)
    for number, suffix, make in ((0, ".h5", seal), (2, ".arrow", seal_arrow)):
        with JournalSource(folder, only=number) as segment:
            make(segment, layout.part_path(folder, number, suffix))
    return open_live(folder)


def _joined(source: TraceSource, folder: Path) -> TraceSource:
    first, second, third, fourth = split(source, [0.1, 0.5, 0.7])
    seal(first, folder / "a.h5")
    seal_arrow(second, folder / "b.arrow")
    (folder / "c").mkdir()
    write_journal(folder / "c", [third], source.info)
    seal(fourth, folder / "d.h5", compression=None)
    sources = [Hdf5Source(folder / "a.h5"), ArrowSource(folder / "b.arrow"), JournalSource(folder / "c")]
    return JoinedSource("run.h5", source.info, [*sources, Hdf5Source(folder / "d.h5")])


def _merged(source: TraceSource, folder: Path) -> TraceSource:
    pieces = split(source, [0.25, 0.5, 0.75])
    for number, piece in enumerate(pieces):
        seal(piece, folder / f"{number}.h5", compression=None if number == 1 else "lz4")
    sources = [Hdf5Source(folder / f"{number}.h5") for number in range(len(pieces))]
    merge(sources, folder / "run.h5", info=source.info)
    for part in sources:
        part.close()
    return Hdf5Source(folder / "run.h5")


def _merged_arrow(source: TraceSource, folder: Path) -> TraceSource:
    first, second = split(source, [0.5])
    seal_arrow(first, folder / "a.arrow")
    seal(second, folder / "b.h5")
    with JoinedSource("", source.info, [ArrowSource(folder / "a.arrow"), Hdf5Source(folder / "b.h5")]) as joined:
        seal_arrow(joined, folder / "run.arrow")
    return ArrowSource(folder / "run.arrow")


FORMATS: dict[str, Callable[[TraceSource, Path], TraceSource]] = {
    "hdf5-lz4": _hdf5("lz4"),
    "hdf5-zstd": _hdf5("zstd"),
    "hdf5-gzip": _hdf5("gzip"),
    "hdf5-none": _hdf5(None),
    "arrow": _arrow(None),
    "arrow-lz4": _arrow("lz4"),
    "arrow-zstd": _arrow("zstd"),
    "journal": _journal,
    "live": _live,
    "joined": _joined,
    "merged": _merged,
    "merged-arrow": _merged_arrow,
}
"""Writes a source into a folder and opens what was written."""


@pytest.fixture(params=FORMATS)
def write(request, tmp_path_factory):
    """Returns what writes a source in one format and opens it, each time in a folder of its own."""
    opened: list[TraceSource] = []

    def write_and_open(source: TraceSource) -> TraceSource:
        opened.append(FORMATS[request.param](source, tmp_path_factory.mktemp("trace")))
        return opened[-1]

    yield write_and_open
    for source in opened:
        source.close()


def bits(array: np.ndarray) -> bytes:
    """Returns the bytes of the elements."""
    return np.ascontiguousarray(array).tobytes()


def random_elements(name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Returns elements of a dtype with random bits: NaN payloads, infinities, -0.0, denormals, extremes."""
    random = np.random.default_rng(seed)
    dtype = dtypes.from_name(name)
    if name == "bool":
        return random.integers(0, 2, shape).astype(bool)
    raw = np.frombuffer(random.bytes(math.prod(shape) * dtype.itemsize), np.uint8).copy()
    if name in {"int2", "uint2"}:
        raw &= 0x03
    if name in {"int4", "uint4", "float4_e2m1fn"}:
        raw &= 0x0F
    return raw.view(dtype).reshape(shape)


def assert_same(actual: TraceSource, expected: TraceSource) -> None:
    """Asserts that two sources hold the same records, bit for bit."""
    assert dataclasses.asdict(actual.info) == dataclasses.asdict(_known_info(actual, expected.info))
    # A journal is frames of records: it has no stream without any.
    streams = [stream for stream in expected.streams if stream.records or not _is_journal(actual)]
    assert len(actual.streams) == len(streams)
    for got, want in zip(actual.streams, streams, strict=True):
        assert got.site == want.site
        assert got.records == want.records
        assert list(got.summaries()) == list(want.summaries())
        everything = (0, want.records)
        assert bits(got.index(*everything)) == bits(want.index(*everything))
        for number in range(len(want.site.leaves)):
            assert_array(got.leaf(number, *everything), want.leaf(number, *everything))
        for number in range(len(want.site.columns)):
            assert_array(got.column(number, *everything), want.column(number, *everything))


def _is_journal(source: TraceSource) -> bool:
    return (Path(source.path) / layout.MANIFEST).exists()


def _known_info(actual: TraceSource, info: RunInfo) -> RunInfo:
    """Returns what a source should know of a run: a journal that has no end knows nothing of what its end would say."""
    if info.ended is not None or not _is_journal(actual):
        return info
    return dataclasses.replace(info, dropped={}, high_water_bytes=0, notes=("the run did not end cleanly",))


def assert_array(actual: np.ndarray, expected: np.ndarray) -> None:
    """Asserts the same shape, dtype and bits."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    assert bits(actual) == bits(expected)


def one_leaf(name: str, records: int, shape: tuple[int, ...], **leaf: Any) -> MemorySource:
    """Returns a source of one stream with one leaf of random bits."""
    site = Site("tap", (Leaf("", shape, name, **leaf),))
    return MemorySource([make_stream(site, [random_elements(name, (records, *shape))], steps=range(records))])


@pytest.mark.parametrize("name", dtypes.NAMES)
def test_every_dtype_keeps_its_bits(write, name):
    """Random bit patterns of every dtype come back, in leaves and in columns, scalars and zero sizes too."""
    shapes = [(), (5,), (3, 4), (0,), (0, 3), (2, 0, 3)]
    leaves = tuple(Leaf(f"[{n}]", shape, name, number=n) for n, shape in enumerate(shapes))
    columns = (Column("value", name), Column("lanes", name, (3,)))
    arrays = [random_elements(name, (7, *shape), seed) for seed, shape in enumerate(shapes)]
    numbers = [random_elements(name, (7,)), random_elements(name, (7, 3))]
    source = MemorySource([make_stream(Site("tap", leaves, columns), arrays, numbers, steps=range(7))])
    assert_same(write(source), source)


@pytest.mark.parametrize("name", ["int64", "uint64", "float64", "float32", "complex128"])
def test_extremes_survive(write, name):
    """The smallest, the largest and the oddest numbers of a dtype come back."""
    if name.startswith("float"):
        info = np.finfo(name)
        values = [info.max, info.min, info.smallest_subnormal, -0.0, 0.0, np.nan, np.inf, -np.inf]
    elif name == "complex128":
        values = [complex(np.nan, -0.0), complex(-np.inf, np.nan), complex(1e308, -1e308), 0]
    else:
        values = [np.iinfo(name).min, np.iinfo(name).max, np.iinfo(name).max - 1, 0]
    array = np.array(values, name)
    source = MemorySource([make_stream(Site("tap", (Leaf("", (), name),)), [array])])
    read = write(source).streams[0].leaf(0, 0, len(values))
    assert bits(read) == bits(array)


def test_nan_payloads_survive(write):
    """Quiet and signalling NaNs with payloads and signs are not made canonical."""
    patterns = {
        "float32": np.array([0x7FC00001, 0xFFC12345, 0x7F800001], np.uint32),
        "float64": np.array([0x7FF8000000000123, 0xFFF0000000000001], np.uint64),
        "bfloat16": np.array([0x7FC1, 0xFF81, 0x7F81], np.uint16),
        "float8_e5m2": np.array([0x7D, 0x7E, 0xFF], np.uint8),
    }
    for name, raw in patterns.items():
        stream = make_stream(Site("tap", (Leaf("", (), name),)), [raw.view(dtypes.from_name(name))])
        read = write(MemorySource([stream])).streams[0].leaf(0, 0, len(raw))
        assert dtypes.as_bits(read).view(raw.dtype).tolist() == raw.tolist()


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_prng_keys_keep_data_and_implementation(write, impl):
    """A key leaf is its key data; its implementation's name is in the site, and it has no moments."""
    source = one_leaf("uint32", 5, (3, 2), key_impl=impl)
    read = write(source)
    assert_same(read, source)
    assert read.streams[0].site.leaves[0].key_impl == impl
    assert read.streams[0].summaries()[0].last.mean is None


NAMES = [
    "encoder/act",
    "/a//b/../c/",
    ".",
    "",
    " tab\tnew\nline ",
    "nul\0inside",
    "\0",
    "\ud800lone\udfff",
    "β😀",
    '"quoted\\u0000"',
    "x" * 70_000,
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_any_tap_name_survives(write, name):
    """Names are data: no character of them means anything to the format."""
    leaves = (Leaf(f"['{name}']", (2,), "float32"),)
    columns = (Column("k" + name, "float32"),)
    stream = make_stream(Site(name, leaves, columns), [np.ones((3, 2))], [np.arange(3)])
    ordered = dataclasses.replace(stream, site=dataclasses.replace(stream.site, ordered=True))
    source = MemorySource([stream, ordered])
    assert_same(write(source), source)


def test_everything_of_a_site_survives(write):
    """Transforms, mesh, kwargs, structure, order and columns come back with the site."""
    site = Site(
        name="layer/act",
        leaves=(Leaf("['w'][0]", (8, 3), "bfloat16", number=1),),
        columns=(
            Column("step", "int32", python="int"),
            Column("lr", "float64", python="float"),
            Column("lanes", "float32", (8,)),
            Column("other", "uint64"),
        ),
        kwargs='{"lanes":{"slot":2},"lr":{"slot":1},"phase":"train","step":{"slot":0}}',
        structure='{"dict":[["w",{"list":[{"slot":1}]}]]}',
        transforms=(Transform("jvp"), Transform("batch", size=8, dims=(0,), kwarg_dims=(None, None, 0, None))),
        mesh=(("x", 2), ("y", 4)),
        ordered=True,
    )
    numbers = [[5, -6, 7], [0.1, 0.2, 0.3], np.ones((3, 8)), [0, 2**64 - 1, 1]]
    stream = make_stream(
        site, [random_elements("bfloat16", (3, 8, 3))], numbers, device=[1, 2, 3], shard=[0, 5, 7], iteration=9
    )
    source = MemorySource([stream])
    read = write(source)
    assert_same(read, source)
    assert read.streams[0].column(0, 0, 3).tolist() == [5, -6, 7]
    assert read.streams[0].column(0, 0, 3).dtype == np.int32


def masked(records: int = 40) -> MemorySource:
    """Returns a source of a vmapped, padded tap of shards with all columns of a role, NaN where nothing counts."""
    columns = (
        Column("lr", "float64", python="float"),
        Column("where", "bool", (2, 3), role="where"),
        Column("['a']", "int32", (3, 1), role="extent"),
        Column("['a']", "int64", (3,), role="offset"),
    )
    inner = Transform("batch", size=3, dims=(1, 0), kwarg_dims=(None, 0, 0))
    outer = Transform("batch", size=2, dims=(0, None), kwarg_dims=(None, 0, None), lanes_may_be_invalid=True)
    leaves = (
        Leaf("['a']", (1, 4, 3), "float32", global_shape=(2, 4, 3)),
        Leaf("['k']", (3, 2), "uint32", number=1, key_impl="threefry2x32"),
    )
    kwargs, structure = '{"lr":{"slot":0}}', '{"dict":[["a",{"slot":0}],["k",{"slot":1}]]}'
    site = Site("act", leaves, columns, kwargs, structure, (inner, outer))
    random = np.random.default_rng(0)
    where = random.integers(0, 4, (records, 2, 3)) == 0
    extent = random.integers(0, 5, (records, 3, 1))
    offset = np.array([[n % 2, 0, 0] for n in range(records)])
    values = random.normal(size=(records, 1, 4, 3))
    # Of record n there are the lanes of outer number n % 2, and of each as many rows as its extent.
    counts = [where[n, n % 2] & (np.arange(4)[:, None] < extent[n, :, 0]) for n in range(records)]
    values[~np.array(counts)[:, None]] = np.nan
    numbers = [random.normal(size=records), where, extent, offset]
    return MemorySource([make_stream(site, [values, np.ones((records, 3, 2))], numbers, device=offset[:, 0])])


def test_columns_with_roles_survive(write):
    """Masks, extents and offsets come back with their roles, and what they rule out is in no statistic."""
    source = masked()
    read = write(source)
    assert_same(read, source)
    (stream,) = read.streams
    assert [column.role for column in stream.site.columns] == [None, "where", "extent", "offset"]
    assert stream.site.lanes_may_be_invalid
    first, keys = stream.summaries()
    where, values = source.streams[0].column(1, 0, 40), source.streams[0].leaf(0, 0, 40)
    kept = where.reshape(40, 6).any(axis=1)
    assert first.records == keys.records == kept.sum() < 40
    assert first.nan == 0
    last = values[np.flatnonzero(kept)[-1]]
    assert first.last.count == np.isfinite(last).sum()
    assert first.last.min == (float(last[np.isfinite(last)].min()) if np.isfinite(last).any() else None)
    assert keys.last.count == 2 * where[np.flatnonzero(kept)[-1]].any(axis=0).sum()


@pytest.mark.parametrize("name", [name for name in dtypes.NAMES if name not in {"float32", "uint32"}])
def test_every_dtype_can_be_masked(write, name):
    """Values of every dtype come back bit for bit beside a mask, and are summarized without what it rules out."""
    site = Site(
        "tap",
        (Leaf("", (5, 4), name),),
        (Column("where", "bool", (4,), role="where"), Column("", "int32", (4, 1), role="extent")),
        transforms=(Transform("batch", size=4, dims=(1,), kwarg_dims=(0, 0)),),
    )
    array = random_elements(name, (9, 5, 4))
    where, extent = np.tile([True, False, True, True], (9, 1)), np.tile([[3], [5], [0], [5]], (9, 1, 1))
    source = MemorySource([make_stream(site, [array], [where, extent])])
    read = write(source)
    assert_same(read, source)
    by_hand = array[-1][[0, 0, 1, 1, 2, 2, 3, 4], [0, 3, 0, 3, 0, 3, 3, 3]]
    assert read.streams[0].summaries()[0].last == moments(by_hand)


def test_a_site_that_contradicts_itself_is_refused(write):
    """A mask of three lanes for a batch of four is no mask: whoever meets it first says in which file."""
    (stream,) = masked().streams
    assert isinstance(stream, MemoryStream)
    site = stream.site
    batch = dataclasses.replace(site.transforms[0], dims=(0, 0))
    made = dataclasses.replace(stream, site=dataclasses.replace(site, transforms=(batch, site.transforms[1])))
    try:
        read = write(MemorySource([made]))
        reason = str(getattr(read, "damage", ""))
        assert len(read.streams) == 0
    except SealingError as error:
        reason = str(error)
    assert re.search(r"(\.h5'|\.arrow'|\.frames').* lanes", reason)


def test_all_of_the_run_survives(write):
    """What is known of the run comes back, nested metadata, Unicode and None included."""
    source = one_leaf("float32", 1, ())
    source.info = dataclasses.replace(
        source.info,
        ended=None,
        clean=False,
        metadata={"config": {"lr": 0.1, "layers": [1, None, True]}, "name": "β\0\ud800", "long": "y" * 200_000},
        dropped={"a/b": 7},
        high_water_bytes=1 << 40,
        notes=("The last record is torn.",),
    )
    assert_same(write(source), source)


def test_a_run_without_records(write):
    """A trace without streams, and a stream without records or leaves, are traces."""
    empty = MemorySource([])
    assert_same(write(empty), empty)
    sites = [Site("none", (Leaf("", (3,), "float32"),), (Column("lr", "float64"),)), Site("bare", ())]
    arrays = [[np.zeros((0, 3))], []]
    streams = [make_stream(s, a, [np.zeros(0)] * len(s.columns)) for s, a in zip(sites, arrays, strict=True)]
    source = MemorySource([*streams, make_stream(Site("ticks", ()), [], steps=range(5))])
    read = write(source)
    assert_same(read, source)
    assert all(stream.summaries()[0].records == 0 for stream in read.streams if stream.site.name == "none")


@pytest.mark.parametrize("rank", [30, 31, 32, 40, 63])
def test_many_axes(write, rank):
    """Arrays have more axes than HDF5 allows; numpy, with the record axis, allows 64."""
    source = one_leaf("int16", 3, (1,) * (rank - 2) + (2, 3))
    assert_same(write(source), source)


@pytest.mark.parametrize(
    ("records", "shape"),
    [
        pytest.param(700, (1000,), id="several-chunks-of-records"),
        pytest.param(3, (700, 1000), id="a-record-of-several-chunks"),
        pytest.param(2, (3, 5, 300_001), id="cut-along-three-axes"),
        pytest.param(2, (4_000_037,), id="a-long-axis-of-prime-length"),
        pytest.param(5, (262_145,), id="just-above-a-chunk"),
        pytest.param(200_003, (), id="scalars"),
    ],
)
def test_ranges_of_long_and_large_streams(write, records, shape):
    """Any range of records is what the whole array's slice is, across all boundaries of storage."""
    source = one_leaf("float32", records, shape)
    whole, rows = source.streams[0].leaf(0, 0, records), source.streams[0].index(0, records)
    stream = write(source).streams[0]
    edges = sorted({0, 1, records // 3, records // 2 + 1, records - 1, records})
    for start, stop in itertools.combinations_with_replacement(edges, 2):
        assert_array(stream.leaf(0, start, stop), whole[start:stop])
        assert_array(stream.index(start, stop), rows[start:stop])


def test_compressible_data_survive(write):
    """Data that do shrink take the compressed path: slow scalars, zeros, activations kept in float32."""
    random = np.random.default_rng(0)
    arrays = [
        np.cumsum(random.standard_normal(50_000)).astype(np.float32),
        np.zeros(50_000, np.complex64),
        random.integers(0, 50, 50_000).astype(np.int32),
        np.maximum(random.standard_normal(50_000), 0).astype(dtypes.from_name("bfloat16")),
    ]
    names = ["float32", "complex64", "int32", "bfloat16"]
    site = Site("tap", tuple(Leaf(f"[{n}]", (), name, number=n) for n, name in enumerate(names)))
    source = MemorySource([make_stream(site, arrays, steps=range(50_000))])
    assert_same(write(source), source)


def test_writing_what_was_read_changes_nothing(write):
    """A read trace is a source like any other: written again, it is the same."""
    source = one_leaf("bfloat16", 100, (7, 30))
    assert_same(write(write(source)), source)


def test_a_closed_trace_says_so(write):
    """Reading from a closed trace raises one clear error."""
    read = write(one_leaf("float32", 3, (2,)))
    read.close()
    with pytest.raises(TraceError, match="is closed"):
        read.streams[0].leaf(0, 0, 1)


@st.composite
def traces(draw) -> MemorySource:
    """Draws a small trace: any dtypes, shapes, names, columns, record counts."""
    texts = st.text(st.characters(categories=None), max_size=12)  # surrogates and NUL included
    names = st.sampled_from(dtypes.NAMES)
    shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
    streams: dict[int, MemoryStream] = {}
    for _ in range(draw(st.integers(0, 3))):
        records = draw(st.integers(0, 20))
        parts = draw(st.lists(st.tuples(texts, names, shapes), max_size=3))
        leaves = tuple(Leaf(path, shape, name, number=n) for n, (path, name, shape) in enumerate(parts))
        columns = tuple(Column(*c) for c in draw(st.lists(st.tuples(texts, names, shapes), max_size=2)))
        columns = tuple(c for c in columns if not c.in_index)
        seed = draw(st.integers(0, 1000))
        arrays = [random_elements(leaf.dtype, (records, *leaf.shape), seed) for leaf in leaves]
        numbers = [random_elements(c.dtype, (records, *c.shape), seed) for c in columns]
        steps = draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=records, max_size=records))
        site = Site(draw(texts), leaves, columns)
        # One stream a site: a journal knows them by their ids.
        streams[site.id] = make_stream(site, arrays, numbers, steps)
    return MemorySource(list(streams.values()))


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(source=traces())
def test_any_trace_survives(write, source):
    """Whatever trace is drawn comes back bit for bit."""
    assert_same(write(source), source)
