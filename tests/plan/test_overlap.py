"""Laws of time on a GPU, and the memory of processes."""

import pytest

from regard.plan import MeasuredMemory, MeasuredStep, MemoryLaw, SpeedLaw, Work


def test_a_gpu_takes_the_longer_of_computing_and_starting() -> None:
    law = SpeedLaw(1e-12, 0.0, 1e-5, 0.0, overlap=True)
    works = [Work(1e9, 0.0, 1000), Work(2e9, 0.0, 3000), Work(1e12, 0.0, 500), Work(3e12, 0.0, 900), Work(2e12, 0.0, 9)]
    found = SpeedLaw.fit([MeasuredStep(one, law.seconds(one)) for one in works], overlap=True)
    assert [found.seconds(one) for one in works] == pytest.approx([law.seconds(one) for one in works], rel=1e-6)


def test_sixteen_bit_products_are_faster() -> None:
    law = SpeedLaw(1e-12, 0.0, 0.0, 0.0)
    assert law.seconds(Work(15e12, 0.0, 1, half=15e12)) == pytest.approx(1.0)


def test_memory_beyond_tensors_is_recovered() -> None:
    law = MemoryLaw(3e7, 0.2)
    sizes = [(2e8, 1e8), (5e8, 4e8), (9e8, 2e8)]
    found = MemoryLaw.fit([MeasuredMemory(a, b, a + law.overhead(b)) for a, b in sizes])
    assert found == pytest.approx(law)
    assert MemoryLaw.fit([MeasuredMemory(a, b, 0.9 * a) for a, b in sizes]) == MemoryLaw()
