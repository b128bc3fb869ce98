from __future__ import annotations

import dataclasses
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import jsonschema
import numpy as np
import pytest
from rich.cells import cell_len

from tests.cli.conftest import HOSTILE
from tests.cli.inside import inside
from tests.cli.running import COMMAND, tracerec
from tests.memory_source import MemorySource, make_stream
from tests.trace.streams import journal, training
from tracerec.cli import main
from tracerec.formats.hdf5.seal import seal
from tracerec.journal.lock import JournalLock
from tracerec.model import Leaf, Site, Transform
from tracerec.trace import open_trace

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "inspect.schema.json").read_text())

ENDED = {"ended": 6, "dropped": {}, "lost": {}, "high_water_bytes": 0, "failure": None}
LAYER_SETS = ("000000/data_0", "000000/data_1")


def row_of(output, *words):
    """Returns the one line that has all these words."""
    (line,) = [line for line in output.splitlines() if all(word in line for word in words)]
    return line


def on_a_terminal(path, columns, **environment):
    """Returns what the command writes to a terminal of a width."""
    main, other = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "FORCE_COLOR"}}
    env |= {"COLUMNS": str(columns), "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **environment}
    process = subprocess.Popen([*COMMAND, "inspect", str(path)], stdout=other, stderr=other, stdin=other, env=env)
    os.close(other)
    parts = []
    while True:
        try:
            part = os.read(main, 1 << 16)
        except OSError:  # Linux says so when the other side is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(main)
    assert process.wait(timeout=60) == 0
    return b"".join(parts).decode().replace("\r\n", "\n")


class TestText:
    def test_run(self, recording):
        """The lines about the run."""
        done = tracerec("inspect", recording)
        assert (done.returncode, done.stderr) == (0, "")
        first, *lines = done.stdout.splitlines()
        assert first.startswith(f"{recording}  ")
        assert first.endswith("✓ ended cleanly")
        facts = dict(line.rstrip().split(maxsplit=1) for line in lines[:9] if line.strip())
        assert facts["run"] == "0123456789abcdef0123456789abcdef"
        assert facts["started"] == "2023-11-14 22:13:20 UTC, ran 1 min 0 s"
        assert facts["host"] == "node-1, process 4711"
        assert facts["command"] == "python train.py"
        assert facts["devices"] == "1 \N{MULTIPLICATION SIGN} cpu"
        assert facts["records"] == "25 of 3 taps in 6 streams, 0.42 a second"
        assert re.fullmatch(r"[\d.]+ kB of records in [\d.]+ kB, [\d.]+ to 1", facts["stored"])

    def test_rows(self, recording):
        """One row a stream and leaf, with all columns in a pipe."""
        output = tracerec("inspect", recording).stdout
        header = row_of(output, "tap", "leaf").split()
        assert header[:12] == [
            "tap",
            "transforms",
            "leaf",
            "shape",
            "dtype",
            "records",
            "steps",
            "size",
            "min",
            "mean",
            "max",
            "NaN",
        ]
        row = row_of(output, "layer", "['b']")
        assert "(3,)" in row
        assert "bfloat16" in row
        assert "0\N{EN DASH}50" in row
        assert row_of(output, "layer", "jvp, transpose", "['w']")
        losses = [line for line in output.splitlines() if line.startswith("loss")]
        assert [line.split()[1] for line in losses] == ['phase="train"', 'phase="eval"']
        assert losses[0].split()[-6:] == ["1", "1", "1", "0", "0", "█▇▅▄▂▁"]

    def test_no_colour_in_a_pipe(self, faulty):
        """A pipe gets no escape sequence, however bad the news."""
        assert "\x1b" not in tracerec("inspect", faulty).stdout

    def test_faults(self, faulty):
        """A run that did not end well says so, with what is lost and what is not finite."""
        output = tracerec("inspect", faulty).stdout
        assert output.splitlines()[0].endswith("✗ did not end cleanly  ✗ 3 records missing")
        assert "last record after" in row_of(output, "started")
        assert "3 records not recorded: 3 of" in row_of(output, "missing ")
        assert "the last segment ends in a torn frame" in row_of(output, "note ")
        assert "at most 12.3 kB waited to be written" in output
        assert row_of(output, "attention_weights").split()[-3:-1] == ["3", "2"]

    def test_names_are_escaped(self, faulty):
        """Control characters of names, kwargs and metadata never reach the terminal."""
        for output in (tracerec("inspect", faulty).stdout, on_a_terminal(faulty, 200, NO_COLOR="1", TERM="dumb")):
            assert r"evil\x1b]0;title\x07\u202e\x0a/name" in output
            assert "\x07" not in output
            assert "\u202e" not in output
            assert "\x1b]" not in output
            assert "\x1b[31m" not in output

    def test_recording_that_goes_on_and_one_that_was_killed(self, tmp_path):
        """What decides is whether a process holds the journal."""
        folder = journal(tmp_path / "run.h5")
        lock = JournalLock(folder)
        going = tracerec("inspect", tmp_path / "run.h5").stdout.splitlines()[0]
        lock.forget()
        killed = tracerec("inspect", tmp_path / "run.h5").stdout.splitlines()[0]
        assert going.endswith("● still recording")
        assert killed.endswith("✗ did not end cleanly")
        assert tracerec("inspect", folder, encoding="ascii").stdout.splitlines()[0].endswith("! did not end cleanly")

    def test_recording_that_stopped_early(self, tmp_path):
        """The reason and what is missing, tap by tap, come before all else, in red on a terminal."""
        lost = {"loss": 2, "encoder/act": 1}
        folder = journal(tmp_path / "run.h5", end=ENDED | {"lost": lost, "failure": "OSError: No space left on device"})
        title, note, _, missing, *_ = tracerec("inspect", folder).stdout.splitlines()
        assert title.endswith("✗ recording stopped early  ✗ 3 records missing")
        assert note.split(maxsplit=1) == ["note", "recording stopped early: OSError: No space left on device"]
        assert missing.split(maxsplit=1) == ["missing", "3 records not recorded: 2 of 'loss', 1 of 'encoder/act'"]
        shown = on_a_terminal(folder, 120)
        assert "\x1b[1;31mrecording stopped early: OSError: No space left on device" in shown
        assert "\x1b[1;31m3 records not recorded: 2 of 'loss', 1 of 'encoder/act'" in shown

    def test_one_missing_record(self, tmp_path):
        """One record is no records; the run itself ended cleanly."""
        folder = journal(tmp_path / "run.h5", end=ENDED | {"dropped": {"loss": 1}})
        output = tracerec("inspect", folder).stdout
        assert output.splitlines()[0].endswith("✓ ended cleanly  ✗ 1 record missing")
        assert "1 record not recorded: 1 of 'loss'" in output
        assert "1 record is missing: it was dropped" in output
        assert "1 records" not in output

    @pytest.mark.parametrize("columns", [None, 60, 100])
    def test_no_space_at_the_end_of_a_line(self, faulty, columns):
        """Lines end where their text does, in a pipe and on a terminal."""
        lines = tracerec("inspect", faulty, columns=columns).stdout.splitlines()
        assert [line for line in lines if line != line.rstrip()] == []
        for line in on_a_terminal(faulty, columns or 200, NO_COLOR="1", TERM="dumb").splitlines():
            assert line == line.rstrip()

    def test_size_of_each_leaf(self, recording):
        """The rows of a pytree have the bytes of their own chunks; an only leaf has those of its stream."""
        with h5py.File(recording) as file:
            stored = {name: file["streams"][name].id.get_storage_size() for name in LAYER_SETS}
            alone = sum(d.id.get_storage_size() for d in file["streams/000001"].values())
        output = tracerec("inspect", recording).stdout
        layers = [line for line in output.splitlines() if line.startswith("layer")]
        sizes = [re.search(r"(\d+) B", line)[1] for line in layers]  # pyright: ignore[reportOptionalSubscript]
        assert [int(s) for s in sizes] == [*stored.values(), alone]

    def test_magnitudes_of_complex_numbers(self, tmp_path):
        """A sentence says so where a complex leaf is listed, and only there."""
        site = Site("z", (Leaf("", (2,), "complex64"),))
        seal(MemorySource([make_stream(site, [[[3 + 4j, 0]]])]), tmp_path / "z.h5")
        output = tracerec("inspect", tmp_path / "z.h5").stdout
        assert row_of(output, "complex64").split()[-6:-3] == ["0", "2.5", "5"]
        assert "The numbers of complex leaves are those of their magnitudes." in output

    @pytest.mark.parametrize("columns", [50, 80, 100, 160, 250])
    @pytest.mark.parametrize("which", ["recording", "faulty"])
    def test_width(self, which, columns, request):
        """No line is wider than the terminal, NaN and Inf stay, and what is left out is named."""
        output = tracerec("inspect", request.getfixturevalue(which), columns=columns).stdout
        lines = output.splitlines()
        assert max(map(cell_len, lines)) <= columns
        assert "…" not in output
        if which == "faulty":
            assert row_of(output, "tap  ", "NaN", "Inf")
        if columns < 130:
            assert "Not shown for want of width: size" in " ".join(output.split())
        else:
            assert ("Not shown" in output) == ("size" not in row_of(output, "tap  ", "mean"))

    def test_narrow_table_says_that_all_is_finite(self, recording):
        """Columns of zeros go first, with a sentence in their place."""
        output = tracerec("inspect", recording, columns=80).stdout
        assert "NaN" in output  # a leaf has one
        assert "There is no Inf." in output

    def test_records_that_do_not_count(self, masked):
        """How many of the records count; NaN and Inf of the others are not there."""
        output = tracerec("inspect", masked).stdout
        assert " 3 of 9 " in row_of(output, "some")
        assert row_of(output, "some").split()[-6:] == ["1", "1.5", "2", "0", "0", "▄▄▄"]

    @pytest.mark.parametrize("columns", [50, 80, 100, 250])
    def test_lanes_that_may_be_invalid(self, masked, columns):
        """They are marked at every width, without numbers; a sentence says why."""
        output = tracerec("inspect", masked, columns=columns).stdout
        text = " ".join(output.split())
        assert "batch(4) ?" in text
        assert "?: the tap is in a branch or loop that vmap runs for all lanes" in text
        assert "no statistics are shown (--raw shows them)" in text
        assert "where=" in text
        assert "30" not in row_of(output, "batch(4) ?").split()
        if columns == 80:
            assert "There is no NaN and no Inf in streams without ?." in text
            assert "NaN" not in row_of(output, "tap ", "records")
        assert max(map(cell_len, output.splitlines())) <= columns

    def test_raw(self, masked):
        """Asked for, their statistics are there, and still marked."""
        output = tracerec("inspect", masked, "--raw").stdout
        assert row_of(output, "batch(4) ?").split()[-6:] == ["1", "2", "3", "1", "0", "█▁"]
        assert "statistics count them" in output

    def test_no_mark_without_need(self, recording):
        """A recording without such lanes has no word about them."""
        output = tracerec("inspect", recording).stdout
        assert "?" not in output
        assert "complex" not in output

    @pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
    def test_poor_encoding(self, faulty, encoding):
        """Where the output lacks block characters, ASCII draws the line; nothing fails."""
        done = tracerec("inspect", faulty, encoding=encoding)
        assert (done.returncode, done.stderr) == (0, "")
        assert row_of(done.stdout, 'phase="train"').split()[-1] == "%#+=._"
        assert row_of(done.stdout, "----").strip("- ") == ""

    def test_terminal_has_colour(self, faulty):
        """On a terminal bad counts are red, and a tap's name stands in the first of its rows only."""
        output = on_a_terminal(faulty, 120)
        assert "\x1b[1;31m" in output
        assert output.count("ragged") == 2
        rows = [line for line in output.splitlines() if "['w']" in line]
        assert not any("layer" in line for line in rows)

    def test_no_color(self, faulty):
        """NO_COLOR takes the colours away."""
        output = on_a_terminal(faulty, 120, NO_COLOR="1")
        assert re.findall(r"\x1b\[[0-9;]*3[0-9]m", on_a_terminal(faulty, 120))
        assert not re.findall(r"\x1b\[[0-9;]*3[0-9]m", output)

    def test_empty_recording(self, tmp_path):
        """A run without taps is no error."""
        seal(MemorySource([]), tmp_path / "run.h5")
        done = tracerec("inspect", tmp_path / "run.h5")
        assert done.returncode == 0
        assert "Nothing was recorded." in done.stdout


class TestManyStreams:
    @pytest.fixture(scope="class")
    @staticmethod
    def many(tmp_path_factory):
        """120 streams of 60 taps, of one more record each; the last but one has a NaN."""
        path = tmp_path_factory.mktemp("many") / "many.h5"
        streams = []
        for number in range(120):
            values = np.ones((1 + number, 2), np.float32)
            values[0, 0] = np.nan if number == 118 else 1
            transforms = (Transform("jvp"),) * (number % 2)
            site = Site(f"layer_{number // 2:02}", (Leaf("", (2,), "float32"),), transforms=transforms)
            streams.append(make_stream(site, [values], first=1000 * number))
        seal(MemorySource(streams), path)
        return path

    @pytest.mark.parametrize("columns", [60, 200])
    def test_limit(self, many, columns):
        """A terminal is shown the first, with how many there are, and whether the others are well."""
        done = inside("inspect", many, columns=columns)
        text = " ".join(done.out.split())
        assert len([line for line in done.out.splitlines() if "layer_" in line]) in (25, 50)
        assert "50 of 120 streams are shown; 1 of the others have NaN or Inf (--sort nan)." in text
        assert "--all shows all" in text
        assert "no NaN and no Inf in these" in text or columns == 200
        assert max(map(cell_len, done.out.splitlines())) <= columns

    @pytest.mark.parametrize(("args", "columns"), [(("--all",), 100), ((), None), (("--all",), None)])
    def test_all(self, many, args, columns):
        """Asked for, and in a pipe, there are all of them; nothing is said to be left out."""
        done = inside("inspect", many, *args, columns=columns)
        assert done.out.count("float32") == 120
        assert "are shown" not in done.out

    def test_patterns(self, many):
        """Several; what is selected of how many."""
        done = inside("inspect", many, "--tap", "layer_0[12]", "--tap", "layer_59")
        assert done.out.count("float32") == 6
        assert done.out.endswith("6 of 120 streams are shown: those of the taps asked for.\n")
        done = inside("inspect", many, "--tap", "layer_[0-3]*", columns=100)
        assert "50 of 80 streams of the taps asked for, 120 in all are shown" in " ".join(done.out.split())
        done = inside("inspect", many, "--tap", "layr_00")
        assert (done.status, done.out) == (2, "")
        assert "has no tap that matches 'layr_00'; did you mean 'layer_00'" in done.err

    @pytest.mark.parametrize(
        ("by", "first"),
        [("order", ["layer_00", "layer_00"]), ("name", ["layer_00", "layer_00"]), ("records", ["layer_59", "layer_59"]),
         ("nan", ["layer_59", "layer_00"])],
    )  # fmt: skip
    def test_sort(self, many, by, first):
        """The first rows, also as JSON."""
        done = inside("inspect", many, "--sort", by)
        rows = [line.split()[0] for line in done.out.splitlines() if line.startswith("layer_")]
        parsed = json.loads(inside("inspect", many, "--sort", by, "--json").out)
        assert rows[:2] == [stream["tap"] for stream in parsed["streams"][:2]] == first
        jsonschema.Draft202012Validator(SCHEMA).validate(parsed)

    def test_sort_by_bytes(self, many):
        """The most first."""
        sizes = [s["bytes"] for s in json.loads(inside("inspect", many, "--sort", "bytes", "--json").out)["streams"]]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] > sizes[-1]

    def test_json_of_some(self, many):
        """How many there are in all is there."""
        parsed = json.loads(inside("inspect", many, "--tap", "layer_00", "--json").out)
        assert (len(parsed["streams"]), parsed["streams_in_all"]) == (2, 120)
        assert parsed["streams"][1]["raw_bytes"] == 2 * (2 * 4 + 64)


