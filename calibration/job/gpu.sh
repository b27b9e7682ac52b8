#!/usr/bin/env bash
# Calibrate, validate and find the memory cliff on one GPU, in at most 8 minutes; everything is left below $OUT.
#   On a GPU:   OUT=out calibration/job/gpu.sh       Llama-3.1-8B in bf16: 24 GB or more
#   Others:     MODEL=, DTYPE=, AS= (a device of the catalogue, or a YAML file, for a GPU it does not know),
#               ROWS=, LENGTH= (of the validation's cache), MEMORY_GB= (of the cliff), PYTHON= (3.11 or newer)
#   Tried on a CPU with a tiny model:  DEVICE=cpu MODEL=cpu-small DTYPE=fp32 OUT=out calibration/job/gpu.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

: "${OUT:?name the folder for what comes back}" "${DEVICE:=cuda:0}" "${MODEL:=llama-3.1-8b}" "${DTYPE:=bf16}"
: "${PYTHON:=python3}" "${CALIBRATE_S:=150}" "${VALIDATE_S:=200}" "${CLIFF_S:=60}"
mkdir -p "$OUT/calibration" "$OUT/results"
name=${NAME:-$(tr -c 'a-z0-9.\n' '-' <<<"${DEVICE%%:*}-$MODEL")}
if [[ $DEVICE == cuda* ]]; then
  name=${NAME:-$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1 | tr 'A-Z ' 'a-z-')-$MODEL}
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv >"$OUT/gpu.csv"
  total=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -1)  # MiB
  limits=(); prompt=512 output=256 requests=60
  length=${LENGTH:-2048} rows=${ROWS:-$((total >= 60000 ? 64 : total >= 38000 ? 32 : 8))}
  memory=${MEMORY_GB:-$((total >= 60000 ? 40 : total * 8 / 10000))}
else
  limits=(--max-rows 8 --max-length 128 --max-tokens 256); prompt=64 output=32 requests=20
  length=${LENGTH:-128} rows=${ROWS:-8} memory=${MEMORY_GB:-0.05}
fi

[[ -z ${AS:-} ]] || limits+=(--as "$AS")

run() { timeout --signal=INT --kill-after=3 "$1" "$PYTHON" -m servecast "${@:2}"; }

run "$((CALIBRATE_S + 60))" calibrate --model "$MODEL" --device "$DEVICE" --dtype "$DTYPE" \
  --budget-s "$CALIBRATE_S" "${limits[@]}" -o "$OUT/calibration/$name.yaml" | tee "$OUT/calibrate.txt"

cat >"$OUT/validation.yaml" <<YAML
scenario:
  name: validation-$name
  model: $MODEL
  profile: ./calibration/$name.yaml
  engine: {max_model_len: $length, kv_blocks: $((rows * length / 16)), restart_s: 1}
  workload:
    arrivals: {kind: burst}
    prompt_tokens: {kind: lognormal, median_tokens: $((length / 8)), sigma: 0.6, max_tokens: $((length / 2))}
    output_tokens: {kind: lognormal, median_tokens: $((length / 32)), sigma: 0.6, max_tokens: $((length / 8))}
    requests: $requests
    seed: 7
  policies:
    - {kind: static, batch_size: $((rows / 2)), max_wait_s: 0.2}
    - {kind: padded, batch_size: $((rows / 4)), max_wait_s: 0.2}
    - {kind: continuous, max_num_seqs: $rows, max_num_batched_tokens: $((length))}
loads: [0.3, 0.6]
gates:
  - {loads: [0.3, 0.6], metrics: [tpot_mean_s, tpot_p99_s, e2e_mean_s, e2e_p99_s], relative: 0.03}
  - {loads: [0.3, 0.6], metrics: [ttft_mean_s, ttft_p99_s], relative: 0.08}
  - {loads: [burst], metrics: [output_throughput_tps], relative: 0.03}
YAML
status=0
run "$VALIDATE_S" validate "$OUT/validation.yaml" --device "$DEVICE" --out "$OUT/results" | tee "$OUT/validate.txt" || status=$?
run "$CLIFF_S" cliff --model "$MODEL" --device "$DEVICE" --dtype "$DTYPE" --prompt "$prompt" --output "$output" \
  --memory-gb "$memory" | tee "$OUT/cliff.txt" || status=$?
exit "$status"
