"""Quantities are read as Kubernetes writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.backends.kube.schema import MAX_DEVICES, quantity

WRITTEN = {
    8: 8, "8": 8, "0": 0, "+8": 8, "1k": 1000, "1.5k": 1500, "2M": 2_000_000, "4Ki": 4096,
    "1Mi": 1 << 20, "8000m": 8, "8e0": 8, "8E2": 800, "80e-1": 8, "8.0": 8, ".5k": 500, "5.": 5,
    "8000000u": 8, "8000000000n": 8,
}  # fmt: skip

NONE = ["", "x", "-1", "500m", "1.5", "1K", "k", "1ki", "1e99", "9" * 30, "1G", "٣", "8 ", "8\n",
        "1ee1", "1k1", "0x8", "1_0", "inf", "nan", None, {}, [8]]  # fmt: skip


@pytest.mark.parametrize(("said", "count"), WRITTEN.items(), ids=map(str, WRITTEN))
def test_each_way_of_writing_is_read(said, count):
    assert quantity(said) == count


@pytest.mark.parametrize("said", NONE, ids=range(len(NONE)))
def test_an_invalid_number_of_devices_is_not_read_as_zero(said):
    assert quantity(said) is None


@given(st.integers(0, MAX_DEVICES))
def test_a_whole_quantity_is_equal_in_all_units(count):
    canonical = f"{count // 1000}k" if count % 1000 == 0 else str(count)
    assert quantity(canonical) == quantity(f"{count}000m") == quantity(count) == count
