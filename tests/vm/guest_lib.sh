# Sourced in the guest: a fabric of software RDMA devices, and its faults.
#
# Device rxeI sits on network interface nicI (10.77.0.(I+1)), whose other end portI is a port of the
# bridge `fabric`. All of it is in the initial network namespace: rdma_rxe carries no traffic in
# others.

nic_address() { printf '02:00:0a:4d:00:%02x' "$(($1 + 1))"; }

# Neighbours are static: resolving them would cost half a second per queue pair. An interface that
# goes down loses them.
add_neighbours() { # of NIC, among N
  local other
  for ((other = 0; other < $2; other++)); do
    [ "$other" = "$1" ] && continue
    echo "neigh replace 10.77.0.$((other + 1)) lladdr $(nic_address "$other") dev nic$1 nud permanent"
  done
}

make_fabric() { # N [bytes of an Ethernet payload: 4200 gives an RDMA MTU of 4096]
  local count=$1 mtu=${2:-4200} i scope
  FABRIC_SIZE=$count
  # Both ends of a connection are addresses of this host: let packets leave all the same.
  for scope in all default; do
    echo 0 >/proc/sys/net/ipv4/conf/$scope/rp_filter
    echo 1 >/proc/sys/net/ipv4/conf/$scope/accept_local
    echo 1 >/proc/sys/net/ipv4/conf/$scope/arp_ignore
    echo 2 >/proc/sys/net/ipv4/conf/$scope/arp_announce
  done
  {
    echo "link set lo up"
    echo "link add fabric mtu $mtu type bridge mcast_snooping 0"
    echo "link set fabric up"
    for ((i = 0; i < count; i++)); do
      echo "link add nic$i mtu $mtu address $(nic_address "$i") type veth peer name port$i mtu $mtu"
      echo "link set port$i master fabric up"
      echo "addr add 10.77.0.$((i + 1))/24 dev nic$i"
      echo "link set nic$i up"
      add_neighbours "$i" "$count"
    done
  } | ip -batch -
  for ((i = 0; i < count; i++)); do rdma link add "rxe$i" type rxe netdev "nic$i"; done
}

cut_link() { ip link set "port$1" down; }         # I: pulls the cable at the switch
restore_link() {                                  # I
  ip link set "port$1" up
  add_neighbours "$1" "$FABRIC_SIZE" | ip -batch -
}
delay_link() { tc qdisc replace dev "nic$1" root netem delay "$2" limit 100000; }  # I 20ms
lose_packets() { tc qdisc replace dev "nic$1" root netem loss "$2"; }              # I 1%
limit_rate() { tc qdisc replace dev "nic$1" root tbf rate "$2" burst 64k latency 500ms; }  # I 80mbit
clear_link() { tc qdisc del dev "nic$1" root 2>/dev/null || true; }                # I
port_state() { ibv_devinfo -d "rxe$1" | sed -n 's/.*state:[[:space:]]*\(PORT_[A-Z]*\).*/\1/p'; }
