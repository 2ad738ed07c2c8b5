"""What NCCL says in its log (NCCL_DEBUG=INFO, subsystems INIT, NET and TUNING) as data.

The lines are those of NCCL 2.28.9: src/init.cc ("Using network", "coll channels"), src/transport/
net.cc, p2p.cc and shm.cc ("Channel ... via"), src/enqueue.cc ("Algo ... proto"). Only rank 0 of a
communicator tells its choices."""
import collections
import re

Choice = collections.namedtuple("Choice", "collective bytes algorithm protocol ctas")

CHOICE = re.compile(r"NCCL INFO (\w+): (\d+) Bytes -> Algo (\w+) proto (\w+) "
                    r"channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")


def networks(log):
    """Names of the networks that the communicators took: {"Tide"}, {"IB"}, {"Socket"}."""
    return set(re.findall(r"NCCL INFO Using network (\S+)", log))


def routes(log):
    """Transports of the connections: {"NET/Tide"}, or {"P2P/CUMEM"} and the like."""
    return set(re.findall(r"NCCL INFO Channel \d+/\d+ : .* via (\w+/\w+)", log))


def channels(log):
    """Channels for collectives of the first communicator, None where the log does not say."""
    found = re.search(r"NCCL INFO (\d+) coll channels", log)
    return int(found[1]) if found else None


def connections(log):
    """Of each connection's way how many there are: {"[send] via NET/Tide/0": 2}. What follows the
    network and its device says how: /GDRDMA, /Shared."""
    return collections.Counter(
        re.findall(r"NCCL INFO Channel \d+/\d+ : .* (\[(?:send|receive)\] via \S+)", log))


def choices(log):
    """One Choice for each collective, in their order; ctas is what it was launched with."""
    return [Choice(name, int(size), algorithm.lower(), protocol.lower(), int(high) - int(low) + 1)
            for name, size, algorithm, protocol, low, high in CHOICE.findall(log)]
