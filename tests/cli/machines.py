"""Files of machines that are not here, for `tide doctor --root`: /sys, /proc, /dev, and facts.json.

Each function makes one machine as a dictionary: path -> text, bytes, or Link. `write` lays it out.
The shapes are those of Linux 5.15 to 6.8 with NVIDIA's driver 550 to 580 and mlx5.
"""
import json
import os
import pathlib
import struct

RELEASE = "0.1.0"


class Link(str):
    """Target of a symbolic link, absolute in the machine; written relative."""


def write(files, folder):
    for path, content in files.items():
        place = pathlib.Path(folder, path.lstrip("/"))
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            target = pathlib.Path(folder, content.lstrip("/"))
            place.symlink_to(os.path.relpath(target, place.parent))
        elif isinstance(content, bytes):
            place.write_bytes(content)
        else:
            place.write_text(content)


def limits(memlock="unlimited", files="1048576"):
    return (f"{'Limit':26}{'Soft Limit':21}{'Hard Limit':21}Units\n"
            f"{'Max open files':26}{files:21}{'1048576':21}files\n"
            f"{'Max locked memory':26}{memlock:21}{memlock:21}bytes\n")


def base(host, kernel="5.15.0-105-generic", memory_gib=2048):
    """A bare server with a python, torch 2.9 with CUDA, and Tide in /usr."""
    library = lambda name: {"path": f"/usr/lib/tide/{name}", "release": RELEASE}
    facts = {
        "host": host,
        "tide": {"command": "/usr/bin/tide", "shim": library("libtide-shim.so"),
                 "net": library("libnccl-net-tide.so"), "net_versions": [7, 8, 9, 10, 11, 12],
                 "tuner_versions": [2, 3, 4, 5, 6],
                 "torch": {"2.9.1": library("libtide-torch-2.9.1.so")}},
        "python": {"asked": "python3", "executable": "/opt/job/bin/python3", "version": "3.11.9",
                   "preloads": True, "torch_version": "2.9.1+cu128", "torch_cuda": "12.8",
                   "nccl_version": "2.27.5",
                   "nccl_file": "/opt/job/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"},
        "cuda": {"absent": True, "error": "libcuda.so.1: cannot open shared object file: No such file or directory"},
        "verbs": {"dma_buf": True},
        "flow_control": {}, "environment": {}, "programs": [],
    }
    files = {
        "/proc/sys/kernel/osrelease": f"{kernel}\n",
        "/proc/sys/kernel/yama/ptrace_scope": "1\n",
        "/proc/self/limits": limits(),
        "/proc/self/status": "Name:\ttide\nCapEff:\t0000000000000000\n",
        "/proc/self/uid_map": "         0          0 4294967295\n",
        "/proc/self/cgroup": "0::/user.slice/session-3.scope\n",
        "/proc/self/mounts": "tmpfs /dev/shm tmpfs rw,nosuid,nodev,inode64 0 0\n",
        "/proc/meminfo": f"MemTotal:       {memory_gib * 1024 * 1024} kB\n",
        "/sys/fs/cgroup/user.slice/session-3.scope/memory.max": "max\n",
    }
    return files, facts


def driver(files, version="570.124.06", kind="Open Kernel Module for x86_64"):
    files["/proc/driver/nvidia/version"] = (
        f"NVRM version: NVIDIA UNIX {kind}  {version}  Release Build  (builder@host)\n"
        "GCC version:  gcc version 11.4.0\n")


def config_space(acs):
    """PCI Express configuration space with one extended capability: access control, or none."""
    space = bytearray(4096)
    if acs is not None:
        struct.pack_into("<I", space, 0x100, 0x000d | 1 << 16)
        struct.pack_into("<HH", space, 0x104, 0x00ff, acs)
    return bytes(space)


def pci(files, path, vendor, kind, **more):
    """A PCI function at /sys/devices/..., and its link in /sys/bus/pci. Host bridges from 0x80 on are
    the second processor's."""
    bus_id = path.rsplit("/", 1)[1]
    host_bridge = int(path.split("pci0000:")[1][:2], 16)
    more = {"vendor": vendor, "class": kind, "numa_node": int(host_bridge >= 0x80), **more}
    for name, value in more.items():
        files[f"{path}/{name}"] = value if isinstance(value, (bytes, Link)) else f"{value}\n"
    files[f"/sys/bus/pci/devices/{bus_id}"] = Link(path)
    return bus_id


