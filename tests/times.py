# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest that measures each test's processor time, and a program that prints what a run took.

    python tests/times.py FOLDER

prints the seconds and tests of each lane, and the thirty tests with the most seconds, from the files that
the plugin wrote: one per lane, where $LAMBDANET_TIMES names the folder and $LAMBDANET_LANE the file. Times
are those of the process and of the processes that it started and waited for. No test fails by them: they
depend on the machine. Only a test that hangs is ended, with the process for which it waits.
"""

import csv
import os
import signal
import sys
from pathlib import Path

import pytest

# Processor seconds, above which a test of `make test` is one to make quicker or to mark `slow`.
QUICK = 5.0
LONGEST = 30
# Seconds of a clock until a test hangs: the longest build all pages.
HANGING = 1800
# A test, its processor seconds, and whether it is slow; the process that distributes tests collects them.
_found: list[tuple[str, float, int]] = []
_START = pytest.StashKey[float]()


def processor_seconds() -> float:
    """Returns the time that this process and its finished children have computed."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Notes when a test begins, before the fixtures that are made for it, and ends one that hangs."""
    item.stash[_START] = processor_seconds()
    signal.signal(signal.SIGALRM, _end)
    # Again a minute later, as the end of a context may wait for a process, too.
    signal.setitimer(signal.ITIMER_REAL, HANGING, 60)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _end(number, frame):
    raise TimeoutError(f"the test did not end within {HANGING} s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Adds the time of a test to its last report."""
    report = yield
    if report.when == "teardown":
        seconds = processor_seconds() - item.stash[_START]
        report.user_properties.append(("seconds", seconds))
    return report


def pytest_runtest_logreport(report):
    """Runs in the process that distributes the tests, too."""
    for name, value in report.user_properties:
        if name == "seconds":
            _found.append((report.nodeid, value, int("slow" in report.keywords)))


def pytest_sessionfinish(session):
    """Writes the times of a lane."""
    folder = os.environ.get("LAMBDANET_TIMES")
    is_worker = hasattr(session.config, "workerinput")
    if not folder or is_worker:
        return
    path = Path(folder) / f"{os.environ['LAMBDANET_LANE']}.csv"
    with path.open("a", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(_found)


def main(folder: Path) -> None:
    """Prints the times of the lanes in a folder: `lanes.csv`, and the tests of each."""
    with (folder / "lanes.csv").open(encoding="utf-8", newline="") as file:
        lanes = list(csv.reader(file))
    rows = []
    for name, seconds in lanes:
        path = folder / f"{name}.csv"
        tests = []
        if path.exists():
            with path.open(encoding="utf-8", newline="") as file:
                tests = list(csv.reader(file))
        rows += [(float(time), name, test, is_slow) for test, time, is_slow in tests]
        print(
            f"{int(seconds) // 60:5}:{int(seconds) % 60:02} {len(tests):6} tests  {name}"
        )
    rows.sort(reverse=True)
    print(f"\nThe {LONGEST} tests with the most processor seconds:")
    for seconds, name, test, _ in rows[:LONGEST]:
        print(f"{seconds:8.1f}  {name:10} {test}")
    for seconds, name, test, is_slow in rows:
        if name == "test-user" and is_slow == "0" and seconds > QUICK:
            print(f"warning: {seconds:.1f} s without the marker slow: {test}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
