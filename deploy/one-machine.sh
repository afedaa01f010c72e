#!/usr/bin/env bash
# The same as compose.yaml on one machine, without containers: three servers and, if models are named, a gateway.
#
#   deploy/prepare.sh parties
#   deploy/one-machine.sh start parties                 # servers
#   deploy/one-machine.sh push parties FOLDER --name sentiment --allow '*'      # any command of the provider
#   deploy/one-machine.sh gateway parties sentiment     # the gateway, with models to offer
#   deploy/one-machine.sh status parties
#   deploy/one-machine.sh stop parties
#
# A rehearsal: whoever runs this machine holds all three servers.
set -euo pipefail

usage() {
    sed -n '3,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
[ $# -ge 2 ] || usage
action=$1 folder=$(cd "$2" && pwd)
shift 2
secformer=${SECFORMER:-secformer}
servers=(dealer server1 server0)

as() { # ROLE ARGUMENTS…: the command as this party
    local party=$folder/$1
    shift
    export SECFORMER_DEPLOYMENT=$party/deployment.toml SECFORMER_IDENTITY_FOLDER=$party/identity
    export SECFORMER_DATA_FOLDER=$party/data SECFORMER_CACHE_FOLDER=$party/cache
    exec $secformer "$@"
}

alive() { # PARTY: whether the process that was started for it runs
    [ -f "$folder/$1/pid" ] && kill -0 "$(cat "$folder/$1/pid")" 2> /dev/null
}

launch() { # PARTY ARGUMENTS…: in the background, until it says that it is ready
    local party=$1
    shift
    if alive "$party"; then
        echo "$party runs already" >&2
        return
    fi
    : > "$folder/$party/ready"
    (as "$party" "$@" > "$folder/$party/ready" 2>> "$folder/$party/log" < /dev/null) &
    echo $! > "$folder/$party/pid"
    for _ in $(seq 600); do
        if grep -q ^ready "$folder/$party/ready"; then
            cat "$folder/$party/ready"
            return
        fi
        alive "$party" || break
        sleep 0.1
    done
    echo "$party did not start; its last words:" >&2
    tail -n 5 "$folder/$party/log" >&2
    exit 1
}

end() { # PARTY: ask it to stop, and wait until it has
    alive "$1" || return 0
    kill "$(cat "$folder/$1/pid")"
    for _ in $(seq 150); do
        alive "$1" || break
        sleep 0.1
    done
    rm -f "$folder/$1/pid"
    echo "$1 has stopped"
}

case $action in
    start)
        for role in "${servers[@]}"; do launch "$role" serve "$role"; done
        ;;
    gateway)
        [ $# -ge 1 ] || usage
        launch client gateway "$@"
        ;;
    push | models | access | remove)
        extra=()
        [ "$action" = models ] && extra=(--as provider)
        as provider "$action" "${extra[@]}" "$@"
        ;;
    status)
        for party in "${servers[@]}" client; do
            if alive "$party"; then echo "$party runs, process $(cat "$folder/$party/pid")"; else echo "$party does not run"; fi
        done
        ;;
    stop)
        for party in client server0 server1 dealer; do end "$party"; done
        ;;
    *) usage ;;
esac
