"""The progress line of a command."""

import shutil
from typing import TextIO


class Progress:
    """One line that is rewritten, and cleared at the end; only on a terminal."""

    def __init__(self, stream: TextIO | None, total: int) -> None:
        self.total, self.done = total, 0
        self._terminal = stream if stream is not None and stream.isatty() else None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

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
