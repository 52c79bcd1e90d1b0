"""What limits count. No key, project or tenant is ever a label."""

from prometheus_client import Counter, Gauge, Histogram

REFUSALS = Counter("forebay_limit_refusals_total", "Requests refused by a limit of a key, project or tenant",
                   ["limit", "level"])  # fmt: skip
RESERVATIONS = Counter(
    "forebay_limit_reservations_total",
    "Requests measured against limits: in Valkey, or here by this process's share while that is away",
    ["where"],
)
RESERVE = Histogram(
    "forebay_limit_reserve_seconds",
    "What measuring a request against limits in Valkey took, failures among it",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25),
)
SHARED = Gauge("forebay_limits_shared", "1 while limits are counted in Valkey, 0 while by this process's share")
PROCESSES = Gauge("forebay_limit_processes", "Processes that limits are shared by, as last heard")
LEASES = Gauge("forebay_limit_leases", "Slots of limits on concurrency that requests of this process hold")

IN_VALKEY, HERE = RESERVATIONS.labels("valkey"), RESERVATIONS.labels("local")
