"""What was used, by whom, and what it costs: usage records, their spool, the ledger, and prices."""

from forebay.metering.ledger import Ledger, PriceConflictError
from forebay.metering.prices import Price, choose, rounded
from forebay.metering.records import Attempt, Checkpoint, Quantities, Status, TerminatedBy, UsageRecord
from forebay.metering.report import DIMENSIONS, Line, UsageQuery, total
from forebay.metering.shipper import Shipper
from forebay.metering.spool import Spool
from forebay.metering.spooldir import SpoolInUseError
from forebay.metering.usage import billable, is_measured, quantities

__all__ = [
    "DIMENSIONS",
    "Attempt",
    "Checkpoint",
    "Ledger",
    "Line",
    "Price",
    "PriceConflictError",
    "Quantities",
    "Shipper",
    "Spool",
    "SpoolInUseError",
    "Status",
    "TerminatedBy",
    "UsageQuery",
    "UsageRecord",
    "billable",
    "choose",
    "is_measured",
    "quantities",
    "rounded",
    "total",
]
