#!/bin/sh
# Installs SIA from this folder as a service of Debian or Ubuntu, upgrades it, removes it: docs/start/install.md.
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

install    Installs this version, or upgrades to it; the name is that of the configuration
           to begin with, if there is none yet (workstation if not said).
back       Goes back to the version before.
uninstall  Removes the service, and leaves configuration and state; --purge removes them too.
END
}

fail() {
    echo "install.sh: $*" >&2
    exit 2
}

# In a chroot or an image there is no service manager to talk to.
booted() {
    [ -d /run/systemd/system ]
}

check_machine() {
    [ "$(id -u)" = 0 ] || fail "must be run by root; sudo $0 $*"
    command -v systemctl >/dev/null || fail "there is no systemd; see docs/start/install.md for other ways"
    command -v useradd >/dev/null || fail "useradd is missing; apt-get install passwd"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
        fail "needs Python 3.11 or newer; apt-get install python3 python3-venv"
    python3 -c 'import venv, ensurepip' 2>/dev/null ||
        fail "Python has no venv; apt-get install python3-venv"
}

# Same files, same Python: same release, so that installing again changes nothing.
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
    # A copy: the build leaves nothing behind in this folder, which may be read-only.
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

# Empty where the file is none; sia serve --check says why.
backend() {
    python3 -I - "$CONFIG" 2>/dev/null <<END || true
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    print(tomllib.load(file).get("backend", {}).get("kind", "simulated"))
END
}

# Each time, by what the configuration says now: an upgrade brings their mends, too.
install_units() {
    kind=$(backend)
    install -D -m 644 deploy/systemd/sia.service -t "$UNITS"
    case "$kind" in
    '') ;;
    local) install -D -m 644 deploy/systemd/local.conf -t "$UNITS/sia.service.d" ;;
    *) rm -rf "$UNITS/sia.service.d" ;;
    esac
    # With another backend, which may be for a day, it stays as it is.
    if [ "$kind" = slurm ]; then
        install -D -m 644 deploy/slurm/sia-slurmrestd.service -t "$UNITS"
    fi
    if [ -e "$DROP_IN/local.conf" ]; then
        echo "install.sh: $DROP_IN/local.conf goes before what is installed; remove it if it is not yours" >&2
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

# The release that is current becomes the one before; older ones go.
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
                echo "install.sh: sia-slurmrestd does not start; journalctl -u sia-slurmrestd -n 50 says why" >&2
        fi
        systemctl restart sia || fail "it does not start; journalctl -u sia -n 50 says why, $0 back switches versions again"
        systemctl --no-pager --lines=0 status sia
    else
        systemctl enable sia
    fi
}

install_sia() {
    example=${1:-workstation}
    [ -e "deploy/config/$example.toml" ] ||
        fail "there is no example $example; name workstation or slurm"
    check_machine install
    release=$ROOT/releases/$(release_name)
    make_user
    make_config "$example"
    echo "building $release"
    build_release "$release"
    current=$(readlink "$ROOT/current" || echo "$release")
    if [ "$current" != "$release" ]; then
        check_config "$release" ||
            fail "not for this version: the one before goes on; mend $CONFIG, and install again"
    fi
    switch_to "$release"
    install_units
    ln -sfn "$ROOT/current/bin/sia" "$COMMAND"
    check_config "$release" ||
        fail "installed, and not started; mend $CONFIG, and install again"
    restart
    echo "installed; the configuration is $CONFIG, the token is in $STATE/token"
}

go_back() {
    check_machine back
    before=$(readlink "$ROOT/before" 2>/dev/null) || fail "there is no version before; nothing is changed"
    check_config "$before" || fail "not for the version before; nothing is changed"
    switch_to "$before"
    restart
}

uninstall_sia() {
    check_machine uninstall
    if [ "${1:-}" = --purge ] && [ -n "$(ls "$STATE/jobs/alive" 2>/dev/null)" ]; then
        fail "jobs may still run, and their files would go; sia jobs shows them, sia cancel ends them"
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
        echo "removed, with configuration and state"
    else
        echo "removed; /etc/sia, $STATE and the user sia are left (uninstall --purge removes them)"
    fi
}

cd "$(dirname "$0")/.."
case "${1:-}" in
install) install_sia "${2:-}" ;;
back) go_back ;;
uninstall) uninstall_sia "${2:-}" ;;
*) usage && exit 2 ;;
esac
