"""Run pytest on every backend, in parallel, and hold the outcomes against each other.

Every backend must pass the same tests. Tests marked `once` run on PyTorch only. A skip must
stand in tests/expected_skips.txt, as "test: reason"; only tests on real data, and tests in Node.js,
may skip beyond it, where there is no such data or no Node.js.
"""

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

# The backends, and pytest's marker of the tests that run on each.
BACKENDS = {"jax": "not once", "tensorflow": "not once", "torch": ""}
ROOT = Path(__file__).parent.parent
NOT_EVERYWHERE = "KERAS_TRANSFORMER_DATA", "Node.js"  # the first words of reasons
# Each process imports everything again, so there are few. PyTorch has the most tests, in halves.
HALF = ("tests/formats", "tests/serving", "tests/training")
OTHER_HALF = tuple(f"--ignore={folder}" for folder in HALF)
JOBS = (("jax", ()), ("tensorflow", ()), ("torch", OTHER_HALF), ("torch", HALF))


@dataclass
class Report:
    """What one backend made of its tests."""

    backend: str
    status: int
    passed: set[str]
    failed: set[str]
    skipped: dict[str, str]


def main(arguments: list[str]) -> int:
    """Test all backends, print a summary, and return 0 if all is as it should be."""
    slow = "--slow" in arguments
    given = tuple(argument for argument in arguments if argument != "--slow")
    jobs = _jobs(slow, given)
    workers = min(len(jobs), os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        tests = [pool.submit(_test, *job, slow, workers) for job in jobs]
        parts = [test.result() for test in tests]
    reports = _merged(parts)
    problems = _crashes(parts) + _problems(reports, whole_suite=not (slow or given))
    for problem in problems:
        print(problem)
    totals = Counter(passed=0, failed=len(problems), skipped=0)
    for report in reports:
        totals.update(passed=len(report.passed), failed=len(report.failed))
        totals.update(skipped=len(report.skipped))
    print(", ".join(f"{count} {outcome}" for outcome, count in totals.items()))
    return int(totals["failed"] > 0 or any(part.status for part in parts))


def _jobs(slow: bool, given: tuple[str, ...]) -> list[tuple[str, tuple[str, ...]]]:
    """The backend and pytest's arguments of each process.

    With the slow tests, each folder has a process. The programs of XLA stay in memory, and Linux
    allows a process only some 65,000 mapped pieces of memory.
    """
    if not (slow or given):
        return list(JOBS)
    parts = [given]
    if not given:
        tests = ROOT / "tests"
        folders = {file.relative_to(tests).parts[0] for file in tests.glob("*/**/test_*.py")}
        parts = [(f"tests/{folder}",) for folder in sorted(folders)]
        parts.append(tuple(f"tests/{file.name}" for file in sorted(tests.glob("test_*.py"))))
    return [(backend, part) for part in parts for backend in BACKENDS]


def _test(backend: str, selection: tuple[str, ...], slow: bool, workers: int) -> Report:
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "OMP_NUM_THREADS": threads,
        "TF_NUM_INTRAOP_THREADS": threads,
    }
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder, "report.xml")
        markers = " and ".join(filter(None, ("" if slow else "not slow", BACKENDS[backend])))
        options = ["-q", "-m", markers, f"--junit-xml={xml}"]
        command = [sys.executable, "-m", "pytest", *options, *selection]
        result = subprocess.run(
            command, cwd=ROOT, env=environment, text=True, stdout=-1, stderr=subprocess.STDOUT
        )
        seconds = time.monotonic() - start
        print(f"== {backend}, {seconds:.0f} s ==\n{result.stdout}", flush=True)
        status = 0 if result.returncode == 5 else result.returncode  # 5: no test has the marker
        return _read(Report(backend, status, set(), set(), {}), xml)


def _read(report: Report, xml: Path) -> Report:
    for case in ElementTree.parse(xml).iter("testcase") if xml.exists() else ():
        name = f"{case.get('classname')}.{case.get('name')}".lstrip(".")
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            report.failed.add(name)
        elif skip is not None:
            report.skipped[name] = skip.get("message", "")
        else:
            report.passed.add(name)
    return report


def _merged(parts: list[Report]) -> list[Report]:
    """One report for each backend."""
    reports: dict[str, Report] = {}
    for part in parts:
        report = reports.setdefault(part.backend, Report(part.backend, 0, set(), set(), {}))
        report.passed |= part.passed
        report.failed |= part.failed
        report.skipped |= part.skipped
    return list(reports.values())


def _crashes(parts: list[Report]) -> list[str]:
    return [
        f"{part.backend}: pytest ended with status {part.status}"
        for part in parts
        if part.status and not part.failed
    ]


def _problems(reports: list[Report], whole_suite: bool) -> list[str]:
    problems = []
    expected = dict(
        line.split(": ", 1)
        for line in (ROOT / "tests" / "expected_skips.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    everywhere = set.intersection(*(x.passed for x in reports))
    for report in reports:
        only_here = report.passed - everywhere if BACKENDS[report.backend] else ()
        problems += [f"{name}: passes on {report.backend}, not everywhere" for name in only_here]
        for name, reason in report.skipped.items():
            if name not in expected and not reason.startswith(NOT_EVERYWHERE):
                problems.append(f"{name}: skipped on {report.backend}, unexpectedly: {reason}")
    if whole_suite:
        skipped = {name for report in reports for name in report.skipped}
        problems += [f"{name}: no longer skipped" for name in expected.keys() - skipped]
    return problems


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
