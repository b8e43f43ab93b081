#!/usr/bin/env bash
# Prepares a large corpus on many machines under Slurm: two job arrays, and after each a job that puts the shares together.
#
#     CONFIG=big.yaml bash scripts/slurm_prepare.sh 8
#
# Each job waits for the one before to end well. A share that failed or was killed can be handed in again by its command:
# it goes on where it was, and so does this script when it is run again. The run folder lies on a disk that all see.

set -euo pipefail

config=${CONFIG:-base.yaml}
shares=${1:?give the number of shares, as in: bash scripts/slurm_prepare.sh 8}
options=(--parsable --cpus-per-task="${CPUS:-8}" --time="${TIME:-12:00:00}" --output="%x-%A-%a.log")

# Activate the Python environment here, for instance: source "$HOME/venvs/transformer-mt/bin/activate"

# What is wrong with the configuration is said once and here, not by every job.
python -m transformer_mt config check --config "$config"

submit() { # name, job to wait for or nothing, array or nothing, command
    sbatch "${options[@]}" --job-name="$1" ${2:+--dependency="afterok:$2" --kill-on-invalid-dep=yes} ${3:+--array="$3"} \
        --wrap="python -m transformer_mt $4"
}

# Of the job that runs it, not of this shell.
share='--shard $SLURM_ARRAY_TASK_ID/'"$shares"
quoted=$(printf %q "$config")

cleaned=$(submit clean "" "1-$shares" "download --config $quoted $share")
learned=$(submit learn "$cleaned" "" "tokenize --config $quoted --learn-only")
encoded=$(submit encode "$learned" "1-$shares" "tokenize --config $quoted $share")
joined=$(submit join "$encoded" "" "tokenize --config $quoted")
echo "jobs $cleaned (clean), $learned (learn), $encoded (encode), $joined (join)"
