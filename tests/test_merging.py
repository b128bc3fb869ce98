"""Several recordings become one: the same records as when they are read together, and nothing else."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import h5py
import jsonschema
import numpy as np
import pytest

from tests.formats.hdf5.test_schema import validate
from tests.memory_source import MemoryStream, make_stream
from tests.trace.streams import journal
from tests.trace.test_processes import process
from tests.trace.test_shards import LAYOUTS, WHOLES, sharded
from tests.verifying.breaking import flip
from tracerec import compare, merge, record, repair, tap, verify
from tracerec.errors import RecordingExists, SealingError, TraceError, TraceFormatError, TraceNotFound
from tracerec.formats import merged
from tracerec.formats.arrow.seal import seal as seal_arrow
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Leaf, Site
from tracerec.trace import open_trace

SCHEMA = json.loads((Path(__file__).parents[1] / "schemas" / "merge.schema.json").read_text())
SUFFIXES = ["h5", "arrow"]
WIDE = Site("wide", (Leaf("", (1000,), "float32"),))


def sealed(source, path):
    """Seals a source to a path of either form."""
    (seal_arrow if Path(path).suffix == ".arrow" else seal)(source, path)


def seen(path):
    """Returns all that reading a trace gives: its records in both orders, and its description."""
    with open_trace(path) as trace:
        records = [
            [
                (r.process, r.tap, r.site.id, r.row.tobytes(), [a.tobytes() for a in r.arrays], dict(r.kwargs))
                for r in trace.raw.records(order=order)
            ]
            for order in ("program", "arrival")
        ]
        return records, trace.info.to_json(), trace.processes


@pytest.fixture(params=SUFFIXES)
def suffix(request):
    """The form."""
    return request.param


@pytest.fixture
def folder(tmp_path, suffix):
    """Three sealed recordings of one run, with numbers that are not in a row."""
    for number in (0, 1, 7):
        sealed(process(number), tmp_path / f"run.{number}.{suffix}")
    return tmp_path


class TestProcesses:
    @pytest.mark.parametrize("target", SUFFIXES)
    def test_reads_as_the_recordings_together(self, folder, suffix, target):
        """Record for record, with the processes' numbers and descriptions; verified, and equal by comparison."""
        pattern, out = folder / f"run.*.{suffix}", folder / f"all.{target}"
        done = merge(pattern, out)
        assert seen(out) == seen(pattern)
        assert (done.records, done.taps, done.losses) == (
            19,
            2,
            tuple(f"run.{n}.{suffix}: {n} records were not recorded" for n in (1, 7)),
        )
        assert [(p.number, p.path) for p in done.processes] == [
            (n, str(folder / f"run.{n}.{suffix}")) for n in (0, 1, 7)
        ]
        found = verify(out)
        assert found.faults == ()
        assert (found.records, found.streams, found.form) == (19, 4, "arrow" if target == "arrow" else "hdf5")
        files = [out] if out.is_file() else [file for file in out.rglob("*.arrow") if file.is_file()]
        assert found.nbytes == sum(file.stat().st_size for file in files)
        found = compare(out, pattern)
        assert found.first_divergence is None
        assert "all 20 of 20 compared are equal" in repr(found)
        assert not [path for path in folder.iterdir() if ".tmp" in path.name]
        jsonschema.Draft202012Validator(SCHEMA).validate(done.to_json())

    def test_stored_bytes_are_the_same(self, folder, suffix):
        """Nothing is compressed again: chunks and files are copied."""
        merge(folder / f"run.*.{suffix}", out := folder / f"all.{suffix}")
        if suffix == "arrow":
            for name in ("streams.arrow", "pool-000000.arrow"):
                assert (out / "process-000007.arrow" / name).read_bytes() == (
                    folder / "run.7.arrow" / name
                ).read_bytes()
            return
        with h5py.File(out) as whole, h5py.File(folder / "run.7.h5") as part:
            one, other = (
                f["streams/000000/data_0"].id.read_direct_chunk((0, 0)) for f in (whole["processes/000007"], part)
            )
            assert one == other
            validate(json.loads(whole.attrs["processes"]), "processes")

    def test_shards_are_assembled(self, tmp_path):
        """Global arrays whose shards were recorded by several processes come together, bit for bit."""
        for number in range(2):
            mine: list[MemoryStream] = []
            for stream in sharded(WHOLES, LAYOUTS["2x2"]):
                chosen = stream.rows["device"] // 2 == number
                columns = tuple(None if c is None else c[chosen] for c in stream.columns)
                arrays = (stream.arrays[0][chosen],)
                mine.append(MemoryStream(stream.site, stream.rows[chosen], arrays, columns))
            seal(dataclasses.replace(process(number), streams=mine), tmp_path / f"run.{number}.h5")
        merge(tmp_path / "run.*.h5", tmp_path / "all.h5")
        with open_trace(tmp_path / "all.h5") as trace:
            np.testing.assert_array_equal(trace["t"].to_numpy(assemble=True), WHOLES)

    def test_merged_again(self, folder, suffix):
        """A merged recording is merged alone, to itself in the other form; together with others it is refused."""
        merge(folder / f"run.*.{suffix}", folder / f"all.{suffix}")
        other = "h5" if suffix == "arrow" else "arrow"
        merge(folder / f"all.{suffix}", folder / f"again.{other}")
        assert seen(folder / f"again.{other}")[0] == seen(folder / f"run.*.{suffix}")[0]
        with pytest.raises(TraceError, match=rf"all\.{suffix} is a merged recording of 3 processes already"):
            open_trace([folder / f"all.{suffix}", folder / f"run.0.{suffix}"])

    def test_mixed_forms_and_killed_runs(self, tmp_path):
        """What a killed run left is merged, with its state, and is a loss."""
        seal(process(0), tmp_path / "run.0.h5")
        journal(tmp_path / "run.1.h5")
        done = merge(tmp_path / "run.*.h5", tmp_path / "all.h5")
        assert done.losses == ("run.1.h5.live: the run did not end cleanly",)
        assert [each.state for each in done.processes] == ["clean", "killed"]
        assert seen(tmp_path / "all.h5") == seen(tmp_path / "run.*.h5")
        with open_trace(tmp_path / "all.h5") as trace:
            assert trace.info.state == "killed"
            assert trace.info.notes == done.losses
            assert trace.refresh() == 0

    def test_a_run_that_goes_on(self, tmp_path):
        """What was there at the moment is merged; the result does not say that it goes on."""
        seal(process(0), tmp_path / "run.0.h5")
        with record(tmp_path / "run.1.h5") as recording:
            tap(np.float32(1), "loss", step=0)
            recording.flush()
            done = merge(tmp_path / "run.*.h5", tmp_path / "all.h5")
        assert [each.state for each in done.processes] == ["clean", "recording"]
        assert "run.1.h5.live: the run was still being recorded when it was merged" in done.losses
        with open_trace(tmp_path / "all.h5") as trace:
            assert len(trace) == 7
            assert trace.info.state == "killed"
            assert trace.refresh() == 0

    def test_compression(self, tmp_path):
        """As each recording has it, unless another is asked for."""
        values = np.zeros((300, 1000), np.float32)
        for number, compression in enumerate(("gzip", "zstd", None)):
            source = dataclasses.replace(process(number), streams=[make_stream(WIDE, [values + number])])
            seal(source, tmp_path / f"run.{number}.h5", compression=compression)
        merge(tmp_path / "run.*.h5", tmp_path / "same.h5")
        merge(tmp_path / "run.*.h5", tmp_path / "gzip.h5", compression="gzip")
        with h5py.File(tmp_path / "same.h5") as same, h5py.File(tmp_path / "gzip.h5") as gzip:
            datasets = [[f[f"processes/00000{n}/streams/000000/data_0"] for n in range(3)] for f in (same, gzip)]
            assert [set(d._filters) for d in datasets[0]] == [{"shuffle", "gzip"}, {"32001"}, set()]
            assert [set(d._filters) for d in datasets[1]] == 3 * [{"shuffle", "gzip"}]
        assert seen(tmp_path / "gzip.h5")[0] == seen(tmp_path / "run.*.h5")[0]


