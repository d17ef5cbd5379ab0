#!/bin/sh
# Install, upgrade or remove SIA as a service on Debian or Ubuntu, from this folder: docs/start/install.md.
set -eu
umask 022

ROOT=/opt/sia
CONFIG=/etc/sia/sia.toml
STATE=/var/lib/sia
UNITS=/usr/local/lib/systemd/system
DROP_IN=/etc/systemd/system/sia.service.d
COMMAND=/usr/local/bin/sia

usage() {
    cat <<END
Usage: deploy/install.sh install [workstation|slurm]
       deploy/install.sh back
       deploy/install.sh uninstall [--purge]

install    Install this version, or upgrade to it. The argument names the example that becomes
           the configuration if there is none yet (default: workstation).
back       Switch back to the previous version.
uninstall  Remove the service but keep configuration and state; --purge removes them too.
END
}

fail() {
    echo "install.sh: $*" >&2
    exit 2
}

# False in a chroot or an image build, where no service manager runs.
booted() {
    [ -d /run/systemd/system ]
}

check_machine() {
    [ "$(id -u)" = 0 ] || fail "needs root; run: sudo $0 $*"
    command -v systemctl >/dev/null || fail "systemd is missing; docs/start/install.md describes other ways to install"
    command -v useradd >/dev/null || fail "useradd is missing; run: apt-get install passwd"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
        fail "needs Python 3.11 or newer; run: apt-get install python3 python3-venv"
    python3 -c 'import venv, ensurepip' 2>/dev/null ||
        fail "the Python module venv is missing; run: apt-get install python3-venv"
}

# The name is a digest of the files and the Python version, so that installing the same files again changes nothing.
release_name() {
    number=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
    digest=$({
        python3 --version
        find pyproject.toml deploy/requirements.lock docs cells sia predictors replay oracle daemon \
            -type f ! -path '*/__pycache__/*' -exec sha256sum {} + | LC_ALL=C sort
    } | sha256sum | cut -c1-12)
    echo "$number-$digest"
}

build_release() {
    release=$1
    if [ -e "$release/complete" ]; then
        return
    fi
    rm -rf "$release"
    python3 -m venv "$release"
    "$release/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
        --require-hashes -r deploy/requirements.lock
    # Build from a copy, because this folder may be read-only and must not collect build files.
    source=$(mktemp -d)
    trap 'rm -rf "$source"' EXIT
    cp -R pyproject.toml README.md LICENSE cells sia predictors replay oracle daemon "$source"
    "$release/bin/pip" install --quiet --disable-pip-version-check --no-deps \
        --no-build-isolation "$source"
    cp -R docs "$release/docs"
    touch "$release/complete"
}

make_user() {
    if ! getent passwd sia >/dev/null; then
        useradd --system --user-group --home-dir "$STATE" --no-create-home \
            --shell /usr/sbin/nologin sia
    fi
    install -d -o sia -g sia -m 700 "$STATE"
}

make_config() {
    example=$1
    install -d -o root -g sia -m 750 /etc/sia
    if [ ! -e "$CONFIG" ]; then
        install -o root -g sia -m 640 "deploy/config/$example.toml" "$CONFIG"
    fi
}

# Print the kind of backend; nothing if the file is invalid (sia serve --check reports why).
backend() {
    python3 -I - "$CONFIG" 2>/dev/null <<END || true
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    print(tomllib.load(file).get("backend", {}).get("kind", "simulated"))
END
}

# Runs at each installation, so that upgrades replace the units too. The current configuration decides which.
install_units() {
    kind=$(backend)
    install -D -m 644 deploy/systemd/sia.service -t "$UNITS"
    case "$kind" in
    '') ;;
    local) install -D -m 644 deploy/systemd/local.conf -t "$UNITS/sia.service.d" ;;
    *) rm -rf "$UNITS/sia.service.d" ;;
    esac
    # With another backend an installed unit is kept: the change of backend may be temporary.
    if [ "$kind" = slurm ]; then
        install -D -m 644 deploy/slurm/sia-slurmrestd.service -t "$UNITS"
    fi
    if [ -e "$DROP_IN/local.conf" ]; then
        echo "install.sh: $DROP_IN/local.conf overrides the installed drop-in; remove it if you did not create it" >&2
    fi
}

