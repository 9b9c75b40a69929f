#!/bin/bash
# Two nodes with eight GPUs each: one Ray cluster, one training run. Submit with: sbatch docs/cluster/slurm.sh
# A run directory on a file system that all nodes share is continued when the job is submitted again.
#SBATCH --job-name=seeupo
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@600

set -euo pipefail
RUN=${RUN:-runs/two-nodes-001}
PORT=6379
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')

# Only processes with this token can use the cluster. It is in your home, which all nodes share.
export RAY_AUTH_MODE=token
(umask 077 && ray get-auth-token --generate > /dev/null)

srun --nodes=1 --ntasks=1 --nodelist="$head" ray start --head --node-ip-address="$address" --port=$PORT --block &
sleep 20
others=$((SLURM_JOB_NUM_NODES - 1))
srun --nodes=$others --ntasks=$others --exclude="$head" ray start --address="$address:$PORT" --block &
sleep 20

export RAY_ADDRESS="$address:$PORT"
if [ -d "$RUN/checkpoints" ]; then
    seeupo train --resume "$RUN" --trust auto &
else
    seeupo train two-nodes --trust auto --out "$RUN" &
fi
training=$!
trap 'kill -TERM $training' TERM # ten minutes before the time limit: the run saves a checkpoint and stops
wait $training || wait $training
