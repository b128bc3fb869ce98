"""Reading folders that nobody has vouched for: each fault is one clear error, and nothing outside is opened."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import crc32c
import numpy as np
import pyarrow as pa
import pytest

from tests.memory_source import MemorySource, make_stream
from tracerec.errors import TraceError, TraceFormatError, TraceNotFound
from tracerec.formats.arrow import ipc
from tracerec.formats.arrow.reading import ArrowSource
from tracerec.formats.arrow.seal import seal
from tracerec.model import Column, Leaf, Site
from tracerec.structure import canonical

SHAPE = (600, 50, 40)
DATA = "stream-000000.arrow"
VALUES = (np.arange(np.prod(SHAPE)) // 16).astype(np.float32)  # runs, which LZ4 shrinks


def made(folder, compression=None):
    """Seals a large stream, 600 records of 8 KB in several batches, and a pool of two small ones."""
    site = Site("act", (Leaf("", SHAPE[1:], "float32"),), (Column("lr", "float64"),))
    values = VALUES.reshape(SHAPE)
    streams = [make_stream(site, [values], [np.arange(600.0)], steps=range(600))]
    streams += [make_stream(Site(n, (Leaf("", (), "int32"),)), [range(9)], steps=range(9)) for n in ("a", "b")]
    seal(MemorySource(streams), folder / "run.arrow", compression=compression)
    return folder / "run.arrow"


@pytest.fixture
def path(tmp_path):
    """A sealed folder."""
    return made(tmp_path)


def read_all(path):
    """Opens a folder and reads everything in it."""
    with ArrowSource(path) as source:
        for stream in source.streams:
            stream.summaries()
            stream.index(0, stream.records)
            for number in range(len(stream.site.leaves)):
                stream.leaf(number, 0, stream.records).copy()
                stream.leaf_nbytes(number)
            for number in range(len(stream.site.columns)):
                stream.column(number, 0, stream.records)


def assert_refused(path, match, file=""):
    """Asserts that reading raises a TraceFormatError of one line that names the file."""
    with pytest.raises(TraceFormatError, match=match) as caught:
        read_all(path)
    text = str(caught.value)
    assert str(path / file) in text
    assert text.isprintable()
    assert caught.value.path == str(path)


def set_checksum(path):
    """Makes the index's checksum right again: a hostile writer can."""
    checksum = crc32c.crc32c((path / "streams.arrow").read_bytes())
    (path / "streams.crc32c").write_text(f"{checksum:08x}\n")


def edit_rows(path, edit, metadata=None, compression=None):
    """Rewrites streams.arrow with other rows, as any writer would."""
    old = pa.ipc.open_file(path / "streams.arrow").read_all()
    rows = old.to_pylist()
    edit(rows)
    schema = old.schema.with_metadata({**old.schema.metadata, **(metadata or {})})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(path / "streams.arrow", schema, options=options) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema=schema))
    set_checksum(path)


def rewrite(path, batches, schema=None, **options):
    """Replaces the large data file by other batches; the index learns its new size."""
    with pa.ipc.new_file(path / DATA, schema or batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as file:
        for batch in batches:
            file.write_batch(batch)
    size = (path / DATA).stat().st_size
    edit_rows(path, lambda rows: rows[0].update(file_nbytes=size))


def batches_of(path):
    """Returns the batches of the large data file."""
    read = pa.ipc.open_file(path / DATA)
    return [read.get_batch(n) for n in range(read.num_record_batches)]


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_an_intact_folder_is_read(tmp_path, compression):
    """The folder that the tests below damage is itself in order, and its checksums are right."""
    path = made(tmp_path, compression)
    read_all(path)
    with ArrowSource(path) as source:
        assert sorted(check.name for check in source.files) == ["pool-000000.arrow", DATA]
        assert [source.damage(check) for check in source.files] == [None, None]


def test_ranges_of_one_batch_are_views_of_the_file(path):
    """An uncompressed range within a batch lies in the mapping: no copy is made, and nobody can write to it."""
    with ArrowSource(path) as source:
        stream = source.streams[0]
        array = stream.leaf(0, 3, 20)
        again = stream.leaf(0, 10, 11)
        content = (path / DATA).read_bytes()
        base = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        assert len(base) == len(content)  # the array's buffer is the whole mapped file
        offset = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        assert content[offset : offset + array.nbytes] == array.tobytes()
        assert np.shares_memory(array, again)
        assert not array.flags.writeable
        mapped = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(path / DATA) in line]
        low, high = (int(number, 16) for number in mapped[0][0].split("-"))
        assert low <= array.__array_interface__["data"][0] < high
    # The mapping outlives the source.
    assert array[0, 0, 0] == 3 * 2000 // 16


