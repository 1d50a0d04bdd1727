"""The status of each way in which the command can end, and what a signal does, without a process."""

import io
import signal

import pytest

from refopt import cli
from refopt.cli import commands, output


class Shut(io.StringIO):
    """A stream that cannot be written, for a reason."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def write(self, text):
        raise self.error


ENDS = {"equal": (output.EQUAL, 0, ""), "differs": (output.DIFFERS, 1, ""), "help": (SystemExit(0), 0, ""),
        "help too": (SystemExit(None), 0, ""), "usage": (SystemExit(2), 2, ""),
        "Ctrl-C": (KeyboardInterrupt(), 130, "refopt: interrupted\n"),
        "SIGTERM": (cli.Terminated(), 143, "refopt: terminated\n"),
        "pipe": (BrokenPipeError(32, "Broken pipe"), 141, ""),
        "unusable": (cli.Unusable("x: no such file"), 2, "refopt: x: no such file\n")}


def ending(end):
    def run(argv):
        if isinstance(end, BaseException):
            raise end
        return end

    return run


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("stream", ["open", None, Shut(OSError(28, "No space left on device"))],
                         ids=["open", "closed", "full"])
def test_statuses(end, stream, monkeypatch, capsys):
    """Whether there is somebody to be told or not."""
    what, status, said = ENDS[end]
    monkeypatch.setattr(commands, "run", ending(what))
    if stream != "open":
        monkeypatch.setattr("sys.stderr", stream)
    assert cli.main([]) == status and capsys.readouterr() == ("", said if stream == "open" else "")


def test_what_is_said_stays_in_no_buffer(monkeypatch):
    """Of whatever stands in the place of standard error."""
    written = io.BytesIO()
    monkeypatch.setattr(commands, "run", ending(KeyboardInterrupt()))
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(written))
    assert cli.main([]) == 130 and written.getvalue() == b"refopt: interrupted\n"


def test_a_failure_is_told_with_its_traceback(monkeypatch, capsys):
    monkeypatch.setattr(commands, "run", ending(ZeroDivisionError("of the command")))
    assert cli.main([]) == 3 and "ZeroDivisionError: of the command" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "raised", "said"), [
    (BrokenPipeError(32, "Broken pipe"), BrokenPipeError, "Broken pipe"),
    (OSError(28, "No space left on device"), cli.Unusable, "^standard output: No space left on device$")])
def test_output_that_cannot_be_written(error, raised, said, monkeypatch):
    monkeypatch.setattr("sys.stdout", Shut(error))
    with pytest.raises(raised, match=said):
        cli.write("text")
    monkeypatch.setattr("sys.stdout", None)
    cli.write("text")


@pytest.mark.parametrize(("stream", "status", "said"), [
    (None, 2, "refopt: --json: cannot write to '-': standard output is closed\n"),
    (Shut(BrokenPipeError(32, "Broken pipe")), 141, ""),
    (Shut(OSError(28, "No space")), 2, "refopt: standard output: No space\n")], ids=["closed", "pipe", "full"])
def test_a_report_that_standard_output_does_not_take(stream, status, said, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout", stream)
    assert cli.main(["verify", "--device", "executor", "--json", "-"]) == status and capsys.readouterr().err == said


@pytest.fixture
def handlers():
    """Those of the signals are put back."""
    before = {each: signal.getsignal(each) for each in cli.ENDS}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize(("signum", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, cli.Terminated)])
def test_the_first_signal_interrupts_and_the_next_ones_wait(signum, error, handlers):
    cli._on_signals(cli._interrupt)
    with pytest.raises(error):
        signal.raise_signal(signum)
    for each in cli.ENDS:
        signal.raise_signal(each)


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), 130), (cli.Terminated(), 143)])
def test_a_signal_as_main_comes_or_goes(error, status, monkeypatch, handlers):
    monkeypatch.setattr(cli, "main", lambda: ending(error)(None))
    with pytest.raises(SystemExit) as end:
        cli.run()
    assert end.value.code == status and {signal.getsignal(each) for each in cli.ENDS} == {cli._leave}


@pytest.mark.parametrize(("error", "status"), [(BrokenPipeError(32, "Broken pipe"), 141), (OSError(28, "No space"), 2)])
def test_what_is_left_to_be_written_in_the_end(error, status, monkeypatch):
    """Of what something else than the command has printed."""
    monkeypatch.setattr(commands, "run", ending(0))
    monkeypatch.setattr("sys.stdout", Shut(error))
    assert cli.main([]) == status
