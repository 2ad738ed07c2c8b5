# The fabric is what the other checks believe it is.
devices=$(ibv_devinfo)
expect "$FABRIC_SIZE devices" [ "$(grep -c hca_id: <<<"$devices")" = "$FABRIC_SIZE" ]
expect "all ports are up" [ "$(grep -c PORT_ACTIVE <<<"$devices")" = "$FABRIC_SIZE" ]
expect "the MTU is 4096" [ "$(grep -c 'active_mtu:.*4096' <<<"$devices")" = "$FABRIC_SIZE" ]
