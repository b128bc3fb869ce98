from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.running import COMMAND, tracerec
from tracerec._version import __version__


def test_version():
    """--version prints the version."""
    done = tracerec("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"tracerec {__version__}\n", "")


def test_help():
    """--help lists the commands."""
    done = tracerec("--help")
    assert done.returncode == 0
    assert "inspect" in done.stdout
    assert "Show what a recording holds" in done.stdout


@pytest.mark.parametrize("args", [(), ("nonsense",), ("inspect",), ("inspect", "a.h5", "--nonsense")])
def test_bad_usage(args):
    """Bad usage has status 2."""
    assert tracerec(*args).returncode == 2


@pytest.mark.parametrize("args", [("--help",), ("--version",), ("inspect", "--help")])
def test_help_loads_nothing_heavy(args):
    """Help must come at once: no library of numbers or files is imported."""
    code = (
        "import sys\n"
        "from tracerec.cli import main\n"
        f"sys.argv[1:] = {list(args)!r}\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = {'jax', 'jaxlib', 'numpy', 'pandas', 'pyarrow', 'h5py', 'hdf5plugin'} & set(sys.modules)\n"
        "sys.exit(' '.join(heavy) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def waiting(tmp_path):
    """A command that waits in the middle of its work, and the file that says that it does."""
    program = (
        "import pathlib, sys, time\n"
        "from tracerec import trace\n"
        "from tracerec.cli import main\n"
        "def wait(path):\n"
        "    pathlib.Path(path).touch()\n"
        "    time.sleep(60)\n"
        "trace.open_trace = wait\n"
        "main()\n"
    )
    return [sys.executable, "-c", program, "inspect", str(tmp_path / "started")], tmp_path / "started"


def test_interrupt(waiting):
    """Ctrl-C has status 130 and no traceback."""
    command, started = waiting
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(1000):
        if started.exists():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_reader_of_the_pipe_goes_away(recording, option):
    """Closing the pipe early ends the program quietly, as SIGPIPE does others."""
    read, write = os.pipe()
    os.close(read)
    command = [*COMMAND, "inspect", str(recording), *option]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("args", [("inspect",), ("inspect", "--json"), ("--help",), ("--version",)])
def test_full_disk(recording, args, unbuffered):
    """Output that cannot be written has one line and status 2."""
    command = [*COMMAND, *args, *[str(recording)] * (args[0] == "inspect")]
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60, env=env)
    message = "tracerec: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, message)


@pytest.mark.parametrize("args", [("inspect",), ("inspect", "--json"), ("--version",)])
def test_closed_output(recording, args):
    """Standard output that is closed has one line and status 2."""
    words = [*COMMAND, *args, *[str(recording)] * (args[0] == "inspect")]
    done = subprocess.run(
        ["/bin/sh", "-c", '"$@" >&-', "sh", *words], stderr=subprocess.PIPE, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (2, "tracerec: standard output is closed\n")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", ">&- 2>&-"])
def test_no_standard_error(tmp_path, redirection):
    """Where no message can be written, the status alone tells."""
    words = [*COMMAND, "inspect", str(tmp_path / "missing.h5")]
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$@" {redirection}', "sh", *words], stdout=subprocess.PIPE, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, b"")
