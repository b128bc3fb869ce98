"""docs/protocol.md: its programs run, and its tables are the code's."""

from __future__ import annotations

import re
from pathlib import Path

from tracerec.protocol import dtypes
from tracerec.protocol.stream import FrameStream

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
FIXTURE = ROOT / "tests" / "fixtures" / "frames-v1.bin"
READER, STREAM = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_reader_without_tracerec_reads_what_version_1_wrote():
    """The page's own program and the decoder find the same frames in the fixture."""
    names: dict = {}
    exec(READER, names)  # noqa: S102 - the page's program is what is tested
    assert "tracerec" not in READER
    read = [
        (consumer, [(code, tuple(dims), data) for code, dims, data in arrays])
        for consumer, arrays in names["read_frames"](FIXTURE.read_bytes())
    ]
    found = FrameStream().feed(FIXTURE.read_bytes())
    assert len(found) == 5
    assert read == [(f.consumer_id, [(dtypes.code_of(a.dtype), a.shape, a.tobytes()) for a in f.arrays]) for f in found]


def test_the_example_of_a_stream(tmp_path, monkeypatch, capsys):
    """It prints a line a frame and the counts."""
    monkeypatch.chdir(tmp_path)
    Path("segment-000000.frames").write_bytes(FIXTURE.read_bytes() + b"\x82\x08")
    exec(STREAM, {})  # noqa: S102 - the page's program is what is tested
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert lines[3] == "2 []"
    assert lines[5] == "Counts(frames=5, corrupt=0, skipped_bytes=0, torn=2)"


def test_the_table_of_type_codes():
    """Every code is there with its name."""
    cells = re.findall(r"\| (\d+) \| (\w+) (?=\|)", TEXT)
    assert sorted((int(code), name) for code, name in cells if name in dtypes.CODES) == list(enumerate(dtypes.NAMES))
