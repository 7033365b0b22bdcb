"""A plugin of pytest for tests that others wrote: it applies a table of known deviations.

THAW_DEVIATIONS names the table. A line has a pattern of test names, what becomes of those
tests, and why: "fails" (each must fail, one that passes is an error) or "skipped" (it cannot
show anything here). Each line must match a test.
"""

import fnmatch
import os

import pytest


def read_table(path):
    with open(path, encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file if line.strip() and not line.startswith("#")]
    for line in lines:
        if len(line) != 3 or line[1] not in ("fails", "skipped"):
            raise pytest.UsageError(f"{path}: want PATTERN, fails or skipped, REASON with tabs between them, not {line}")
    return lines


def pytest_collection_modifyitems(items):
    path = os.environ["THAW_DEVIATIONS"]
    table = read_table(path)
    used = set()
    for item in items:
        name = item.nodeid.removeprefix("tests/api_resources/")
        if {"respx_mock", "respx2_mock"} & set(item.fixturenames):
            item.add_marker(pytest.mark.skip(reason="it asks no server"))
            continue
        for number, (pattern, verdict, reason) in enumerate(table):
            if not fnmatch.fnmatchcase(name.replace("[", "(").replace("]", ")"), pattern):
                continue
            used.add(number)
            item.add_marker(pytest.mark.skip(reason=reason) if verdict == "skipped" else pytest.mark.xfail(strict=True, reason=reason))
            break
    stale = [line[0] for number, line in enumerate(table) if number not in used]
    if stale:
        raise pytest.UsageError(f"{path}: no test is called {', '.join(stale)}")
