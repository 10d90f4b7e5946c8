#!/usr/bin/env python3
"""A cable between two network namespaces that delays every packet and loses some, where the kernel has no netem.

    python3 scripts/slow_cable.py NAMESPACE NAMESPACE [--delay SECONDS] [--loss SHARE]

Makes an interface `cable` in each namespace, prints a line once both are there, and carries packets until it is ended.
Needs root and /dev/net/tun. scripts/two_hosts.sh uses it.
"""

import argparse
import ctypes
import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import time

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
LONGEST_PACKET = 1 << 16


def end_of_cable(namespace):
    """A descriptor for the packets of a new interface in a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/var/run/netns/{namespace}") as there:
        if libc.setns(there.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), "setns", namespace)
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"cable", IFF_TUN | IFF_NO_PI))
    return tun


def carry(ends, delay, loss):
    """Carries packets from each end to the other."""
    chance = random.Random(1)
    under_way, order = [], itertools.count()
    while True:
        wait = max(0, under_way[0][0] - time.monotonic()) if under_way else None
        ready, _, _ = select.select(ends, [], [], wait)
        for end in ready:
            try:
                packet = os.read(end, LONGEST_PACKET)
            except OSError:
                # the interface is down
                time.sleep(delay)
                continue
            if chance.random() >= loss:
                heapq.heappush(under_way, (time.monotonic() + delay, next(order), ends[1 - ends.index(end)], packet))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, to, packet = heapq.heappop(under_way)
            try:
                os.write(to, packet)
            except OSError:
                # a cable that is cut, or a full queue: networks lose packets
                pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("namespaces", nargs=2)
    parser.add_argument("--delay", type=float, default=0.02)
    parser.add_argument("--loss", type=float, default=0.01)
    arguments = parser.parse_args()
    ends = [end_of_cable(namespace) for namespace in arguments.namespaces]
    print("ready", flush=True)
    carry(ends, arguments.delay, arguments.loss)


if __name__ == "__main__":
    main()
