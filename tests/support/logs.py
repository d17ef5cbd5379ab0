"""Small job logs in the formats of their publishers, and the first rows of large logs."""

import gzip
from itertools import islice


def first_jobs(log, count, path):
    """Write the header of a zipped log and its first rows."""
    with gzip.open(log, "rt") as rows:
        path.write_text("".join(islice(rows, 1 + count)))
    return path


AFTER = 2**63 - 1
"""Google's time value for events after the end of the trace."""

# The Standard Workload Format

SWF_HEAD = """\
; Version: 2.2
; Computer: IBM SP2
; UnixStartTime: 843480031
; MaxNodes: 8
; MaxProcs: 16
;
"""
SWF_LOG = """\
    1      0     10    100    4     -1    -1    8   3600    -1  1   3   2   7  -1 -1 -1 -1
    2      5     -1     -1   -1     -1    -1    2    600    -1  5   3   2  -1  -1 -1 -1 -1
    3     60      0      0    2     -1    -1    2    600    -1  1   4   2  -1  -1 -1 -1 -1
    4     60      5     -1    2     -1    -1    2    600    -1  0   4   2  -1  -1 -1 -1 -1
    5     70      5     30   -1     -1    -1   -1    600    -1  1   4   2  -1  -1 -1 -1 -1
    6     80      5   30.5   -1     -1    -1    3    600    -1  1  -1  -1  -1  -1 -1 -1 -1
    7     -1      5     30    1     -1    -1    1    600    -1  1   4   2  -1  -1 -1 -1 -1
    8     40      0     12    0     -1    -1    5    600    -1  5   4   2  -1  -1 -1 -1 -1
    9     90      0     50    1     -1    -1    1    600    -1  1   5   2  -1  -1 -1 -1 -1
    9     -1      0     20    1     -1    -1    1    600    -1  2   5   2  -1  -1 -1 -1 -1
    9     -1     30     30    1     -1    -1    1    600    -1  3   5   2  -1  -1 -1 -1 -1
"""

# Google's events

G_SUBMIT, G_SCHEDULE, G_EVICT, G_FAIL, G_FINISH, G_KILL, G_LOST, G_PENDING, G_RUNNING = range(9)


def event(time, kind, job="6251639646", user="u81", sched_class="1", name="n3591"):
    """Return a row of job_events; `time` is in seconds."""
    stamp = AFTER if time == AFTER else round(time * 1e6)
    return f"{stamp},,{job},{kind},{user},{sched_class},jn-{job},{name}\n"


def life(*events, job="6251639646"):
    return "".join(event(time, kind, job) for kind, time in events)


SURE = life((G_SUBMIT, 700), (G_SCHEDULE, 700.25), (G_FINISH, 710.25), job="sure")

JOINED_HEAD = "job_id,submit_s,schedule_s,end_s,end_event,user,sched_class,logical_job_name\n"
JOINED = """\
3418309,0.0,0.0,,,u0,3,n0
3418319,0.0,0.0,2506000.5,FINISH,u0,3,n0
6251639646,604.046,605.307,674.99,FINISH,u81,1,n3591
6251707374,1228.778,4830.633,4830.633,KILL,u255,2,n3520
6486631417,2506136.378,2506137.639,,,u522,1,n11553
6486631637,2506136.378,,,,u522,1,n11553
6486641236,602.5,9223372036854.775807,,,u105,0,n3602
6486638013,601.5,602.5,604.75,FAIL,u181,1,n7585
"""

# Alibaba PAI

JOB_HEAD = "job_name,inst_id,user,status,start_time,end_time\n"
TASK_HEAD = (
    "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
)
GROUP_HEAD = "inst_id,user,gpu_type_spec,group,workload\n"
PAI_JOBS = """\
4b3f04b66a525d2df903eb16,8cb3bec2,58540f191766,Terminated,1550879.0,1551416.0
workers,1a,d2d3b77d342e,Failed,1500000.0,1590000.0
fraction,1b,d2d3b77d342e,Terminated,1500010.0,1500020.0
cpu,1c,d2d3b77d342e,Terminated,1400000.0,1400020.0
cpu of zero,1d,d2d3b77d342e,Terminated,1400000.0,1400020.0
running,1e,d2d3b77d342e,Running,1500000.0,
waiting,1f,d2d3b77d342e,Waiting,1500000.0,
without a start,20,d2d3b77d342e,Terminated,,1500020.0
start at 0,21,d2d3b77d342e,Terminated,0.0,1500020.0
in no time,22,d2d3b77d342e,Failed,1500000.0,1500005.0
backwards,23,d2d3b77d342e,Failed,1500000.0,1500003.0
no tasks,24,d2d3b77d342e,Terminated,1500000.0,1500020.0
two types,25,d2d3b77d342e,Terminated,1500000.0,1500020.0
no type,26,d2d3b77d342e,Terminated,1500000.0,1500020.0
no instances,27,d2d3b77d342e,Terminated,1500000.0,1500020.0
"""
PAI_TASKS = """\
4b3f04b66a525d2df903eb16,tensorflow,1.0,Terminated,1550880.0,1551416.0,600.0,29.296875,100.0,T4
workers,ps,2.0,Terminated,1500001.0,1590000.0,600.0,29.296875,,
workers,worker,3.0,Failed,1500100.0,1590000.0,600.0,29.296875,50.0,V100
workers,evaluator,1.0,Failed,1500200.0,1580000.0,600.0,29.296875,800.0,V100
workers,chief,1.0,Failed,,,600.0,29.296875,25.0,V100
fraction,worker,1.0,Terminated,1500012.5,1500020.0,600.0,29.296875,25.0,MISC
cpu,ps,4.0,Terminated,1400000.0,1400020.0,600.0,29.296875,,
cpu of zero,ps,4.0,Terminated,1400000.0,1400020.0,600.0,29.296875,0.0,
running,worker,1.0,Running,1500005.0,,600.0,29.296875,100.0,T4
waiting,worker,1.0,Waiting,,,600.0,29.296875,100.0,T4
without a start,worker,1.0,Terminated,1500005.0,1500020.0,600.0,29.296875,100.0,T4
start at 0,worker,1.0,Terminated,1500005.0,1500020.0,600.0,29.296875,100.0,T4
in no time,worker,1.0,Failed,1500005.0,1500005.0,600.0,29.296875,100.0,T4
backwards,worker,1.0,Failed,1500005.0,1500003.0,600.0,29.296875,100.0,T4
two types,worker,1.0,Terminated,1500005.0,1500020.0,600.0,29.296875,100.0,T4
two types,evaluator,1.0,Terminated,1500005.0,1500020.0,600.0,29.296875,100.0,P100
no type,worker,1.0,Terminated,1500005.0,1500020.0,600.0,29.296875,100.0,
no instances,worker,,Terminated,1500005.0,1500020.0,600.0,29.296875,100.0,T4
of no job,worker,1.0,Terminated,1500005.0,1500020.0,600.0,29.296875,100.0,T4
"""
PAI_GROUPS = """\
1a,d2d3b77d342e,V100,fbeb14d671c6,nmt
8cb3bec2,58540f191766,,0c1a2b,
"""
