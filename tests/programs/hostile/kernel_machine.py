"""Hostile programs: each function is run alone, and returns whether what it tries was refused."""

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import re
import socket
import struct

from _shared import _call, _error, _fails_in_child, _no_child, _none, _none_opens, libc


def _counts_nothing(process, processor, excluded=0):
    """Not what happens in user mode, by a clock of the kernel's."""
    clock = struct.pack("IIQ24xQ16x", 1, 64, 0, excluded)
    return _call(298, 241, ctypes.create_string_buffer(clock, 64), process, processor, -1, 0) < 0


def account_programs():
    """Has the kernel write down all programs that end, though to a file that does not exist."""
    return _error(163, 89, b"/there/is/no/such/file") != errno.ENOENT


def addresses_of_kernel():
    """Reads where what is in the kernel's memory, past the randomness of addresses."""
    names = ("kallsyms", "modules", "vmallocinfo", "timer_list", "net/unix", "self/stack")
    address = re.compile(r"\bffff[0-9a-f]{12}\b")
    return _none(lambda name: bool(address.search(open(f"/proc/{name}").read(4096))), names)


def answer_page_faults():
    """Has the kernel wait for it at an address of its choice, which helps to win races."""
    return _call(323, 282, 0) < 0


def answer_page_faults_by_device():
    """Has the kernel wait for it at an address of its choice, by a device that makes it
    possible."""
    fcntl.ioctl(os.open("/dev/userfaultfd", os.O_RDWR), 0xAA00, 0)


def call_by_another_number():
    """Opens a socket by the numbers that calls have in the x32 interface."""
    return _call(0x40000000 | 41, 0x40000000 | 198, 1, 1, 0) < 0


def call_of_32_bits():
    """Opens a socket by the interface for programs of 32 bits, which numbers calls otherwise."""
    # mov eax, 359; mov ebx, 1; mov ecx, 1; xor edx, edx; int 0x80, with rbx saved
    code = "53 b867010000 bb01000000 b901000000 31d2 cd80 5b c3"
    if platform.machine() != "x86_64":
        return True
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex(code))
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    return _fails_in_child(lambda: function() >= 0)


def call_with_upper_bits():
    """Opens a socket by a number of which a filter sees only half."""
    number = {"x86_64": 41, "aarch64": 198}[platform.machine()]
    opened = [libc.syscall(ctypes.c_ulong(upper << 32 | number), 1, 1, 0) for upper in (1, 2**31)]
    return max(opened) < 0


def execution_domain():
    """Changes how the kernel runs it: at addresses that can be guessed, and readable pages as
    code."""
    return libc.personality(0x0040000 | 0x0400000) < 0


def helper_of_kernel():
    """Opens files in which programs are named that the kernel runs as root."""
    paths = ("/sys/kernel/uevent_helper", "/sys/fs/cgroup/release_agent")
    return _none_opens(os.O_WRONLY, *paths, "/proc/sys/fs/binfmt_misc/register")


def limits_of_disk():
    """Asks how much of the machine's disk its users may fill."""
    folder, use = os.open("/", os.O_RDONLY), ctypes.create_string_buffer(256)
    kinds = (0x800007, 0x800004)
    return _none(lambda kind: libc.syscall(443, folder, kind << 8, 0, use) >= 0, kinds)


def load_another_kernel():
    """Loads another kernel to start, though with flags that do not exist."""
    return _error(246, 104, 0, 0, 0, ctypes.c_ulong(0xFFF0)) != errno.EINVAL


def load_bpf():
    """Makes a map for programs that run in the kernel."""
    array = struct.pack("5I", 2, 4, 4, 1, 0).ljust(64, b"\0")
    return _call(321, 280, 0, array, len(array)) < 0


def load_module():
    """Has the kernel load a module, though an empty one."""
    # The kernel looks at the module only once it has found that the program may load one.
    return _error(175, 105, b"", 0, b"") not in (errno.ENOEXEC, errno.EINVAL)


def log_of_kernel():
    """Reads the kernel's log by the call for that."""
    return _call(103, 116, 3, ctypes.create_string_buffer(4096), 4096) <= 0


def log_of_kernel_by_file():
    """Opens the kernel's log as a file, to read it and to add lines that look like the kernel's."""
    unread = _none_opens(os.O_RDONLY | os.O_NONBLOCK, "/dev/kmsg", "/proc/kmsg")
    return _none_opens(os.O_WRONLY | os.O_NONBLOCK, "/dev/kmsg") and unread


def measure_kernel():
    """Counts what itself does, the kernel's part included."""
    return _counts_nothing(0, -1)


