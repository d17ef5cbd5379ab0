"""The examples of configurations, as the daemon reads them."""

from pathlib import Path

import pytest

from daemon.backends.kube import KubeSection
from daemon.backends.local.config import LocalConfig
from daemon.backends.slurm import SlurmSection
from daemon.config.read import read_config
from tests.support.daemons.deployed import DEPLOY, run, sia_here
from tests.support.files import written
from tests.support.servers.certificates import Pair

KUBERNETES = [DEPLOY / "kubernetes" / name / "sia.toml" for name in ("base", "postgres")]
EXAMPLES = [*sorted((DEPLOY / "config").glob("*.toml")), *KUBERNETES]


def moved(folder, path):
    """An example whose folders are below this one, with the certificates that it names."""
    pair = Pair(folder, "tls")
    Path(pair.certificate).rename(folder / "tls.crt")
    text = (
        path.read_text().replace("/etc/sia/", f"{folder}/").replace("/etc/sia-tls/", f"{folder}/")
    )
    return written(folder, text.replace("/var/lib/sia", f"{folder}/state"), "sia.toml")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_example_configuration_is_valid(path, tmp_path):
    where = moved(tmp_path, path)
    config = read_config(where)
    assert config.pools
    assert config.token_file == tmp_path / "state" / "token"
    code, said = run(sia_here(), "serve", "--check", "--config", where)
    assert (code, f"{where}: valid") == (0, said[: len(f"{where}: valid")])


def test_each_example_is_for_the_backend_that_it_names(tmp_path):
    kinds = {path: type(read_config(moved(tmp_path, path)).backend) for path in EXAMPLES}
    assert {path.parent.name + "-" + path.stem: kind for path, kind in kinds.items()} == {
        "config-workstation": LocalConfig,
        "config-slurm": SlurmSection,
        "base-sia": KubeSection,
        "postgres-sia": KubeSection,
    }
