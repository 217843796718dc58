#!/bin/sh
# Makes one Valkey cluster of the nodes that it is given by name, half of them primaries. Runs at every start: a cluster
# that there is already is only told where its nodes are now, for their addresses change when containers are made anew.
set -eu

patience=60 # looks, a second apart: a cluster agrees within a few

address() { # NODE: `cluster meet` takes no names
  getent hosts "$1" | awk '{ print $1; exit }'
}

told() { # FIELD: what the first node says of its cluster
  valkey-cli -h "$first" cluster info | tr -d '\r' | sed -n "s/^$1://p"
}

first=$1
if [ "$(told cluster_slots_assigned)" = 16384 ]; then
  for node in "$@"; do
    valkey-cli -h "$first" cluster meet "$(address "$node")" 6379 >/dev/null
  done
else
  addresses=
  for node in "$@"; do
    addresses="$addresses $(address "$node"):6379"
  done
  # shellcheck disable=SC2086 # one word a node
  valkey-cli --cluster create $addresses --cluster-replicas 1 --cluster-yes
fi

until [ "$(told cluster_state)" = ok ] && [ "$(told cluster_known_nodes)" = $# ]; do
  patience=$((patience - 1))
  [ "$patience" -gt 0 ] || { echo "The cluster is not whole: $(told cluster_state), $(told cluster_known_nodes) nodes known." >&2; exit 1; }
  sleep 1
done
echo "The cluster of $# nodes is up."
