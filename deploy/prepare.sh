#!/usr/bin/env bash
# The folders of five parties, made on one machine for a rehearsal: keys, certificates, the deployment file, a token.
#
#   deploy/prepare.sh FOLDER [HOST_OF_S0 HOST_OF_S1 HOST_OF_T]       hosts are 127.0.0.1 if none are given
#
# Real parties never have their keys in one place: each runs `secformer keys create` at its own (docs/deploy.md).
set -euo pipefail

folder=${1:?usage: deploy/prepare.sh FOLDER [HOST_OF_S0 HOST_OF_S1 HOST_OF_T]}
server0=${2:-127.0.0.1} server1=${3:-127.0.0.1} dealer=${4:-127.0.0.1}
secformer=${SECFORMER:-secformer}
roles=(server0 server1 dealer provider client)

at() { # ROLE ARGUMENTS…: the command as this party
    local role=$1
    shift
    SECFORMER_IDENTITY_FOLDER="$folder/$role/identity" $secformer "$@"
}

umask 077
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
for role in "${roles[@]}"; do
    mkdir "$folder/$role"
    at "$role" keys create "$role" > "$folder/$role/fingerprint"
    at "$role" keys export "$role" --out "$folder/$role/certificate.pem"
done

$secformer init "$folder/deployment.toml" --server0 "$server0" --server1 "$server1" --dealer "$dealer"
for role in server0 server1 dealer; do # the file has their empty lists in this order
    sed -i "0,/^fingerprints = \[\]/s//fingerprints = [\"$(tail -n 1 "$folder/$role/fingerprint")\"]/" "$folder/deployment.toml"
done

trusts() { # who trusts the certificates of whom
    case $1 in
        server0) echo server1 dealer provider client ;;
        server1) echo server0 dealer provider client ;;
        *) echo server0 server1 ;;
    esac
}
for role in "${roles[@]}"; do
    cp "$folder/deployment.toml" "$folder/$role/deployment.toml"
    for other in $(trusts "$role"); do
        at "$role" keys trust "$folder/$other/certificate.pem" > /dev/null
    done
done
at client gateway --new-token "$folder/client/token"
echo "five parties are in $folder"
