"""How all tests run: one thread, two sizes of the laws, and a count of the cases that were really generated.

``quick`` (the default) always draws the same cases, so that a red build is red again; ``HYPOTHESIS_PROFILE=full`` draws
new ones, many times as many.
"""

from __future__ import annotations

import functools
import os
import signal
import tempfile
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, is_hypothesis_test, settings
from hypothesis.errors import StopTest, UnsatisfiedAssumption

import regard
from regard.report import probes
from warm_process import SAMPLE, SENTENCES, probe_formats

# Compiled code is cached by its source alone: that of another instruction set must not be found.
if isa := os.environ.get("ATEN_CPU_CAPABILITY"):
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"inductor-{isa}"))

torch.set_num_threads(1)
probes.SAMPLE, probes.SENTENCES = SAMPLE, SENTENCES
probe_formats()

# A process that a shell starts in the background inherits an ignored SIGINT, and so would every process of a test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ANY_SPEED = [HealthCheck.too_slow, HealthCheck.data_too_large]  # shared machines; drawing a model is slow by nature
COMMON: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": ANY_SPEED}
settings.register_profile("quick", max_examples=25, derandomize=True, **COMMON)
settings.register_profile("full", max_examples=200, print_blob=True, **COMMON)
# For tests/break_laws.py, which wants to know that a law fails, not the smallest case that breaks it.
settings.register_profile("unshrunk", settings.get_profile("quick"), phases=(Phase.explicit, Phase.generate))
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")
settings.load_profile(PROFILE)

COUNT = "generated cases"


def pytest_report_header() -> str:
    return f"regard from {os.path.dirname(regard.__file__)}; hypothesis profile {PROFILE}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """Counts the cases of a law that ran to their end, passing or failing: a rejected draw is no case."""
    law: Any = getattr(item, "obj", None)
    if not is_hypothesis_test(law):
        return (yield)
    ran, inner = [0], law.hypothesis.inner_test

    @functools.wraps(inner)
    def counted(*given: Any, **named: Any) -> Any:
        try:
            result = inner(*given, **named)
        except (UnsatisfiedAssumption, StopTest):
            raise
        except BaseException:
            ran[0] += 1
            raise
        ran[0] += 1
        return result

    law.hypothesis.inner_test = counted
    try:
        return (yield)
    finally:
        law.hypothesis.inner_test = inner
        item.user_properties.append((COUNT, ran[0]))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The total over all laws; the numbers travel with the reports, so several worker processes add up too."""
    reports = [r for group in terminalreporter.stats.values() for r in group if getattr(r, "when", "") == "call"]
    counts = [value for report in reports for name, value in report.user_properties if name == COUNT]
    if counts:
        terminalreporter.write_line(f"{COUNT}: {sum(counts)} in {len(counts)} laws (profile {PROFILE})")
