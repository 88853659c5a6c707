"""Reads what only root may read of what the kernel keeps for the whole machine."""

read = 0
for name in ("slabinfo", "vmallocinfo", "timer_list", "pagetypeinfo", "iomem", "sched_debug"):
    try:
        read += int(open(f"/proc/{name}").readable() and len(open(f"/proc/{name}").read(8)) > 0)
    except OSError:
        continue
print("done" if read > 1 else "refused")
