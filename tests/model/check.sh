#!/usr/bin/env bash
# check.sh PROPERTY [FOLDER]: checks one property of the model with SPIN, in both directions: the whole model keeps it, and each
# model with one rule taken away breaks it. Prints the number of states of each search. Never passes when a search did not end.
#   a      no number is completed in two views (two members and a joiner, one death)
#   b      no two views are operated beside each other (two numbers)
#   c      every held operation ends
#   d      view ids rise, none is skipped, switch_seq never falls
#   wide   a and d for three members and a joiner, by bit-state: not every state
set -uo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
PROPERTY=${1:?usage: check.sh a|b|c|d|wide [FOLDER]}
FOLDER=${2:-$(mktemp -d)}
command -v spin >/dev/null || { echo "error: spin is missing: apt-get install spin" >&2; exit 1; }
mkdir -p "$FOLDER/$PROPERTY" && cd "$FOLDER/$PROPERTY" || exit 1
FAILED=0

# search WANTED NAME MODEL PAN_FLAGS RUN_FLAGS DEFINES...: WANTED is holds or fails
search() {
    local wanted=$1 name=$2 model=$3 flags=$4 run=$5 defines=("${@:6}") seen states
    rm -rf work && mkdir work && cp "$HERE"/*.p* work/ && cd work || exit 1
    # shellcheck disable=SC2086
    { spin -a "${defines[@]}" "$model" && gcc -O1 -w $flags -DMEMLIM=1900 -o pan pan.c && ./pan $run -n; } >log 2>&1
    states=$(grep -oE '^ *[0-9]+ states, stored' log | grep -oE '[0-9]+')
    seen=unfinished
    if grep -q 'errors: 0$' log && ! grep -qE 'not completed|reached -DMEMLIM|max search depth too small' log; then seen=holds; fi
    if grep -qE '^pan:1: (assertion violated|acceptance cycle)' log; then seen=fails; fi
    printf '%-28s %-10s %9s states\n' "$name" "$seen" "${states:-?}"
    if [ "$seen" != "$wanted" ]; then
        echo "error: $name: wanted '$wanted', got '$seen'"
        tail -n 20 log
        [ -f "$model.trail" ] && spin -t "${defines[@]}" "$model" | grep -E 'coordinator|rank|number|peer' | tail -n 60
        FAILED=1
    fi
    cd .. || exit 1
}

SAFE="-DSAFETY -DNOREDUCE -DCOLLAPSE"
RUN="-E -m5000 -w22"
LIVE="-DNFAIR=4 -DCOLLAPSE"
ONE=(-DMEMBERS=2 -DNUMBERS=1 -DVIEWS1=1 -DVIEWS2=1)
TWO=(-DMEMBERS=2 -DNUMBERS=2 -DVIEWS1=1 -DVIEWS2=1)
DEATH=-DDEATHS=1
ALIVE=-DDEATHS=0

without() { # without MACRO... -- DEFINES...: each of these taken away has to be noticed
    local rules=()
    while [ "$1" != -- ]; do rules+=("$1"); shift; done
    shift
    local rule
    for rule in "${rules[@]}"; do search fails "without $rule" doubt.pml "$SAFE" "$RUN" "$@" "-DBREAK_$rule"; done
}

case $PROPERTY in
a)
    search holds "whole model" doubt.pml "$SAFE" "$RUN" "${ONE[@]}" "$DEATH" -DCHECK_A
    without NO_WAIT LOST_PROOF LEAVING_PROOF NO_ACK PROOF_IS_ACK TAKE_OVER RECORD_IGNORED NO_CAS NO_RECORD GATHER LEASE_OLD -- "${ONE[@]}" "$DEATH" -DCHECK_A
    without OPEN_ACK PROMISE -- "${ONE[@]}" "$ALIVE" -DCHECK_A
    ;;
b)
    search holds "whole model" doubt.pml "$SAFE" "$RUN" "${TWO[@]}" "$ALIVE" -DCHECK_B
    without NO_ACK OPEN_ACK LATE_ADOPT -- "${TWO[@]}" "$ALIVE" -DCHECK_B
    without NO_RECORD TAKE_OVER -- "${TWO[@]}" "$DEATH" -DCHECK_B
    ;;
c)
    search holds "whole model" held.pml "$LIVE" "-a -f -m20000 -w20" -DFAULTS=3 -DVIEWS=2
    for rule in NO_RESEND NO_ABORT NO_DOUBT NO_DEADLINE NO_STORE_ANSWER; do
        search fails "without $rule" held.pml "$LIVE" "-a -f -m20000 -w20" -DFAULTS=3 -DVIEWS=2 "-DBREAK_$rule"
    done
    ;;
d)
    search holds "whole model" doubt.pml "$SAFE" "$RUN" "${ONE[@]}" "$ALIVE" -DCHECK_D
    without SWITCH_MIN NO_HOLD LATE_ADOPT LOWER_TERM NO_CLAIM ABORTED_COMMIT -- "${ONE[@]}" "$ALIVE" -DCHECK_D
    ;;
wide)
    search holds "three members, bit-state" doubt.pml "-DSAFETY -DNOREDUCE -DBITSTATE" "-E -m5000 -w24" -DMEMBERS=3 -DNUMBERS=1 -DVIEWS1=1 -DVIEWS2=1 "$DEATH" \
        -DCHECK_A -DCHECK_D
    search fails "without PROOF_OLD_PART" doubt.pml "-DSAFETY -DNOREDUCE -DBITSTATE" "-E -m5000 -w24" -DMEMBERS=3 -DNUMBERS=1 -DVIEWS1=1 -DVIEWS2=1 "$DEATH" \
        -DCHECK_A -DCHECK_D -DBREAK_PROOF_OLD_PART
    ;;
*)
    echo "error: no property '$PROPERTY': a, b, c, d or wide" >&2
    exit 1
    ;;
esac
exit $FAILED
