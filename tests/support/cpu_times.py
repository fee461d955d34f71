"""Processor time of tests and of what they start, file by file: ``pytest --cpu-times``.

Unlike a test's duration it hardly depends on what else the machine does. Counted are this process, children that it
has waited for, and its fork server with its forks (a process of the suite has one of its own then); a daemon that
outlives its test counts where it ends, or not at all. Wall time is beside it: a file with much more of it waits.
"""

from __future__ import annotations

import os
from collections import defaultdict

import pytest

from support import scripts


def used() -> float:
    """Seconds of processor time, user and system, since this process began."""
    return sum(os.times()[:4]) + sum(client.cpu_seconds() for client in scripts.clients)


class CpuTimes:
    """Measures in the process that runs the tests, sums and prints in the one that reports."""

    def __init__(self) -> None:
        self.last: float | None = None
        self.seconds: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])  # by test: processor, wall

    def pytest_runtest_setup(self) -> None:
        self.last = used() if self.last is None else self.last

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> object:
        report = yield
        if call.when == "teardown":  # all since the test before: fixtures belong to the test that asked first
            now = used()
            report.user_properties = [*report.user_properties, ("cpu", now - (self.last or now))]
            self.last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self.seconds[report.nodeid]
        test[0] += sum(value for name, value in report.user_properties if name == "cpu" and isinstance(value, float))
        test[1] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        files: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for nodeid, times in self.seconds.items():
            file = files[nodeid.split("::")[0]]
            file[:] = (one + more for one, more in zip(file, times, strict=True))
        cpu, wall = (sum(times[place] for times in files.values()) for place in (0, 1))
        terminalreporter.section(f"{cpu:.0f} s of processor time, {wall:.0f} s of wall time")
        for table, least in ((files, 0.5), (self.seconds, 1.0)):
            terminalreporter.write_line("processor  wall")
            for name, (own, waited) in sorted(table.items(), key=lambda item: -item[1][0]):
                if max(own, waited) >= least:
                    terminalreporter.write_line(f"{own:9.2f} {waited:5.1f}  {name}")
