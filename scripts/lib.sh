# shellcheck shell=bash
# Shared by the scripts here: a virtual environment with pinned tools, torch, and the package built into it.
#
# Every step leaves a stamp and is skipped while what it was made from has not changed, so that a second run takes
# seconds. Settings, all optional: FOREBAY_VENV (where, default .venv), PYTHON (which interpreter makes it),
# FOREBAY_TORCH_VERSION, FOREBAY_UV_VERSION. Sourced with `set -euo pipefail` on.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${FOREBAY_VENV:-$root/.venv}
stamps=$venv/stamps
python_min=3.10
export FOREBAY_TORCH_VERSION=${FOREBAY_TORCH_VERSION:-2.15.0}
export FOREBAY_UV_VERSION=${FOREBAY_UV_VERSION:-0.13.9}
# PyO3 reads these; with one interpreter named, tests and wheel are built alike and an active environment does not matter.
unset VIRTUAL_ENV CONDA_PREFIX PYTHONPATH PYTHONHOME
export PYO3_PYTHON=$venv/bin/python

say() {
    printf '\n==> %s\n' "$*"
}

# die MESSAGE [TRY]
die() {
    printf 'error: %s\n' "$1" >&2
    [[ $# -lt 2 ]] || printf '  try: %s\n' "$2" >&2
    exit 1
}

# Names what is missing before anything is built. Nothing here is installed for the user: it is the system's.
need_system() {
    [[ $(uname -s) == Linux ]] || die "Forebay runs on Linux only: system=$(uname -s)"
    command -v cargo >/dev/null || PATH=$PATH:$HOME/.cargo/bin
    command -v cargo >/dev/null || die "cargo is missing, Rust's build tool" \
        "install Rust with rustup (https://rustup.rs), then open a new shell"
    local have want
    have=$(cargo --version | awk '{ print $2 }')
    want=$(awk -F'"' '/^rust-version/ { print $2 }' "$root/Cargo.toml")
    [[ $(printf '%s\n%s\n' "$want" "${have%%-*}" | sort -V | head -n 1) == "$want" ]] ||
        die "Rust is too old: have=$have want=$want" "rustup update stable"
    command -v cc >/dev/null || die "a C compiler and linker is missing: cc" \
        "install one, on Debian and Ubuntu: apt-get install build-essential"
    interpreter=${PYTHON:-$(command -v python3 || true)}
    [[ -n $interpreter ]] || die "python3 is missing" "install Python $python_min or newer, or set PYTHON to its path"
    "$interpreter" -c "import sys; sys.exit(sys.version_info < tuple(map(int, '$python_min'.split('.'))))" ||
        die "Python is too old: have=$("$interpreter" -V 2>&1) want=$python_min" \
            "install a newer one and set PYTHON to its path"
    "$interpreter" -c 'import ensurepip, venv' 2>/dev/null || die "Python's venv module is missing: python=$interpreter" \
        "install it, on Debian and Ubuntu: apt-get install python3-venv"
}

# stamped NAME KEY COMMAND...: runs the command unless it succeeded with this key before.
stamped() {
    local stamp=$stamps/$1 key=$2
    shift 2
    [[ -f $stamp && $(<"$stamp") == "$key" ]] && return
    rm -f "$stamp"
    "$@" || return # spelled out: errexit is off where a caller looks at the result
    printf '%s\n' "$key" >"$stamp"
}

ensure_venv() {
    need_system
    if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
        say "making a virtual environment: $venv"
        "$interpreter" -m venv --clear "$venv"
    fi
    mkdir -p "$stamps"
}

ensure_tools() {
    ensure_venv
    local key
    key=$("$venv/bin/python" -V | cat - "$root/scripts/requirements.txt" <(echo "$FOREBAY_UV_VERSION") | sha256sum)
    stamped tools "$key" install_tools
}

install_tools() {
    say "installing pinned tools"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check "uv==$FOREBAY_UV_VERSION" || return
    uv_install -r "$root/scripts/requirements.txt"
}

uv_install() {
    "$venv/bin/uv" pip install -q --python "$venv/bin/python" "$@"
}

has_gpu() {
    [[ -e /proc/driver/nvidia/version || -e /dev/nvidiactl ]]
}

# The pinned torch has no build for older ones.
torch_fits() {
    "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'
}

# torch as it is where there is an NVIDIA GPU; elsewhere only its CPU half, which is a fifth of the size.
ensure_torch() {
    ensure_tools
    local kind=cpu
    ! has_gpu && [[ $(uname -m) == x86_64 ]] || kind=plain
    stamped torch "$FOREBAY_TORCH_VERSION $kind $("$venv/bin/python" -V)" "install_torch_$kind"
}

install_torch_cpu() {
    say "installing torch $FOREBAY_TORCH_VERSION without CUDA"
    bash "$root/scripts/torch-cpu/install.sh" "$venv"
}

install_torch_plain() {
    say "installing torch $FOREBAY_TORCH_VERSION"
    uv_install "torch==$FOREBAY_TORCH_VERSION"
}

# The libraries that training programs are written in, for the suite `frameworks`; torch is there before, in the kind
# that this machine has, and what it does not need here is left out again.
ensure_frameworks() {
    local key
    key=$("$venv/bin/python" -V | cat - "$root/scripts/requirements-frameworks.txt" "$stamps/torch" | sha256sum)
    stamped frameworks "$key" install_frameworks
}

install_frameworks() {
    local leave_out=()
    [[ $(<"$stamps/torch") == *" plain "* ]] || leave_out=(--override "$root/scripts/torch-cpu/overrides.txt")
    say "installing training libraries"
    uv_install "${leave_out[@]}" -r "$root/scripts/requirements-frameworks.txt" "torch==$FOREBAY_TORCH_VERSION"
}

# build_wheel dev|release: leaves its path in `wheel`. The dev profile shares its objects with `cargo test`.
build_wheel() {
    local profile=$1 out=$root/target/wheels/$1
    say "building the wheel: profile=$profile"
    rm -rf "$out"
    (cd "$root/bindings" && "$venv/bin/maturin" build -q --profile "$profile" --auditwheel skip \
        --compression-method stored --interpreter "$venv/bin/python" --out "$out") || return
    wheel=$(echo "$out"/*.whl)
}

# ensure_package dev|release
ensure_package() {
    ensure_tools
    build_wheel "$1" || return
    stamped package "$(sha256sum <"$wheel")" install_wheel
}

# Without dependencies: the package has none of its own, and pip would fetch CUDA for torch.
install_wheel() {
    uv_install --no-deps --reinstall "$wheel"
}

# The folder of Python's own library, which Rust tests that embed Python are linked to; fails where there is none: some
# systems ship the interpreter without it.
libpython_folder() {
    "$venv/bin/python" - <<'PYTHON'
import os, sys, sysconfig
value = sysconfig.get_config_var
name = value("LDLIBRARY") if value("Py_ENABLE_SHARED") else value("LIBRARY")
folders = [value("LIBDIR"), os.path.join(value("LIBDIR"), value("MULTIARCH") or ""), value("LIBPL")]
found = [folder for folder in folders if folder and name and os.path.exists(os.path.join(folder, name))]
sys.exit("no library") if not found else print(found[0])
PYTHON
}
