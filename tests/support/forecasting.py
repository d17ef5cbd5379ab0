"""Models that are trained in a moment."""

from contextlib import contextmanager
from importlib import import_module
from unittest.mock import patch


@contextmanager
def of_few_trees():
    """Train models of a few trees each: quickly, and too few to foresee well."""
    training = import_module("predictors.learning.training")  # here, for numpy takes long to import
    with patch.multiple(training, ARRIVAL_ROUNDS=20, LOAD_ROUNDS=4):
        yield
