#!/usr/bin/env bash
#SBATCH --job-name=servecast
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=00:20:00
#SBATCH --output=servecast-%j.log
# From the root of a checkout: sbatch calibration/job/slurm.sh. What it measured comes back in servecast-JOBID/.
# Python 3.11 or newer: sbatch --export=ALL,PYTHON=python3.11 calibration/job/slurm.sh
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${PYTHON:-python3}" -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet '.[device]'
OUT="$SLURM_SUBMIT_DIR/servecast-$SLURM_JOB_ID" PYTHON="$scratch/venv/bin/python" calibration/job/gpu.sh
