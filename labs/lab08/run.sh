#!/usr/bin/env bash
# The acceptance sweep of Lab 08 on this machine. It may be run again: what is installed stays, and
# a sweep goes on where it ended.
#
#   bash labs/lab08/run.sh            set up, then sweep
#   bash labs/lab08/run.sh setup      one virtual environment for specedu, one for each engine
#   bash labs/lab08/run.sh sweep      the doctor, a dry run, the sweep, report.html
#   bash labs/lab08/run.sh report     report.html again, from the records
#   bash labs/lab08/run.sh serve ENGINE MODEL PORT REQUESTS [DRAFT KAPPA [LENGTH]]
#                                     one server, as the sweep starts it; LENGTH fixes acceptance
#
# Settings are environment variables:
#   GRID         a preset's name or a YAML file                       (h100)
#   ENGINES      what to set up and start: vllm, sglang, both or ""   (vllm)
#   BACKENDS     of the grid; "" takes those that ENGINES serve and HF_TOKEN may fetch
#   SERVERS      start: one after the other, here; running: they are there already   (start)
#   MAX_MINUTES  no cell begins later; "" has no limit
#   PRICE        of the machine, an hour; "" tells no cost
#   HF_TOKEN     for gated models
#   FOLDER       of environments and sweeps                           (~/specedu-lab08)
#   OUT          of records and report                                (FOLDER/sweep-GRID)
#   RESUME_FROM  a records.jsonl to go on from, where OUT has none yet
#   PYTHON       3.11 or newer                                        (the first one found)
#   TORCH_INDEX  a further package index, for specedu's torch
#   VLLM_VERSION, SGLANG_VERSION
set -euo pipefail

LAB=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(dirname "$(dirname "$LAB")")

GRID=${GRID:-h100}
ENGINES=${ENGINES-vllm}
BACKENDS=${BACKENDS:-}
SERVERS=${SERVERS:-start}
MAX_MINUTES=${MAX_MINUTES:-}
PRICE=${PRICE:-}
HF_TOKEN=${HF_TOKEN:-}
FOLDER=${FOLDER:-$HOME/specedu-lab08}
OUT=${OUT:-}
RESUME_FROM=${RESUME_FROM:-}
PYTHON=${PYTHON:-}
TORCH_INDEX=${TORCH_INDEX:-}
VLLM_VERSION=${VLLM_VERSION:-0.32.0}      # the version whose CPU build this project has measured
SGLANG_VERSION=${SGLANG_VERSION:-0.5.23}  # the newest when this was written; never run here

# --- settings -------------------------------------------------------------------------------------

refuse() { # refuse NAME VALUE EXPECTED
  echo "run.sh: $1: '$2', expected $3" >&2
  exit 2
}

check_number() { # check_number NAME VALUE WHAT
  [[ $2 =~ ^[0-9]+(\.[0-9]+)?$ ]] || refuse "$1" "$2" "$3"
}