class TestParts:
    def test_a_folder_of_parts_is_one_file(self, tmp_path, suffix):
        """A recording that was closed as parts; the same records, an ordinary file."""
        path = tmp_path / f"run.{suffix}"
        values = np.random.default_rng(0).normal(size=(400, 5000)).astype(np.float32)
        with record(path, max_file_bytes=1 << 20, segment_bytes=1 << 20):
            for step, value in enumerate(values):
                tap(value, "act", step=step)
        assert path.is_dir()
        assert len(list(path.glob("part-*"))) > 2
        done = merge(path, tmp_path / f"all.{suffix}")
        assert done.losses == ()
        assert len(done.processes) == 1
        one, other = seen(tmp_path / f"all.{suffix}"), seen(path)
        assert one == other
        assert verify(tmp_path / f"all.{suffix}").ok
        with open_trace(tmp_path / f"all.{suffix}") as trace:
            assert trace.processes == (0,)
            assert trace["act"].to_numpy().tobytes() == values.tobytes()
        if suffix == "h5":
            with h5py.File(tmp_path / "all.h5") as file:
                assert "streams" in file

    def test_one_killed_recording(self, tmp_path):
        """It becomes an ordinary recording that says how it ended."""
        journal(tmp_path / "run.h5")
        done = merge(tmp_path / "run.h5", tmp_path / "all.h5")
        assert done.losses == ("run.h5.live: the run did not end cleanly",)
        assert seen(tmp_path / "all.h5")[0] == seen(tmp_path / "run.h5")[0]


