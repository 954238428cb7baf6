#!/usr/bin/env bash
# Runs a configuration of rollouts, and compares the run with the one of that name before:
#   run_nightly_benchmark.sh [CONFIG] [OPTION…]
# Where no CONFIG comes first it is configs/daily_benchmark.toml of this repository, run from there, so that a crontab
# needs the script's path alone.
# COMPARE: options of `koderz benchmark compare`, such as --fail-on-regression. The exit code is the run's where that
# isn't 0, else that of the comparison.
set -uo pipefail
home=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-$home/.venv/bin/python}
[ -x "$python" ] || python=python3
[[ ${1:--} != -* ]] || { cd "$home" && set -- configs/daily_benchmark.toml "$@"; }

said=$(mktemp)
trap 'rm -f "$said"' EXIT
"$python" "$home/scripts/eval_rollouts.py" run "$@" | tee "$said"
code=${PIPESTATUS[0]}
rollout=$(sed -n 's/^\[rollouts\] output=//p' "$said")
[ "$code" = 0 ] && [ -n "$rollout" ] || exit "$code"

before=
for folder in "${rollout%/*}"/*/manifest.json; do
    [[ ${folder%/*} < $rollout ]] && before=${folder%/*}
done
[ -n "$before" ] || { echo "there is no run before this one to compare it with" >&2; exit 0; }
run_of() { "$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["benchmark_run_id"])' "$1/manifest.json"; }
# shellcheck disable=SC2086
"$python" -m koderz benchmark compare "$(run_of "$before")" "$(run_of "$rollout")" ${COMPARE:-}
