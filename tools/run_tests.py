#!/usr/bin/env python3
"""Runs a build's tests, many of a program in one process.

ctest starts a process for every test, and most of these processes live for the start of a large program: under
AddressSanitizer 1,757 starts took a third of the whole run. This program asks ctest which tests there are, with the same
options (-R, -L, -LE), and gives every process a batch of them. A test that ends its process fails alone: the tests behind
it run in a process of their own. So does a test that takes longer than its time limit.

Usage: tools/run_tests.py BUILD_FOLDER COUNTS_FILE [ctest options]
COUNTS_FILE gets one line: how many passed, failed, were skipped. BUILD_FOLDER/failed_tests.txt gets what every failed test
printed, and is empty when none failed. BUILD_FOLDER/test_times.txt gets the seconds of every test
that ended, slowest first; the next run takes them from there and begins with the batches that take longest, so that no core is
idle at the end. With ctest options the times of other tests stay in the file. A test without a time counts as long when it has
the label slow. The exit status is 1 when a test failed.
"""
import collections
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time

BATCH = 20  # tests in a process at most
BATCH_SECONDS = 60  # a process is full with tests that take this long together
UNKNOWN_SECONDS = {True: 10.0, False: 0.5}  # what a test without a time is taken for, by whether it is labelled slow
SLOWEST = 15  # tests that the end of the run names with their times
ALONE = {"kill"}  # labels of tests that have a process for themselves
RESULT = re.compile(r"^\[( +OK |  FAILED  |  SKIPPED )\] ([^ ,]+)(?:, where .*)? \((\d+) ms\)$")

# What GoogleTest prints where the set-up of a program's environment calls GTEST_SKIP(): no test of the process begins.
ENVIRONMENT_SKIPPED = re.compile(r"^\S+:\d+: Skipped$", re.MULTILINE)


class Test:
    """A test as ctest knows it."""

    def __init__(self, entry):
        properties = {p["name"]: p["value"] for p in entry.get("properties", [])}
        self.name = entry["name"].split("  # ")[0]
        self.command = entry.get("command")  # absent where the program was not built
        self.limit = float(properties.get("TIMEOUT", 600))
        self.folder = properties.get("WORKING_DIRECTORY")
        self.environment = tuple(properties.get("ENVIRONMENT", []))
        self.serial = bool(properties.get("RUN_SERIAL"))
        self.disabled = bool(properties.get("DISABLED"))
        labels = set(properties.get("LABELS", []))
        self.alone = self.serial or bool(ALONE & labels)
        self.seconds = UNKNOWN_SECONDS["slow" in labels]
        self.filter = None
        for argument in (self.command or [])[1:]:
            if argument.startswith("--gtest_filter="):
                self.filter = argument.split("=", 1)[1]


class Run:
    """All tests of a build, and what became of them."""

    def __init__(self):
        self.lock = threading.Lock()
        self.passed, self.skipped = 0, []
        self.failed = []  # names
        self.reports = []  # what each of them printed, behind its name
        self.times = []  # (seconds, name) of the tests of GoogleTest that ended

    def note(self, test, state, output=""):
        with self.lock:
            if state == "passed":
                self.passed += 1
            elif state == "skipped":
                self.skipped.append(test.name)
            else:
                self.failed.append(test.name)
                self.report(f"FAILED {test.name}: {state}", output)

    def report(self, title, output):
        self.reports.append(f"{title}\n{output.rstrip()}\n")
        print(self.reports[-1], end="", flush=True)


