#!/usr/bin/env python3
"""nccl_log.py on lines as NCCL 2.28.9 writes them."""
import unittest

import nccl_log

LOG = """\
host:71:71 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to lo
host:71:80 [0] NCCL INFO NET/Tide: Tide 0.1.0 is active: tide-sv0 400 Gbit/s InfiniBand GID 0 fe80::1
host:71:80 [0] NCCL INFO Assigned NET plugin Tide to comm
host:71:80 [0] NCCL INFO Using network Tide
host:71:80 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Tide/0
host:71:80 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/Tide/1(0)/Shared
host:71:80 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] via P2P/CUMEM/read
host:71:80 [0] NCCL INFO 4 coll channels, 4 collnet channels, 0 nvls channels, 4 p2p channels, 2 p2p channels per peer
host:71:80 [0] NCCL INFO TUNER/Plugin: Using Tide (v5)
host:71:71 [0] NCCL INFO AllGather: 512 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
host:71:71 [0] NCCL INFO ReduceScatter: 33554432 Bytes -> Algo PAT proto SIMPLE channel{Lo..Hi}={2..15}
[2026-11-29 21:00:00] host:71:81 [0] socket.cc:12 NCCL WARN socket progress: Connection refused
"""


class LogTest(unittest.TestCase):
    def test_network_and_every_connection(self):
        self.assertEqual(nccl_log.networks(LOG), {"Tide"})
        self.assertEqual(nccl_log.routes(LOG), {"NET/Tide", "P2P/CUMEM"})
        self.assertEqual(nccl_log.channels(LOG), 4)
        self.assertEqual(nccl_log.connections(LOG), {"[receive] via NET/Tide/0": 1,
                                                     "[send] via NET/Tide/1(0)/Shared": 1})

    def test_choices_in_order_with_their_ctas(self):
        self.assertEqual(nccl_log.choices(LOG), [
            ("AllGather", 512, "ring", "ll", 1), ("ReduceScatter", 33554432, "pat", "simple", 14)])

    def test_nothing_is_found_in_nothing(self):
        self.assertEqual((nccl_log.networks(""), nccl_log.routes(""), nccl_log.choices("")),
                         (set(), set(), []))
        self.assertIsNone(nccl_log.channels("Using network IB"))


if __name__ == "__main__":
    program = unittest.main(exit=False, verbosity=0)
    failed = len(program.result.failures) + len(program.result.errors)
    print(f"{program.result.testsRun - failed} passed, {failed} failed")
    raise SystemExit(1 if failed else 0)
