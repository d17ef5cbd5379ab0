"""In CI a test of a server that is not there fails; elsewhere it is skipped."""

import os
import subprocess
import sys

import pytest

from tests.support.paths import TESTS

LONELY = """
import pytest

@pytest.mark.server
def test_of_a_server():
    pytest.skip("no mosquitto here")

def test_of_logs():
    pytest.skip("no logs here")
"""


def outcome(folder, source, *args, **env):
    """The exit code and what is said of a file of tests beside this project's conftest."""
    conftest = TESTS / "conftest.py"
    (folder / "conftest.py").write_text(conftest.read_text())
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = server\n")
    (folder / "test_it.py").write_text(source)
    inherited = {key: value for key, value in os.environ.items() if key != "CI"}
    inherited["PYTHONPATH"] = str(conftest.parent)
    inherited["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # others' plugins take seconds
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args]
    done = subprocess.run(
        command, check=False, cwd=folder, env=inherited | env,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.parametrize(("env", "code"), [({}, 0), ({"CI": "1"}, 1)])
def test_a_skipped_server_fails_in_ci_alone(tmp_path, env, code):
    said, text = outcome(tmp_path, LONELY, **env)
    assert said == code, text
    if env:
        assert "1 failed, 1 skipped" in text
        assert "skipped, which CI does not allow: Skipped: no mosquitto here" in text
    else:
        assert "2 skipped" in text


def test_a_file_that_skips_itself_fails_in_ci_too(tmp_path):
    source = "import pytest\npytest.importorskip('no_such_module_at_all')\n"
    assert outcome(tmp_path, source, "-m", "server", CI="1")[0] not in {0, 5}