def test_several_processes(tmp_path):
    """A line with one part a process."""
    for number in range(2):
        source = training()
        info = dataclasses.replace(source.info, run_id=f"{number:032}", host=f"node-{number}")
        seal(MemorySource(source.streams, info=info), tmp_path / f"run.{number}.h5")
    done = inside("inspect", tmp_path / "run.*.h5")
    assert "processes  node-0 4711, 25 records · node-1 4711, 25 records" in done.out
    parsed = json.loads(inside("inspect", tmp_path / "run.*.h5", "--json").out)
    jsonschema.Draft202012Validator(SCHEMA).validate(parsed)
    assert [process["host"] for process in parsed["run"]["processes"]] == ["node-0", "node-1"]


class TestJson:
    def test_one_strict_object(self, faulty):
        """--json prints the library's overview as one object by the schema, in ASCII."""
        done = tracerec("inspect", faulty, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.isascii()
        assert all(c.isprintable() or c == "\n" for c in done.stdout)

        def refuse(constant):
            raise AssertionError(constant)

        parsed = json.loads(done.stdout, parse_constant=refuse)
        jsonschema.Draft202012Validator(SCHEMA).validate(parsed)
        with open_trace(faulty) as trace:
            assert parsed == trace.overview()
        assert HOSTILE in {stream["tap"] for stream in parsed["streams"]}

    @pytest.mark.parametrize("raw", [False, True])
    def test_lanes_that_may_be_invalid(self, masked, raw):
        """A program sees the mark, and no statistics unless it asks."""
        done = tracerec("inspect", masked, "--json", *["--raw"] * raw)
        parsed = json.loads(done.stdout)
        jsonschema.Draft202012Validator(SCHEMA).validate(parsed)
        some, branch = parsed["streams"]
        assert (some["lanes_may_be_invalid"], branch["lanes_may_be_invalid"]) == (False, True)
        assert (branch["leaves"][0]["summary"] is not None) == raw
        with open_trace(masked) as trace:
            assert parsed == (trace.raw if raw else trace).overview()


class TestErrors:
    @pytest.mark.parametrize("option", [(), ("--json",)])
    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("missing.h5", None, "there is no trace at"),
            ("empty.h5", b"", "is empty"),
            ("notes.txt", b"hello", "is not a trace"),
            ("torn.h5", b"\x89HDF\r\n\x1a\n", "torn.h5"),
            ("run.arrow", b"ARROW1", "is not a trace"),
        ],
    )
    def test_one_line_and_status_2(self, tmp_path, name, content, message, option):
        """What cannot be read gets one line on standard error, nothing on standard output."""
        if content is not None:
            (tmp_path / name).write_bytes(content)
        done = tracerec("inspect", tmp_path / name, *option)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("tracerec: ")
        assert done.stderr.count("\n") == 1
        assert message in done.stderr
        assert name in done.stderr

    @pytest.mark.parametrize("path", ["", ".", "..", "/", "//", "./", "../..", "/dev/null", "/dev/zero", "x" * 5000])
    @pytest.mark.parametrize("option", [(), ("--json",)])
    def test_odd_paths(self, path, option):
        """Paths without a name, devices, names too long: one line and status 2."""
        done = tracerec("inspect", path, *option)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith("tracerec: ")

    def test_file_that_may_not_be_read(self, monkeypatch, capsys):
        """The same line as for other files that cannot be read, and no box."""
        with tempfile.TemporaryDirectory() as name:
            folder, path = Path(name), Path(name, "run.h5")
            folder.chmod(0o755)
            path.touch(mode=0)
            monkeypatch.setattr(sys, "argv", ["tracerec", "inspect", str(path)])
            with pytest.raises(SystemExit):
                main()  # imports what it needs: another user may not read the interpreter's own files
            capsys.readouterr()
            if not os.getuid():
                os.seteuid(65534)  # root reads everything
            try:
                with pytest.raises(SystemExit) as ended:
                    main()
            finally:
                os.seteuid(os.getuid())
        assert ended.value.code == 2
        assert capsys.readouterr() == ("", f"tracerec: {path} cannot be read: Permission denied\n")

    def test_hostile_path(self, tmp_path):
        """A path with control characters is escaped, too."""
        done = tracerec("inspect", tmp_path / "a\x1b[31m\nb.h5")
        assert done.stderr.count("\n") == 1
        assert "\x1b" not in done.stderr