class TestRefusals:
    def test_existing(self, folder, suffix):
        """Nothing is replaced unasked, and never what is no recording, or an input."""
        pattern, out = folder / f"run.*.{suffix}", folder / f"all.{suffix}"
        merge(pattern, out)
        with pytest.raises(SealingError, match=rf"all\.{suffix} exists; .* overwrite"):
            merge(pattern, out)
        before = seen(out)
        merge([folder / f"run.1.{suffix}"], out, overwrite=True)
        assert seen(out) != before
        merge(pattern, out, overwrite=True)
        assert seen(out) == before
        with pytest.raises(SealingError, match="is a recording that is read here; choose another name"):
            merge(pattern, folder / f"run.0.{suffix}", overwrite=True)
        (folder / "notes.txt").write_text("mine")
        with pytest.raises(SealingError, match="is no recording, so that it is not replaced"):
            merge(pattern, folder / "notes.txt", overwrite=True)
        assert (folder / "notes.txt").read_text() == "mine"

    def test_into_an_input(self, tmp_path):
        """Neither a part of one nor anything in its folder is written."""
        for number in range(2):
            seal_arrow(process(number, dropped={}), tmp_path / f"run.{number}.arrow")
        inside = tmp_path / "run.1.arrow"
        before = sorted(tmp_path.rglob("*"))
        for name in ("new.h5", "streams.arrow"):
            with pytest.raises(SealingError, match=r"is in the recording .*run\.1\.arrow, which is read; choose"):
                merge(tmp_path / "run.*.arrow", inside / name, overwrite=True)
        assert sorted(tmp_path.rglob("*")) == before

    def test_beside_a_live_folder(self, folder, suffix):
        """A recording that goes on would have the name."""
        journal(folder / f"all.{suffix}")
        with pytest.raises(SealingError, match="is being recorded to, or was"):
            merge(folder / f"run.*.{suffix}", folder / f"all.{suffix}")

    def test_damaged_input(self, folder, suffix):
        """A byte that changed is found, and nothing is made."""
        target = folder / f"run.1.{suffix}"
        flip(target if suffix == "h5" else target / "pool-000000.arrow", 0.35)
        with pytest.raises((SealingError, TraceFormatError), match=rf"run\.1\.{suffix}"):
            merge(folder / f"run.*.{suffix}", folder / f"all.{suffix}")
        if suffix == "arrow":
            with pytest.raises(SealingError, match="CRC-32C"):
                merge(folder / f"run.*.{suffix}", folder / "all.h5")
        assert not [path for path in folder.iterdir() if path.name.startswith("all")]

    def test_others(self, folder, suffix, monkeypatch):
        """No such folder, no such compression, a full disk, nothing that matches, one recording twice."""
        pattern = folder / f"run.*.{suffix}"
        with pytest.raises(SealingError, match="there is no folder"):
            merge(pattern, folder / "no" / "all.h5")
        with pytest.raises(SealingError, match="unknown compression 'xz'; there are 'same', 'lz4'"):
            merge(pattern, folder / "all.h5", compression="xz")  # type: ignore[arg-type]
        with pytest.raises(TraceNotFound, match="no recording matches"):
            merge(folder / "no.*.h5", folder / "all.h5")
        with pytest.raises(TraceError, match="is given twice"):
            merge([folder / f"run.0.{suffix}"] * 2, folder / "all.h5")
        monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
        with pytest.raises(SealingError, match="the disk has 0 bytes left"):
            merge(pattern, folder / "all.h5")
        assert not (folder / "all.h5").exists()

    def test_continuing(self, folder, suffix):
        """A merged recording is not continued; it may be replaced by a new one."""
        merge(folder / f"run.*.{suffix}", out := folder / f"all.{suffix}")
        before = seen(out)
        with pytest.raises(RecordingExists, match="is merged of several processes and cannot be continued"):
            record(out, mode="a")
        assert seen(out) == before
        with record(out, mode="w"):
            tap(np.float32(1), "loss")
        with open_trace(out) as trace:
            assert list(trace.taps) == ["loss"]