def switch(files, host_bridge, acs=None):
    """A root port and a switch with two downstream ports below it; paths for a GPU and a NIC."""
    root = f"/sys/devices/pci0000:{host_bridge:02x}/0000:{host_bridge:02x}:01.0"
    up = f"{root}/0000:{host_bridge + 1:02x}:00.0"
    down = [f"{up}/0000:{host_bridge + 2:02x}:0{i}.0" for i in (0, 1)]
    for bridge in (root, up, *down):
        pci(files, bridge, "0x8086", "0x060400", config=config_space(acs))
    return (f"{down[0]}/0000:{host_bridge + 3:02x}:00.0", f"{down[1]}/0000:{host_bridge + 4:02x}:00.0")


def gpu(files, facts, path, name="NVIDIA H200", capability=(9, 0), sms=132, multicast=True, peers=None,
        dma_buf=True):
    bus_id = pci(files, path, "0x10de", "0x030200")
    files[f"/proc/driver/nvidia/gpus/{bus_id}/information"] = f"Model: \t\t {name}\nBus Location: \t {bus_id}\n"
    cuda = facts["cuda"]
    cuda.setdefault("devices", [])
    cuda.update(absent=False, error="")
    cuda["version"] = 12080
    cuda["devices"].append({"name": name, "bus_id": bus_id, "major": capability[0], "minor": capability[1],
                            "multiprocessors": sms, "multicast": multicast, "dma_buf": dma_buf,
                            "gpu_direct": True, "peers": peers or []})


def all_peers(facts):
    devices = facts["cuda"]["devices"]
    for number, device in enumerate(devices):
        device["peers"] = [other for other in range(len(devices)) if other != number]


def nic(files, facts, number, path, layer="InfiniBand", rate="400 Gb/sec (4X NDR)", state="4: ACTIVE",
        physical="5: LinkUp", gids=(), mtu=9000, firmware="28.39.3560", counters=None, width="16"):
    """A ConnectX port. gids: (address, type) by index."""
    name = f"mlx5_{number}"
    pci(files, path, "0x15b3", "0x020700" if layer == "InfiniBand" else "0x020000",
        current_link_speed="32.0 GT/s PCIe", max_link_speed="32.0 GT/s PCIe",
        current_link_width=width, max_link_width="16")
    device = f"{path}/infiniband/{name}"
    port = f"{device}/ports/1"
    files.update({
        f"/sys/class/infiniband/{name}": Link(device),
        f"{device}/device": Link(path),
        f"{device}/fw_ver": f"{firmware}\n", f"{device}/board_id": "MT_0000000838\n",
        f"{device}/hca_type": "MT4129\n",
        f"{port}/state": f"{state}\n", f"{port}/phys_state": f"{physical}\n",
        f"{port}/link_layer": f"{layer}\n", f"{port}/rate": f"{rate}\n",
        f"{port}/gids/0": "fe80:0000:0000:0000:0000:0000:0000:0001\n",
        f"{port}/counters/symbol_error": "0\n",
        f"/sys/class/infiniband_verbs/uverbs{number}/ibdev": f"{name}\n",
        f"/dev/infiniband/uverbs{number}": "",
    })
    for counter, count in (counters or {}).items():
        files[f"{port}/{counter}"] = f"{count}\n"
    facts["verbs"].setdefault("devices", []).append(name)
    if layer == "InfiniBand":
        facts["verbs"].setdefault("ports", []).append({"device": name, "port": 1, "mtu": 4096})
        return port
    interface = f"ens{number}np0"
    files[f"{path}/net/{interface}/mtu"] = f"{mtu}\n"
    files[f"/sys/class/net/{interface}"] = Link(f"{path}/net/{interface}")
    for index, (address, kind) in enumerate(gids):
        files[f"{port}/gids/{index}"] = f"{address}\n"
        files[f"{port}/gid_attrs/types/{index}"] = f"{kind}\n"
        files[f"{port}/gid_attrs/ndevs/{index}"] = f"{interface}\n"
    return port


ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
LOCAL = "fe80:0000:0000:0000:a288:c2ff:fe00:0001"
BRIDGES = (0x10, 0x20, 0x40, 0x50, 0x90, 0xa0, 0xc0, 0xd0)


