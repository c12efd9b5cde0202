#!/usr/bin/env bash
# run.sh [-b BUILD] [SECONDS [TARGET...]]: runs the fuzz targets (all of targets.txt) for SECONDS each (20), two at a time, each from its
# corpus and its seeds; then the canaries, which must be found. Fails when a target finds something (the input stays in BUILD/found),
# stays below its least number of features (it is blind) or of executions, or when a canary is not found.
# run.sh [-b BUILD] --minimise: folds what the last run found into the corpus, as small as it gets. Never changes the corpus otherwise.
set -uo pipefail

HERE=$(cd "$(dirname "$0")" && pwd)
BUILD=$HERE/../../build/fuzz
if [ "${1:-}" = -b ]; then
    BUILD=$2
    shift 2
fi
[ -d "$BUILD/tests/fuzz" ] || { echo "error: no fuzz build in $BUILD: build it with 'scripts/test fuzz' or the preset fuzz" >&2; exit 1; }
BUILD=$(cd "$BUILD" && pwd)
PROGRAMS=$BUILD/tests/fuzz
WORK=$BUILD/run
FOUND=$BUILD/found
CANARY_SECONDS=180
mkdir -p "$WORK" "$FOUND"
export ASAN_OPTIONS=${ASAN_OPTIONS:-allocator_may_return_null=1:detect_stack_use_after_return=0} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}

rows() { grep '^[a-z]' "$HERE/targets.txt"; }
row_of() { rows | awk -v t="$1" '$1 == t'; }
last_number() { sed -n "s/.*$1 *\([0-9][0-9]*\).*/\1/p" "$2" | tail -n 1; }

seeds() {
    case $1 in
    up | down) mkdir -p "$WORK/$1.seeds" && "$PROGRAMS/fuzz_seeds" "$1" "$WORK/$1.seeds" ;;
    *) mkdir -p "$WORK/$1.seeds" ;;
    esac
}

# fuzz TARGET SECONDS: one target; its verdict is the last line of WORK/TARGET.verdict.
fuzz() {
    local target=$1 seconds=$2 name min_features min_runs max_len what log=$WORK/$1.log started=$SECONDS
    read -r name min_features min_runs max_len what <<<"$(row_of "$target")"
    mkdir -p "$WORK/$target" "$HERE/corpus/$target"
    seeds "$target" || { echo "FAIL $target: no seeds" >"$WORK/$target.verdict"; return 1; }
    timeout $((seconds * 4 + 120)) "$PROGRAMS/fuzz_$target" "$WORK/$target" "$HERE/corpus/$target" "$WORK/$target.seeds" \
        -max_total_time="$seconds" -max_len="$max_len" -len_control=0 -entropic_scale_per_exec_time=1 -timeout=20 -rss_limit_mb=2048 \
        -print_final_stats=1 -artifact_prefix="$FOUND/$target-" >"$log" 2>&1
    local rc=$? features runs
    features=$(last_number 'ft:' "$log")
    runs=$(last_number 'stat::number_of_executed_units:' "$log")
    features=${features:-0} runs=${runs:-0}
    local rate=$((runs / (SECONDS - started > 0 ? SECONDS - started : 1)))
    local text="$target: $runs runs, $rate/s, $features features"
    if [ $rc -ne 0 ]; then
        { grep -E 'broken property|internal error|runtime error|ERROR: |Test unit written' "$log" || tail -n 20 "$log"; } | head -n 8
        echo "FAIL $text; exit $rc, see $log and $FOUND"
    elif [ "$features" -lt "$min_features" ]; then
        echo "FAIL $text, fewer than $min_features: it does not see what it runs"
    elif [ "$runs" -lt $((min_runs * seconds)) ]; then
        echo "FAIL $text, fewer than $min_runs runs per second"
    else
        echo "ok   $text"
    fi >"$WORK/$target.verdict"
    tail -n 1 "$WORK/$target.verdict" | grep -q '^ok'
}

# canary TARGET TEXT: a fault that is there on purpose; found from nothing, or the harness is worth nothing.
canary() {
    local target=$1 text=$2 log=$WORK/canary_$1.log folder=$WORK/canary_$1 started=$SECONDS
    rm -rf "$folder" && mkdir -p "$folder"
    "$PROGRAMS/fuzz_canary_$target" "$folder" -max_total_time=$CANARY_SECONDS -max_len=256 -len_control=0 \
        -artifact_prefix="$folder-" >"$log" 2>&1
    local rc=$?
    if [ $rc -ne 0 ] && grep -q "$text" "$log"; then
        echo "ok   canary $target: found within $((SECONDS - started + 1)) s" >"$WORK/canary_$target.verdict"
    else
        echo "FAIL canary $target: '$text' was not found within $CANARY_SECONDS s, see $log" >"$WORK/canary_$target.verdict"
        return 1
    fi
}

minimise() {
    local target failed=0
    for target in $(rows | awk '{print $1}'); do
        local fresh=$WORK/$target.minimised
        rm -rf "$fresh" && mkdir -p "$fresh" "$HERE/corpus/$target" "$WORK/$target"
        "$PROGRAMS/fuzz_$target" -set_cover_merge=1 "$fresh" "$HERE/corpus/$target" "$WORK/$target" >"$WORK/$target.merge.log" 2>&1 ||
            { echo "FAIL $target: see $WORK/$target.merge.log"; failed=1; continue; }
        # Regressions are kept by name; the rest is what covers everything.
        find "$HERE/corpus/$target" -type f ! -name 'bug-*' -delete
        cp "$fresh"/* "$HERE/corpus/$target/"
        echo "$target: $(find "$HERE/corpus/$target" -type f | wc -l) inputs, $(cat "$HERE/corpus/$target"/* | wc -c) bytes"
    done
    return $failed
}

if [ "${1:-}" = --minimise ]; then
    minimise
    exit
fi

seconds=${1:-20}
shift $(($# > 0 ? 1 : 0))
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(rows | awk '{print $1}')
jobs_most=$(nproc)
[ "$jobs_most" -le 4 ] || jobs_most=4
failed=0 running=0
rm -f "$WORK"/*.verdict
begin() {
    if [ $running -ge "$jobs_most" ]; then
        wait -n || failed=1
        running=$((running - 1))
    fi
    "$@" &
    running=$((running + 1))
}
for target in "${targets[@]}"; do
    [ -n "$(row_of "$target")" ] || { echo "error: no target '$target' in targets.txt" >&2; exit 1; }
    begin fuzz "$target" "$seconds"
done
if [ $# -eq 0 ]; then
    begin canary register heap-buffer-overflow
    begin canary coord 'canary: a group has come'
fi
while [ $running -gt 0 ]; do
    wait -n || failed=1
    running=$((running - 1))
done
cat "$WORK"/*.verdict
ok=$(grep -h '^ok' "$WORK"/*.verdict | wc -l)
echo "fuzz: $ok passed, $(grep -h '^FAIL' "$WORK"/*.verdict | wc -l) failed; corpus $(find "$HERE/corpus" -type f | wc -l) inputs"
exit $failed
