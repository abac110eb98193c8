"""Run pytest once per backend, in parallel, and hold the outcomes against each other.

Every backend must pass the same tests. A skip must stand in tests/expected_skips.txt, as
"test: reason"; only tests on real data may skip beyond it, where there is no such data.
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

BACKENDS = ("jax", "tensorflow", "torch")
ROOT = Path(__file__).parent.parent
# Two processes a backend, the longest first, leave few cores idle at the end.
SHORT = ("tests/export", "tests/serving", "tests/training")
LONG = tuple(f"--ignore={folder}" for folder in SHORT)
JOBS = (
    ("jax", LONG),
    ("tensorflow", LONG),
    ("torch", LONG),
    ("tensorflow", SHORT),  # makes a model that is exported once for all backends
    ("jax", SHORT),
    ("torch", SHORT),
)


@dataclass
class Report:
    """What one backend made of the tests."""

    backend: str
    status: int
    passed: set[str]
    failed: set[str]
    skipped: dict[str, str]


def main(arguments: list[str]) -> int:
    """Test all backends, print a summary, and return 0 if all is as it should be."""
    slow = ["-m", ""] if "--slow" in arguments else []
    given = tuple(argument for argument in arguments if argument != "--slow")
    jobs = _jobs(bool(slow), given)
    workers = min(len(jobs), os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as shared, ThreadPoolExecutor(workers) as pool:
        tests = (pool.submit(_test, name, [*slow, *part], workers, shared) for name, part in jobs)
        parts = [test.result() for test in list(tests)]
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
    if given:
        return [(backend, given) for backend in BACKENDS]
    if not slow:
        return list(JOBS)
    tests = ROOT / "tests"
    folders = sorted({file.relative_to(tests).parts[0] for file in tests.glob("*/**/test_*.py")})
    parts = [(f"tests/{folder}",) for folder in folders]
    parts.append(tuple(f"tests/{file.name}" for file in sorted(tests.glob("test_*.py"))))
    return [(backend, part) for part in parts for backend in BACKENDS]


def _test(backend: str, selection: list[str], workers: int, shared: str) -> Report:
    """Run pytest; what is the same on every backend is made once, in the folder `shared`."""
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "KERAS_TRANSFORMER_SHARED": shared,
        "OMP_NUM_THREADS": threads,
        "TF_NUM_INTRAOP_THREADS": threads,
    }
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", f"--junit-xml={xml}", *selection]
        result = subprocess.run(
            command, cwd=ROOT, env=environment, text=True, stdout=-1, stderr=subprocess.STDOUT
        )
        seconds = time.monotonic() - start
        print(f"== {backend}, {seconds:.0f} s ==\n{result.stdout}", flush=True)
        return _read(backend, result.returncode, xml)


def _read(backend: str, status: int, xml: Path) -> Report:
    report = Report(backend, status, set(), set(), {})
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
    """One report a backend."""
    reports = {name: Report(name, 0, set(), set(), {}) for name in BACKENDS}
    for part in parts:
        report = reports[part.backend]
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
    everywhere = set.intersection(*(report.passed for report in reports))
    for report in reports:
        only_here = report.passed - everywhere
        problems += [f"{name}: passes on {report.backend}, not everywhere" for name in only_here]
        for name, reason in report.skipped.items():
            if name not in expected and not reason.startswith("KERAS_TRANSFORMER_DATA"):
                problems.append(f"{name}: skipped on {report.backend}, unexpectedly: {reason}")
    if whole_suite:
        skipped = {name for report in reports for name in report.skipped}
        problems += [f"{name}: no longer skipped" for name in expected.keys() - skipped]
    return problems


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
