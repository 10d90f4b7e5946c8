#!/bin/sh
# One run on several nodes of a SLURM cluster: a rank for each GPU.
#
#     RECIPE=recipes/gpt3-xl.toml sbatch --nodes=4 recipes/sweeps/slurm_nodes.sh [options of runner]
#     RUN=runs/gpt3-xl-1234abcd sbatch --nodes=8 recipes/sweeps/slurm_nodes.sh       goes on with other nodes
#
# Ranks find each other by SLURM's own variables, and know each other by a secret in the home that nodes share; where they
# share none, set RUNNER_SECRET_FILE or RUNNER_SECRET (docs/distributed.md). Recipe, data and the directory of runs must lie
# on a disk that all nodes share. Submitting it again goes on from the last checkpoint. With another number of nodes the
# recipe is that of another run, so RUN names the one that is to go on. Two minutes before the time is up SLURM sends
# SIGTERM to all ranks: one checkpoint is saved, and the job is queued again.
#
#SBATCH --job-name=runner
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --output=slurm-%x-%j.log
set -eu

root=${SLURM_SUBMIT_DIR:-.}
recipe=${RECIPE:-$root/recipes/gpt3-xl.toml}
ranks=${SLURM_NTASKS:?start this with sbatch}

if [ -n "${RUN:-}" ]; then
    set -- --resume "$RUN" "$@"
else
    set -- "$recipe" "$@"
fi

code=0
# shellcheck disable=SC2086 # RUNNER may be a command with arguments
srun --kill-on-bad-exit=0 ${RUNNER:-runner} "$@" --set "batch.world_size=$ranks" || code=$?
if [ "$code" -eq 143 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
