"""What stands in for a GPU and its tools: an executor that notes kernels, scripts, and records of an H200."""

import json

from refopt.gpu import notes, runtime

H200 = {"device": "NVIDIA H200", "sources": {}}


class Noting(runtime.Executor):
    """Notes the kernels that are prepared, as a GPU's are when they are compiled."""

    def __init__(self, folder):
        self.folder = folder

    def prepare(self, kernel, grid, block, args, *how):
        from refopt.gpu.driver import signature_of

        notes.append(kernel, signature_of(args), self.folder)
        return super().prepare(kernel, grid, block, args, *how)


def noting(folder, monkeypatch):
    """The executor from here on."""
    machine = Noting(folder)
    monkeypatch.setattr(runtime, "_executor", lambda: machine)
    return machine


def script(path, text):
    """A program of this text."""
    path.write_text(text)
    path.chmod(0o755)
    return path


def tool(path, text, monkeypatch):
    """A program that is found by its name."""
    script(path, text)
    monkeypatch.setenv("PATH", str(path.parent), prepend=":")


def recorded(module, out, monkeypatch, *arguments):
    """What a benchmark writes to a file, as if on an H200, and its exit status."""
    if hasattr(module, "begin"):
        monkeypatch.setattr(module, "begin", lambda *args: H200 | {"command": args[1] if len(args) > 1 else ""})
    monkeypatch.setattr("sys.argv", [module.__name__, *map(str, arguments), "--out", str(out)])
    status = module.main()
    return json.loads(out.read_text()), status