link() {
    ln -sfn "$2" "$1.new"
    mv -T "$1.new" "$1"
}

check_config() {
    (cd / && setpriv --reuid=sia --regid=sia --init-groups --reset-env \
        "$1/bin/sia" serve --check --config "$CONFIG")
}

# The current release becomes the previous one (the link "before"); older releases are removed.
switch_to() {
    release=$1
    before=$(readlink "$ROOT/current" 2>/dev/null || true)
    if [ "$before" != "$release" ]; then
        [ -z "$before" ] || link "$ROOT/before" "$before"
        link "$ROOT/current" "$release"
    fi
    for old in "$ROOT"/releases/*; do
        if [ "$old" != "$release" ] && [ "$old" != "$(readlink "$ROOT/before")" ]; then
            rm -rf "$old"
        fi
    done
}

restart() {
    if booted; then
        systemctl daemon-reload
        systemctl enable --quiet sia
        if [ -e "$UNITS/sia-slurmrestd.service" ]; then
            systemctl try-restart sia-slurmrestd ||
                echo "install.sh: sia-slurmrestd does not start; for the reason: journalctl -u sia-slurmrestd -n 50" >&2
        fi
        systemctl restart sia || fail "sia does not start; for the reason: journalctl -u sia -n 50; to return to the previous version: $0 back"
        systemctl --no-pager --lines=0 status sia
    else
        systemctl enable sia
    fi
}

install_sia() {
    example=${1:-workstation}
    [ -e "deploy/config/$example.toml" ] ||
        fail "there is no example $example; use workstation or slurm"
    check_machine install
    release=$ROOT/releases/$(release_name)
    make_user
    make_config "$example"
    echo "building $release"
    build_release "$release"
    current=$(readlink "$ROOT/current" || echo "$release")
    if [ "$current" != "$release" ]; then
        check_config "$release" ||
            fail "this version does not accept $CONFIG, so the installed one keeps running; fix the configuration and install again"
    fi
    switch_to "$release"
    install_units
    ln -sfn "$ROOT/current/bin/sia" "$COMMAND"
    check_config "$release" ||
        fail "installed but not started; fix $CONFIG and install again"
    restart
    echo "installed; the configuration is $CONFIG, the token is in $STATE/token"
}

go_back() {
    check_machine back
    before=$(readlink "$ROOT/before" 2>/dev/null) || fail "there is no previous version; nothing was changed"
    check_config "$before" || fail "the previous version does not accept $CONFIG; nothing was changed"
    switch_to "$before"
    restart
}

uninstall_sia() {
    check_machine uninstall
    if [ "${1:-}" = --purge ] && [ -n "$(ls "$STATE/jobs/alive" 2>/dev/null)" ]; then
        fail "jobs may still be running, and --purge deletes their files; list them with sia jobs, end them with sia cancel"
    fi
    for unit in sia sia-slurmrestd; do
        if [ -e "$UNITS/$unit.service" ]; then
            ! booted || systemctl stop "$unit"
            systemctl disable --quiet "$unit"
        fi
    done
    rm -rf "$ROOT" "$UNITS/sia.service" "$UNITS/sia.service.d" "$UNITS/sia-slurmrestd.service"
    [ "$(readlink "$COMMAND")" != "$ROOT/current/bin/sia" ] || rm -f "$COMMAND"
    ! booted || systemctl daemon-reload
    if [ "${1:-}" = --purge ]; then
        rm -rf /etc/sia "$STATE" "$DROP_IN"
        ! getent passwd sia >/dev/null || userdel sia
        echo "removed, including configuration and state"
    else
        echo "removed; /etc/sia, $STATE and the user sia are kept (uninstall --purge removes them)"
    fi
}

cd "$(dirname "$0")/.."
case "${1:-}" in
install) install_sia "${2:-}" ;;
back) go_back ;;
uninstall) uninstall_sia "${2:-}" ;;
*) usage && exit 2 ;;
esac
