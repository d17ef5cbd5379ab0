"""Each backend gives a job what it needs to report its progress."""

from types import SimpleNamespace

from daemon.backends.kube.config import KubeConfig
from daemon.backends.kube.manifests import new_job
from daemon.backends.slurm.actions import SlurmActions
from daemon.backends.slurm.config import SlurmConfig
from daemon.model.outputs import StartEffect
from daemon.runtime.job_token import JobTokens, ReportVariables
from tests.support.daemons.daemons import house, job

REPORTS = ReportVariables("https://sia.example:1", "the machine's token")
ORDER = StartEffect(
    "j", 2, job("j", command=("true",), env={"SIA_REPORT_URL": "not this"}), (("n1", (0,)),)
)
WANTED = {
    "SIA_JOB_ID": "j",
    "SIA_ATTEMPT": "2",
    "SIA_REPORT_URL": "https://sia.example:1",
    "SIA_REPORT_TOKEN": JobTokens("the machine's token").of("j", 2),
}


def test_pods_can_report():
    made = new_job(KubeConfig(image="i"), "d", ORDER, 30.0, REPORTS.of("j", 2))
    (container,) = made["spec"]["template"]["spec"]["containers"]
    env = {each["name"]: each["value"] for each in container["env"]}
    assert WANTED.items() <= env.items()


def test_jobs_of_slurm_can_report():
    context = house(None)._replace(reports=REPORTS)
    own = SimpleNamespace(name="ab")
    acts = SlurmActions(SlurmConfig(commands=True), None, context, own, {})
    script = acts._wanted(ORDER).script
    for name, value in WANTED.items():
        assert f"export {name}={value}\n" in script
    assert "not this" not in script
