from __future__ import annotations

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracerec.cli._terminal import Glyphs, Terminal, duration, number, one_line, print_error, printable, size

UNICODE, ASCII = Glyphs("utf-8"), Glyphs("ascii")


class TestPrintable:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("encoder/act[0]", "encoder/act[0]"),
            ("größe Δ 模型", "größe Δ 模型"),
            ("\x1b[31m", r"\x1b[31m"),
            ("a\nb\tc\r\x07", r"a\x0ab\x09c\x0d\x07"),
            ("\x9b31m \x7f", r"\x9b31m \x7f"),
            ("\u202egnp\u200b", r"\u202egnp\u200b"),
            ("\ud800", r"\ud800"),
            ("\U000e0041", r"\U000e0041"),
        ],
    )
    def test_escapes(self, text, expected):
        """Control and format characters are escapes; letters of all languages are themselves."""
        assert printable(text) == expected

    def test_encoding(self):
        """What the output cannot encode is an escape."""
        assert printable("Δx", "ascii") == r"\u0394x"
        assert printable("é模", "latin-1") == r"é\u6a21"

    @given(st.text(st.characters(exclude_categories=[])))
    def test_never_a_control_character(self, text):
        """Whatever the text, only printable characters that the encoding has come out."""
        for encoding in ("utf-8", "ascii"):
            safe = printable(text, encoding)
            assert safe.isprintable()
            safe.encode(encoding)

    def test_one_line(self):
        """Line ends become spaces."""
        assert one_line("choose one:\n    a\r\n    b\x1b") == r"choose one: a b\x1b"


class TestSparkline:
    def test_from_low_to_high(self):
        """The lowest value is the lowest bar, the highest the highest."""
        assert UNICODE.sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
        assert ASCII.sparkline([7.0, 0.0], 8) == "%_"

    def test_missing_and_flat(self):
        """A missing value has a mark of its own; a flat line is in the middle."""
        assert ASCII.sparkline([1.0, None, 1.0], 8) == "=!="
        assert ASCII.sparkline([None, None], 8) == "!!"
        assert UNICODE.sparkline([], 8) == ""

    def test_thinned(self):
        """More values than fit are thinned; first and last stay, a missing one is never lost."""
        values: list[float | None] = [float(i) for i in range(100)]
        assert UNICODE.sparkline(values, 10)[0] == "▁"
        assert UNICODE.sparkline(values, 10)[-1] == "█"
        values[37] = None
        line = ASCII.sparkline(values, 10)
        assert (len(line), line.count("!")) == (10, 1)

    def test_extreme_values(self):
        """The span of float64's largest and smallest numbers overflows nothing."""
        assert UNICODE.sparkline([-1.7e308, 0.0, 1.7e308], 3) == "▁▅█"
        assert UNICODE.sparkline([0.0, 5e-324], 3) in {"▁█", "▅▅", "▁▁"}

    @given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False)), st.integers(1, 60))
    def test_any_values(self, values, width):
        """Every list of finite numbers gives a line of its length, or of the width."""
        assert len(UNICODE.sparkline(values, width)) == min(len(values), width)


class TestNumbers:
    @pytest.mark.parametrize(
        ("nbytes", "text"),
        [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (9_996, "10.0 kB"),
            (99_960, "100 kB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (5_000_000_000, "5.00 GB"),
            (10**18, "1000 PB"),
        ],
    )
    def test_size(self, nbytes, text):
        """Three digits in decimal units."""
        assert size(nbytes) == text

    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0.0004, "0 ms"),
            (0.25, "250 ms"),
            (59.9, "59.9 s"),
            (59.96, "1 min 0 s"),
            (3599.7, "1 h 0 min"),
            (7322, "2 h 2 min"),
            (200_000, "2 d 7 h"),
        ],
    )
    def test_duration(self, seconds, text):
        """Two units that fit the length."""
        assert duration(seconds) == text

    def test_number(self):
        """Four digits; nothing where there is no number."""
        assert [number(x) for x in (1234567.0, -0.5, 0.0, None)] == ["1.235e+06", "-0.5", "0", ""]


class TestTerminal:
    def test_pipe_is_not_folded(self, monkeypatch):
        """A pipe is as wide as need be, unless COLUMNS says otherwise."""
        monkeypatch.delenv("COLUMNS", raising=False)
        file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        assert Terminal(file).console.width > 10_000
        monkeypatch.setenv("COLUMNS", "72")
        assert Terminal(file).console.width == 72

    def test_markup_is_not_obeyed(self, monkeypatch):
        """Brackets in a name are brackets."""
        monkeypatch.setenv("COLUMNS", "72")
        raw = io.BytesIO()
        file = io.TextIOWrapper(raw, encoding="utf-8")
        Terminal(file).console.print("[bold]x[/bold] :smile:")
        file.flush()
        assert raw.getvalue() == b"[bold]x[/bold] :smile:\n"

    def test_errors_are_one_line(self, monkeypatch):
        """Standard error gets one line with the program's name, safe for its encoding."""
        raw = io.BytesIO()
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, encoding="ascii"))
        print_error("Δ\x1b\nx")
        sys.stderr.flush()
        assert raw.getvalue() == b"tracerec: \\u0394\\x1b x\n"
