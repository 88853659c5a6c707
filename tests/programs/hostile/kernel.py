"""Hostile programs: each function is run alone, and returns whether what it tries was refused."""

import ctypes
import fcntl
import glob
import mmap
import os
import platform
import re
import socket
import struct
import subprocess

from _shared import _call, _fails_in_child, _lines, _no_call, _none, _none_opens, _none_succeeds

USER = 0x10000000  # CLONE_NEWUSER
MOUNTS = 0x20000  # CLONE_NEWNS


def _changes_mounts():
    """In a user namespace of its own: hides, uncovers, exchanges files, makes them writable."""
    bind_all = 4096 | 16384
    return _call(272, 97, USER | MOUNTS) == 0 and not _no_call(
        (165, 40, b"none", b"mounted", b"tmpfs", 0, b"size=8g"),  # mount
        (155, 41, b"mounted", b"mounted"),  # pivot_root
        (165, 40, b"/usr", b"/tmp", None, bind_all, None),
        (165, 40, None, b"/usr", None, 4096 | 32, None),
        (166, 39, b"/tmp", 2),  # umount2
    )


def addresses():
    """Reads where what is in the kernel's memory, past the randomness of addresses."""
    names = ("kallsyms", "modules", "vmallocinfo", "timer_list", "net/unix", "self/stack")
    address = re.compile(r"\bffff[0-9a-f]{12}\b")
    return _none(lambda name: bool(address.search(open(f"/proc/{name}").read(4096))), names)


def answer_page_faults():
    """Has the kernel wait for it at an address of its choice, which helps to win races, by a call
    and by a device."""
    return _no_call((323, 282, 0)) and _none_succeeds(  # userfaultfd
        lambda: fcntl.ioctl(os.open("/dev/userfaultfd", os.O_RDWR), 0xAA00, 0)
    )


def calls_by_other_numbers():
    """Opens a socket by the numbers of the x32 interface, by numbers of which a filter sees only
    half, and by the interface for programs of 32 bits."""
    upper = (1 << 32, 1 << 63, 0x40000000)
    refused = _no_call(*((bits | 41, bits | 198, 1, 1, 0) for bits in upper))
    if platform.machine() != "x86_64":
        return refused
    # mov eax, 359; mov ebx, 1; mov ecx, 1; xor edx, edx; int 0x80, with rbx saved
    code = "53 b867010000 bb01000000 b901000000 31d2 cd80 5b c3"
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex(code))
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    return refused and _fails_in_child(lambda: function() >= 0)


def capabilities_of_new_program():
    """Starts a program, which has all capabilities if its user is root or the file says so."""
    script = ["cat", "/proc/self/status"]
    status = subprocess.run(script, capture_output=True, text=True, check=False).stdout
    return not any(int(effective, 16) for effective in re.findall(r"CapEff:\s*(\w+)", status))


def filter_of_its_own():
    """Adds a filter of system calls that allows all, or that asks it, to allow its own forks."""
    line = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
    program = struct.pack("HP", 1, ctypes.addressof(line))
    return _no_call(
        (157, 167, 38, 1, 0, 0, 0),  # prctl: no new privileges, a filter
        (157, 167, 22, 2, program, 0, 0),
        (317, 277, 1, 8, program),  # seccomp
        (41, 198, 1, 1, 0),  # socket
    )


def interfaces():
    """Uses calls that reach deep into the kernel: programs that run in it, rings of requests that
    no filter sees, files by their number on the disk, another execution domain."""
    array = struct.pack("5I", 2, 4, 4, 1, 0).ljust(64, b"\0")
    file = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136)
    return _no_call(
        (321, 280, 0, array, len(array)),  # bpf
        (425, 425, 4, ctypes.create_string_buffer(256)),  # io_uring_setup
        (426, 426, 0, 0, 0, 0, 0, 0),  # io_uring_enter
        (427, 427, -1, 24, 0, 0),  # io_uring_register
        (303, 264, -100, b"/usr", file, ctypes.byref(ctypes.c_int()), 0),  # name_to_handle_at
        (304, 265, os.open("/usr", os.O_RDONLY), file, os.O_RDONLY),  # open_by_handle_at
        (135, 92, 0x0040000 | 0x0400000),  # personality: no randomness, readable pages as code
    )


