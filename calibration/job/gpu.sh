#!/usr/bin/env bash
# Check, calibrate and validate one GPU in at most 9 minutes; each stage leaves one archive below $OUT, the log beside.
#   On a GPU:   OUT=out calibration/job/gpu.sh       Llama-3.1-8B in bf16: 24 GB or more
#   Others:     MODEL=, DTYPE=, AS= (a device of the catalogue, or a YAML file, for a GPU it does not know),
#               ROWS=, LENGTH= (of the validation's cache), MEMORY_GB= (of the cliff), PYTHON= (3.11 or newer)
#               STAGES= (some of: doctor cliff calibrate continuous static padded loads), for a second try
#               WHEELS= (a folder of wheels, where nothing can be installed: no network, no pip of its own)
#   Tried on a CPU with a tiny model:  DEVICE=cpu MODEL=cpu-small DTYPE=fp32 OUT=out calibration/job/gpu.sh
# A stage that fails or runs out of its time does not stop the others. What an earlier try measured is gone on with.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

: "${OUT:?name the folder for what comes back}" "${DEVICE:=cuda:0}" "${MODEL:=llama-3.1-8b}" "${DTYPE:=bf16}"
: "${PYTHON:=python3}" "${STAGES:=doctor cliff calibrate continuous static padded loads}"
: "${DOCTOR_S:=40}" "${CLIFF_S:=50}" "${CALIBRATE_S:=150}" "${BURST_S:=40}" "${LOADS_S:=130}"
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
work=${WORK:-$OUT.work}  # what a second try goes on with; archives are made of it
mkdir -p "$work"
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
if [[ -n ${WHEELS:-} ]]; then
  "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$work/site" "$WHEELS"/*.whl || exit 2
  export PYTHONPATH="$work/site:$PYTHONPATH"
fi

name=${NAME:-$(tr -c 'a-z0-9.\n' '-' <<<"${DEVICE%%:*}-$MODEL")}
limits=() prompt=512 output=256 requests=60 rows=8 length=2048 memory=
if [[ $DEVICE == cuda* ]]; then
  if command -v nvidia-smi >/dev/null; then
    name=${NAME:-$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1 | tr 'A-Z ' 'a-z-')-$MODEL}
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv >"$work/gpu.csv"
    total=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -1)  # MiB
    rows=$((total >= 60000 ? 64 : total >= 38000 ? 32 : 8)) memory=$((total >= 60000 ? 40 : total * 8 / 10000))
  fi
else
  limits=(--max-rows 8 --max-length 128 --max-tokens 256) prompt=64 output=32 requests=20 length=128 memory=0.05
fi
rows=${ROWS:-$rows} length=${LENGTH:-$length} memory=${MEMORY_GB:-$memory}
[[ -z ${AS:-} ]] || limits+=(--as "$AS")
as=(); [[ -z ${AS:-} ]] || as=(--as "$AS")

# validation NAME BURST LOADS POLICY...: a validation file
validation() {
  cat <<YAML
scenario:
  name: validation-$name-$1
  model: $MODEL
  profile: ./$name.yaml
  engine: {max_model_len: $length, kv_blocks: $((rows * length / 16)), restart_s: 1}
  workload:
    arrivals: {kind: burst}
    prompt_tokens: {kind: lognormal, median_tokens: $((length / 8)), sigma: 0.6, max_tokens: $((length / 2))}
    output_tokens: {kind: lognormal, median_tokens: $((length / 32)), sigma: 0.6, max_tokens: $((length / 8))}
    requests: $requests
    seed: 7
  policies:
YAML
  printf '    - %s\n' "${@:4}"
  printf 'burst: %s\nloads: [%s]\ngates:\n' "$2" "$3"
  if $2; then
    echo "  - {loads: [burst], metrics: [output_throughput_tps], relative: 0.03}"
  else
    echo "  - {loads: [$3], metrics: [tpot_mean_s, tpot_p99_s, e2e_mean_s, e2e_p99_s], relative: 0.03}"
    echo "  - {loads: [$3], metrics: [ttft_mean_s, ttft_p99_s], relative: 0.08}"
  fi
}
static="{kind: static, batch_size: $((rows / 2)), max_wait_s: 0.2}"
padded="{kind: padded, batch_size: $((rows / 4)), max_wait_s: 0.2}"
continuous="{kind: continuous, max_num_seqs: $rows, max_num_batched_tokens: $length}"

# run SECONDS COMMAND...: one servecast command; an interrupt first, which saves what it has, and 15 s for that
run() { timeout --signal=INT --kill-after=15 "$1" "$PYTHON" -m servecast "${@:2}"; }

stage() {
  case $1 in
    doctor) run "$DOCTOR_S" doctor --device "$DEVICE" "${as[@]}" ;;
    cliff) run "$CLIFF_S" cliff --model "$MODEL" --device "$DEVICE" --dtype "$DTYPE" --prompt "$prompt" \
      --output "$output" ${memory:+--memory-gb "$memory"} ;;
    calibrate) run "$((CALIBRATE_S + 40))" calibrate --model "$MODEL" --device "$DEVICE" --dtype "$DTYPE" \
      --budget-s "$CALIBRATE_S" "${limits[@]}" -o "$work/$name.yaml" ;;
    continuous | static | padded)
      validation "$1" true "" "${!1}" >"$work/$1.yaml"
      run "$BURST_S" validate "$work/$1.yaml" --device "$DEVICE" --out "$work/$1" ;;
    loads)
      validation loads false "0.3, 0.6" "$static" "$padded" "$continuous" >"$work/loads.yaml"
      run "$LOADS_S" validate "$work/loads.yaml" --device "$DEVICE" --out "$work/loads" ;;
    *) echo "STAGES: there is no stage $1" >&2; return 2 ;;
  esac
}

# files STAGE: what belongs to a stage's archive, of what is there
files() {
  case $1 in
    calibrate) (cd "$work" && ls -d calibrate.txt "$name".* gpu.csv 2>/dev/null) ;;
    *) (cd "$work" && ls -d "$1".txt "$1".yaml "$1" 2>/dev/null) ;;
  esac
}

status=0
for each in $STAGES; do
  begun=$SECONDS
  stage "$each" 2>&1 | tee "$work/$each.txt" || status=$?
  mapfile -t made < <(files "$each")
  tar -czf "$OUT/$each.tgz" -C "$work" "${made[@]}" || status=$?
  echo "$each: $((SECONDS - begun)) s, $SECONDS s in all, status so far $status" | tee -a "$OUT/job.log"
done
exit "$status"
