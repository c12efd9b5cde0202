#!/bin/sh
# check_pure.sh ARCHIVE: fails if the archive refers to a symbol, outside itself, that a pure step machine must not use.
set -eu
nm=${NM:-nm}
defined=$(mktemp) && wanted=$(mktemp)
trap 'rm -f "$defined" "$wanted"' EXIT
"$nm" --defined-only --format=posix "$1" | awk 'NF>=2 {print $1}' | sort -u >"$defined"
"$nm" --undefined-only --format=posix "$1" | awk 'NF>=2 {print $1}' | sort -u | comm -23 - "$defined" >"$wanted"
bad=$(grep -Evx 'memcpy|memmove|memset|memcmp|strlen|mcpg__panic|__stack_chk_fail|__(memcpy|memmove|memset)_chk|_GLOBAL_OFFSET_TABLE_|__(asan|ubsan|tsan|sanitizer|gcov)_.*|__gcov_.*|__(sancov|start___sancov|stop___sancov)_.*' "$wanted" || true)
if [ -n "$bad" ]; then
    echo "$1 is not pure, it refers to:" >&2
    echo "$bad" | sed 's/^/  /' >&2
    exit 1
fi
