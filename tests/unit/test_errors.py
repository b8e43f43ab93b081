"""What is printed when something goes wrong, by whom, and with which exit code."""

import os
import pickle
import signal
import subprocess
import sys

import pytest

from transformer_mt.errors import Failure, OtherRankFailed, RunError, Stopped, UserError, reported


def outcome(
    failure: BaseException,
    capsys: pytest.CaptureFixture[str],
    *,
    debug: bool = False,
    rank: int | None = None,
    local_rank: int = 0,
) -> tuple[int, str]:
    """The exit code and what stands on stderr."""
    with pytest.raises(SystemExit) as leaving, reported(debug=debug, rank=rank, local_rank=local_rank):
        raise failure
    printed = capsys.readouterr()
    assert printed.out == ""
    assert isinstance(leaving.value.code, int)
    return leaving.value.code, printed.err


@pytest.mark.parametrize(
    ("failure", "code", "told"),
    [
        (UserError("one", "two"), 2, "error: one\nerror: two\n"),
        (RunError("the disk is full"), 1, "error: the disk is full\n"),
        (Stopped(signal.SIGTERM, "stopped, saved at update 7"), 143, "stopped, saved at update 7\n"),
        (Stopped(signal.SIGINT, "interrupted, saved at update 7"), 130, "interrupted, saved at update 7\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (OtherRankFailed(2), 2, ""),
        (OSError(28, "No space left on device", "x"), 1, "error: [Errno 28] No space left on device: 'x'\n"),
        (
            ZeroDivisionError("division by zero"),
            1,
            "error: ZeroDivisionError: division by zero (--debug shows where)\n",
        ),
    ],
)
def test_one_process(failure: BaseException, code: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(failure, capsys) == (code, told)
    assert failure.__cause__ is None


@pytest.mark.parametrize(
    ("failure", "first", "other"),
    [
        (UserError("one"), "error: one\n", ""),
        (Stopped(signal.SIGTERM, "saved"), "saved\n", ""),
        (KeyboardInterrupt(), "interrupted\n", ""),
        (RunError("lost"), "rank 0: error: lost\n", "rank 1: error: lost\n"),
        (OSError("lost"), "rank 0: error: lost\n", "rank 1: error: lost\n"),
        (KeyError("x"), "rank 0: error: KeyError: 'x' (--debug shows where)\n",
         "rank 1: error: KeyError: 'x' (--debug shows where)\n"),
    ],
)  # fmt: skip
def test_several_processes(failure: BaseException, first: str, other: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = outcome(failure, capsys, rank=0)
    assert told.replace("rank 0: error: one", "error: one") == first
    assert outcome(failure, capsys, rank=1, local_rank=1) == (code, other)


def test_wrong_input_on_another_machine_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(UserError("one"), capsys, rank=8, local_rank=0) == (2, "rank 8: error: one\n")


@pytest.mark.parametrize("failure", [UserError("x"), RunError("x"), KeyError("x"), OSError("x"), KeyboardInterrupt()])
def test_debug_shows_where(failure: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    _, told = outcome(failure, capsys, debug=True)
    assert "Traceback" in told
    assert "test_errors.py" in told
    _, told = outcome(failure, capsys)
    assert "Traceback" not in told


def test_nothing_is_printed_when_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    with reported(debug=True, rank=1):
        pass
    assert capsys.readouterr() == ("", "")


def test_leaving_inside_keeps_its_code() -> None:
    with pytest.raises(SystemExit) as leaving, reported(debug=False):
        raise SystemExit(7)
    assert leaving.value.code == 7


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_reader_who_leaves_is_no_error(size: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code = f"from transformer_mt.errors import reported\nwith reported(debug=False):\n    print('x' * {size})"
    done = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    "failure", [UserError("a", "b"), RunError("c"), Stopped(15, "saved"), OtherRankFailed(2, "lost")], ids=repr
)
def test_a_failure_of_another_process_is_what_it_was(failure: Failure) -> None:

    again = pickle.loads(pickle.dumps(failure))
    assert (type(again), again.messages, str(again)) == (type(failure), failure.messages, str(failure))
    assert vars(again) == vars(failure)


def test_one_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a file's name, or data, bring along."""
    failure = UserError("a\nb\u2028c\x1b[31m.en does not exist", "d\re")
    assert outcome(failure, capsys) == (2, "error: a\\nb\\u2028c\\x1b[31m.en does not exist\nerror: d\\re\n")
