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

libc = ctypes.CDLL(None, use_errno=True)


def _call(number_on_x86_64, number_on_aarch64, *arguments):
    numbers = {"x86_64": number_on_x86_64, "aarch64": number_on_aarch64}
    return libc.syscall(numbers[platform.machine()], *arguments)


def account_programs():
    """Has the kernel write down all programs that end, though to a file that does not exist."""
    _call(163, 89, b"/there/is/no/such/file")
    return ctypes.get_errno() != errno.ENOENT


def addresses_of_kernel():
    """Reads where what is in the kernel's memory, past the randomness of addresses."""
    known = 0
    for name in ("kallsyms", "modules", "vmallocinfo", "timer_list", "net/unix", "self/stack"):
        try:
            known += (
                re.search(r"\bffff[0-9a-f]{12}\b", open(f"/proc/{name}").read(4096)) is not None
            )
        except OSError:
            continue
    return not known


def answer_page_faults():
    """Has the kernel wait for it at an address of its choice, which helps to win races."""
    return _call(323, 282, 0) < 0


def answer_page_faults_by_device():
    """Has the kernel wait for it at an address of its choice, by a device that makes it
    possible."""
    fcntl.ioctl(os.open("/dev/userfaultfd", os.O_RDWR), 0xAA00, 0)


def call_by_another_number():
    """Opens a socket by the numbers that calls have in the x32 interface."""
    number = {"x86_64": 0x40000000 | 41, "aarch64": 0x40000000 | 198}[platform.machine()]
    return libc.syscall(number, 1, 1, 0) < 0


def call_of_32_bits():
    """Opens a socket by the interface for programs of 32 bits, which numbers calls otherwise."""
    # mov eax, 359; mov ebx, 1; mov ecx, 1; xor edx, edx; int 0x80, with rbx saved
    code = "53 b867010000 bb01000000 b901000000 31d2 cd80 5b c3"
    opened = False
    if platform.machine() == "x86_64":
        child = os.fork()
        if child == 0:
            page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
            page.write(bytes.fromhex(code))
            address = ctypes.addressof(ctypes.c_char.from_buffer(page))
            os._exit(ctypes.CFUNCTYPE(ctypes.c_int)(address)() < 0)
        opened = os.waitpid(child, 0)[1] == 0
    return not opened


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
    opened = 0
    for path in (
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/release_agent",
        "/proc/sys/fs/binfmt_misc",
    ):
        for file in (path, f"{path}/register"):
            try:
                os.close(os.open(file, os.O_WRONLY))
                opened += 1
            except OSError:
                continue
    return not opened


def limits_of_disk():
    """Asks how much of the machine's disk its users may fill."""
    folder = os.open("/", os.O_RDONLY)
    use = ctypes.create_string_buffer(256)
    read = [libc.syscall(443, folder, command << 8, 0, use) for command in (0x800007, 0x800004)]
    return max(read) < 0


def load_another_kernel():
    """Loads another kernel to start, though with flags that do not exist."""
    _call(246, 104, 0, 0, 0, ctypes.c_ulong(0xFFF0))
    return ctypes.get_errno() != errno.EINVAL


def load_bpf():
    """Makes a map for programs that run in the kernel."""
    array = struct.pack("5I", 2, 4, 4, 1, 0).ljust(64, b"\0")
    return _call(321, 280, 0, array, len(array)) < 0


def load_module():
    """Has the kernel load a module, though an empty one."""
    _call(175, 105, b"", 0, b"")
    # The kernel looks at the module only once it has found that the program may load one.
    return ctypes.get_errno() not in (errno.ENOEXEC, errno.EINVAL)


def log_of_kernel():
    """Reads the kernel's log by the call for that."""
    text = ctypes.create_string_buffer(4096)
    return _call(103, 116, 3, text, len(text)) <= 0


def log_of_kernel_by_file():
    """Opens the kernel's log as a file, to read it and to add lines that look like the kernel's."""
    opened = 0
    for path, mode in (("/dev/kmsg", os.O_RDONLY), ("/dev/kmsg", os.O_WRONLY), ("/proc/kmsg", 0)):
        try:
            os.close(os.open(path, mode | os.O_NONBLOCK))
            opened += 1
        except OSError:
            continue
    return not opened


def measure_kernel():
    """Counts what itself does, the kernel's part included."""
    clock = ctypes.create_string_buffer(struct.pack("IIQ", 1, 64, 0).ljust(64, b"\0"), 64)
    return _call(298, 241, clock, 0, -1, -1, 0) < 0


def measure_machine():
    """Counts what all programs do on a processor of the machine."""
    clock = ctypes.create_string_buffer(struct.pack("IIQ", 1, 64, 0).ljust(64, b"\0"), 64)
    return _call(298, 241, clock, -1, 0, -1, 0) < 0


def measure_parent():
    """Counts what its parent does, which tells secrets by their timing."""
    in_user_mode = struct.pack("IIQ", 1, 64, 0).ljust(40, b"\0") + struct.pack("Q", 1 << 5 | 1 << 6)
    clock = ctypes.create_string_buffer(in_user_mode.ljust(64, b"\0"), 64)
    return _call(298, 241, clock, os.getppid(), -1, -1, 0) < 0


