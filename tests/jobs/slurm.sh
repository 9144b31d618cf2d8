#!/usr/bin/env bash
# Real SLURM with four nodes on this machine, for tests: munge, slurmctld and a slurmd per node.
#
#   slurm.sh up FOLDER       start it, with all files in FOLDER; set SLURM_CONF to its
#                            etc/slurm.conf; it ends with the calling process, even if that is
#                            killed
#   slurm.sh down FOLDER     cancel its jobs, stop it and remove FOLDER
#
# Needs root and the Debian packages slurmctld, slurmd, slurm-client and munge, but neither systemd
# nor a database. Nodes have 4 CPUs each, on any machine. node4 has a separate file system at
# FOLDER/unshared. Jobs of partition spot are preempted by those of main, with 5 s of grace.
set -euo pipefail
action=$1 folder=$2
export SLURM_CONF=$folder/etc/slurm.conf

configure() {
    local host
    host=$(hostname -s)
    mkdir -p "$folder"/{etc,run,log,state,spool,unshared}
    cat > "$SLURM_CONF" <<CONF
ClusterName=headrace
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=cred_expire=10,socket=$folder/run/munge.socket
SlurmctldPort=${SLURM_PORT:-16817}
SlurmctldPidFile=$folder/run/slurmctld.pid
SlurmdPidFile=$folder/run/slurmd.%n.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd.%n.log
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=100000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=8
OverTimeLimit=0
InactiveLimit=0
MinJobAge=300
SlurmctldTimeout=30
SlurmdTimeout=30
GresTypes=gpu
NodeName=node[1-4] Gres=gpu:2 NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((${SLURM_PORT:-16817} + 1))-$((${SLURM_PORT:-16817} + 4))] CPUs=4 RealMemory=4096 State=UNKNOWN
PartitionName=main Nodes=node[1-4] Default=YES MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=spot Nodes=node[1-4] MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
CONF
    echo "NodeName=node[1-4] Name=gpu File=/dev/zero,/dev/full" > "$folder/etc/gres.conf"
}

up() {
    configure
    setsid bash "$0" guard "$folder" "$PPID" > /dev/null 2>&1 < /dev/null &
    install -d -o munge -g munge -m 0755 "$folder/run/munge"
    sed -i "s|socket=.*|socket=$folder/run/munge/socket|" "$SLURM_CONF"
    chmod 755 "$folder" "$folder/run"
    head -c 1024 /dev/urandom > "$folder/run/munge/key"
    chown munge:munge "$folder/run/munge/key"
    chmod 0400 "$folder/run/munge/key"
    runuser -u munge -- /usr/sbin/munged --key-file="$folder/run/munge/key" \
        --socket="$folder/run/munge/socket" --pid-file="$folder/run/munge/munged.pid" \
        --log-file="$folder/run/munge/munged.log" --seed-file="$folder/run/munge/seed"
    slurmctld
    for i in 1 2 3; do slurmd -N "node$i"; done
    unshare --mount --propagation private bash -c '
        mount -t tmpfs none "$1/unshared"
        exec slurmd -N node4' _ "$folder"
    for _ in $(seq 600); do
        if [ "$(sinfo -h -N -p main -t idle -o %n 2> /dev/null | wc -l)" = 4 ]; then return; fi
        sleep 0.2
    done
    echo "SLURM didn't come up:" >&2
    tail -n 5 "$folder"/log/*.log >&2
    return 1
}

stop() { # pid files; processes have 5 s to exit
    local pids=()
    for file in "$@"; do
        pids+=($(cat "$file" 2> /dev/null)) || true
    done
    kill "${pids[@]}" 2> /dev/null || true
    for _ in $(seq 50); do
        kill -0 "${pids[@]}" 2> /dev/null || return 0
        sleep 0.1
    done
    kill -9 "${pids[@]}" 2> /dev/null || true
}

down() {
    timeout 5 scancel --user "$(id -un)" 2> /dev/null || true
    for _ in $(seq 40); do
        [ -n "$(timeout 3 squeue -h 2> /dev/null)" ] || break
        sleep 0.25
    done
    stop "$folder"/run/slurmd.*.pid "$folder/run/slurmctld.pid"
    stop "$folder/run/munge/munged.pid"
    find /tmp -maxdepth 1 -name "headrace-[0-9]*-[0-9]*" -newer "$SLURM_CONF" -exec rm -rf {} +
    rm -rf "$folder"
}

guard() {
    while readlink -q "/proc/$1/exe" > /dev/null; do  # zombies have none
        [ -d "$folder/etc" ] || return 0
        sleep 1
    done
    down
}

case $action in
    up | down) "$action" ;;
    guard) guard "$3" ;;
    *) echo "unknown action $action" >&2; exit 2 ;;
esac
