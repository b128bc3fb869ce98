from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from tests.cli.conftest import HOSTILE
from tests.cli.inside import inside
from tests.cli.running import tracerec
from tests.memory_source import MemorySource, make_stream
from tests.trace.streams import leaf, training
from tracerec.formats.hdf5.seal import seal
from tracerec.model import Leaf, Site
from tracerec.trace import open_trace

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "replay.schema.json").read_text())


class TestPrint:
    def test_all_records_in_program_order(self, recording):
        """The tap and its kwargs, then each array, as numpy prints them."""
        done = inside("replay", recording, "--print")
        assert (done.status, done.err) == (0, "")
        heads = [line for line in done.out.splitlines() if line.startswith("tap: ")]
        with open_trace(recording) as trace:
            assert [head.split("  ")[0] for head in heads] == [f"tap: {record.tap}" for record in trace.records()]
        weights = leaf(training(), 0, 1)
        assert np.array2string(weights[0]) in done.out
        assert heads[2] == "tap: loss  lr: 0.1  phase: train  step: 0"
        assert "tap: layer  step: 0  transform_params: ({}, {})  transforms: ('jvp', 'transpose')" in done.out

    def test_tap_patterns(self, recording):
        """Several; a record that matches two of them is printed once."""
        done = inside("replay", recording, "--print", "--tap", "lo*", "--tap", "loss", "--tap", "ragged")
        heads = [line.split("  ")[0] for line in done.out.splitlines() if line.startswith("tap: ")]
        assert heads.count("tap: loss") == 8
        assert heads.count("tap: ragged") == 5
        assert len(heads) == 13

    def test_arrival_order(self, recording):
        """It can differ from the program's."""
        done = inside("replay", recording, "--json", "--order", "arrival")
        arrivals = [json.loads(line)["arrival"] for line in done.out.splitlines()]
        assert arrivals == sorted(arrivals)
        assert len(arrivals) == 25

    def test_threshold(self, tmp_path):
        """Larger arrays are summarised."""
        site = Site("t", (Leaf("", (20,), "int32"),))
        seal(MemorySource([make_stream(site, [[list(range(20))]])]), tmp_path / "t.h5")
        done = inside("replay", tmp_path / "t.h5", "--print", "--threshold", "10")
        assert done.out == "tap: t\n[ 0  1  2 ... 17 18 19]\n"
        assert "..." not in inside("replay", tmp_path / "t.h5", "--print").out

    def test_realtime(self, recording):
        """Records a millisecond apart, a thousand times as fast."""
        assert inside("replay", recording, "--print", "--realtime", "1000").status == 0

    def test_hostile_names(self, faulty):
        """Nothing that a terminal would obey."""
        done = inside("replay", faulty, "--print")
        assert "\x1b" not in done.out
        assert r"tap: evil\x1b]0;title\x07\u202e\x0a/name  mode: \x1b[1m" in done.out.replace("\n", r"\x0a")

    def test_records_that_do_not_count(self, masked):
        """They are left out."""
        done = inside("replay", masked, "--print", "--tap", "some")
        assert done.out == "tap: some\n[1. 2.]\n" * 3


class TestJson:
    def test_an_object_a_line(self, faulty):
        """All values; numbers that JSON lacks are text."""
        done = inside("replay", faulty, "--json")
        objects = [json.loads(line, parse_constant=pytest.fail) for line in done.out.splitlines()]
        for each in objects:
            jsonschema.Draft202012Validator(SCHEMA).validate(each)
        assert done.out.isascii()
        assert len(objects) == 25 + 4 + 1
        bad = [x for x in objects if x["tap"].endswith("attention_weights")]
        assert bad[1]["leaves"][0]["values"][:4] == ["nan", "nan", "nan", 0.0]
        assert bad[2]["leaves"][0]["values"][0] == "inf"
        assert bad[1]["transforms"] == ["jvp", "transpose"]
        (hostile,) = [x for x in objects if x["tap"] == HOSTILE]
        assert hostile["kwargs"] == {"mode": "\x1b[1m"}
        assert [x["path"] for x in hostile["leaves"]] == ["['b']", "['w']"]


class TestErrors:
    def test_nothing_to_do(self, recording):
        """Usage."""
        done = inside("replay", recording)
        assert (done.status, done.out) == (2, "")
        assert "say what to do with the records: --print or --json" in " ".join(done.err.split()).replace("│ │ ", "")

    def test_unknown_tap(self, recording):
        """One line with the nearest names."""
        done = inside("replay", recording, "--print", "--tap", "losss")
        assert (done.status, done.out) == (2, "")
        assert done.err == f"tracerec: {recording} has no tap that matches 'losss'; did you mean 'loss'?\n"

    def test_reader_that_goes_away(self, recording):
        """No traceback, and not the consumer's fault."""
        script = f"tracerec replay {recording} --print | head -1"
        command = f"{sys.executable} -m {script} ; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True, check=False)
        assert done.stdout.count("\n") == 1
        assert done.stderr == ""
        assert done.returncode in (0, 141)

    def test_bad_factor(self, recording):
        """One line."""
        done = tracerec("replay", recording, "--print", "--realtime", "-1")
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "realtime is True, False or a positive factor" in done.stderr