def modules_of_security():
    """Lists by which modules the machine is made secure."""
    size = ctypes.c_uint32(4096)
    listed = libc.syscall(461, ctypes.create_string_buffer(4096), ctypes.byref(size), 0)
    return listed < 0


def open_by_number():
    """Opens a file by its number on the disk, which needs no path that leads to it."""
    name, by_handle = {"x86_64": (303, 304), "aarch64": (264, 265)}[platform.machine()]
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136)
    mount = ctypes.c_int()
    libc.syscall(name, -100, b"/usr", handle, ctypes.byref(mount), 0)
    folder = os.open("/usr", os.O_RDONLY)
    return libc.syscall(by_handle, folder, handle, os.O_RDONLY) < 0


def open_ring():
    """Sets up io_uring, which does what no filter of calls sees."""
    parameters = ctypes.create_string_buffer(256)
    return ctypes.CDLL(None).syscall(425, 4, parameters) < 0


def ports_of_machine():
    """Asks for access to the machine's ports, by which processors reach devices."""
    allowed = platform.machine() == "x86_64" and libc.ioperm(0x80, 1, 1) == 0
    return not allowed


def process_by_clone3():
    """Makes a process in a user namespace by a call whose arguments no filter can look at."""
    arguments = struct.pack("8Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0)
    child = libc.syscall(435, arguments, len(arguments))
    if child == 0:
        os._exit(0)
    if child > 0:
        os.waitpid(child, 0)
    return child < 0


def put_to_sleep():
    """Opens the file by which the machine is put to sleep, and that for emergencies."""
    opened = 0
    for path in ("/sys/power/state", "/proc/sysrq-trigger", "/sys/power/mem_sleep"):
        try:
            os.close(os.open(path, os.O_WRONLY))
            opened += 1
        except OSError:
            continue
    return not opened


def rename_machine():
    """Sets the machine's name, to what it is."""
    socket.sethostname(socket.gethostname())


def restart_machine():
    """Restarts the machine, though without the number that confirms it."""
    number = {"x86_64": 169, "aarch64": 142}[platform.machine()]
    libc.syscall(number, 1, 2, 0, 0)
    return ctypes.get_errno() != errno.EINVAL


def ring_of_others():
    """Registers with rings of requests and enters them, in case only their making is refused."""
    reached = 0
    for number, *arguments in ((426, 0, 0, 0, 0, 0, 0), (427, -1, 24, 0, 0)):
        libc.syscall(number, *arguments)
        reached += ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)
    return not reached


def set_clock():
    """Sets how fast the machine's clock runs, to how fast it does."""
    clock = ctypes.create_string_buffer(256)
    libc.adjtimex(clock)
    struct.pack_into("i", clock, 0, 0x4000)
    return libc.adjtimex(clock) < 0


def settings_of_kernel():
    """Opens settings of the kernel to change them, one of which names a program run as root."""
    opened = 0
    for name in ("core_pattern", "modprobe", "randomize_va_space", "hostname", "dmesg_restrict"):
        try:
            os.close(os.open(f"/proc/sys/kernel/{name}", os.O_WRONLY))
            opened += 1
        except OSError:
            continue
    return not opened


def start_machine():
    """Opens the devices by which whole machines and file systems are made."""
    opened = 0
    for path in (
        "/dev/kvm",
        "/dev/fuse",
        "/dev/loop-control",
        "/dev/mapper/control",
        "/dev/userfaultfd",
    ):
        try:
            os.close(os.open(path, os.O_RDWR))
            opened += 1
        except OSError:
            continue
    return not opened


def state_of_kernel():
    """Reads what only root may read of what the kernel keeps for the whole machine."""
    read = 0
    for name in ("slabinfo", "vmallocinfo", "timer_list", "pagetypeinfo", "iomem", "sched_debug"):
        try:
            read += int(open(f"/proc/{name}").readable() and len(open(f"/proc/{name}").read(8)) > 0)
        except OSError:
            continue
    return not (read > 1)


def terminal_of_its_own():
    """Has the kernel load a line discipline for a terminal, many of which had holes."""
    loaded = 0
    try:
        terminal = os.openpty()[1]
    except OSError:
        terminal = -1
    for discipline in (13, 21, 15, 3, 1):
        try:
            fcntl.ioctl(terminal, 0x5423, struct.pack("i", discipline))
            loaded += 1
        except (OSError, ValueError):
            continue
    return not loaded


def trace_kernel():
    """Lists and opens what traces the kernel and with it all programs."""
    opened = 0
    for folder in ("/sys/kernel/tracing", "/sys/kernel/debug", "/sys/kernel/debug/tracing"):
        try:
            opened += len(os.listdir(folder)) > 0
            os.close(os.open(f"{folder}/trace_marker", os.O_WRONLY))
        except OSError:
            continue
    return not opened


def unload_module():
    """Has the kernel unload a module, though one that does not exist."""
    _call(176, 106, b"there_is_no_such_module", 0o4000)
    return ctypes.get_errno() != errno.ENOENT


def wake_machine():
    """Sets a timer that wakes the machine from sleep, and that no suspending stops."""
    timer = _call(283, 85, 9, 0)
    in_a_day = struct.pack("4q", 0, 0, 86400, 0)
    return timer < 0 or libc.timerfd_settime(timer, 0, in_a_day, None) < 0
