#!/bin/sh
# The grid of lr.sh as a SLURM array: one task per run.
#
#     sbatch recipes/sweeps/slurm.sh                 from the directory that `runs` should be in
#     SLURM_ARRAY_TASK_ID=3 SLURM_CPUS_PER_TASK=2 sh recipes/sweeps/slurm.sh      one of them by hand
#
# Submitting it again trains only what is missing: finished runs are skipped, interrupted ones go on. (With another
# number of threads, as of --cpus-per-task, a recipe is that of another run.) A minute before the
# time is up SLURM sends SIGTERM; the run then saves a checkpoint and exits with 143, and the task is queued again.
#
#SBATCH --job-name=lr
#SBATCH --array=0-5
#SBATCH --cpus-per-task=2
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@60
#SBATCH --requeue
#SBATCH --output=slurm-%x-%A-%a.log
set -eu

# SLURM runs a copy of this script, so paths start from where it was submitted
root=${SLURM_SUBMIT_DIR:-.}
recipe=${RECIPE:-$root/recipes/sweeps/small.toml}
lrs=${LRS:-5e-4 1e-3 2e-3}
seeds=${SEEDS:-1 2}

# the task's number counts through the grid, learning rates first
task=$SLURM_ARRAY_TASK_ID
n=0
for seed in $seeds; do
    for lr in $lrs; do
        [ "$n" -ne "$task" ] || set -- --set "seed=$seed" --set "optimizer.lr=$lr" "$@"
        n=$((n + 1))
    done
done
if [ "$task" -ge "$n" ]; then
    echo "task $task is beyond the grid of $n runs; change --array" >&2
    exit 2
fi

# the signal goes to this shell, which passes it on and waits for the checkpoint
${RUNNER:-runner} "$recipe" "$@" --set "compute.threads=${SLURM_CPUS_PER_TASK:-0}" &
run=$!
trap 'kill -TERM "$run" 2>/dev/null' TERM
code=0
wait "$run" || code=$?
# a wait that the signal ended is not the end of the run
while kill -0 "$run" 2>/dev/null; do
    code=0
    wait "$run" || code=$?
done
if [ "$code" -eq 143 ] && [ -n "${SLURM_JOB_ID:-}" ]; then
    scontrol requeue "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}_$task"
fi
exit "$code"
