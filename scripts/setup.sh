# setup.sh: sourced by scripts/demo and scripts/test. Brings a Debian 12 machine to where the project builds: Debian's packages through
# apt, Python's through pip into .venv. Says what it installs, does nothing that is done already. Never touches anything outside the
# package manager and the project's folder.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv
export CCACHE_DIR=${CCACHE_DIR:-$ROOT/build/.ccache}

say() { printf '== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

need_apt() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    say "installing Debian packages: ${missing[*]}"
    local sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "these packages are missing and this is not root: ${missing[*]}"
        sudo=(sudo)
    fi
    "${sudo[@]}" apt-get update -qq || die "apt-get update failed"
    DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
        die "apt-get install failed: ${missing[*]}"
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3.11 python3; do
        if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

# need_pip FILE: the virtual environment with what a requirements file names; a stamp of the file's content makes it quick the next time.
need_pip() {
    local file=$1 stamp
    stamp=$VENV/.$(basename "$file").$(sha256sum "$file" | cut -c1-16)
    [ -f "$stamp" ] && return 0
    if [ ! -x "$VENV/bin/python" ]; then
        local python
        python=$(find_python) || { need_apt python3 python3-venv python3-dev; python=$(find_python) || die "Python 3.11 is needed"; }
        "$python" -c 'import ensurepip' 2>/dev/null || need_apt python3-venv
        say "making a virtual environment in .venv"
        "$python" -m venv "$VENV" || die "could not make a virtual environment in $VENV"
    fi
    say "installing Python packages of $(basename "$file") into .venv: $(grep -v '^#' "$file" | tr '\n' ' ')"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -r "$file" || die "pip install failed: $file"
    touch "$stamp"
}

need_python_headers() {
    local include
    include=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [ -f "$include/Python.h" ] || need_apt python3-dev
}

setup_build() {
    need_apt gcc g++ cmake ninja-build ccache pkg-config libgrpc-dev libssl-dev libprotobuf-c-dev protobuf-c-compiler libcmocka-dev
    need_pip "$ROOT/scripts/requirements-demo.txt"
    need_python_headers
}

# build PRESET [TARGET...]
build() {
    local preset=$1
    shift
    local launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
    cmake --preset "$preset" -S "$ROOT" "${launcher[@]}" -DPython3_EXECUTABLE="$VENV/bin/python" >"$ROOT/build/configure-$preset.log" 2>&1 ||
        { cat "$ROOT/build/configure-$preset.log"; die "cmake failed"; }
    cmake --build --preset "$preset" ${1:+--target "$@"} >"$ROOT/build/build-$preset.log" 2>&1 ||
        { tail -n 60 "$ROOT/build/build-$preset.log"; die "the build failed"; }
}

cd "$ROOT" || exit 1
mkdir -p "$ROOT/build"
