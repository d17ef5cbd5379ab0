"""Each backend tells a job its width and rank, and gives it what it needs to report progress."""

from types import SimpleNamespace

from msgspec.structs import replace

from daemon.backends.kube.config import KubeConfig
from daemon.backends.kube.manifests import new_job
from daemon.backends.slurm.actions import SlurmActions
from daemon.backends.slurm.config import SlurmConfig
from daemon.model.outputs import StartEffect
from daemon.runtime.job_token import JobTokens, ReportVariables
from tests.support.daemons.daemons import house, job

REPORTS = ReportVariables("https://sia.example:1", "the machine's token")
ORDER = StartEffect(
    "j",
    2,
    job("j", command=("true",), env={"SIA_REPORT_URL": "not this", "SIA_RANK": "not this"}),
    (("n1", (0, 1, 2)),),
    width=3,
)
WANTED = {
    "SIA_JOB_ID": "j",
    "SIA_ATTEMPT": "2",
    "SIA_WIDTH": "3",
    "SIA_REPORT_URL": "https://sia.example:1",
    "SIA_REPORT_TOKEN": JobTokens("the machine's token").of("j", 2),
}


def test_pods_can_report():
    made = new_job(KubeConfig(image="i"), "d", ORDER, 30.0, REPORTS.of("j", 2))
    (container,) = made["spec"]["template"]["spec"]["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert WANTED.items() <= env.items()
    (rank,) = [each for each in container["env"] if each["name"] == "SIA_RANK"]
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert rank["valueFrom"] == {"fieldRef": {"fieldPath": path}}, "each pod has its own"
    assert "SIA_CHECKPOINT_DIR" not in env, "pods have no folder in common"


def test_jobs_of_slurm_can_report():
    context = house(None)._replace(reports=REPORTS)
    own = SimpleNamespace(name="ab")
    acts = SlurmActions(SlurmConfig(commands=True), None, context, own, {})
    script = acts._wanted(ORDER).script
    for name, value in WANTED.items():
        assert f"export {name}={value}\n" in script
    assert "export SIA_RANK=0\n" in script
    assert "not this" not in script
    assert "SIA_CHECKPOINT_DIR" not in script


def test_jobs_of_slurm_have_a_folder_for_their_work_where_nodes_and_daemon_share_a_disk():
    acts = SlurmActions(
        SlurmConfig(commands=True, folder="/shared/my jobs"), None, house(None),
        SimpleNamespace(name="ab"), {},
    )  # fmt: skip
    first, again = (acts._wanted(replace(ORDER, attempt=i)).script for i in (1, 2))
    for script in (first, again):
        assert "export SIA_CHECKPOINT_DIR='/shared/my jobs/j.checkpoint'\n" in script
        assert "mkdir -p '/shared/my jobs/j.checkpoint'\nexec true\n" in script