def ipv4(number):
    return f"0000:0000:0000:0000:0000:ffff:0a00:{number + 1:04x}"


def hgx(host, layer="InfiniBand", **port):
    """8 H200 behind NVSwitches, each with a NIC on its own PCI switch."""
    files, facts = base(host)
    driver(files)
    for number, bridge in enumerate(BRIDGES):
        gpu_path, nic_path = switch(files, bridge)
        gpu(files, facts, gpu_path)
        if layer == "Ethernet":
            port["gids"] = ((LOCAL, "IB/RoCE v1"), (LOCAL, "RoCE v2"), (ipv4(number), "IB/RoCE v1"),
                            (ipv4(number), "RoCE v2"), (ZERO, ""))
            facts["flow_control"][f"ens{number}np0"] = "3"
        nic(files, facts, number, nic_path, layer, **port)
    all_peers(facts)
    for number in range(4):
        files[f"/dev/nvidia-nvswitch{number}"] = ""
    files["/dev/nvidia-nvswitchctl"] = ""
    files["/proc/2219/comm"] = "nv-fabricmanage\n"
    files["/proc/2220/comm"] = "nvidia-persiste\n"
    files["/sys/module/nvidia_peermem/refcnt"] = "0\n"
    facts["programs"] = ["ib_write_bw", "nvidia-smi"]
    return files, facts


def h200_infiniband():
    return hgx("h200-ib")


def h200_roce():
    files, facts = hgx("h200-roce", "Ethernet", rate="400 Gb/sec (4X NDR)")
    for number in range(8):
        path = str(files[f"/sys/class/net/ens{number}np0"])
        for side in ("roce_np", "roce_rp"):
            for priority in range(8):
                files[f"{path}/ecn/{side}/enable/{priority}"] = f"{int(priority == 3)}\n"
    return files, facts


def nothing():
    """A virtual machine without GPU, NIC, torch; the net plugin was not built."""
    files, facts = base("bare", kernel="6.1.0-18-amd64", memory_gib=8)
    facts["tide"]["net"] = {}
    facts["tide"]["torch"] = {}
    facts["python"] = {"asked": "python3", "executable": "/usr/bin/python3", "version": "3.11.2",
                       "preloads": True, "torch_error": "it has no torch"}
    facts["verbs"] = {"error": "libibverbs.so.1: cannot open shared object file: No such file or directory"}
    return files, facts


def port_down():
    """One of 8 links is down, one counts losses, one runs at half of its PCI width."""
    files, facts = hgx("h200-flap")
    real = lambda number, name: f"{files[f'/sys/class/infiniband/mlx5_{number}']}/ports/1/{name}"
    files[real(2, "state")] = "1: DOWN\n"
    files[real(2, "phys_state")] = "3: Disabled\n"
    files[real(3, "state")] = "2: INIT\n"
    files[real(4, "counters/symbol_error")] = "17\n"
    files[real(4, "hw_counters/local_ack_timeout_err")] = "2\n"
    nic_path = str(files["/sys/class/infiniband/mlx5_5"]).rsplit("/infiniband", 1)[0]
    files[f"{nic_path}/current_link_width"] = "8\n"
    return files, facts


def roce_untended():
    """RoCE as a first day leaves it: no address, MTU 1500, no flow control, other kinds of GID."""
    files, facts = base("roce-new")
    driver(files, "535.183.01", "x86_64 Kernel Module")
    for number, bridge in enumerate(BRIDGES[:4]):
        gpu_path, nic_path = switch(files, bridge)
        gpu(files, facts, gpu_path, "NVIDIA A100-SXM4-80GB", (8, 0), 108, multicast=False, dma_buf=False)
        gids = {0: ((ZERO, ""),), 1: ((LOCAL, "IB/RoCE v1"), (LOCAL, "RoCE v2")),
                2: ((LOCAL, "IB/RoCE v1"), (ipv4(2), "IB/RoCE v1")),
                3: ((LOCAL, "IB/RoCE v1"), (ipv4(3), "RoCE v2"))}[number]
        nic(files, facts, number, nic_path, "Ethernet", "200 Gb/sec (4X HDR)", gids=gids, mtu=1500,
            firmware="20.38.1002" if number else "20.31.2006")
        facts["flow_control"][f"ens{number}np0"] = "none"
    all_peers(facts)
    del facts["flow_control"]["ens3np0"]
    facts["cuda"]["devices"][0]["peers"].remove(1)
    facts["cuda"]["version"] = 12020
    return files, facts