check_count() { # check_count NAME VALUE LOWEST HIGHEST
  if ! [[ $2 =~ ^[0-9]{1,6}$ ]] || ((10#$2 < $3 || 10#$2 > $4)); then
    refuse "$1" "$2" "a whole number from $3 to $4"
  fi
}

check_version() { # check_version NAME VALUE
  [[ $2 =~ ^[0-9]+(\.[0-9]+)+([a-z]+[0-9]+|\.post[0-9]+)?$ ]] || refuse "$1" "$2" "a version like 1.2.3"
}

check_settings() {
  local preset presets=()
  for preset in "$ROOT"/specedu/sweep/presets/*.yaml; do
    presets+=("$(basename "$preset" .yaml)")
  done
  [[ " ${presets[*]} " == *" $GRID "* || -f $GRID ]] ||
    refuse GRID "$GRID" "a YAML file, or one of: ${presets[*]}"
  local engine
  for engine in $ENGINES; do
    [[ $engine == vllm || $engine == sglang ]] ||
      refuse ENGINES "$ENGINES" "vllm, sglang, both with a space between, or nothing"
  done
  [[ $SERVERS == start || $SERVERS == running ]] || refuse SERVERS "$SERVERS" "start or running"
  [[ -z $MAX_MINUTES ]] || check_number MAX_MINUTES "$MAX_MINUTES" "a number of minutes, at least 0, or nothing"
  [[ -z $PRICE ]] || check_number PRICE "$PRICE" "a price an hour, at least 0, or nothing"
  check_version VLLM_VERSION "$VLLM_VERSION"
  check_version SGLANG_VERSION "$SGLANG_VERSION"
  [[ -z $RESUME_FROM || -f $RESUME_FROM ]] || refuse RESUME_FROM "$RESUME_FROM" "a file of records, or nothing"
  [[ -z $PYTHON ]] || fits "$PYTHON" || refuse PYTHON "$PYTHON" "Python 3.11 or newer, with venv"
  mkdir -p "$FOLDER" 2>/dev/null || refuse FOLDER "$FOLDER" "a folder that can be made and written to"
  FOLDER=$(cd "$FOLDER" && pwd)
  OUT=${OUT:-$FOLDER/sweep-$(basename "$GRID" .yaml)}
  mkdir -p "$OUT" 2>/dev/null || refuse OUT "$OUT" "a folder that can be made and written to"
  OUT=$(cd "$OUT" && pwd)
  export FOLDER OUT # for the servers that the sweep starts
  if [[ -n $HF_TOKEN ]]; then export HF_TOKEN; else unset HF_TOKEN; fi
}

# --- setup ----------------------------------------------------------------------------------------

fits() { # fits PYTHON
  "$1" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

make_venv() { # make_venv FOLDER
  local python
  for python in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
    if fits "$python"; then
      "$python" -m venv "$1"
      return
    fi
  done
  command -v uv >/dev/null || refuse PYTHON "" "Python 3.11 or newer with venv on this machine, or uv, which brings one"
  uv venv --quiet --allow-existing --seed --python 3.11 "$1"
}

environment() { # environment NAME WHAT...: installs WHAT, once
  local folder=$FOLDER/$1
  shift
  if [[ -f $folder/.installed && $(<"$folder/.installed") == "$*" ]]; then
    echo "$folder is there"
    return
  fi
  echo "$folder: installing $*"
  make_venv "$folder"
  "$folder/bin/python" -m pip install --quiet "$@"
  echo "$*" >"$folder/.installed"
}

setup() {
  local engine index=()
  [[ -z $TORCH_INDEX ]] || index=(--extra-index-url "$TORCH_INDEX")
  environment project "${index[@]}" --constraint "$ROOT/requirements.txt" --editable "$ROOT[figures,triton]"
  for engine in $ENGINES; do # each has a torch of its own
    case $engine in
      vllm) environment vllm "vllm==$VLLM_VERSION" ;;
      sglang) environment sglang "sglang==$SGLANG_VERSION" ;;
    esac
  done
}

# --- servers --------------------------------------------------------------------------------------

wait_for_memory() { # the server before may still be handing the GPU's memory back
  command -v nvidia-smi >/dev/null || return 0
  local _
  for _ in {1..60}; do
    [[ -n $(nvidia-smi --query-compute-apps=pid --format=csv,noheader) ]] || return 0
    sleep 1
  done
  echo "serve: another process is still on the GPU after a minute; its memory will be missing"
}

serve() {
  local usage="ENGINE MODEL PORT REQUESTS [DRAFT KAPPA [LENGTH]]"
  [[ $# == 4 || $# == 6 || $# == 7 ]] || refuse serve "$*" "$usage"
  local engine=$1 model=$2 port=$3 requests=$4 draft=${5:-} kappa=${6:-} length=${7:-}
  [[ $engine == vllm || $engine == sglang ]] || refuse ENGINE "$engine" "vllm or sglang"
  check_count PORT "$port" 1 65535
  check_count REQUESTS "$requests" 1 4096
  [[ -z $kappa ]] || check_count KAPPA "$kappa" 1 64
  [[ -z $length ]] || check_number LENGTH "$length" "tokens a step, from 1 to KAPPA + 1"
  [[ -d $FOLDER/$engine/bin ]] || refuse ENGINE "$engine" "one that is set up: ENGINES=$engine run.sh setup"
  mkdir -p "$OUT/logs"
  # The sweep shows a failed server's last line alone. The server ends with SIGTERM, behind its log.
  exec > >(trap "" TERM && exec tee "$OUT/logs/$engine-$port.log") 2>&1
  wait_for_memory
  PATH=$FOLDER/$engine/bin:$PATH
  # Both engines have a limit of requests at once that is theirs to choose; SGLang takes 48 where it
  # speculates. Behind the limit requests wait, and the sweep would time the queue.
  local command
  if [[ $engine == vllm ]]; then
    command=(vllm serve "$model" --host 127.0.0.1 --port "$port" --max-num-seqs "$requests")
    if [[ -n $draft ]]; then
      local fixed=""
      [[ -z $length ]] ||
        fixed=", \"rejection_sample_method\": \"synthetic\", \"synthetic_acceptance_length\": $length"
      command+=(--speculative-config
        "{\"method\": \"draft_model\", \"model\": \"$draft\", \"num_speculative_tokens\": $kappa$fixed}")
    fi
  else
    command=(python -m sglang.launch_server --model-path "$model" --host 127.0.0.1 --port "$port"
      --enable-metrics --max-running-requests "$requests")
    if [[ -n $draft ]]; then
      command+=(--speculative-algorithm STANDALONE --speculative-draft-model-path "$draft"
        --speculative-num-steps "$kappa" --speculative-eagle-topk 1
        --speculative-num-draft-tokens "$((kappa + 1))")
      [[ -z $length ]] || export SGLANG_SIMULATE_ACC_LEN="$length"
    fi
  fi
  printf '%q ' "${command[@]}" && echo
  exec "${command[@]}"
}

# --- sweep ----------------------------------------------------------------------------------------

specedu() {
  [[ -x $FOLDER/project/bin/specedu ]] || refuse FOLDER "$FOLDER" "one with environments: run.sh setup"
  "$FOLDER/project/bin/specedu" "$@"
}

sweep() {
  local limit=() price=()
  [[ -z $MAX_MINUTES ]] || limit=(--max-minutes "$MAX_MINUTES")
  [[ -z $PRICE ]] || price=(--price "$PRICE")
  specedu doctor
  if [[ -n $RESUME_FROM && ! -e $OUT/records.jsonl ]]; then
    cp "$RESUME_FROM" "$OUT/records.jsonl"
  fi
  # shellcheck disable=SC2086  # several words each
  "$FOLDER/project/bin/python" "$LAB/local_grid.py" "$GRID" --out "$OUT/grid.yaml" \
    --servers "$SERVERS" --engines $ENGINES --backends $BACKENDS
  specedu sweep "$OUT/grid.yaml" --out "$OUT" --dry-run "${price[@]}"
  specedu sweep "$OUT/grid.yaml" --out "$OUT" "${limit[@]}"
}

report() {
  [[ -f $OUT/grid.yaml ]] || refuse OUT "$OUT" "the folder of a sweep: run.sh sweep"
  specedu sweep "$OUT/grid.yaml" --out "$OUT" --report-only
}

check_settings
case ${1:-all} in
  all)
    setup
    sweep
    ;;
  setup | sweep | report)
    [[ $# == 1 ]] || refuse arguments "$*" "$1 alone"
    "$1"
    ;;
  serve) serve "${@:2}" ;;
  *) refuse command "$1" "setup, sweep, report, serve, or none for setup and sweep" ;;
esac
