#!/usr/bin/env bash
# A Slurm cluster on this machine for experiments: two nodes with eight fake GPUs each, partitions vision and speech.
# Run as root; needs Debian's munge, slurmctld, slurmd and slurm-client:
#   deploy/slurm/lab.sh start /srv/lab && export SLURM_CONF=/srv/lab/slurm.conf
#   deploy/slurm/lab.sh stop /srv/lab
set -euo pipefail

PORT=${SIA_LAB_PORT:-26817}  # port of slurmctld; the nodes use the next two ports
WAIT=30                      # seconds to wait for each daemon to start or stop
PATH=$PATH:/usr/sbin:/sbin

die() {
    echo "lab: $1" >&2
    exit "${2:-1}"
}

[ "$#" -eq 2 ] || die "usage: lab.sh start|stop FOLDER" 2
root=$(realpath -m "$2")
export SLURM_CONF=$root/slurm.conf

write() {
    local host
    host=$(hostname -s)
    mkdir -p "$root"/{state,spool/n1,spool/n2,log,dev,munge,out}
    chmod 755 "$root"
    chmod 1777 "$root/out"
    head -c 128 /dev/urandom >"$root/munge/key"
    chmod 600 "$root/munge/key"
    for gpu in 0 1 2 3 4 5 6 7; do
        [ -e "$root/dev/gpu$gpu" ] || mknod -m 666 "$root/dev/gpu$gpu" c 1 3 # a second node of /dev/null
    done
    cat >"$SLURM_CONF" <<END
ClusterName=lab
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$PORT
AuthType=auth/munge
AuthInfo=socket=$root/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
SlurmctldPidFile=$root/slurmctld.pid
SlurmdPidFile=$root/slurmd.%n.pid
StateSaveLocation=$root/state
SlurmdSpoolDir=$root/spool/%n
SlurmctldLogFile=$root/log/slurmctld.log
SlurmdLogFile=$root/log/slurmd.%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((PORT + 1)) CPUs=64 RealMemory=64000 Gres=gpu:8
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((PORT + 2)) CPUs=64 RealMemory=64000 Gres=gpu:8
PartitionName=vision Nodes=n1 MaxTime=7-0 DefaultTime=60 State=UP Default=YES
PartitionName=speech Nodes=n2 MaxTime=7-0 DefaultTime=60 State=UP
END
    printf 'AutoDetect=off\nNodeName=n[1-2] Name=gpu File=%s/dev/gpu[0-7]\n' "$root" >"$root/gres.conf"
    echo CgroupAutomount=no >"$root/cgroup.conf"
}

begin() { # NAME COMMAND…: run COMMAND in its own session, write its pid to NAME.lab
    local name=$1
    shift
    setsid "$@" >>"$root/log/$name.out" 2>&1 </dev/null &
    echo $! >"$root/$name.lab"
}

until_ok() { # WHAT COMMAND…: repeat COMMAND until it succeeds
    local what=$1 until=$((SECONDS + WAIT))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$until" ] || die "$what did not start within $WAIT s; see $root/log"
        sleep 0.1
    done
}

idle() {
    [ "$(sinfo -h -N -t idle -o %N | sort -u | wc -l)" = 2 ]
}

start() {
    [ "$(id -u)" = 0 ] || die "needs root: slurmctld and munged run as users of their own" 2
    for tool in munged slurmctld slurmd sinfo setsid; do
        command -v "$tool" >/dev/null || die "$tool is missing: apt-get install munge slurmctld slurmd slurm-client" 2
    done
    [ ! -e "$root/slurmctld.lab" ] || die "$root is already running; stop it first" 2
    write
    begin munged munged -F --force --socket="$root/munge/socket" --key-file="$root/munge/key" \
        --pid-file="$root/munge/pid" --seed-file="$root/munge/seed" --log-file="$root/munge/log"
    until_ok munged test -S "$root/munge/socket"
    begin slurmctld slurmctld -D -f "$SLURM_CONF" -c
    until_ok slurmctld scontrol ping
    begin n1 slurmd -D -f "$SLURM_CONF" -N n1
    begin n2 slurmd -D -f "$SLURM_CONF" -N n2
    until_ok "a node" idle
    echo "lab: 16 GPUs on n1 and n2; export SLURM_CONF=$SLURM_CONF"
}

stop() {
    # without the time limit, a client retries for minutes if slurmctld is down
    if [ -e "$root/slurmctld.lab" ]; then timeout "$WAIT" scancel --me --full >/dev/null 2>&1 || true; fi
    for name in n2 n1 slurmctld munged; do
        [ -e "$root/$name.lab" ] || continue
        local pid
        pid=$(cat "$root/$name.lab")
        kill "$pid" 2>/dev/null || true
        local until=$((SECONDS + WAIT))
        while kill -0 "$pid" 2>/dev/null && [ "$SECONDS" -lt "$until" ]; do sleep 0.1; done
        rm -f "$root/$name.lab"
    done
}

case $1 in
    start) start ;;
    stop) stop ;;
    *) die "usage: lab.sh start|stop FOLDER" 2 ;;
esac