def test_many_files_need_few_descriptors(tmp_path):
    """Arrays of 300 files are alive at once with no descriptor open."""
    streams = [make_stream(Site(str(n), (Leaf("", (2000,), "float32"),)), [np.full((2, 2000), n)]) for n in range(300)]
    seal(MemorySource(streams), tmp_path / "run.arrow")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with ArrowSource(tmp_path / "run.arrow") as source:
        arrays = [stream.leaf(0, 0, 2) for stream in source.streams]
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert [array[1, 7] for array in arrays] == list(range(300))


def test_without_proc(path, monkeypatch):
    """Where there is no /proc, files are mapped all the same."""

    def missing(_):
        raise FileNotFoundError

    monkeypatch.setattr(pa, "memory_map", missing)
    read_all(path)


def test_ranges_across_batches_are_whole(path):
    """A range of several batches is put together."""
    with ArrowSource(path) as source:
        assert np.array_equal(source.streams[0].leaf(0, 200, 590).reshape(-1), VALUES[200 * 2000 : 590 * 2000])


def test_a_missing_folder(tmp_path):
    """No folder at the path is TraceNotFound, which is also FileNotFoundError."""
    with pytest.raises(TraceNotFound, match=r"nothing\.arrow' does not exist") as caught:
        ArrowSource(tmp_path / "nothing.arrow")
    assert isinstance(caught.value, FileNotFoundError)


def test_what_is_no_trace(tmp_path):
    """A file, and a folder of something else, are no traces."""
    (tmp_path / "notes").write_text("x")
    assert_refused(tmp_path / "notes", "is no trace folder")
    assert_refused(tmp_path, r"is no Arrow trace: it has no streams\.arrow")


def test_an_arrow_file_of_someone_else(path):
    """An Arrow file without our metadata is no trace."""
    with pa.ipc.new_file(path / "streams.arrow", pa.schema([("x", pa.int32())])):
        pass
    set_checksum(path)
    assert_refused(path, "no trace: its schema has no 'tracerec_format'", "streams.arrow")


def test_versions(path):
    """A newer major version is refused with the cure, a newer minor one is read, nonsense is none."""
    edit_rows(path, lambda _: None, {"format_version": "2.0"})
    assert_refused(path, r"has format version 2\.0; .*Upgrade tracerec", "streams.arrow")
    edit_rows(path, lambda _: None, {"format_version": "1.99"})
    read_all(path)
    for text in ("", "1", "1.0.0", "-1.0", "1" * 5000 + ".0", "\u0661.\u0660"):
        edit_rows(path, lambda _: None, {"format_version": text})
        assert_refused(path, "no version", "streams.arrow")


@pytest.mark.parametrize(
    "run", ["", "[]", "{", '{"run_id":1,"started":2}', "[" * 100_000, '{"run_id":"a","started":NaN}']
)
def test_a_run_that_is_none(path, run):
    """The run's JSON must be an object with the fields of RunInfo, of their types."""
    edit_rows(path, lambda _: None, {"run": run})
    assert_refused(path, "run: ", "streams.arrow")


