#!/bin/sh
# Draws the secrets of a cell that compose runs, each once. Only the owner can enter the folder; its
# files are mounted one by one into containers, whose user must be able to read them.
set -eu
folder="$(dirname "$0")/secrets"
mkdir -p "$folder"
chmod 700 "$folder"
for name in worker_token client_token operator_token metrics_token; do
    [ -s "$folder/$name" ] ||
        { head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$folder/$name"; }
    chmod 644 "$folder/$name"
done
