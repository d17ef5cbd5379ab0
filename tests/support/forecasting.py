"""Models that train in under a second."""

from contextlib import contextmanager
from importlib import import_module
from unittest.mock import patch


@contextmanager
def of_few_trees():
    """Train models of a few trees each: fast, but inaccurate."""
    training = import_module(
        "predictors.learning.training"
    )  # imported here because numpy takes long to import
    boosted = import_module("predictors.run_times.boosted.trees")
    with (
        patch.multiple(training, ARRIVAL_ROUNDS=20, LOAD_ROUNDS=4),
        patch.multiple(boosted, FIRST=100, ROUNDS=8),
    ):
        yield