@pytest.mark.parametrize("name", ["streams.arrow", "streams.crc32c", DATA, "pool-000000.arrow"])
def test_files_that_are_missing_cut_or_links(path, name):
    """Each file that is gone, cut, empty, a link, a folder or a pipe is refused by name; links are not followed."""
    target, kept = path / name, path.parent / "kept"
    shutil.copy(target, kept)
    target.unlink()
    assert_refused(path, "missing|it has no streams")
    target.symlink_to(kept)
    assert_refused(path, "cannot be mapped", name)
    target.unlink()
    target.mkdir()
    assert_refused(path, "no regular file", name)
    target.rmdir()
    os.mkfifo(target)
    assert_refused(path, "no regular file", name)
    target.unlink()
    for share in (0, 0.5, 0.99):
        target.write_bytes(kept.read_bytes()[: int(share * kept.stat().st_size)])
        assert_refused(path, r"it has \d+ bytes|CRC-32C")


def test_damage_is_found(path):
    """A flipped bit of the index is refused at once; that of a data file, which the format cannot tell, by checksum."""
    with (path / "streams.arrow").open("r+b") as file:
        file.seek(1000)
        byte = file.read(1)[0]
        file.seek(1000)
        file.write(bytes([byte ^ 1]))
    assert_refused(path, "CRC-32C", "streams.arrow")
    shutil.rmtree(path)
    path = made(path.parent)
    content = bytearray((path / DATA).read_bytes())
    content[len(content) // 2] ^= 1
    (path / DATA).write_bytes(content)
    with ArrowSource(path) as source:
        found = {check.name: source.damage(check) for check in source.files}
        assert found["pool-000000.arrow"] is None
        assert "CRC-32C" in (found[DATA] or "")
        (path / DATA).unlink()
        assert "missing" in (source.damage(source.files[0]) or "")


@pytest.mark.parametrize(
    "name",
    ["../other.arrow", "/etc/passwd", "streams.arrow", "sub/stream-000000.arrow", "", "stream-000000.arrow\n",
     "\x1b[2J", "stream-\u0661\u0661\u0661\u0661\u0661\u0661.arrow", "stream-000007.arrow", "x" * 100_000],
)  # fmt: skip
def test_no_path_leads_out_of_the_folder(path, name):
    """Names in the index that are not those of data files are refused, as are files that are not there."""
    shutil.copy(path / DATA, path.parent / "other.arrow")
    edit_rows(path, lambda rows: rows[0].update(file=name))
    assert_refused(path, "no name of a data file|the file is missing")


def test_files_that_the_index_does_not_name_are_ignored(path):
    """A stray file in the folder does not matter."""
    (path / "stream-000099.arrow").write_bytes(b"stray")
    read_all(path)


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (0, {"records": 601}),
        (0, {"records": -1}),
        (0, {"records": 1 << 62}),
        (0, {"records": (1 << 63) - 1}),
        (0, {"first_row": 1}),
        (0, {"first_row": -5}),
        (0, {"batch_rows": 0}),
        (0, {"batch_rows": 100}),
        (0, {"batch_rows": 1 << 60}),
        (0, {"file_nbytes": 7}),
        (0, {"nbytes": -1}),
        (1, {"first_row": 10}),
        (1, {"batch_rows": 5}),
        (1, {"file_crc32c": 5}),
        (0, {"site": "{"}),
        (0, {"site": "[" * 100_000}),
        (0, {"summaries": "[]"}),
        (0, {"summaries": "7"}),
        (0, {"leaf_nbytes": "[1,2]"}),
        (0, {"leaf_nbytes": "[-1]"}),
        (0, {"leaf_nbytes": "[true]"}),
        (0, {"file": "pool-000000.arrow"}),
    ],
)
def test_rows_of_the_index_that_lie(path, number, change):
    """Whatever the index says that is not so, is one clear error."""
    edit_rows(path, lambda rows: rows[number].update(change))
    assert_refused(path, "is no intact trace: ")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"dtype":"float32"', '"dtype":"object"'),
        ('"dtype":"float32"', '"dtype":"float64"'),
        ('"dtype":"float32"', '"dtype":["float32"]'),
        ('"shape":[50,40]', '"shape":[-50,-20]'),
        ('"shape":[50,40]', '"shape":[50,99999999]'),
        ('"shape":[50,40]', '"shape":[50,39]'),
        ('"shape":[50,40]', '"shape":null'),
        ('"transforms":[]', '"transforms":[1]'),
    ],
)
def test_sites_that_lie(path, old, new):
    """A site that does not describe its file's columns is one clear error."""
    edit_rows(path, lambda rows: rows[0].update(site=rows[0]["site"].replace(old, new)))
    assert_refused(path, "is no intact trace: ")


