"""The policies, one file each, found by entry point `sia.policies`.

Imports: contract, state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sia.contract.labels import name_of, params_of
from sia.contract.plugins import load_plugin, plugins
from sia.contract.policy import Policy


def names() -> list[str]:
    """Return the names of all installed policies, sorted."""
    return list(plugins("sia.policies"))


def load(label: str) -> type[Policy]:
    """Return the class of the policy that a label names. Raises KeyError if none is installed."""
    policy: type[Policy] = load_plugin("sia.policies", name_of(label))
    return policy


def make(label: str, defaults: Mapping[str, Any] | None = None) -> Policy:
    """Return a new policy with the options of a label, over `defaults`.

    The part of the label from `@` on, which names predictors, is left to `predictors.catalog`.
    Raises KeyError as `load`, and ValueError in one line for a wrong option.
    """
    kind = load(label)
    return kind(params_of(label.partition("@")[0], kind.Params, defaults))
