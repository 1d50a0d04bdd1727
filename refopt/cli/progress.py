"""The progress line of a command."""

import shutil
import time
from typing import TextIO


class Progress:
    """One line that is rewritten, and cleared at the end; only on a terminal."""

    def __init__(self, stream: TextIO | None, total: int) -> None:
        self.total, self.done = total, 0
        self._stage, self._start = "", time.monotonic()
        self._terminal = stream if stream is not None and stream.isatty() else None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def begin(self, stage: str) -> None:
        """Show a stage that begins when the one before has ended, and the seconds so far; "" is still the same one."""
        if stage:
            self.done += self._stage != ""
            self._stage = stage
        self.show(f"{time.monotonic() - self._start:.0f} s  {self._stage}")

    def show(self, stage: str) -> None:
        """Show the current stage."""
        bar = "#" * (30 * self.done // self.total)
        text = f"[{bar:<30}] {self.done}/{self.total}  {stage}"
        self._write("\r\033[K" + text[: shutil.get_terminal_size().columns - 1])

    def clear(self) -> None:
        """Clear the line."""
        self._write("\r\033[K")

    def _write(self, text: str) -> None:
        if self._terminal is not None:
            self._terminal.write(text)
            self._terminal.flush()