def test_columns_of_the_index(path):
    """An index without one of its columns, or with one of another type, is refused."""
    table = pa.ipc.open_file(path / "streams.arrow").read_all()
    for changed in (table.drop_columns("site"), table.set_column(0, "stream", table["stream"].cast(pa.int64()))):
        with pa.ipc.new_file(path / "streams.arrow", changed.schema) as writer:
            writer.write_table(changed)
        set_checksum(path)
        assert_refused(path, "column (site|stream) is", "streams.arrow")


def test_columns_of_a_data_file(path):
    """A data file without a column, or with one of another type, is refused by name."""
    table = pa.Table.from_batches(batches_of(path))
    for changed in (table.drop_columns("data_0"), table.set_column(3, "step", table["step"].cast(pa.int32()))):
        rewrite(path, changed.to_batches())
        assert_refused(path, "column (data_0|step)", DATA)
    strings = pa.table({"data_0": pa.array(["x"] * 600).dictionary_encode()})
    rewrite(path, strings.to_batches())
    assert_refused(path, "dictionar", DATA)


def test_batches_of_other_sizes(path):
    """Batches of other sizes than the index says are refused, not read at the wrong place."""
    table = pa.Table.from_batches(batches_of(path)).combine_chunks()
    rewrite(path, table.to_batches(max_chunksize=100))
    assert_refused(path, "batches of|has 100 rows, not", DATA)
    rewrite(path, [], table.schema)
    assert_refused(path, "it has 0 batches", DATA)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_sizes_that_a_compressed_buffer_declares(tmp_path, compression):
    """A buffer that declares petabytes, too little, or not what it holds, is refused before memory is taken."""
    path = made(tmp_path, compression)
    content = (path / DATA).read_bytes()
    file = ipc.IpcFile(np.frombuffer(content, np.uint8))
    batch = file.batch(0)
    at = batch.start + int(batch.buffers["offset"][file.columns["data_0"].buffer + 2])
    right = int.from_bytes(content[at : at + 8], "little")
    assert right % 8000 == 0
    for wrong in (1 << 50, -5, -1, 0, right - 1, right + 1, 2 * right):
        damaged = bytearray(content)
        damaged[at : at + 8] = wrong.to_bytes(8, "little", signed=True)
        (path / DATA).write_bytes(damaged)
        assert_refused(path, "column data_0: ", DATA)


def test_a_bomb_is_refused(path):
    """Batches that expand to more than a reader takes at once are refused: 100 MB of zeros in a few bytes."""
    schema = pa.ipc.open_file(path / DATA).schema
    rows = 25_000
    one = batches_of(path)[0].slice(0, 1)
    batch = pa.concat_batches([one] * rows)
    rewrite(path, [batch], schema, compression="zstd")
    edit_rows(path, lambda rows_: rows_[0].update(records=rows, batch_rows=rows))
    assert_refused(path, r"declares \d+ bytes, compressed to", DATA)


def test_lists_of_other_lengths(tmp_path):
    """In a pool of lists, lengths that are not those of the site are refused."""
    streams = [make_stream(Site(str(n), (Leaf("", (n + 1,), "int8"),)), [np.ones((3, n + 1))]) for n in range(40)]
    path = tmp_path / "run.arrow"
    seal(MemorySource(streams), path)
    shorter = Site.from_json({**streams[-1].site.to_json(), "leaves": [Leaf("", (39,), "int8").to_json()]})
    edit_rows(path, lambda rows: rows[-1].update(site=canonical(shorter.to_json()), site_id=shorter.id))
    assert_refused(path, "its lists are not of 39 items")