def container():
    """A careless container: little locked memory, 64 MiB of /dev/shm, no /dev/infiniband, settings that
    turn the plugin off, a glue for another torch."""
    files, facts = hgx("pod-7", "Ethernet")
    for number in range(8):
        del files[f"/dev/infiniband/uverbs{number}"]
    for path in [p for p in files if p.startswith("/proc/22")]:
        del files[path]
    files.update({
        "/.dockerenv": "",
        "/proc/self/limits": limits("65536", "1024"),
        "/proc/self/mounts": "shm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size=65536k 0 0\n",
        "/proc/self/cgroup": "0::/\n",
        "/sys/fs/cgroup/memory.max": "68719476736\n",
        "/proc/self/uid_map": "         0     100000      65536\n",
        "/etc/nccl.conf": "# site\nNCCL_IB_DISABLE=1\n",
    })
    facts["environment"] = {"NCCL_DEBUG": "INFO", "TIDE_NET_GID_INDEX": "3"}
    facts["tide"]["torch"] = {"2.8.0": {"path": "/usr/lib/tide/libtide-torch-2.8.0.so", "release": RELEASE}}
    facts["tide"]["net"]["release"] = "0.0.9"
    facts["verbs"]["devices"] = []
    facts["verbs"].pop("ports", None)
    facts["flow_control"] = {}
    return files, facts


def virtual_machine():
    """8 GPUs and NICs passed through to a flat PCI bus, IOMMU and ACS on, CUDA waits for its fabric
    manager, a static python."""
    files, facts = base("vm-1")
    driver(files)
    for number in range(2):
        root = f"/sys/devices/pci0000:00/0000:00:0{number + 1}.0"
        pci(files, root, "0x8086", "0x060400", config=config_space(0x001d))
        gpu(files, facts, f"{root}/0000:0{number + 1}:00.0")
        other = f"/sys/devices/pci0000:00/0000:00:1{number + 1}.0"
        pci(files, other, "0x8086", "0x060400", config=config_space(None))
        nic(files, facts, number, f"{other}/0000:1{number + 1}:00.0")
        files[f"{other}/0000:1{number + 1}:00.0/iommu_group"] = Link("/sys/kernel/iommu_groups/7")
    files["/sys/kernel/iommu_groups/7/type"] = "DMA-FQ\n"
    files["/dev/nvidia-nvswitch0"] = ""
    facts["cuda"] = {"error": "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)", "error_code": 802}
    facts["python"]["preloads"] = False
    facts["python"]["nccl_version"] = "2.18.6"
    return files, facts


def unprivileged():
    """Two unlike GPUs, a card without its RDMA driver, an old torch; python does not answer NCCL's
    version."""
    files, facts = base("desk", kernel="5.4.0-182-generic", memory_gib=64)
    driver(files)
    gpu(files, facts, "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0", "NVIDIA RTX A6000", (8, 6), 84,
        multicast=False)
    gpu(files, facts, "/sys/devices/pci0000:00/0000:00:02.0/0000:02:00.0", "NVIDIA GeForce RTX 4090", (8, 9),
        128, multicast=False)
    pci(files, "/sys/devices/pci0000:00/0000:00:03.0/0000:03:00.0", "0x15b3", "0x020000")
    facts["python"]["torch_version"] = "2.6.0+cu124"
    return files, facts


MACHINES = {function.__name__: function for function in (
    h200_infiniband, h200_roce, nothing, port_down, roce_untended, container, virtual_machine,
    unprivileged)}


def lay_out(name, folder):
    files, facts = MACHINES[name]()
    write({**files, "/facts.json": json.dumps(facts)}, folder)
    return folder
