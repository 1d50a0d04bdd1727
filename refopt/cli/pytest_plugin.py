"""refopt's pytest plugin: ``pytest --simt-watch`` runs the kernels of a test suite written for `numba.cuda`.

They run on the executor, watched, and its reports make tests fail. Without the option, the plugin imports nothing
beyond its own package.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

_LOG = "_simt_log"  # of the configuration


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("refopt", "kernels of numba.cuda without a GPU")
    watched = "run the kernels of numba.cuda on refopt's executor, and fail where it finds a defect"
    group.addoption("--simt-watch", action="store_true", help=watched)
    orders = "watch in N random orders besides forward and reverse"
    group.addoption("--simt-orders", type=int, default=0, metavar="N", help=orders)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Put the executor in place before anything of the suite is imported."""
    options = early_config.known_args_namespace
    if not (options.simt_watch or options.simt_orders):
        return
    from refopt import simt

    stack = ExitStack()
    early_config.add_cleanup(stack.close)
    stack.enter_context(simt.replace_numba())
    log = stack.enter_context(simt.observe(False, watch=True, orders=options.simt_orders))
    log.gives_way = True
    setattr(early_config, _LOG, log)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Any:
    """Replace the traceback by the executor's report."""
    outcome = yield
    report, raised = outcome.get_result(), call.excinfo
    if not hasattr(item.config, _LOG) or raised is None or not hasattr(report.longrepr, "reprcrash"):
        return
    from _pytest._code.code import ExceptionChainRepr, ReprTracebackNative

    from refopt.simt import SimtError
    from refopt.simt.script import traceback_text

    if isinstance(raised.value, SimtError):
        lines = ReprTracebackNative([traceback_text(raised.value, str(item.path))])
        report.longrepr = ExceptionChainRepr([(lines, report.longrepr.reprcrash, None)])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print where equal values were tolerated."""
    for one in getattr(config, _LOG).tolerated if hasattr(config, _LOG) else ():
        terminalreporter.write_line(f"refopt simt: {one}")