class TestDamage:
    def test_a_chunk(self, folder, suffix, monkeypatch):
        """Every other process is kept whole."""
        in_this_process(monkeypatch)
        merge(folder / f"run.*.{suffix}", out := folder / f"all.{suffix}")
        if suffix == "h5":
            with h5py.File(out) as file:
                at = file["processes/000007/streams/000000/data_0"].id.get_chunk_info(0).byte_offset
            data = bytearray(out.read_bytes())
            data[at + 3] ^= 1
            out.write_bytes(data)
        else:
            flip(out / "process-000007.arrow" / "pool-000000.arrow", 0.5)
        found = verify(out)
        assert not found.ok
        assert all("000007" in fault.file for fault in found.faults)
        before = out.read_bytes() if suffix == "h5" else None
        done = repair(out)
        assert done.action == "salvaged"
        assert done.result is not None
        assert dict(done.lost) == {"act": 6}
        assert verify(done.result).ok
        records = seen(done.result)[0][0]
        assert records == list(seen(folder / f"run.[01].{suffix}")[0][0])
        with open_trace(done.result) as trace:
            assert trace.processes == (0, 1, 7)
        assert before is None or out.read_bytes() == before

    def test_the_list(self, folder, suffix, monkeypatch):
        """Without it nothing opens; repair takes the processes that are there."""
        in_this_process(monkeypatch)
        merge(folder / f"run.*.{suffix}", out := folder / f"all.{suffix}")
        if suffix == "h5":
            with h5py.File(out, "a") as file:
                text = file.attrs["processes"].replace(b"run.7.h5", b"run.8.h5")
                file.attrs.modify("processes", np.bytes_(text))
        else:
            (out / merged.LIST).write_text((out / merged.LIST).read_text().replace("run.7", "run.8"))
        with pytest.raises(TraceFormatError, match="list of processes: its CRC-32C"):
            open_trace(out)
        found = verify(out)
        assert set(found.counts) == {"processes-listed"}
        assert found.records == 19
        done = repair(out)
        assert done.whole
        assert done.result is not None
        assert seen(done.result)[0] == seen(folder / f"run.*.{suffix}")[0]

    def test_a_process_that_is_gone(self, folder, suffix, monkeypatch):
        """It is named, and the others are kept."""
        in_this_process(monkeypatch)
        merge(folder / f"run.*.{suffix}", out := folder / f"all.{suffix}")
        if suffix == "h5":
            with h5py.File(out, "a") as file:
                del file["processes/000001"]
        else:
            shutil.rmtree(out / "process-000001.arrow")
        with pytest.raises(TraceFormatError, match="000001"):
            open_trace(out)
        assert set(verify(out).counts) == {"readable"}
        done = repair(out)
        assert done.losses == (f"run.1.{suffix}: nothing of it can be opened",)
        assert done.result is not None
        assert seen(done.result)[0] == seen(folder / f"run.[07].{suffix}")[0]

    def test_links_are_not_followed(self, folder, suffix):
        """Neither in a file nor in a folder."""
        merge(folder / f"run.*.{suffix}", out := folder / f"all.{suffix}")
        if suffix == "h5":
            with h5py.File(out, "a") as file:
                del file["processes/000001"]
                file["processes/000001"] = h5py.ExternalLink("run.1.h5", "/")
        else:
            shutil.rmtree(out / "process-000001.arrow")
            (out / "process-000001.arrow").symlink_to(folder / "run.1.arrow")
        with pytest.raises(TraceFormatError, match="000001"):
            open_trace(out)
        assert not verify(out).ok

    def test_as_a_part_of_something_else(self, folder):
        """What expects one process's recording says what it found."""
        from tracerec.formats.hdf5.reading import Hdf5Source

        merge(folder / "run.*", folder / "all.h5")
        with pytest.raises(TraceFormatError, match="is a merged recording of several processes"):
            Hdf5Source(folder / "all.h5")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format":"other"}',
        '{"format":"tracerec-processes"}',
        merged.text_of([merged.Process(0, "a"), merged.Process(0, "b")]),
        merged.text_of([merged.Process(1, "a"), merged.Process(0, "b")]),
        merged.text_of([]),
        merged.text_of([merged.Process(-1, "a")]),
        merged.text_of([merged.Process("1", "a")]),  # type: ignore[arg-type]
        merged.text_of([merged.Process(10**10, "a")]),
        merged.text_of([merged.Process(0, 5)]),  # type: ignore[arg-type]
        merged.text_of([merged.Process(0, "a")]).replace('"a"', '"b"'),
        merged.text_of([merged.Process(0, "a")]).replace("1.3", "9.0"),
    ],
)
def test_lists_that_are_none(text):
    """Each is refused with a ValueError."""
    with pytest.raises(ValueError, match="list of processes"):
        merged.parsed(text)


def in_this_process(monkeypatch):
    """Repairs are quicker without a process of their own."""
    from tracerec.salvaging.worker import work

    monkeypatch.setattr("tracerec.repairing.run_order", lambda order: work(order, lambda: None))
