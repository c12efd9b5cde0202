#!/usr/bin/env bash
# test_coordinator_tool.sh BINARY: the standalone coordinator as a user meets it: address, options, signals.
# Every wait is bounded; only processes started here are signalled.
set -uo pipefail
tool=$1
dir=$(mktemp -d)
pids=()
finish() {
    for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null; done
    rm -rf "$dir"
}
trap finish EXIT
fail() {
    echo "FAIL: $*" >&2
    exit 1
}

# start ARGS...: sets pid and address; the tool's stdout is fd 5, its stderr $dir/err
start() {
    rm -f "$dir/out"
    mkfifo "$dir/out"
    "$tool" "$@" >"$dir/out" 2>"$dir/err" &
    pid=$!
    pids+=("$pid")
    exec 5<"$dir/out"
    read -r -t 20 address <&5 || fail "no address from: $* ($(cat "$dir/err"))"
}
# stop SIGNAL: it must end with 0, within 20 s
stop() {
    kill "-$1" "$pid"
    timeout 20 tail --pid="$pid" -f /dev/null || fail "still there 20 s after SIG$1"
    wait "$pid"
    local rc=$?
    [ "$rc" = 0 ] || fail "exit code $rc after SIG$1"
    exec 5<&-
}
# refused CODE TEXT ARGS...
refused() {
    local code=$1 text=$2 out rc
    shift 2
    out=$(timeout 20 "$tool" "$@" 2>&1)
    rc=$?
    [ "$rc" = "$code" ] || fail "'$*' ended with $rc, not $code: $out"
    grep -qF -- "$text" <<<"$out" || fail "'$*' did not say '$text': $out"
}

start --bind 127.0.0.1:0 --term 4 --event-log-dir "$dir" --address-file "$dir/address"
[[ $address == 127.0.0.1:* ]] || fail "odd address '$address'"
[ "$(cat "$dir/address")" = "$address" ] || fail "address file holds '$(cat "$dir/address")'"
ls "$dir"/coordinator-4-* >/dev/null 2>&1 || fail "no event log"
refused 1 "$address" --bind "$address"
refused 1 "give another" "--bind=$address"
stop TERM
[ -e "$dir/address" ] && fail "address file was left behind"

start --bind "unix:$dir/c.sock"
[ "$address" = "unix:$dir/c.sock" ] || fail "odd address '$address'"
refused 1 "another coordinator" --bind "unix:$dir/c.sock"
stop INT
[ -e "$dir/c.sock" ] && fail "socket was left behind"

refused 2 "0.0.0.0:5000" --bind 0.0.0.0:5000
refused 2 "not loopback" --bind 0.0.0.0:5000
refused 2 "unknown option '--bnid'" --bnid 127.0.0.1:0
refused 2 "'--bind' needs a value" --bind
refused 2 "term 'x'" --term x
refused 2 "term '0'" --term 0
refused 2 "$dir/none" --event-log-dir "$dir/none"
refused 1 "$dir/none/a" --address-file "$dir/none/a"
refused 0 "usage:" --help
refused 0 "mooncake-coordinator" --version
echo "ok"