def measure_machine():
    """Counts what all programs do on a processor of the machine."""
    return _counts_nothing(-1, 0)


def measure_parent():
    """Counts what its parent does, which tells secrets by their timing."""
    return _counts_nothing(os.getppid(), -1, excluded=1 << 5 | 1 << 6)


def modules_of_security():
    """Lists by which modules the machine is made secure."""
    size = ctypes.c_uint32(4096)
    return libc.syscall(461, ctypes.create_string_buffer(4096), ctypes.byref(size), 0) < 0


def open_by_number():
    """Opens a file by its number on the disk, which needs no path that leads to it."""
    handle, mount = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136), ctypes.c_int()
    _call(303, 264, -100, b"/usr", handle, ctypes.byref(mount), 0)
    return _call(304, 265, os.open("/usr", os.O_RDONLY), handle, os.O_RDONLY) < 0


def open_ring():
    """Sets up io_uring, which does what no filter of calls sees."""
    return libc.syscall(425, 4, ctypes.create_string_buffer(256)) < 0


def ports_of_machine():
    """Asks for access to the machine's ports, by which processors reach devices."""
    return platform.machine() != "x86_64" or libc.ioperm(0x80, 1, 1) != 0


def process_by_clone3():
    """Makes a process in a user namespace by a call whose arguments no filter can look at."""
    return _no_child(libc.syscall(435, struct.pack("8Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0), 64))


def put_to_sleep():
    """Opens the file by which the machine is put to sleep, and that for emergencies."""
    paths = ("/sys/power/state", "/proc/sysrq-trigger", "/sys/power/mem_sleep")
    return _none_opens(os.O_WRONLY, *paths)


def rename_machine():
    """Sets the machine's name, to what it is."""
    socket.sethostname(socket.gethostname())


def restart_machine():
    """Restarts the machine, though without the number that confirms it."""
    return _error(169, 142, 1, 2, 0, 0) != errno.EINVAL


def ring_of_others():
    """Registers with rings of requests and enters them, in case only their making is refused."""
    errors = {_error(426, 426, 0, 0, 0, 0, 0, 0), _error(427, 427, -1, 24, 0, 0)}
    return errors <= {errno.EPERM, errno.ENOSYS}


def set_clock():
    """Sets how fast the machine's clock runs, to how fast it does."""
    clock = ctypes.create_string_buffer(256)
    libc.adjtimex(clock)
    struct.pack_into("i", clock, 0, 0x4000)
    return libc.adjtimex(clock) < 0


def settings_of_kernel():
    """Opens settings of the kernel to change them, one of which names a program run as root."""
    names = ("core_pattern", "modprobe", "randomize_va_space", "hostname", "dmesg_restrict")
    return _none_opens(os.O_WRONLY, *(f"/proc/sys/kernel/{name}" for name in names))


def start_machine():
    """Opens the devices by which whole machines and file systems are made."""
    names = ("kvm", "fuse", "loop-control", "mapper/control", "userfaultfd")
    return _none_opens(os.O_RDWR, *(f"/dev/{name}" for name in names))


def state_of_kernel():
    """Reads what only root may read of what the kernel keeps for the whole machine."""
    names = ("slabinfo", "vmallocinfo", "timer_list", "pagetypeinfo", "iomem", "sched_debug")
    paths = [f"/proc/{name}" for name in names]
    return sum(not _none(lambda path: open(path).read(8) != "", [path]) for path in paths) <= 1


def terminal_of_its_own():
    """Has the kernel load a line discipline for a terminal, many of which had holes."""
    terminal = os.openpty()[1]
    disciplines = (struct.pack("i", number) for number in (13, 21, 15, 3, 1))
    return _none(lambda discipline: fcntl.ioctl(terminal, 0x5423, discipline), disciplines)


def trace_kernel():
    """Lists and opens what traces the kernel and with it all programs."""
    folders = ("/sys/kernel/tracing", "/sys/kernel/debug", "/sys/kernel/debug/tracing")
    unopened = _none_opens(os.O_WRONLY, *(f"{folder}/trace_marker" for folder in folders))
    return unopened and _none(lambda folder: len(os.listdir(folder)) > 0, folders)


def unload_module():
    """Has the kernel unload a module, though one that does not exist."""
    return _error(176, 106, b"there_is_no_such_module", 0o4000) != errno.ENOENT


def wake_machine():
    """Sets a timer that wakes the machine from sleep, and that no suspending stops."""
    timer = _call(283, 85, 9, 0)
    in_a_day = struct.pack("4q", 0, 0, 86400, 0)
    return timer < 0 or libc.timerfd_settime(timer, 0, in_a_day, None) < 0
