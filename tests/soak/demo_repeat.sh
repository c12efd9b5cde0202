#!/usr/bin/env bash
# demo_repeat.sh [N] [arguments of the example]: the demo's training N times in a row; stops at the first that hangs (4 minutes) or fails.
set -euo pipefail
source "$(dirname "$0")/../../scripts/setup.sh"
n=${1:-20}
shift || true
export PYTHONPATH=$ROOT/build/python
launch=("$VENV/bin/python" -m mooncake.run --nproc 4 --respawn --no-prefix examples/elastic_training.py)
for i in $(seq "$n"); do
    rm -rf build/soak-demo
    timeout 240 "${launch[@]}" --run build/soak-demo "$@" >build/soak-demo.log 2>&1 || { cat build/soak-demo.log; echo "run $i failed"; exit 1; }
    grep -q '^PASS' build/soak-demo.log || { cat build/soak-demo.log; echo "run $i did not pass"; exit 1; }
done
echo "$n passed, 0 failed"
