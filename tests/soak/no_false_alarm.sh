#!/usr/bin/env bash
# no_false_alarm.sh [SECONDS]: 4 ranks of small and large all_reduces beside two busy loops. Fails if a live rank is ever hinted, a sum is
# wrong, or the view changes.
set -euo pipefail
source "$(dirname "$0")/../../scripts/setup.sh"
export PYTHONPATH=$ROOT/build/python
timeout $((${1:-600} + 120)) "$VENV/bin/python" tests/soak/no_false_alarm.py --seconds "${1:-600}"
