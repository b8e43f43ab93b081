#!/usr/bin/env bash
# Trains on several nodes under Slurm, and goes on in a new job when the time of one is over.
#
#     CONFIG=mine.yaml sbatch scripts/slurm_train.sh
#
# Shortly before the time limit the run is asked to save and leave, then the job goes back into the queue under the
# same number and resumes there, to the bit if the nodes are alike. A run that has ended, well or with an error, is not
# queued again. Adapt the lines up to "what follows is the same for every run".

#SBATCH --job-name=transformer-mt
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
# A node that fails ends the job; this lets Slurm queue it again. Our own requeue needs it too.
#SBATCH --requeue
# Three minutes before the limit SIGTERM goes to this shell alone (B:), which knows what to do about it.
#SBATCH --signal=B:TERM@180
# All sittings of the job write one log.
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log

# No --fresh or --reset below: the command is repeated each time the job comes back.
config=${CONFIG:-base.yaml}
processes_per_node=${PROCESSES_PER_NODE:-8} # as many as GPUs
port=${PORT:-29500}                         # free on the first node; two jobs that share a node need two

# Activate the Python environment here, for instance: source "$HOME/venvs/transformer-mt/bin/activate"

# What follows is the same for every run.

set -u # and not -e: every exit code that matters is looked at

# torchrun would choose one thread, and say so; the number of threads is part of what makes results equal to the bit.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# How long torchrun lets its processes save before it kills them; before it knew this variable it was 30 seconds.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-150}
# Since Slurm 22.05 a step does not take the job's --cpus-per-task by itself.
export SRUN_CPUS_PER_TASK=${SRUN_CPUS_PER_TASK:-${SLURM_CPUS_PER_TASK:-1}}

asked_to_leave=
cancelled=

leave() {
    # Once only: to the run a second SIGTERM says "at once, without saving".
    [[ $asked_to_leave ]] && return
    asked_to_leave=yes
    # When somebody cancels the job, or Slurm preempts it, SIGTERM comes here as well, but the job is not running any
    # more: then Slurm has told the step itself, and whether the job is queued again is not ours to decide.
    local job
    job=$(scontrol show job "$SLURM_JOB_ID" 2>/dev/null)
    if [[ $job == *JobState=* && $job != *JobState=RUNNING* ]]; then
        cancelled=yes
        return
    fi
    # Not `kill` on srun: it answers SIGTERM by killing the step with SIGKILL. scancel with --signal hands the signal
    # to the step's launchers on all nodes, which pass it on to their processes; this shell does not get it again.
    scancel --signal=TERM "$SLURM_JOB_ID"
}
trap leave TERM

# What is wrong with the configuration is said once and here, not by every process and after three restarts.
python -m transformer_mt config check --config "$config" || exit

first_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

code=143
if [[ ! $asked_to_leave ]]; then
    # One launcher a node; they find each other at the first node. A process that fails makes all of them start again
    # from the newest checkpoint, three times at most. A launcher that gives up ends the step (--kill-on-bad-exit)
    # instead of leaving the others to wait for it.
    srun --ntasks-per-node=1 --kill-on-bad-exit=1 \
        torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "$processes_per_node" --max-restarts 3 \
        --rdzv-backend c10d --rdzv-endpoint "$first_node:$port" --rdzv-id "$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" \
        -m transformer_mt train --config "$config" &
    step=$!
    # In the background, since bash runs a trap only when the command in the foreground has ended; but `wait` returns
    # for it. So a return of `wait` does not mean that the step is gone: wait until it is, then ask how it ended.
    while kill -0 "$step" 2>/dev/null; do wait "$step"; done
    wait "$step"
    code=$?
fi

# torchrun exits with 1 whatever its processes exited with, so the exit code does not tell leaving from failing; that
# we asked it to leave does.
if [[ $code -ne 0 && $asked_to_leave && ! $cancelled ]]; then
    echo "job $SLURM_JOB_ID was asked to leave and goes back into the queue"
    scontrol requeue "$SLURM_JOB_ID" && exit 0
fi
exit "$code"
