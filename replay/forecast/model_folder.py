"""Stores models of arrivals in folders: a manifest, and the trees of each window."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from predictors.learning.features import NAMES
from predictors.learning.model import FORMAT, QUANTILES, Manifest, Model, booster, digest
from replay.run.output import whole_folder, write_json
from sia.console.errors import UserError
from sia.limits import LONGEST_WINDOW, MAX_WINDOWS, TICK
from sia.wording import as_typed, install_extra

MAX_FILE = 2**25
"""Maximum size of a model's file in bytes; the trees of one window take a sixtieth of it."""

MANIFEST = "manifest.json"
KINDS = ("arrivals", "load")


def require_xgboost() -> None:
    """Raise UserError if xgboost, an extra, is not installed."""
    if find_spec("xgboost") is None:
        raise UserError(
            "learned forecasts need xgboost, which is not installed; " + install_extra("learn")
        )


def refuse_folder(out: Path) -> None:
    """Raise UserError if the path is not a folder, or has other files than a model's."""
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(
            f"{out}: is not a folder; give --out the name of a folder for the model alone"
        )
    names = sorted(path.name for path in out.iterdir())
    strange = [name for name in names if name != MANIFEST and not name.endswith(".ubj")]
    if strange or (names and MANIFEST not in names):
        raise UserError(
            f"{out}: holds {(strange or names)[0]!r}, which does not belong to a model; "
            "give another --out"
        )


def write_model(folder: Path, model: Model, inputs: Sequence[Path] = ()) -> None:
    """Write `manifest.json` and the trees, all or none. Raises UserError if writing fails."""
    files = _files(model.manifest)
    stale = [path.name for what in KINDS for path in folder.glob(f"{what}-*.ubj")]
    with whole_folder(folder, inputs, stale, [MANIFEST, *files]) as new:
        write_json(new / MANIFEST, model.manifest)
        for name, trees in zip(files, [*model.arrivals, *model.loads], strict=True):
            (new / name).write_bytes(trees)


def _files(manifest: Manifest) -> list[str]:
    windows = [as_typed(window) for window in manifest.windows]
    return [f"{what}-{window}.ubj" for what in KINDS for window in windows]


def read_model(
    folder: Path, windows: Sequence[float] | None = None, *, option: str = "--forecast"
) -> Model:
    """Read a model that `write_model` wrote; with `windows` (seconds), only a model of these.

    `option` is the option that named the folder. Raises UserError if a file is missing, corrupt,
    too large or not the one in the manifest, if the model has other windows or features or a newer
    format, and if xgboost is not installed.
    """
    require_xgboost()
    path = folder / MANIFEST
    if not path.exists():
        raise UserError(f"{path}: is missing; give {option} a folder that sia forecast train wrote")
    manifest = _read_manifest(path)
    if windows is not None and tuple(windows) != manifest.windows:
        theirs, ours = (", ".join(map(as_typed, of)) for of in (manifest.windows, windows))
        raise UserError(
            f"{path}: has the windows {theirs}, not {ours}; train one with these windows"
        )
    digests = [of.arrivals_sha256 for of in manifest.learned]
    digests += [of.loads_sha256 for of in manifest.learned]
    trees = [
        _read_trees(folder / name, expected, len(manifest.features))
        for name, expected in zip(_files(manifest), digests, strict=True)
    ]
    half = len(manifest.windows)
    return Model(manifest, trees[:half], trees[half:])


class _Format(msgspec.Struct):
    format: int


def _read_manifest(path: Path) -> Manifest:
    content = _read(path)
    again = "train the model again"
    try:
        found = msgspec.json.decode(content, type=_Format).format
        if found > FORMAT:
            raise UserError(
                f"{path}: has format {found}, newer than {FORMAT}; use a newer sia, or {again}"
            )
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: is not the manifest of a model ({error}); {again}") from None
    if not _consistent(manifest):
        raise UserError(f"{path}: has other features, quantiles or windows; {again}")
    _refuse_newer(path, manifest.versions.get("xgboost", ""))
    return manifest


def _refuse_newer(path: Path, theirs: str) -> None:
    """Raise UserError for trees of a later xgboost, which this version may misread."""
    import xgboost  # noqa: PLC0415  an extra, and slow to load

    ours = xgboost.__version__
    major = re.match(r"(\d{1,4})\.", theirs)
    if major is None:
        raise UserError(f"{path}: does not name its version of xgboost; train the model again")
    if int(major[1]) > int(ours.split(".", maxsplit=1)[0]):
        raise UserError(
            f"{path}: was written by xgboost {theirs[:20]}, newer than {ours}; install that one, "
            "or train the model again"
        )


def _consistent(manifest: Manifest) -> bool:
    """Return whether this version supports the windows and has the same features and quantiles."""
    windows = manifest.windows
    return (
        0 < len(windows) == len(manifest.learned) <= MAX_WINDOWS
        and all(0 < window <= LONGEST_WINDOW and not window % TICK for window in windows)
        and list(windows) == sorted(set(windows))
        and manifest.tick == TICK
        and manifest.features == NAMES
        and manifest.quantiles == QUANTILES
        and all(len(of.covered) == len(QUANTILES) for of in manifest.learned)
    )


def _read_trees(path: Path, expected: str, features: int) -> bytes:
    from xgboost.core import XGBoostError  # noqa: PLC0415  an extra

    trees = _read(path)
    if digest(trees) != expected:
        raise UserError(f"{path}: is not the file that the manifest names; train the model again")
    try:
        known = booster(trees).num_features() if trees else 0  # with none, XGBoost aborts
    except (XGBoostError, ValueError):
        known = -1
    if known != features:
        raise UserError(f"{path}: has no trees of these features; train the model again")
    return trees


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); fix that, or train the model again"
        ) from None
    if len(content) > MAX_FILE:
        raise UserError(f"{path}: is larger than {MAX_FILE:,} bytes; train the model again")
    return content
