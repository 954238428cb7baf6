#!/bin/sh
# Stands in for the programs by which published verifiers install their test runner, where there is no network.
# It is called by their names: uv, uvx, curl, wget, apt-get, apt, pytest.
here=/opt/koderz/tools
name=${0##*/}

fail() { # STATUS TEXT
    echo "$name: $2" >&2
    exit "$1"
}

elsewhere() { # the real program of this name, if there is one
    old=$IFS
    IFS=:
    for folder in $PATH; do
        case $folder in "$here"*) continue ;; esac
        if [ -x "$folder/$name" ] && [ ! -d "$folder/$name" ]; then
            echo "$folder/$name"
            break
        fi
    done
    IFS=$old
}

python() {
    command -v python3 >/dev/null 2>&1 || fail 127 "python3 isn't here, on which koderz' pytest runs"
    PYTHONDONTWRITEBYTECODE=1 exec python3 -I -B "$here/main.py" "$@"
}

installer() { # what uv's installer leaves
    cat <<'END'
mkdir -p "$HOME/.local/bin"
rm -f "$HOME/.local/bin/env"
cp /opt/koderz/tools/env "$HOME/.local/bin/env"
END
}

download() { # curl or wget
    target=- address= next=
    for word; do
        case $next in
        target) target=$word ;;
        esac
        next=
        case $word in
        -o | -O | --output | --output-document) next=target ;;
        --output=* | --output-document=*) target=${word#*=} ;;
        *O-) target=- ;;
        *://*) address=$word ;;
        esac
    done
    case $address in
    https://astral.sh/uv/* | http://astral.sh/uv/* | https://github.com/astral-sh/uv/*installer.sh)
        if [ "$target" = - ]; then installer; else installer >"$target"; fi
        exit 0
        ;;
    esac
    real=$(elsewhere)
    [ -n "$real" ] || fail 6 "koderz has no network here for ${address:-that}"
    exec "$real" "$@"
}

has() { # whether a Debian package is there
    case $1 in
    ca-certificates) [ -d /etc/ssl/certs ] ;;
    python3-pip) command -v pip3 >/dev/null 2>&1 ;;
    *) command -v "$1" >/dev/null 2>&1 || dpkg -s "$1" >/dev/null 2>&1 ;;
    esac
}

apt() {
    while [ $# -gt 0 ]; do
        case $1 in
        -o | --option | -t | -c) shift ;;
        -*) ;;
        *) break ;;
        esac
        [ $# -gt 0 ] && shift
    done
    command=${1:-}
    [ $# -gt 0 ] && shift
    case $command in
    update | upgrade | clean | autoclean | autoremove | dist-upgrade) exit 0 ;;
    install) ;;
    *)
        real=$(elsewhere)
        [ -n "$real" ] || fail 100 "koderz stands in for update and install alone"
        exec "$real" "$command" "$@"
        ;;
    esac
    for word; do
        case $word in
        -*) ;;
        *) has "${word%%=*}" || { echo "E: Unable to locate package $word" >&2 && exit 100; } ;;
        esac
    done
    exit 0
}

case $name in
curl | wget) download "$@" ;;
apt | apt-get) apt "$@" ;;
pytest | py.test) python pytest "$@" ;;
uv | uvx) python "$name" "$@" ;;
*) fail 127 "koderz stands in for no such program" ;;
esac