def join_namespaces():
    """Joins the namespaces of every process that it can name, or all of its parent at once."""
    parent = _call(434, 434, os.getppid(), 0)
    joined = ((308, 268, parent, kind) for kind in (0, 0x40000000, 0x4000000, 0x8000000, MOUNTS))
    paths = glob.glob("/proc/[0-9]*/ns/[mnu][enst][trs]*")
    return _no_call(*joined) and _none(
        lambda path: _call(308, 268, os.open(path, os.O_RDONLY), 0) == 0, paths
    )


def keys():
    """Adds a key, asks for one, joins keyrings, also those that outlive all sessions, and lists the
    keys of other users."""
    return _no_call(
        (248, 217, b"user", b"k", b"v", 1, -4),  # add_key
        (249, 218, b"user", b"k", 0, -4),  # request_key
        (250, 219, 1, 0, 0, 0, 0),  # keyctl
        (250, 219, 22, os.getuid(), -2, 0, 0),
    ) and all(line.split()[5] == str(os.getuid()) for line in _lines("/proc/keys"))


def machine():
    """Restarts the machine, loads another kernel and modules, accounts programs, swaps, sets its
    name, clock and alarm, and asks for its log, limits and modules of security; nothing comes
    of it where it is allowed."""
    clock, text = ctypes.create_string_buffer(256), ctypes.create_string_buffer(4096)
    name, folder = socket.gethostname().encode(), os.open(".", os.O_RDONLY)
    ports = [(173, -1, 0x80, 1, 1)] if platform.machine() == "x86_64" else []
    return _no_call(
        *ports,  # ioperm
        (169, 142, 1, 2, 0, 0),  # reboot, without the number that confirms it
        (246, 104, 0, 0, 0, 0xFFF0),  # kexec_load, with flags that do not exist
        (175, 105, b"", 0, b""),  # init_module
        (176, 106, b"there_is_no_such_module", 0o4000),  # delete_module
        (163, 89, b"/there/is/no/such/file"),  # acct
        (167, 224, b"/there/is/no/such/file", 0),  # swapon
        (170, 161, name, len(name)),  # sethostname
        (159, 171, clock),  # adjtimex
        (283, 85, 9, 0),  # timerfd_create, by a clock that wakes the machine
        (286, 86, -1, 0, struct.pack("4q", 0, 0, 86400, 0), None),  # timerfd_settime
        (103, 116, 3, text, 4096),  # syslog
        (443, 443, folder, 0x800007 << 8, 0, text),  # quotactl_fd
        (443, 443, folder, 0x800004 << 8, 0, text),
        (461, 461, text, ctypes.byref(ctypes.c_uint32(4096)), 0),  # lsm_list_modules
    )


def machines_and_networks():
    """Opens the devices by which whole machines, file systems and networks are made, to tunnel out
    by one, and graphics cards, whose memory no limit counts."""
    names = ("kvm", "fuse", "loop-control", "mapper/control", "userfaultfd", "dma_heap/system")
    names += ("net/tun", "ppp", "vsock", "vhost-vsock", "vhost-net")
    cards = (*glob.glob("/dev/dri/*"), *glob.glob("/dev/nvidia*"))
    return _none_opens(os.O_RDWR, *(f"/dev/{name}" for name in names), *cards)


def measure():
    """Counts what its parent, the machine's processors and the kernel do, which tells secrets by
    their timing."""
    # Not what happens in user mode, by a clock of the kernel's.
    everything, user = (
        ctypes.create_string_buffer(struct.pack("IIQ24xQ16x", 1, 64, 0, excluded), 64)
        for excluded in (0, 1 << 5 | 1 << 6)
    )
    return _no_call(  # perf_event_open
        (298, 241, everything, 0, -1, -1, 0),
        (298, 241, everything, -1, 0, -1, 0),
        (298, 241, user, os.getppid(), -1, -1, 0),
    )


def mounts():
    """Mounts, copies, changes and lists file systems, and makes its folder the root, from where a
    way leads out of any root; covers and uncovers files in a user namespace of its own."""
    os.mkdir("mounted")
    numbers = ctypes.create_string_buffer(8 * 1000)
    return _fails_in_child(_changes_mounts) and _no_call(
        (165, 40, b"none", b"mounted", b"tmpfs", 0, None),  # mount
        (166, 39, b"mounted", 2),  # umount2
        (428, 428, -100, b"/", 1),  # open_tree: a copy, without what was mounted over it
        (428, 428, -100, b"/", 1 | 0x8000),
        (430, 430, b"tmpfs", 0),  # fsopen
        (431, 431, -1, 6, 0, 0, 0),  # fsconfig
        (432, 432, -1, 0, 0),  # fsmount
        (442, 442, -100, b"/", 0, bytes(32), 32),  # mount_setattr
        (458, 458, struct.pack("IIQQ", 24, 0, 2**64 - 1, 0), numbers, 1000, 0),  # listmount
        (457, 457, struct.pack("IIQQ", 24, 0, 1, 1), numbers, 4096, 0),  # statmount
        (161, 51, b"."),  # chroot
    )


