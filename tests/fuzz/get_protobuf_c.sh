#!/usr/bin/env bash
# get_protobuf_c.sh FOLDER: the source of the installed protobuf-c, from Debian's source package, as FOLDER/protobuf-c/protobuf-c.{c,h}.
# The fuzz build compiles it with instrumentation: through the installed library, which has none, a fuzzer is blind. Uses the package
# sources that this machine already trusts; never changes apt's own configuration or lists, and never falls back to something else.
set -euo pipefail

die() { printf 'error: %s\n' "$*" >&2; exit 1; }

[ $# -eq 1 ] || die "usage: get_protobuf_c.sh FOLDER"
dest=$1
version=$(dpkg-query -W -f='${source:Version}' libprotobuf-c-dev 2>/dev/null) || die "libprotobuf-c-dev is not installed: install it with apt-get"
if [ -f "$dest/.version" ] && [ "$(cat "$dest/.version")" = "$version" ]; then
    exit 0
fi
for tool in dpkg-source apt-get; do
    command -v $tool >/dev/null || die "$tool is missing: install the packages dpkg-dev and apt"
done

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp"
mkdir -p "$tmp/parts" "$tmp/lists/partial" "$tmp/archives/partial" "$tmp/source"

# Debian's own entries of this machine's package sources, each with its keys, asked for sources instead of binaries.
entries() { apt-get indextargets --format '$(ORIGIN)|$(SOURCESENTRY)' 'Created-By: Packages' 2>/dev/null | sed -n 's/^Debian|\(.*\):[0-9]*$/\1/p' | sort -u; }
files=$(entries)
if [ -z "$files" ]; then
    sudo=()
    [ "$(id -u)" -eq 0 ] || sudo=(sudo)
    "${sudo[@]}" apt-get update -qq || die "apt-get update failed: the source of protobuf-c cannot be had without package lists"
    files=$(entries)
fi
[ -n "$files" ] || die "this machine has no Debian package source: the source of protobuf-c $version cannot be had"
for file in $files; do
    case $file in
    *.sources) sed 's/^Types:.*/Types: deb-src/' "$file" ;;
    *) sed -n 's/^[[:space:]]*deb[[:space:]]/deb-src /p' "$file" ;;
    esac >"$tmp/parts/$(basename "$file" | sed 's/^sources\.list$/main.list/')"
done

apt=(apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$tmp/parts" -o Dir::State::lists="$tmp/lists"
    -o Dir::Cache::archives="$tmp/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User="$(id -un)"
    -o Acquire::Languages=none -o Acquire::Retries=3)
"${apt[@]}" update || die "the source package lists cannot be had: check the network and this machine's package sources"
(cd "$tmp/source" && "${apt[@]}" source --download-only "protobuf-c=$version") ||
    die "Debian's source package of protobuf-c $version cannot be had: without it the fuzzers are blind"
dpkg-source --no-check -x "$tmp"/source/protobuf-c_*.dsc "$tmp/tree" >"$tmp/unpack.log" 2>&1 ||
    { cat "$tmp/unpack.log" >&2; die "the source package of protobuf-c $version does not unpack"; }
[ -f "$tmp/tree/protobuf-c/protobuf-c.c" ] || die "the source package of protobuf-c $version has no protobuf-c/protobuf-c.c"

rm -rf "$dest"
mkdir -p "$dest/protobuf-c"
cp "$tmp"/tree/protobuf-c/protobuf-c.[ch] "$dest/protobuf-c/"
printf '%s' "$version" >"$dest/.version"