def execute(tests):
    """Runs tests of one program in one process. Returns {filter: (state, output)} of those that ended, {filter: seconds} of
    the same, the filter of the test in which the process stopped, or None, why it stopped, or "", and all that it printed."""
    first = tests[0]
    environment = dict(os.environ, **dict(pair.split("=", 1) for pair in first.environment))
    command = first.command
    if first.filter is not None:
        command = [first.command[0], "--gtest_filter=" + ":".join(t.filter for t in tests), "--gtest_also_run_disabled_tests"]
    process = subprocess.Popen(command, cwd=first.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    limits = {t.filter: t.limit for t in tests}
    watch = {"until": time.monotonic() + first.limit, "late": False}

    def kill_when_late():
        while process.poll() is None:
            if time.monotonic() > watch["until"]:
                watch["late"] = True
                os.killpg(process.pid, 9)
                return
            time.sleep(0.5)

    threading.Thread(target=kill_when_late, daemon=True).start()
    ended, times, running, output, everything = {}, {}, None, [], []
    for line in process.stdout:
        everything.append(line)
        output.append(line)
        text = line.rstrip("\n")
        if text.startswith("[ RUN      ] "):
            running, output = text[13:], [line]
            watch["until"] = time.monotonic() + limits.get(running, first.limit)
        elif (match := RESULT.match(text)) and match[2] == running:
            state = {"O": "passed", "F": "failed", "S": "skipped"}[match[1].strip()[0]]
            ended[running], running = (state, "".join(output)), None
            times[match[2]] = int(match[3]) / 1000
    status = process.wait()
    why = ""
    if watch["late"]:
        why = f"took longer than {first.limit:.0f} s"
    elif status < 0:
        why = f"ended by signal {-status}"
    elif status > 0 and not any(state == "failed" for state, _ in ended.values()):
        why = f"ended with status {status}"
    return ended, times, running, why, "".join(everything)


def run_batch(run, tests, work):
    ended, times, running, why, everything = execute(tests)
    with run.lock:
        run.times += [(times[test.filter], test.name) for test in tests if test.filter in times]
    if tests[0].filter is None:  # not a program of GoogleTest: its status is its answer
        run.note(tests[0], why or "passed", everything)
        return
    if why and running is None and len(ended) == len(tests) and len(tests) > 1:
        # Every test passed and the process did not end well, as with a leak: which of the tests does it alone?
        before = len(run.failed)
        for test in tests:
            run_batch(run, [test], work)
        if len(run.failed) == before:
            with run.lock:
                run.failed.append(tests[0].name)
                run.report(f"FAILED {tests[0].name} and {len(tests) - 1} more in one process: {why}", everything)
        return
    if not why and running is None and not ended and ENVIRONMENT_SKIPPED.search(everything):
        for test in tests:
            run.note(test, "skipped")
        return
    rest = []
    for test in tests:
        if test.filter == running:
            run.note(test, why or "its process stopped", everything[everything.rfind("[ RUN      ]"):])
        elif test.filter not in ended:
            rest.append(test)
        elif why and len(tests) == 1:
            run.note(test, why, everything)
        else:
            run.note(test, *ended[test.filter])
    if rest and len(rest) == len(tests):  # nothing began
        run.note(rest.pop(0), why or "did not run", everything)
    if rest:
        work.put(rest)


def last_times(path):
    """{name: seconds} of the run before; empty where there was none."""
    times = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            for line in file:
                seconds, name = line.rstrip("\n").split(" ", 1)
                times[name] = float(seconds)
    return times


def batches_of(tests):
    """Batches in the order in which they are to begin: the longest first. Neighbours stay neighbours, as far as a batch goes:
    tests of a suite share what the suite sets up once."""
    batches, open_batches = [], {}
    for test in tests:
        if test.alone or test.filter is None:
            batches.append([test])
            continue
        key = (test.command[0], test.environment)
        batch = open_batches.get(key)
        if batch is None or len(batch) == BATCH or sum(t.seconds for t in batch) + test.seconds > BATCH_SECONDS:
            batch = open_batches[key] = []
            batches.append(batch)
        batch.append(test)
    return sorted(batches, key=lambda batch: -sum(test.seconds for test in batch))


def suite_of(name):
    """program.Suite of "program.Suite.Test", "program.Instance/Suite.Test/parameter" and their like."""
    return ".".join(name.split(".")[:2])


def worker(run, work):
    while True:
        batch = work.get()
        try:
            run_batch(run, batch, work)
        except OSError as error:
            for test in batch:
                run.note(test, str(error))
        finally:
            work.task_done()


def main():
    folder, counts = sys.argv[1:3]
    # A shell's job in the background ignores the first signal and one under nohup the second, and so would the programs that
    # tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(128 + signal.SIGHUP))
    listing = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1", *sys.argv[3:]], capture_output=True, text=True,
                             check=False)
    if listing.returncode != 0:
        sys.exit(f"ctest lists no tests of {folder}: {listing.stderr.strip()}")
    sys.stderr.write(listing.stderr)
    run, together, serial = Run(), [], []
    times_file = os.path.join(folder, "test_times.txt")
    times = last_times(times_file)
    for test in map(Test, json.loads(listing.stdout)["tests"]):
        test.seconds = times.get(test.name, test.seconds)
        if test.disabled:
            run.note(test, "skipped")
        elif not test.command or test.name.endswith("_NOT_BUILT"):
            run.note(test, "its program was not built")
        elif test.serial:
            serial.append([test])
        else:
            together.append(test)
    work = queue.Queue()
    for batch in batches_of(together):
        work.put(batch)
    for _ in range(os.cpu_count() or 1):
        threading.Thread(target=worker, args=(run, work), daemon=True).start()
    work.join()
    for batch in serial:
        run_batch(run, batch, work)
    run.times.sort(reverse=True)
    ran = {name for _, name in run.times}
    kept = [(seconds, name) for name, seconds in times.items() if name not in ran] if sys.argv[3:] else []
    with open(times_file, "w", encoding="utf-8") as file:
        file.writelines(f"{seconds:.3f} {name}\n" for seconds, name in sorted(run.times + kept, reverse=True))
    slow = [pair for pair in run.times if pair[0] >= 1][:SLOWEST]
    if slow:
        print(f"the slowest of {sum(seconds for seconds, _ in run.times):.0f} s that the tests took, one after another:")
        for seconds, name in slow:
            print(f"  {seconds:6.1f} s  {name}")
    if run.skipped:
        print(f"skipped: {len(run.skipped)}, by suite:")
        for suite, count in sorted(collections.Counter(map(suite_of, run.skipped)).items()):
            print(f"  {count:5d}  {suite}")
    with open(os.path.join(folder, "failed_tests.txt"), "w", encoding="utf-8") as file:
        file.writelines(run.reports)
    with open(counts, "w", encoding="utf-8") as file:
        file.write(f"{run.passed} {len(run.failed)} {len(run.skipped)}\n")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
