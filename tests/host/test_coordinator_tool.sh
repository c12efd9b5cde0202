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
refused 2 "MOONCAKE_TLS_CERT" --bind 0.0.0.0:5000
printf '%064d\n' 7 >"$dir/token"
chmod 644 "$dir/token"
refused 2 "chmod 600" --token-file "$dir/token"
refused 2 "cannot be opened" --tls-cert "$dir/none" --tls-key "$dir/none"
echo short >"$dir/bad"
chmod 600 "$dir/bad" "$dir/token"
refused 2 "openssl rand -hex 32" --token-file "$dir/bad"
refused 2 "without its private key" --tls-cert "$dir/bad"
refused 2 "not PEM" --tls-cert "$dir/bad" --tls-key "$dir/bad" --token-file "$dir/token"
MOONCAKE_TLS=always refused 2 "has no certificate" --bind 127.0.0.1:0
MOONCAKE_TLS=perhaps refused 2 "'perhaps'" --bind 127.0.0.1:0
start --bind 127.0.0.1:0 --token-file "$dir/token"
[[ $address == 127.0.0.1:* ]] || fail "odd address '$address'"
stop TERM
refused 2 "unknown option '--bnid'" --bnid 127.0.0.1:0
refused 2 "'--bind' needs a value" --bind
refused 2 "term 'x'" --term x
refused 2 "term '0'" --term 0
refused 2 "$dir/none" --event-log-dir "$dir/none"
refused 1 "$dir/none/a" --address-file "$dir/none/a"
refused 0 "usage:" --help
refused 0 "mooncake-coordinator" --version
# The certificates that docs/security.md shows how to make are the ones that work.
docs=$(cd "$(dirname "$0")/../../docs" && pwd)/security.md
if command -v openssl >/dev/null; then
    (cd "$dir" && sed -n '/^openssl req -x509/,/^issue rank3/p' "$docs" >issue.sh && bash -e issue.sh) >"$dir/openssl" 2>&1 ||
        fail "the certificates of docs/security.md could not be made: $(cat "$dir/openssl")"
    start --bind 127.0.0.1:0 --tls-ca "$dir/ca.pem" --tls-cert "$dir/coordinator.pem" --tls-key "$dir/coordinator.key"
    [[ $address == tls:127.0.0.1:* ]] || fail "odd address '$address'"
    greet() { # CERT: what openssl says to a handshake with it
        timeout 20 openssl s_client -connect "${address#tls:}" -CAfile "$dir/ca.pem" -cert "$dir/$1.pem" -key "$dir/$1.key" \
            -verify_return_error -verify_hostname coordinator.mooncake-pg -alpn h2 -tls1_2 </dev/null 2>&1
    }
    said=$(greet rank3)
    [[ $said == *"Verified peername: coordinator.mooncake-pg"* && $said != *error* ]] || fail "rank 3 was not let in: $said"
    said=$(greet coordinator)
    [[ $said == *"unexpected eof"* ]] || fail "a coordinator's certificate passed as a rank's: $said"
    stop TERM
    refused 2 "lacks the name" --tls-ca "$dir/ca.pem" --tls-cert "$dir/rank3.pem" --tls-key "$dir/rank3.key"
else
    echo "no openssl command: the certificates of docs/security.md were not tried"
fi
echo "ok"