def namespaces():
    """Makes namespaces and becomes root in them: of users, mounts, names, network, processes, and
    so on, also for a new process and by a call whose arguments no filter can look at."""
    kinds = (USER, MOUNTS, 0x2000000, 0x4000000, 0x8000000, 0x20000000, 0x40000000, 0x80)
    uid_map = f"0 {os.getuid()} 1".encode()
    return (
        _fails_in_child(lambda: not _no_call(*((272, 97, kind) for kind in kinds)))  # unshare
        and _fails_in_child(lambda: not _no_call((56, 220, USER | 17, 0, 0, 0, 0)))  # clone
        and _fails_in_child(
            lambda: not _no_call((435, 435, struct.pack("8Q", USER, 0, 0, 0, 17, 0, 0, 0), 64))
        )
        and _none_succeeds(
            lambda: _call(272, 97, USER) == 0,
            lambda: os.write(os.open("/proc/self/uid_map", os.O_WRONLY), uid_map),
        )
    )


def rights():
    """Becomes another user, root if it is not, joins groups with special rights, takes all
    capabilities, and sets what root's user number is worth."""
    header, wanted = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", 1 << 21, 1 << 21, *[0] * 4)
    return _no_call(
        (105, 146, 0 if os.getuid() else 1),  # setuid
        (116, 159, 5, struct.pack("5I", 4, 6, 15, 27, 42)),  # setgroups
        (126, 91, header, wanted),  # capset
        (157, 167, 28, 0, 0, 0, 0),  # prctl, PR_SET_SECUREBITS
    )


def rights_of_setuid_programs():
    """Looks for programs that give root's rights, and whether they would give them to it."""
    paths = [path for path in glob.glob("/usr/bin/*") if os.path.isfile(path)]
    setuid = [path for path in paths if os.stat(path).st_mode & 0o4000]
    usable = [path for path in setuid if not os.statvfs(path).f_flag & os.ST_NOSUID]
    return not usable or "NoNewPrivs:\t0" not in open("/proc/self/status").read()


def settings():
    """Opens the kernel's settings to change them, some of which name programs that it runs as root,
    the files by which the machine sleeps and forgets what it cached, what traces the kernel,
    and its log, to read it and to add lines that look like the kernel's."""
    names = ("core_pattern", "modprobe", "randomize_va_space", "hostname", "dmesg_restrict")
    paths = [f"/proc/sys/kernel/{name}" for name in names]
    paths += ["/sys/kernel/uevent_helper", "/sys/fs/cgroup/release_agent", "/proc/sysrq-trigger"]
    paths += ["/proc/sys/fs/binfmt_misc/register", "/proc/sys/vm/drop_caches"]
    paths += ["/sys/power/state", "/sys/power/mem_sleep", "/dev/kmsg"]
    traces = [f"/sys/kernel/{name}" for name in ("tracing", "debug", "debug/tracing")]
    paths += [f"{folder}/trace_marker" for folder in traces]
    return (
        _none_opens(os.O_WRONLY | os.O_NONBLOCK, *paths)
        and _none_opens(os.O_RDONLY | os.O_NONBLOCK, "/dev/kmsg", "/proc/kmsg")
        and _none(lambda folder: len(os.listdir(folder)) > 0, traces)
    )


def state():
    """Reads what only root may read of what the kernel keeps for the whole machine, such as what
    the pages of its memory are used for."""
    names = ("slabinfo", "vmallocinfo", "timer_list", "pagetypeinfo", "iomem", "sched_debug")
    names += ("kpageflags", "kpagecount", "kpagecgroup")
    return _none(lambda name: open(f"/proc/{name}", "rb").read(8) != b"", names)


def terminals():
    """Has the kernel load line disciplines for a terminal, many of which had holes, and types into
    the terminal of whoever started it, whose shell would run that later."""
    disciplines = [(0x5423, struct.pack("i", number)) for number in (13, 21, 15, 3, 1)]
    requests = (*disciplines, (0x5412, b" "), (0x5412, b"\x7f"))  # a space, erased again at once
    return _no_call(
        *((16, 29, number, *request) for number in range(3) for request in requests)  # ioctl
    )