def test_a_site_that_is_not_that_of_its_id(path):
    """The id that joins streams of several folders must be that of the site."""
    edit_rows(path, lambda rows: rows[0].update(site_id=rows[0]["site_id"] ^ 1))
    assert_refused(path, "site: .*its id is")


def test_folders_of_older_versions_have_no_ids(path):
    """streams.arrow of version 1.1 has no column site_id."""
    old = pa.ipc.open_file(path / "streams.arrow").read_all()
    table = old.drop_columns(["site_id"]).replace_schema_metadata({**old.schema.metadata, b"format_version": b"1.1"})
    with pa.ipc.new_file(path / "streams.arrow", table.schema) as writer:
        writer.write_table(table)
    set_checksum(path)
    read_all(path)
    with ArrowSource(path) as source:
        assert [stream.site_id for stream in source.streams] == [stream.site.id for stream in source.streams]


def test_control_characters_do_not_reach_the_terminal(path):
    """A message about a hostile folder holds no escape sequence."""
    edit_rows(path, lambda rows: rows[0].update(site='{"\x1b[2J'))
    assert_refused(path, "site")


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 601), (5, 4)])
def test_ranges_outside_the_records(path, start, stop):
    """Ranges are half-open and within the records; others are the caller's error."""
    with ArrowSource(path) as source:
        for read in (source.streams[0].index, lambda a, b: source.streams[0].leaf(0, a, b)):
            with pytest.raises(IndexError, match="of 600"):
                read(start, stop)
    with ArrowSource(path) as source, pytest.raises(IndexError, match="of 9"):
        source.streams[1].leaf(0, 0, 10)  # rows of the next stream of the pool


def test_everything_raises_once_closed(path):
    """Summaries, index, leaves and columns of a closed trace raise TraceError."""
    source = ArrowSource(path)
    stream = source.streams[0]
    source.close()
    for read in (lambda: stream.index(0, 1), lambda: stream.leaf(0, 0, 1), lambda: stream.column(0, 0, 1)):
        with pytest.raises(TraceError, match="is closed"):
            read()
    with pytest.raises(TraceError, match="is closed"):
        stream.summaries()
    source.close()


def test_reading_imports_no_jax():
    """A laptop without an accelerator's libraries reads traces."""
    code = "import sys, tracerec.formats.arrow.reading; print(sorted({'jax', 'h5py'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(shown.stdout.replace("'", '"')) == []
    assert shown.stderr == ""


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_flipped_bytes_never_crash_the_reader(tmp_path, compression):
    """Wherever bytes are damaged, the reader reads or raises TraceFormatError; it never crashes."""
    path = made(tmp_path, compression)
    script = textwrap.dedent("""
        import pathlib, random, resource, sys
        from tests.formats.arrow.test_reading import DATA, read_all, set_checksum
        from tracerec.errors import TraceFormatError

        path, generator = pathlib.Path(sys.argv[1]), random.Random(1)
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        refused = 0
        for turn in range(400):
            name = ("streams.arrow", DATA, "pool-000000.arrow")[turn % 3]
            content = (path / name).read_bytes()
            damaged = bytearray(content)
            for _ in range(generator.choice([1, 1, 8])):
                # Most of the file is data; most of the flips go to its ends, where Arrow's own words are.
                near = generator.randrange(2500)
                where = generator.choice([near, -1 - near, generator.randrange(len(damaged))]) % len(damaged)
                damaged[where] = generator.randrange(256)
            (path / name).write_bytes(damaged)
            set_checksum(path)
            try:
                read_all(path)
            except TraceFormatError:
                refused += 1
            (path / name).write_bytes(content)
        print(refused)
    """)
    command = [sys.executable, "-c", script, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr[-2000:]
    assert int(result.stdout) > 100
