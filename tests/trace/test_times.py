"""Times as people write them, and selections by time and attempt."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest

from tests.memory_source import STARTED, MemorySource, make_stream
from tests.trace.test_indexing import SITE
from tracerec.errors import SelectionError
from tracerec.formats.contract import RunInfo
from tracerec.trace import Trace
from tracerec.trace.times import ranges

DAY = 86_400_000_000_000
BEGIN = dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)


def ns(time):
    """Returns nanoseconds since the epoch, by datetime's arithmetic."""
    return (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1) * 1000


@pytest.mark.parametrize(
    ("wanted", "start", "length"),
    [
        ("2026-05-01", ns(dt.datetime(2026, 5, 1, tzinfo=dt.UTC)), DAY),
        ("2026-02", ns(dt.datetime(2026, 2, 1, tzinfo=dt.UTC)), 28 * DAY),
        ("2024", ns(dt.datetime(2024, 1, 1, tzinfo=dt.UTC)), 366 * DAY),
        ("2026-05-01T12:30", ns(dt.datetime(2026, 5, 1, 12, 30, tzinfo=dt.UTC)), 60 * 10**9),
        ("2026-05-01 12:30:05", ns(dt.datetime(2026, 5, 1, 12, 30, 5, tzinfo=dt.UTC)), 10**9),
        ("2026-05-01T12:30:05.25Z", ns(dt.datetime(2026, 5, 1, 12, 30, 5, 250000, tzinfo=dt.UTC)), 10**6),
        ("2026-05-01T12:30+05:30", ns(dt.datetime(2026, 5, 1, 7, 0, tzinfo=dt.UTC)), 60 * 10**9),
        ("2026-05-01T12:30-0800", ns(dt.datetime(2026, 5, 1, 20, 30, tzinfo=dt.UTC)), 60 * 10**9),
        ("2026-05-01T00:00:00.123456789", ns(dt.datetime(2026, 5, 1, tzinfo=dt.UTC)) + 123456789, 1),
        (dt.datetime(2026, 5, 1, 12), ns(dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)), 1000),  # noqa: DTZ001 - naive
        (
            dt.datetime(2026, 5, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            ns(dt.datetime(2026, 5, 1, 10, tzinfo=dt.UTC)),
            1000,
        ),
        (dt.date(2026, 5, 1), ns(dt.datetime(2026, 5, 1, tzinfo=dt.UTC)), DAY),
        (np.datetime64("2026-05-01T12", "h"), ns(dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)), 3600 * 10**9),
        (np.datetime64(5, "ns"), 5, 1),
        (np.datetime64(5, "ps"), 0, 1),
        (np.datetime64("2026-05-01T12:30", "15m"), ns(dt.datetime(2026, 5, 1, 12, 30, tzinfo=dt.UTC)), 900 * 10**9),
        ("9999-12-31", ns(dt.datetime(9999, 12, 31, tzinfo=dt.UTC)), DAY),
    ],
)
def test_spans(wanted, start, length):
    """A time stands for all times within its precision, in UTC, also beyond what 64 bits of nanoseconds hold."""
    assert ranges(wanted) == [(start, start + length)]


def test_pandas_timestamps():
    """They have nanoseconds, and zones."""
    pandas = pytest.importorskip("pandas")
    assert ranges(pandas.Timestamp("2026-05-01T02:00:00.000000007", tz="Europe/Berlin")) == ranges(
        "2026-05-01T00:00:00.000000007"
    )


@pytest.mark.parametrize(
    "wanted", ["yesterday", "now", "", 5, 5.0, True, np.datetime64("NaT", "s"), [3], "NaT", b"2026"]
)
def test_no_times(wanted):
    """What is no time is said to be none."""
    with pytest.raises(SelectionError, match=r"a time is a datetime, a numpy\.datetime64, an ISO 8601 text"):
        ranges(wanted)


class TestSel:
    @pytest.fixture
    def tap(self):
        """Records one a second."""
        stream = make_stream(SITE, [np.zeros((10, 3))], [range(10)], time=STARTED + 10**9 * np.arange(10))
        return Trace(MemorySource([stream]))["x"]

    @pytest.mark.parametrize(
        ("wanted", "expected"),
        [
            (BEGIN, [0]),
            ("2023-11-14T22:13:25", [5]),
            ("2023-11-14T22:13", range(10)),
            (slice("2023-11-14T22:13:22Z", "2023-11-14T23:13:24+01:00"), [2, 3]),
            (slice(BEGIN + dt.timedelta(seconds=7), None), [7, 8, 9]),
            (slice(None, np.datetime64(STARTED + 10**9 + 1, "ns")), [0, 1]),
            (slice("1600", "9999"), range(10)),
            ([BEGIN, "2023-11-14T22:13:29"], [0, 9]),
            (np.array([STARTED, STARTED + 3 * 10**9], "datetime64[ns]"), [0, 3]),
        ],
    )
    def test_time(self, tap, wanted, expected):
        """Half-open slices, single times and iterables."""
        assert tap.sel(time=wanted).steps.tolist() == list(expected)
        assert tap.sel(time=wanted, step=slice(0, 99)).raw.steps.tolist() == list(expected)

    def test_no_record(self, tap):
        """The error says from when to when there are some."""
        message = r"no record with time='2024'; they go from 2023-11-14T22:13:20\.0+ to 2023-11-14T22:13:29\.0+$"
        with pytest.raises(SelectionError, match=message):
            tap.sel(time="2024")
        with pytest.raises(SelectionError, match="a slice of times has no step, not 2"):
            tap.sel(time=slice("2023", None, 2))


class TestAttempt:
    """Steps 0 to 5, then steps 4 to 7 once more."""

    @pytest.fixture
    def tap(self):
        """A continued recording; every third record does not count."""
        stream = make_stream(SITE, [np.zeros((10, 3))], [[0, 1, 2, 3, 4, 5, 4, 5, 6, 7]])
        info = RunInfo("0" * 32, 0, ended=1, attempts=({"first_arrival": 0}, {"first_arrival": 6}))
        return Trace(MemorySource([stream], info))["x"]

    def test_an_attempt_has_all_that_it_recorded(self, tap):
        """Also what a later one recorded again; without it the later is shown."""
        assert tap.steps.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
        assert tap.sel(attempt=0).steps.tolist() == [0, 1, 2, 3, 4, 5]
        assert tap.sel(attempt=1).steps.tolist() == [4, 5, 6, 7]
        assert [r.attempt for r in tap.sel(attempt=[0, 1], step=4)] == [0, 1]
        assert [r.attempt for r in tap.sel(step=4).sel(attempt=0)] == [0]
        assert tap.leaf("").streams[0].sel(attempt=0, step=slice(4, None)).steps.tolist() == [4, 5]
        assert tap.raw.sel(attempt=0).steps.tolist() == tap.sel(attempt=0).raw.steps.tolist() == [0, 1, 2, 3, 4, 5]

    def test_of_chosen_records(self, tap):
        """Records chosen by number stay the same: what was superseded is not among them."""
        assert tap[::-1].sel(attempt=0).steps.tolist() == [3, 2, 1, 0]

    def test_no_such_attempt(self, tap):
        """The error says which there are."""
        with pytest.raises(SelectionError, match="no record with attempt=2; they go from 0 to 1"):
            tap.sel(attempt=2)
        plain = Trace(MemorySource([make_stream(SITE, [np.zeros((2, 3))], [[0, 1]])]))["x"]
        assert len(plain.sel(attempt=0)) == 2
        with pytest.raises(SelectionError, match="no record with attempt=1; they go from 0 to 0"):
            plain.sel(attempt=1)
